"""What a producer may be told."""

from __future__ import annotations

from dataclasses import dataclass

from hightide.net.explained import explained
from hightide.net.options import ClientOptions
from hightide.net.ports import WallClock
from hightide.produce.accumulator import Accumulator
from hightide.produce.partitioner import Partitioner
from hightide.protocol.codecs import CODECS
from hightide.protocol.errors import UsageError
from hightide.protocol.messages import ACKS_ALL

ACKS = {"all": ACKS_ALL, -1: ACKS_ALL, "-1": ACKS_ALL, 1: 1, "1": 1, 0: 0, "0": 0}
IN_FLIGHT_IN_ORDER = 5
"""So many batches of a partition may be on their way and still be told apart by a broker."""


@explained
@dataclass(frozen=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """The options of `Producer`: Kafka's names and, but for `batch_size`, defaults; times in ms,
    sizes in bytes."""

    client_id: str = "hightide-producer"
    acks: str | int = "all"
    """Who has a record before it counts as delivered: "all" replicas in sync, 1 (the leader), or 0
    (nobody is asked). Kafka: acks."""
    enable_idempotence: bool | None = None
    """Whether a record that is sent again is stored once; None: if the other options allow it.
    Kafka: enable.idempotence."""
    batch_size: int = 512 << 10
    """Records of a partition are gathered up to so many bytes, and at most into what one request
    or the buffer holds. Kafka: batch.size, 16 KiB by default: a batch costs every replica a sync,
    so that a producer with much to say is seven times faster with this, and twelve times with
    records of 1 KiB. A topic that takes none so large (max.message.bytes, segment.bytes) says so,
    and gets smaller ones from then on; with acks=0 it cannot, and they are lost."""
    linger_ms: float = 5
    """How long a batch that is not full waits for more records. Kafka: linger.ms."""
    max_request_size: int = 1 << 20
    """The largest record, and the largest request. Kafka: max.request.size."""
    buffer_memory: int = 32 << 20
    """So much may be buffered; `send` waits for room beyond that. Kafka: buffer.memory."""
    max_block_ms: float = 60_000
    """How long `send` waits for room, or to hear of its topic. Kafka: max.block.ms."""
    delivery_timeout_ms: float = 120_000
    """How long a record may take from `send` to its outcome, all retries included. Kafka:
    delivery.timeout.ms; raised to linger_ms + request_timeout_ms if it is less."""
    retry_backoff_ms: float = 100
    """How long to wait before a batch is sent to the same leader again; doubled each time, up to a
    second. Kafka: retry.backoff.ms."""
    max_in_flight_requests_per_connection: int = 5
    """Batches of a partition on their way at a time. Without idempotence records change places if
    one of several has to be sent again, or in pieces. Kafka:
    max.in.flight.requests.per.connection."""
    partitioner: Partitioner | None = None
    """Chooses a partition: (topic, key, value, how many) → its number. None: by the key's hash as
    Kafka does, and batch by batch without a key. Kafka: partitioner.class."""
    compression_type: str = "none"
    """How batches are squeezed: none, lz4 or zstd. Kafka: compression.type."""
    clock: WallClock | None = None
    """For tests: the time that records get."""

    def __post_init__(self) -> None:
        """Raises `UsageError` for options that cannot be, or cannot work together."""
        super().__post_init__()
        if not isinstance(self.acks, str | int) or self.acks not in ACKS:
            raise UsageError(f"acks is {self.acks!r}, expected 0, 1 or 'all'")
        if self.compression_type not in CODECS:
            raise UsageError(
                f"compression_type is {self.compression_type!r}, "
                f"expected one of {', '.join(CODECS)}"
            )
        if self.enable_idempotence and not self._may_be_idempotent:
            raise UsageError(
                f"enable_idempotence needs acks='all' and max_in_flight_requests_per_connection "
                f"up to {IN_FLIGHT_IN_ORDER}"
            )

    @property
    def record_max(self) -> int:
        """The largest record, and the largest batch."""
        return min(self.max_request_size, self.buffer_memory)

    @property
    def required_acks(self) -> int:
        """`acks` as the wire has it: -1 for all."""
        return ACKS[self.acks]

    @property
    def is_idempotent(self) -> bool:
        """Whether the producer gets an id, and its batches numbers."""
        wanted = self.enable_idempotence
        return self._may_be_idempotent if wanted is None else wanted

    @property
    def delivery_timeout_s(self) -> float:
        """How long a record may take, in seconds."""
        least = self.linger_ms + self.request_timeout_ms
        return max(self.delivery_timeout_ms, least) / 1000

    @property
    def _may_be_idempotent(self) -> bool:
        in_flight = self.max_in_flight_requests_per_connection
        return self.required_acks == ACKS_ALL and in_flight <= IN_FLIGHT_IN_ORDER


def accumulator_of(options: ProducerOptions) -> Accumulator:
    """A producer's memory, with nothing in it, as its options have it."""
    return Accumulator(
        batch_size=min(options.batch_size, options.record_max),
        linger_s=options.linger_ms / 1000,
        buffer_memory=options.buffer_memory,
        delivery_timeout_s=options.delivery_timeout_s,
        max_in_flight=options.max_in_flight_requests_per_connection,
        codec=options.compression_type,
    )
