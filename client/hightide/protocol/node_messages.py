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
