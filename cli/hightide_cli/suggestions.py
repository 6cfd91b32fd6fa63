"""Which topic was meant by a name that is none: asked once a command has failed for it."""

from __future__ import annotations

import re
from functools import partial

from hightide.protocol.errors import ApiError, ErrorCode, HightideError, did_you_mean

_NAMED = re.compile(r"topic '([^']+)'")
PATIENCE_S = 2.0
"""The command has failed already: it does not wait long for a hint."""


def meant_topic(error: BaseException, bootstrap: str) -> str:
    """What goes behind the sentence that a topic does not exist; empty if there is nothing like
    it, or nobody answers."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if not isinstance(error, ApiError) or error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return ""
    named = _NAMED.search(error.message)
    if named is None:
        return ""
    import trio

    try:
        known = trio.run(partial(_topics, bootstrap))
    except (HightideError, BaseExceptionGroup):
        return ""
    return did_you_mean(named[1], [name for name in known if name != named[1]])


async def _topics(bootstrap: str) -> list[str]:
    from hightide_cli.options import admin

    async with admin(bootstrap, PATIENCE_S) as opened:
        return [each.topic for each in await opened.list_topics() if not each.internal]
