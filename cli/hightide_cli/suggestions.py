"""What was meant by a name of a topic or group that there is none of: asked once a command has
failed for it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hightide.protocol.errors import ApiError, ErrorCode, HightideError, did_you_mean

if TYPE_CHECKING:
    from hightide import Admin

PATIENCE_S = 2.0
"""The command has failed already: it does not wait long for a hint."""


async def _topics(admin: Admin) -> list[str]:
    return [each.topic for each in await admin.list_topics() if not each.internal]


async def _groups(admin: Admin) -> list[str]:
    return [each.group for each in await admin.list_groups()]


_KNOWN: dict[ErrorCode, tuple[re.Pattern[str], Callable[[Admin], Awaitable[list[str]]]]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (re.compile(r"""topic (['"])(.+?)\1"""), _topics),
    ErrorCode.GROUP_ID_NOT_FOUND: (re.compile(r"""group (['"])(.+?)\1"""), _groups),
}
"""How a refusal names what is not there, and who knows the names that are."""


def meant(error: BaseException, bootstrap: str) -> str:
    """What goes behind the sentence that a name is not there; empty if there is nothing like it,
    or nobody answers."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if not isinstance(error, ApiError) or error.code not in _KNOWN:
        return ""
    naming, names = _KNOWN[error.code]
    if (named := naming.search(error.message)) is None:
        return ""
    from hightide_cli.options import run

    try:
        known = run(_ask, bootstrap, names)
    except (HightideError, OSError, ExceptionGroup):
        return ""
    return did_you_mean(named[2], [name for name in known if name != named[2]])


async def _ask(bootstrap: str, names: Callable[[Admin], Awaitable[list[str]]]) -> list[str]:
    from hightide_cli.options import admin

    async with admin(bootstrap, PATIENCE_S) as opened:
        return await names(opened)
