"""The Python processes of Spark, without a new interpreter for each: a process that has imported
what they import forks for every one, with its words, environment, directory and pipes.

No test lives here. A streaming source, and each kind of worker, is an interpreter of its own for
every JVM and every query, and spends most of its time on imports: PySpark, Arrow, this source. So
the script by which `hightide.spark.workers` has Spark start them, which is kept in a cache, runs
another one in the interpreter's place: that hands all it was given to the process that forks, waits
for the child, and ends as that does. `HIGHTIDE_COMMANDS=cold` starts interpreters, as users do.
"""

import atexit
import gc
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import warm_commands
from warm_commands import COLD

from hightide_cli.children import exit_code

RUN = (
    "hightide.spark.endings",
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
)
"""What is run in a process that was forked: `-m` one of these, from its first line."""
PACKAGES = ("hightide.spark", "pyspark.sql.worker", "pyspark.daemon", *RUN[2:])
AT_START = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
"""What Spark tells each interpreter, and takes effect at its start alone."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""A process that forks may have no other threads."""
REQUEST_BYTES_MAX = 200 << 10

_ASK = """
import os, sys
import _socket
door, cold, *words = sys.argv[1:]
asked = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
try:
    asked.connect(door)
except OSError:
    os.execv(cold, [cold, *words])
said = [os.getcwd(), *words, "", *map("=".join, os.environ.items())]
pipes = b"".join(pipe.to_bytes(4, sys.byteorder) for pipe in range(3))
rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pipes)]
asked.sendmsg([os.fsencode("\\0".join(said))], rights)
code = int(asked.recv(16) or b"1")
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""
"""What the script has an interpreter do that imports nothing else."""
_SCRIPT = """#!/bin/sh
case "$PYTHONPATH $1 $2" in
*_hook*) ;;
{run}) exec {python} -ISE -c {ask} {door} {python} "$@"
esac
exec {python} "$@"
"""
"""A hook is run by an interpreter that starts."""


class WarmPython:
    """What stands in for this interpreter, as `program`, until this is closed."""

    def __init__(self):
        self._place = tempfile.TemporaryDirectory(prefix="warm-")
        door = f"{self._place.name}/door"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(door)
            listener.listen(64)
            self.forks = subprocess.Popen(
                [sys.executable, __file__, " " * warm_commands.TITLE_BYTES_MAX],
                stdin=subprocess.PIPE,
                stdout=listener,
                env=os.environ | AT_START | ONE_THREAD,
            )
        self.cache = f"{self._place.name}/cache"
        self.program = f"{self._place.name}/python3"
        run = "|".join(f'*" -m "{module}' for module in RUN)
        words = {"python": sys.executable, "ask": _ASK, "door": door}
        quoted = {name: shlex.quote(word) for name, word in words.items()}
        Path(self.program).write_text(_SCRIPT.format(run=run, **quoted))
        Path(self.program).chmod(0o700)

    def close(self):
        """The process that forks ends, and what it forked goes on."""
        self.forks.stdin.close()
        self.forks.wait()
        self._place.cleanup()


@cache
def keep_spark_warm():
    """From now on Spark's Python processes are forked, where sessions are local: those of this
    process, and of programs that it starts."""
    from hightide.spark import workers

    if COLD:
        return
    warm = WarmPython()
    atexit.register(warm.close)
    os.environ["XDG_CACHE_HOME"] = warm.cache
    script = Path(workers.worker_python())
    text = script.read_text()
    script.write_text(text.replace(shlex.quote(sys.executable), shlex.quote(warm.program)))


# -- who forks -------------------------------------------------------------------------------------


def serve(listener, owner):
    """Fork for each who asks; returns the words in a process that was forked. Ends with its owner.
    The child of one who was ended is told to end."""
    woken, wakes = os.pipe()
    for pipe in (woken, wakes):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    asking, left = {}, {}  # who waits for which process; those that nobody waits for any more
    while True:
        children = {asked: pid for pid, asked in asking.items()}
        ready, _, _ = select.select([owner, listener, woken, *children], [], [])
        if owner in ready:
            os._exit(0)
        if woken in ready:
            os.read(woken, 4096)
        for asked in children.keys() & {*ready}:
            left[children[asked]] = asking.pop(children[asked])
            os.kill(children[asked], signal.SIGTERM)
        for processes in (asking, left):
            warm_commands.tell_ended(processes)
        if listener in ready:
            asked, _ = listener.accept()
            said, pipes, *_ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 3)
            if said and (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (listener, asked, *asking.values(), *left.values()):
                    each.close()
                for pipe in (owner, woken, wakes):
                    os.close(pipe)
                return become(os.fsdecode(said).split("\0"), pipes)
            if said:
                asking[pid] = asked
            for pipe in pipes:
                os.close(pipe)


def become(said, pipes):
    """Be who asked; its words."""
    directory, *words = said[: said.index("", 1)]
    variables = dict(each.split("=", 1) for each in said[len(words) + 2 :])
    paths = variables.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    warm_commands.become(words, variables, directory, (), pipes)
    warm_commands.call_it([sys.executable, *words])
    return words


def run(words):
    """The exit code of `-m module and its words`, run as an interpreter would."""
    _, module, *rest = words
    sys.argv[1:] = rest
    sys.modules.pop(module, None)  # which is run, not imported
    return exit_code(lambda: runpy.run_module(module, None, "__main__", True))


if __name__ == "__main__":
    del sys.path[0]  # which is this directory
    doors = socket.socket(fileno=os.dup(1)), os.dup(0)
    os.dup2(2, 1)
    warm_commands.import_all(PACKAGES)
    gc.freeze()  # a worker collects after each task
    warm_commands.end(run(serve(*doors)))
