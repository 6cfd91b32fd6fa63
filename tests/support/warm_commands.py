"""Commands as processes of their own, without a new interpreter for each: a process that has
imported the command line forks for every command, with its words, environment, directory and pipes.

No test lives here. Most of what a short command costs is its imports, and the live tests run a
thousand of them. `HIGHTIDE_COMMANDS=cold` starts an interpreter for each, as a shell does, and so
does `deploy/evidence.sh`.
"""

import atexit
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module

COLD = not sys.platform.startswith("linux") or os.environ.get("HIGHTIDE_COMMANDS") == "cold"
PACKAGES = ("hightide", "hightide_broker", "hightide_cli")
ELSEWHERE = {"bench", "demo", "lab", "pipeline", "simulation", "spark", "testing"}
ELSEWHERE |= {"__main__", "pytest_plugin"}
"""What few commands use; these import it themselves, as every command does with what it needs."""


# -- who asks --------------------------------------------------------------------------------------


class Forker:
    """The process that forks, once it is needed."""

    def __init__(self):
        self._lock = threading.Lock()
        self._door = None

    def _begun(self):
        with self._lock:
            if self._door is None:
                mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                process = subprocess.Popen([sys.executable, __file__], stdin=its)
                its.close()
                self._door = mine
                atexit.register(lambda: (mine.close(), process.wait()))
            return self._door

    def start(self, words, environment, directory, pipes):
        """Start a command with stdin, stdout and stderr; where its process id will be told, and
        then how it ended."""
        told, teller = socket.socketpair()
        with teller:
            asked = json.dumps([[*words], environment, str(directory)]).encode()
            socket.send_fds(self._begun(), [asked], [*pipes, teller.fileno()])
        return told


FORKER = Forker()


def can_fork(environment):
    """Whether the environment is one that would not have made another interpreter."""
    settings = ("PYTHON", "LC_", "LANG")

    def of(variables):
        return {name: value for name, value in variables.items() if name.startswith(settings)}

    return not COLD and of(environment) == of(os.environ)


def run(words, stdin, environment, directory, timeout_s):
    """A command from its start to its end, as `subprocess.run` would have it."""
    pairs = [os.pipe() for _ in range(3)]
    (its_in, my_in), (my_out, its_out), (my_err, its_err) = pairs
    told = FORKER.start(words, environment, directory, (its_in, its_out, its_err))
    for each in (its_in, its_out, its_err):
        os.close(each)
    found = {}
    threads = [
        threading.Thread(target=_write, args=(my_in, stdin)),
        threading.Thread(target=_read, args=(my_out, found)),
        threading.Thread(target=_read, args=(my_err, found)),
    ]
    for thread in threads:
        thread.start()
    with told, told.makefile() as answers:
        pid = int(answers.readline())
        told.settimeout(timeout_s)
        try:
            code = int(answers.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, timeout_s) from None
        finally:
            for thread in threads:
                thread.join()
    return subprocess.CompletedProcess(words, code, found[my_out], found[my_err])


def _write(pipe, data):
    with suppress(BrokenPipeError), open(pipe, "wb") as file:
        file.write(data)


def _read(pipe, found):
    with open(pipe, "rb") as file:
        found[pipe] = file.read()


# -- who forks -------------------------------------------------------------------------------------


def serve(door):
    """Fork for each command. Returns in its process; this one ends with who asked for it."""
    woken, wakes = os.pipe()
    for pipe in (woken, wakes):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tellers = {}
    while True:
        ready, _, _ = select.select([door, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            tell_ended(tellers)
        if door not in ready:
            continue
        asked, pipes, *_ = socket.recv_fds(door, 1 << 20, 4)
        if not asked:
            os._exit(0)
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in tellers.values():
                each.close()
            for pipe in (woken, wakes):
                os.close(pipe)
            become(*json.loads(asked), pipes)
            return
        tellers[pid] = teller = socket.socket(fileno=pipes[3])
        teller.sendall(b"%d\n" % pid)
        for pipe in pipes[:3]:
            os.close(pipe)


def tell_ended(tellers):
    """How those ended that have."""
    for pid in [*tellers]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with tellers.pop(pid) as teller, suppress(OSError):
                teller.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def become(words, environment, directory, pipes):
    for number, pipe in enumerate(pipes[:3]):
        os.dup2(pipe, number)
    for pipe in pipes:
        os.close(pipe)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = words


def run_main():
    """The exit code of the command."""
    from hightide_cli.main import main

    try:
        main()
    except SystemExit as ended:
        return ended.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(code):
    """As an interpreter ends, which need not take apart what will be gone."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def import_all(packages=PACKAGES):
    for name in packages:
        package = import_module(name)
        inside = pkgutil.iter_modules(getattr(package, "__path__", ()))
        import_all(f"{name}.{each.name}" for each in inside if each.name not in ELSEWHERE)


if __name__ == "__main__":
    del sys.path[0]  # which is this directory
    its_door = socket.socket(fileno=os.dup(0))
    import_all()
    gc.freeze()
    serve(its_door)
    its_door.close()
    sys.argv[0] = "hightide"
    end(run_main())
