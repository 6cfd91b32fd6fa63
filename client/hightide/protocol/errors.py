"""The error table and the exception tree: every way a call can end that is not a result.

What this room is: Kafka's error names with their numbers, whether a retry can help, and whether the
client should look at the cluster's metadata again first; and the exceptions that carry them.
What it is not: it decides nothing. The core raises `Refused`, the broker's handlers alone turn it
into a code on the wire, the client alone turns a code back into an `ApiError`.

Exceptions are sorted by whose fault it was:

* `Refused` - a legal no, raised inside a broker; never seen by a client's caller.
* `ApiError` - the cluster said no, or still said no when the retries were used up.
* `RemoteProtocolError` - the peer sent bytes that make no sense; that connection is finished.
* `CorruptBatch` - stored or received record bytes failed a check.
* `BrokerUnreachable`, `RequestTimedOut` - nothing was said at all.
* `UsageError` and its kin - the caller asked for something that cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from operator import index
from types import MappingProxyType
from typing import Any, NamedTuple

from hightide.protocol.words import counted


class ErrorCode(StrEnum):
    """Kafka's error names; the wire carries the name, not the number."""

    UNKNOWN_SERVER_ERROR = "UNKNOWN_SERVER_ERROR"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    CORRUPT_MESSAGE = "CORRUPT_MESSAGE"
    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
    LEADER_NOT_AVAILABLE = "LEADER_NOT_AVAILABLE"
    NOT_LEADER_OR_FOLLOWER = "NOT_LEADER_OR_FOLLOWER"
    REQUEST_TIMED_OUT = "REQUEST_TIMED_OUT"
    BROKER_NOT_AVAILABLE = "BROKER_NOT_AVAILABLE"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    COORDINATOR_NOT_AVAILABLE = "COORDINATOR_NOT_AVAILABLE"
    INVALID_TOPIC = "INVALID_TOPIC"
    RECORD_LIST_TOO_LARGE = "RECORD_LIST_TOO_LARGE"
    NOT_ENOUGH_REPLICAS = "NOT_ENOUGH_REPLICAS"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    INVALID_REQUIRED_ACKS = "INVALID_REQUIRED_ACKS"
    INVALID_TIMESTAMP = "INVALID_TIMESTAMP"
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
    TOPIC_ALREADY_EXISTS = "TOPIC_ALREADY_EXISTS"
    INVALID_PARTITIONS = "INVALID_PARTITIONS"
    INVALID_REPLICATION_FACTOR = "INVALID_REPLICATION_FACTOR"
    INVALID_REPLICA_ASSIGNMENT = "INVALID_REPLICA_ASSIGNMENT"
    INVALID_CONFIG = "INVALID_CONFIG"
    NOT_CONTROLLER = "NOT_CONTROLLER"
    INVALID_REQUEST = "INVALID_REQUEST"
    TOPIC_AUTHORIZATION_FAILED = "TOPIC_AUTHORIZATION_FAILED"
    GROUP_AUTHORIZATION_FAILED = "GROUP_AUTHORIZATION_FAILED"
    CLUSTER_AUTHORIZATION_FAILED = "CLUSTER_AUTHORIZATION_FAILED"
    UNSUPPORTED_SASL_MECHANISM = "UNSUPPORTED_SASL_MECHANISM"
    ILLEGAL_SASL_STATE = "ILLEGAL_SASL_STATE"
    SASL_AUTHENTICATION_FAILED = "SASL_AUTHENTICATION_FAILED"
    SECURITY_DISABLED = "SECURITY_DISABLED"
    RESOURCE_NOT_FOUND = "RESOURCE_NOT_FOUND"
    DUPLICATE_RESOURCE = "DUPLICATE_RESOURCE"
    UNACCEPTABLE_CREDENTIAL = "UNACCEPTABLE_CREDENTIAL"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = "UNSUPPORTED_FOR_MESSAGE_FORMAT"
    POLICY_VIOLATION = "POLICY_VIOLATION"
    OUT_OF_ORDER_SEQUENCE_NUMBER = "OUT_OF_ORDER_SEQUENCE_NUMBER"
    DUPLICATE_SEQUENCE_NUMBER = "DUPLICATE_SEQUENCE_NUMBER"
    INVALID_PRODUCER_EPOCH = "INVALID_PRODUCER_EPOCH"
    INVALID_TXN_STATE = "INVALID_TXN_STATE"
    KAFKA_STORAGE_ERROR = "KAFKA_STORAGE_ERROR"
    UNKNOWN_PRODUCER_ID = "UNKNOWN_PRODUCER_ID"
    FENCED_LEADER_EPOCH = "FENCED_LEADER_EPOCH"
    UNKNOWN_LEADER_EPOCH = "UNKNOWN_LEADER_EPOCH"
    STALE_BROKER_EPOCH = "STALE_BROKER_EPOCH"
    OFFSET_NOT_AVAILABLE = "OFFSET_NOT_AVAILABLE"
    UNSUPPORTED_COMPRESSION_TYPE = "UNSUPPORTED_COMPRESSION_TYPE"
    THROTTLING_QUOTA_EXCEEDED = "THROTTLING_QUOTA_EXCEEDED"
    INVALID_RECORD = "INVALID_RECORD"
    UNKNOWN_TOPIC_ID = "UNKNOWN_TOPIC_ID"
    DUPLICATE_BROKER_REGISTRATION = "DUPLICATE_BROKER_REGISTRATION"
    BROKER_ID_NOT_REGISTERED = "BROKER_ID_NOT_REGISTERED"
    INCONSISTENT_TOPIC_ID = "INCONSISTENT_TOPIC_ID"
    INCONSISTENT_CLUSTER_ID = "INCONSISTENT_CLUSTER_ID"
    INVALID_VOTER_KEY = "INVALID_VOTER_KEY"
    DUPLICATE_VOTER = "DUPLICATE_VOTER"
    VOTER_NOT_FOUND = "VOTER_NOT_FOUND"
    PREFERRED_LEADER_NOT_AVAILABLE = "PREFERRED_LEADER_NOT_AVAILABLE"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = "ELIGIBLE_LEADERS_NOT_AVAILABLE"
    ELECTION_NOT_NEEDED = "ELECTION_NOT_NEEDED"
    INVALID_UPDATE_VERSION = "INVALID_UPDATE_VERSION"
    SNAPSHOT_NOT_FOUND = "SNAPSHOT_NOT_FOUND"
    POSITION_OUT_OF_RANGE = "POSITION_OUT_OF_RANGE"
    INELIGIBLE_REPLICA = "INELIGIBLE_REPLICA"
    FETCH_SESSION_ID_NOT_FOUND = "FETCH_SESSION_ID_NOT_FOUND"
    INVALID_FETCH_SESSION_EPOCH = "INVALID_FETCH_SESSION_EPOCH"
    OFFSET_METADATA_TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"
    COORDINATOR_LOAD_IN_PROGRESS = "COORDINATOR_LOAD_IN_PROGRESS"
    NOT_COORDINATOR = "NOT_COORDINATOR"
    ILLEGAL_GENERATION = "ILLEGAL_GENERATION"
    INCONSISTENT_GROUP_PROTOCOL = "INCONSISTENT_GROUP_PROTOCOL"
    INVALID_GROUP_ID = "INVALID_GROUP_ID"
    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
    INVALID_SESSION_TIMEOUT = "INVALID_SESSION_TIMEOUT"
    REBALANCE_IN_PROGRESS = "REBALANCE_IN_PROGRESS"
    NON_EMPTY_GROUP = "NON_EMPTY_GROUP"
    GROUP_ID_NOT_FOUND = "GROUP_ID_NOT_FOUND"
    MEMBER_ID_REQUIRED = "MEMBER_ID_REQUIRED"
    GROUP_MAX_SIZE_REACHED = "GROUP_MAX_SIZE_REACHED"
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"
    GROUP_SUBSCRIBED_TO_TOPIC = "GROUP_SUBSCRIBED_TO_TOPIC"
    CORRUPT_FRAME = "CORRUPT_FRAME"


class ErrorInfo(NamedTuple):
    """What a code means for a client that receives it."""

    number: int
    """Kafka's number, for people who look it up; -1000 and below are hightide's own."""
    retriable: bool
    """The same request may succeed later."""
    refresh: bool
    """Metadata may be stale: look again before the retry."""
    meaning: str


_C = ErrorCode
ERRORS: dict[ErrorCode, ErrorInfo] = {
    _C.UNKNOWN_SERVER_ERROR: ErrorInfo(-1, False, False, "the broker met an unexpected failure"),
    _C.OFFSET_OUT_OF_RANGE: ErrorInfo(1, False, False, "the offset is not in the log"),
    _C.CORRUPT_MESSAGE: ErrorInfo(2, True, False, "the record bytes failed a check"),
    _C.UNKNOWN_TOPIC_OR_PARTITION: ErrorInfo(3, True, True, "no such topic or partition here"),
    _C.LEADER_NOT_AVAILABLE: ErrorInfo(5, True, True, "the partition has no leader now"),
    _C.NOT_LEADER_OR_FOLLOWER: ErrorInfo(6, True, True, "this broker does not lead the partition"),
    _C.REQUEST_TIMED_OUT: ErrorInfo(7, True, False, "the outcome is unknown: time ran out"),
    _C.BROKER_NOT_AVAILABLE: ErrorInfo(8, True, True, "the broker is stopping or not ready"),
    _C.MESSAGE_TOO_LARGE: ErrorInfo(10, False, False, "the batch exceeds max.message.bytes"),
    _C.COORDINATOR_NOT_AVAILABLE: ErrorInfo(15, True, True, "no coordinator is ready"),
    _C.INVALID_TOPIC: ErrorInfo(17, False, False, "the topic's name is not allowed"),
    _C.RECORD_LIST_TOO_LARGE: ErrorInfo(18, False, False, "the batch exceeds segment.bytes"),
    _C.NOT_ENOUGH_REPLICAS: ErrorInfo(19, True, False, "the ISR is below min.insync.replicas"),
    _C.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorInfo(
        20, True, False, "appended, then the ISR fell below min.insync.replicas"
    ),
    _C.INVALID_REQUIRED_ACKS: ErrorInfo(21, False, False, "acks is none of 0, 1, all"),
    _C.INVALID_TIMESTAMP: ErrorInfo(32, False, False, "a timestamp is outside the allowed range"),
    _C.UNSUPPORTED_VERSION: ErrorInfo(35, False, False, "the peer does not know this API version"),
    _C.TOPIC_ALREADY_EXISTS: ErrorInfo(36, False, False, "the topic exists"),
    _C.INVALID_PARTITIONS: ErrorInfo(37, False, False, "the partition count is not possible"),
    _C.INVALID_REPLICATION_FACTOR: ErrorInfo(38, False, False, "too few brokers for the factor"),
    _C.INVALID_REPLICA_ASSIGNMENT: ErrorInfo(39, False, False, "the assignment is not possible"),
    _C.INVALID_CONFIG: ErrorInfo(40, False, False, "a configuration key or value is not known"),
    _C.NOT_CONTROLLER: ErrorInfo(41, True, True, "this node is not the active controller"),
    _C.INVALID_REQUEST: ErrorInfo(42, False, False, "the request makes no sense"),
    _C.TOPIC_AUTHORIZATION_FAILED: ErrorInfo(
        29, False, False, "the sender may not do this to the topic"
    ),
    _C.GROUP_AUTHORIZATION_FAILED: ErrorInfo(
        30, False, False, "the sender may not do this to the group"
    ),
    _C.CLUSTER_AUTHORIZATION_FAILED: ErrorInfo(
        31, False, False, "the sender may not do this to the cluster"
    ),
    _C.UNSUPPORTED_SASL_MECHANISM: ErrorInfo(
        33, False, False, "users do not log in here by this mechanism"
    ),
    _C.ILLEGAL_SASL_STATE: ErrorInfo(34, False, False, "this is not said at this point of a login"),
    _C.SASL_AUTHENTICATION_FAILED: ErrorInfo(
        58, False, False, "the user is unknown, or the password is another"
    ),
    _C.SECURITY_DISABLED: ErrorInfo(54, False, False, "the cluster keeps no permissions"),
    _C.RESOURCE_NOT_FOUND: ErrorInfo(91, False, False, "there is none of this name"),
    _C.DUPLICATE_RESOURCE: ErrorInfo(92, False, False, "the request names one thing twice"),
    _C.UNACCEPTABLE_CREDENTIAL: ErrorInfo(93, False, False, "the password cannot be kept as given"),
    _C.UNSUPPORTED_FOR_MESSAGE_FORMAT: ErrorInfo(
        43, False, False, "a broker cannot read batches of this form"
    ),
    _C.POLICY_VIOLATION: ErrorInfo(44, False, False, "the topic's policy forbids it"),
    _C.OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorInfo(45, False, False, "a batch is missing before it"),
    _C.DUPLICATE_SEQUENCE_NUMBER: ErrorInfo(46, False, False, "the batch is stored already"),
    _C.INVALID_PRODUCER_EPOCH: ErrorInfo(47, False, False, "a newer producer took over"),
    _C.INVALID_TXN_STATE: ErrorInfo(48, False, False, "no such transaction is under way"),
    _C.KAFKA_STORAGE_ERROR: ErrorInfo(56, True, True, "the disk failed or is full"),
    _C.UNKNOWN_PRODUCER_ID: ErrorInfo(59, False, False, "the producer id is not known here"),
    _C.FENCED_LEADER_EPOCH: ErrorInfo(
        74, True, True, "the leader epoch is older than the broker's"
    ),
    _C.UNKNOWN_LEADER_EPOCH: ErrorInfo(
        75, True, True, "the leader epoch is newer than the broker's"
    ),
    _C.STALE_BROKER_EPOCH: ErrorInfo(77, False, False, "an older registration of this broker"),
    _C.OFFSET_NOT_AVAILABLE: ErrorInfo(78, True, True, "a new leader does not know its watermark"),
    _C.UNSUPPORTED_COMPRESSION_TYPE: ErrorInfo(76, False, False, "the codec is not known"),
    _C.THROTTLING_QUOTA_EXCEEDED: ErrorInfo(89, True, False, "a quota allows it later"),
    _C.INVALID_RECORD: ErrorInfo(87, False, False, "a record breaks a rule of the topic"),
    _C.UNKNOWN_TOPIC_ID: ErrorInfo(100, True, True, "no topic has this id"),
    _C.DUPLICATE_BROKER_REGISTRATION: ErrorInfo(101, True, False, "this broker id is alive"),
    _C.BROKER_ID_NOT_REGISTERED: ErrorInfo(102, False, False, "the broker is not registered"),
    _C.INCONSISTENT_TOPIC_ID: ErrorInfo(103, True, True, "the topic was deleted and made again"),
    _C.INCONSISTENT_CLUSTER_ID: ErrorInfo(104, False, False, "the peer is of another cluster"),
    _C.INVALID_VOTER_KEY: ErrorInfo(125, False, False, "the voter's directory is another one"),
    _C.DUPLICATE_VOTER: ErrorInfo(126, False, False, "the node is a voter already"),
    _C.VOTER_NOT_FOUND: ErrorInfo(127, False, False, "the node is no voter"),
    _C.PREFERRED_LEADER_NOT_AVAILABLE: ErrorInfo(
        80, True, True, "the preferred replica is not alive and in sync"
    ),
    _C.ELIGIBLE_LEADERS_NOT_AVAILABLE: ErrorInfo(83, True, True, "no replica may lead now"),
    _C.ELECTION_NOT_NEEDED: ErrorInfo(84, True, True, "the partition has the right leader"),
    _C.INVALID_UPDATE_VERSION: ErrorInfo(95, False, False, "the partition epoch is an older one"),
    _C.SNAPSHOT_NOT_FOUND: ErrorInfo(98, False, False, "no such snapshot here any more"),
    _C.POSITION_OUT_OF_RANGE: ErrorInfo(99, False, False, "the snapshot is shorter"),
    _C.INELIGIBLE_REPLICA: ErrorInfo(107, False, False, "a replica may not be in the ISR now"),
    _C.FETCH_SESSION_ID_NOT_FOUND: ErrorInfo(
        70, True, False, "the leader does not know this fetch session"
    ),
    _C.INVALID_FETCH_SESSION_EPOCH: ErrorInfo(
        71, True, False, "a request of the fetch session is missing"
    ),
    _C.OFFSET_METADATA_TOO_LARGE: ErrorInfo(
        12, False, False, "the text beside a committed offset is too long"
    ),
    _C.COORDINATOR_LOAD_IN_PROGRESS: ErrorInfo(
        14, True, False, "the coordinator reads what the group had"
    ),
    _C.NOT_COORDINATOR: ErrorInfo(16, True, True, "this broker does not coordinate the group"),
    _C.ILLEGAL_GENERATION: ErrorInfo(22, False, False, "the group has another generation"),
    _C.INCONSISTENT_GROUP_PROTOCOL: ErrorInfo(
        23, False, False, "no assignor that all members know"
    ),
    _C.INVALID_GROUP_ID: ErrorInfo(24, False, False, "the group's name is not allowed"),
    _C.UNKNOWN_MEMBER_ID: ErrorInfo(25, False, False, "the group has no such member"),
    _C.INVALID_SESSION_TIMEOUT: ErrorInfo(
        26, False, False, "the session timeout is not allowed here"
    ),
    _C.REBALANCE_IN_PROGRESS: ErrorInfo(
        27, False, False, "the group is being rebalanced: join again"
    ),
    _C.NON_EMPTY_GROUP: ErrorInfo(68, False, False, "the group has members"),
    _C.GROUP_ID_NOT_FOUND: ErrorInfo(69, False, False, "there is no such group"),
    _C.MEMBER_ID_REQUIRED: ErrorInfo(
        79, False, False, "join again with the member id in the answer"
    ),
    _C.GROUP_MAX_SIZE_REACHED: ErrorInfo(81, False, False, "the group is full"),
    _C.FENCED_INSTANCE_ID: ErrorInfo(
        82, False, False, "another process took this static member over"
    ),
    _C.GROUP_SUBSCRIBED_TO_TOPIC: ErrorInfo(86, False, False, "a member reads this topic"),
    _C.CORRUPT_FRAME: ErrorInfo(-1000, False, False, "the bytes are no frame of this protocol"),
}


def error_code(name: str) -> ErrorCode:
    """The code of a name from the wire; a name this client does not know is
    UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(name)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


NO_RECORDS: Mapping[int, str] = MappingProxyType({})


class Refused(Exception):
    """A legal no, with the sentence for the user: the value, the expectation, the option."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        throttle_time_ms: int = 0,
        records: Mapping[int, str] = NO_RECORDS,
    ) -> None:
        """`throttle_time_ms`: when the same may be asked again, if a quota says no. `records`: why,
        by their places in a batch, if it is refused for some of its records (KIP-467)."""
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.throttle_time_ms = throttle_time_ms
        self.records = records


class HightideError(Exception):
    """The root of everything the client library raises."""

    @property
    def reason(self) -> str:
        """What was wrong, and where; nothing of how hard it was tried."""
        return str(self)


class UsageError(HightideError, ValueError):
    """The caller's arguments cannot work; nothing was sent."""


class RecordTooLarge(UsageError):
    """One record is larger than max_request_size or buffer_memory."""


class ClosedError(HightideError):
    """The client, or the connection under it, is closed."""


class RemoteProtocolError(HightideError):
    """The peer's bytes break the protocol; the connection they came on is finished."""


class AnotherProtocol(RemoteProtocolError):
    """The peer speaks TLS, HTTP or the like; trying again will not change that."""


class CorruptBatch(HightideError):
    """Record bytes failed a check: size, CRC, counts, or columns or rows that do not add up."""


class UnknownMagic(CorruptBatch):
    """A batch says that it has a form which nobody here can read."""


class InflatesTooFar(CorruptBatch):
    """A compressed payload becomes larger than its reader allows."""


class LogTruncated(HightideError):
    """Records that were read are not in the partition any more: an unclean election took them, or
    the topic was deleted and made again (KIP-320).

    `divergent_offset` is where what is there now begins to differ, -1 if nothing of it is the same.
    """

    def __init__(self, message: str, *, divergent_offset: int = -1) -> None:
        super().__init__(message)
        self.divergent_offset = divergent_offset


class _Attempted(HightideError):
    """An error that knows how hard it was tried."""

    def __init__(
        self,
        message: str,
        *,
        broker: str = "",
        attempts: int = 1,
        elapsed_s: float = 0.0,
        knob: str = "",
    ) -> None:
        self.message = message
        self.broker = broker
        self.attempts = attempts
        self.elapsed_s = elapsed_s
        self.knob = knob
        super().__init__(message)

    @property
    def reason(self) -> str:
        return f"{self.message} (broker {self.broker})" if self.broker else self.message

    def __str__(self) -> str:
        facts = [f"broker {self.broker}"] if self.broker else []
        facts.append(counted(self.attempts, "attempt"))
        facts.append(f"{self.elapsed_s:.1f} s")
        if self.knob:
            facts.append(f"see {self.knob}")
        return f"{self.message} [{', '.join(facts)}]"


class BrokerUnreachable(_Attempted):
    """No connection to the broker, or it broke before the answer came."""


class NobodyListens(BrokerUnreachable):
    """The broker's machine refused the connection: it does not run there, or not yet."""


def no_connection(error: OSError, address: str) -> BrokerUnreachable:
    """What a connection that could not be made is to whoever wanted it."""
    kind = NobodyListens if isinstance(error, ConnectionRefusedError) else BrokerUnreachable
    return kind(f"no connection: {error.strerror or error}", broker=address)


class AuthenticationFailed(BrokerUnreachable):
    """One side turned the other away: a certificate that is missing or not believed, or a port that
    speaks without TLS where this side does. The same attempt would end the same way."""


class RequestTimedOut(_Attempted):
    """No answer within the deadline; whether the request took effect is unknown."""


class DeliveryTimeout(_Attempted):
    """A record was not acknowledged within delivery_timeout_ms; it may still be stored."""


class ApiError(_Attempted):
    """The cluster refused the request.

    `code` is the Kafka error, `retriable` says whether the same request may succeed later.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str = "",
        *,
        broker: str = "",
        attempts: int = 1,
        elapsed_s: float = 0.0,
        knob: str = "",
    ) -> None:
        text = f"{code}: {message or ERRORS[code].meaning}"
        super().__init__(text, broker=broker, attempts=attempts, elapsed_s=elapsed_s, knob=knob)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled, as from a worker process: by its code, not by its text.
        return type(self), (self.code,), self.__dict__

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return ERRORS[self.code].retriable

    @property
    def refresh(self) -> bool:
        """Whether metadata should be looked at again before a retry."""
        return ERRORS[self.code].refresh


SILENT = (BrokerUnreachable, RequestTimedOut)
"""Nothing was said: the same request may succeed later."""
UNREACHABLE = (*SILENT, RemoteProtocolError)
"""Nothing was said that makes sense: another connection or broker may do better."""
TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
"""A batch is refused that may be stored in pieces."""


def is_hopeless(error: HightideError) -> bool:
    """Whether the same attempt would end the same way."""
    if isinstance(error, ApiError):
        return not error.retriable
    return isinstance(error, AuthenticationFailed)


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """What goes behind a sentence about a name that nobody knows: the nearest one, or nothing."""
    by_lower = {each.lower(): each for each in known}
    low = name.lower()
    close = get_close_matches(low, by_lower, n=1)
    if low and not close:
        close = [each for each in by_lower if low in each]
    return f", did you mean {prefix}{by_lower[close[0]]}?" if close else ""


def whole(name: str, value: object, *, least: int = -(1 << 63)) -> int:
    """A number of 64 bits as Python's own: those of numpy are welcome. Raises `UsageError` for a
    float, which is a mistake: seconds for milliseconds?"""
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(f"{name} is {value!r}, expected a whole number") from error
    if not least <= number < 1 << 63:
        raise UsageError(f"{name} {value!r}, expected {least} to {(1 << 63) - 1}")
    return number


def seconds(name: str, milliseconds: float) -> float:
    """A time to wait; raises `UsageError` if it is none."""
    try:
        # No text, also if it reads like a number: others calculate with it.
        found = float(milliseconds + 0) / 1000
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} is {milliseconds!r}, expected a number") from error
    if not found >= 0:
        raise UsageError(f"{name} is {milliseconds!r}, expected 0 or more")
    return found
