"""What a node says of itself."""

from __future__ import annotations

from hightide.protocol.messages import Message


class DescribeNodeRequest(Message, frozen=True, kw_only=True):
    pass


class DescribeNodeResponse(Message, frozen=True, kw_only=True):
    """What a node's process has used since it started; -1: not counted."""

    node: int
    loop_passes: int = -1
    """Turns of its event loop."""
    user_ms: int = -1
    system_ms: int = -1


class DescribeMetadataLogRequest(Message, frozen=True, kw_only=True):
    pass


class EpochStart(Message, frozen=True, kw_only=True):
    """Where the records of one leader's epoch begin."""

    epoch: int
    start_offset: int


class DescribeMetadataLogResponse(Message, frozen=True, kw_only=True):
    """A node's own copy of `__cluster_metadata`: of others', a leader knows the ends alone."""

    node: int
    log_start_offset: int
    high_watermark: int
    """As far as this node has heard."""
    synced_offset: int
    log_end_offset: int
    epochs: list[EpochStart]
    """The newest, oldest first."""


class ReadTraceRequest(Message, frozen=True, kw_only=True):
    """Ask for what happened on a node, from a place on."""

    kind: str = "events"
    """Or `positions`: how far its replicas were, second by second."""
    file: int = 0
    position: int = 0


class ReadTraceResponse(Message, frozen=True, kw_only=True):
    """Whole lines of JSON, an event each; none: that is all that there is yet."""

    node: int
    lines: bytes = b""
    file: int = 0
    position: int = 0
    """Where to go on."""
