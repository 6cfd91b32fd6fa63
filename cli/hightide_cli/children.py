"""Processes that go on without the one that started them.

`spawn` starts an interpreter for one. Most of what the start of a node costs is its imports, so
`up` has them once, and `fork`s its nodes where the system allows it.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn

_SELF = Path("/proc/self")


def spawn(command: Sequence[str], output: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a command; raises `OSError`."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


class Forked:
    """A process that was forked, as `subprocess.Popen` has one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return self._awaited(os.WNOHANG)

    def wait(self) -> int:
        """The same, once it has ended."""
        code = self._awaited(0)
        assert code is not None, "it was waited for"
        return code

    def _awaited(self, how: int) -> int | None:
        if self._code is None:
            try:
                ended, status = os.waitpid(self.pid, how)
            except ChildProcessError:  # SIGCHLD is ignored here, and nobody knows
                ended, status = self.pid, 0
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def terminate(self) -> None:
        """Tell it to stop, if it has not ended."""
        self._tell(signal.SIGTERM)

    def kill(self) -> None:
        """End it, if it has not ended."""
        self._tell(signal.SIGKILL)

    def _tell(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


Child = subprocess.Popen[bytes] | Forked


def can_fork() -> bool:
    """Whether a copy of this process can become a node: it has no other threads, what files it has
    open is told, and it does not run without asserts, as a node would refuse to."""
    return __debug__ and _SELF.exists() and len(os.listdir(_SELF / "task")) == 1


def fork(door: Callable[[], None], words: Sequence[str], output: BinaryIO, *, name: str) -> Forked:
    """Call the `door` of a program, with these words, in a copy of this process that is called
    `name` where processes are listed; raises `OSError`. Not while an event loop runs."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or each of the two would say it
    gc.freeze()  # what nobody looks at stays the same page for all of them
    # A signal in the middle would be heard in the copy, which is about to do what this one does.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(partial(_child, door, words, output, name, before))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Forked(pid)


def _become(program: Callable[[], None]) -> NoReturn:
    """Run a program, and end as an interpreter would: never go back to what the parent was about to
    do."""
    code = 1
    try:
        code = exit_code(program)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _child(
    door: Callable[[], None],
    words: Sequence[str],
    output: BinaryIO,
    name: str,
    mask: Iterable[int],
) -> None:
    """What an interpreter would have been that was started for these words."""
    os.setsid()
    _let_go(output)
    _hear_nothing_of_the_parent(mask)
    _be_called(name, words)
    sys.argv[1:] = words
    door()


def _hear_nothing_of_the_parent(mask: Iterable[int]) -> None:
    """Signals mean what they mean at the start of an interpreter."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _let_go(output: BinaryIO) -> None:
    """Nothing is read, all is said to `output`, and what else the parent has open is nothing: it
    keeps its number, by which something of the parent's may close it later."""
    with open(os.devnull, "r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        for number in (1, 2):
            os.dup2(output.fileno(), number)
        for opened in map(int, os.listdir(_SELF / "fd")):
            if opened > 2 and opened != nothing.fileno():
                with suppress(OSError):  # the listing itself
                    os.fstat(opened)
                    os.dup2(nothing.fileno(), opened, inheritable=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, closefd=False, errors="backslashreplace")
    logging.root.handlers.clear()


def _be_called(name: str, words: Sequence[str]) -> None:
    """Where processes are listed, by a name and, instead of the parent's words, by what there is
    room for: those of a node begin with its directory."""
    with suppress(OSError):
        (_SELF / "comm").write_text(name)
        be_listed(f"hightide {name}: {' '.join(words)}".encode())


def be_listed(words: bytes) -> None:
    """Have this process listed by words, with a zero behind each but the last, as far as there is
    room for them: they take the place of those it was started with. Raises `OSError`."""
    fields = (_SELF / "stat").read_text().rpartition(")")[2].split()
    begins, ends = int(fields[45]), int(fields[46])  # arg_start and arg_end, from the third on
    with (_SELF / "mem").open("r+b", buffering=0) as memory:
        memory.seek(begins)
        memory.write(words[: ends - begins - 1].ljust(ends - begins, b"\0"))


def exit_code(program: Callable[[], None]) -> int:
    """How an interpreter that calls it would end, with a number or with none."""
    try:
        program()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0
