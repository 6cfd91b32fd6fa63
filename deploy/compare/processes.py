"""Processes that this program started: what they use, and that none of them outlives it.

Each is ended by its own id, or with the group that was made for it. None is looked for by name:
that would find other people's.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from compare.places import LOGS

PORTS = range(15_000, 31_000)
"""Below those that systems give to anybody who asks for one."""
PORT_TRIES = 200
ENDING_S = 60.0
_PR_SET_PDEATHSIG = 1
TICKS = os.sysconf("SC_CLK_TCK")
"""In so many parts of a second the system counts processor time."""


class Failed(Exception):
    """A process did not do what it was started for."""


def start(
    command: Sequence[str | Path],
    *,
    log: str,
    talks: bool = False,
) -> subprocess.Popen[str]:
    """Start a process in a group of its own, so that Ctrl-C comes here and is dealt with here. What
    it says goes to a log; with `talks`, what it prints comes here."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{log}.log").open("a") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else output,
            stderr=output,
            text=True,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )


def _end_with_parent() -> None:
    """In the child: it is killed if this program is, which then cannot end it any more."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end(processes: Iterable[subprocess.Popen[str]]) -> None:
    """Kill them, with what they started themselves, and wait until they are gone."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in alive:
        process.wait(ENDING_S)


@contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A process for the time of a block."""
    try:
        yield process
    finally:
        with undisturbed():
            end([process])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits while processes are ended: half of them would stay."""
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, signal.SIG_IGN) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def end_in_order() -> None:
    """Have SIGTERM and SIGHUP unwind this program's blocks, as Ctrl-C does."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for kind in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, leave)


def run(command: Sequence[str | Path], *, log: str, timeout_s: float) -> None:
    """Run a command to its end; raises `Failed`."""
    with ending(start(command, log=log)) as process:
        code = process.wait(timeout_s)
    if code:
        raise Failed(f"{Path(command[0]).name} ended with exit code {code}: see {log}.log")


def free_ports(count: int) -> list[int]:
    """Ports of loopback in a row that nobody has now; raises `OSError` if none were found."""
    for first in random.sample(PORTS, PORT_TRIES):
        wanted = [*range(first, first + count)]
        with ExitStack() as held, suppress(OSError):
            for port in wanted:
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return wanted
    raise OSError(f"there are no {count} free ports in a row")


def core_s(pids: Iterable[int]) -> float:
    """Seconds of processor time, user and system, that live processes have used."""
    return sum(_core_s(pid) for pid in pids)


def _core_s(pid: int) -> float:
    # The name of the command is in parentheses and may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pids: Sequence[int]) -> float:
    """Resident memory of a process, on average over these."""
    return sum(_resident_mib(pid) for pid in pids) / len(pids)


def _resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = next(line for line in lines if line.startswith("VmRSS:"))
    return int(found.split()[1]) / 1024
