"""`--watch`: a command that shows something shows it again and again, until Ctrl-C."""

from __future__ import annotations

import functools
import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, TypeVar

import click

from hightide.protocol.errors import HightideError, UsageError
from hightide_cli.options import Seconds
from hightide_cli.output import say

EVERY_MAX_S = 86_400
F = TypeVar("F", bound=Callable[..., Any])


def watchable(command: F) -> F:
    """Give a command that changes nothing the option --watch."""

    @click.option(
        "--watch",
        "every_s",
        type=Seconds(min=0.1, max=EVERY_MAX_S),
        metavar="SECONDS",
        help="Show it again so often, until Ctrl-C.",
    )
    @functools.wraps(command)
    def maybe_watched(*args: Any, every_s: float | None, **options: Any) -> None:
        show = functools.partial(command, *args, **options)
        if every_s is None:
            show()
        else:
            _watch(show, every_s)

    return maybe_watched  # type: ignore[return-value]


def _watch(show: Callable[[], None], every_s: float) -> None:
    """What goes wrong meanwhile is shown too, and may be over the next time."""
    show_page = _renew_screen if sys.stdout.isatty() else _append
    try:
        while True:
            show_page(functools.partial(_attempt, show))
            time.sleep(every_s)
    except KeyboardInterrupt:
        return
    except BaseExceptionGroup as group:  # from inside of trio
        if group.subgroup(KeyboardInterrupt) is None:
            raise


def _attempt(show: Callable[[], None]) -> None:
    """What the cluster says may be another thing the next time; a mistake, or a reader of our
    output that is gone, stays."""
    try:
        show()
    except click.exceptions.Exit:
        return  # it was shown, and is not well
    except UsageError:
        raise
    except HightideError as error:
        say(f"hightide: {error}")


def _append(show: Callable[[], None]) -> None:
    """For a file or a pipe."""
    show()
    sys.stdout.flush()


class _Page(io.StringIO):
    """What a command writes for a terminal, before the terminal shows it."""

    def isatty(self) -> bool:
        return True


def _renew_screen(show: Callable[[], None]) -> None:
    """All at once, so that nothing flickers while the cluster is asked."""
    page = _Page()
    with redirect_stdout(page), redirect_stderr(page):
        show()
    click.clear()
    click.echo(f"{time.strftime('%H:%M:%S')}  (Ctrl-C ends this)\n\n{page.getvalue()}", nl=False)
    sys.stdout.flush()
