"""Commands, and the nodes that they start, as processes of their own, without a new interpreter for
each: a process that has imported everything forks for every one, with its words, environment,
directory and pipes.

No test lives here. Most of what a short command costs is its imports, and most of what the start
of a node does; the live tests start thousands. `HIGHTIDE_COMMANDS=cold` starts an interpreter for
each, as a shell does, and so does `deploy/evidence.sh`.
"""

import atexit
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module

from hightide_cli.children import be_listed, exit_code

COLD = not sys.platform.startswith("linux") or os.environ.get("HIGHTIDE_COMMANDS") == "cold"
PACKAGES = ("hightide", "hightide_broker", "hightide_cli")
ELSEWHERE = {"bench", "demo", "lab", "pipeline", "simulation", "spark", "testing"}
ELSEWHERE |= {"__main__", "pytest_plugin"}
"""What few commands use; these import it themselves, as every command does with what it needs."""
NODE = [sys.executable, "-m", "hightide_cli.main", "server", "start"]
TITLE_BYTES_MAX = 16 << 10
"""Room for the words of a node, by which it is found among all processes."""


LATE_HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fault_hook")
"""Its `sitecustomize.py` may be run when everything is imported, too."""


def hooks_of(variables):
    """What an interpreter would run first, and one that was forked can run itself."""
    path = variables.get("PYTHONPATH", "").split(os.pathsep)
    return path[:1] if path[0] == LATE_HOOK else []


def interpreter_of(variables):
    """What would make another interpreter of it, but for those hooks."""
    settings = ("PYTHON", "LC_", "LANG")
    found = {name: value for name, value in variables.items() if name.startswith(settings)}
    path = variables.get("PYTHONPATH", "").split(os.pathsep)
    return found | {"PYTHONPATH": path[len(hooks_of(variables)) :]}


HERE = interpreter_of(os.environ)


# -- who asks --------------------------------------------------------------------------------------


class Forker:
    """The process that forks, once it is needed; `door`: it is there, and this leads to it."""

    def __init__(self, door=None):
        self._lock = threading.Lock()
        self._door = door

    def _begun(self):
        with self._lock:
            if self._door is None:
                mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                command = [sys.executable, __file__, " " * TITLE_BYTES_MAX]
                process = subprocess.Popen(command, stdin=its)
                its.close()
                self._door = mine
                atexit.register(lambda: (mine.close(), process.wait()))
            return self._door

    def start(self, words, environment, directory, pipes, title=()):
        """Start a command with stdin, stdout and stderr; where its process id will be told, and
        then how it ended. With a title it has a session of its own, and is called so."""
        told, teller = socket.socketpair()
        with teller:
            asked = json.dumps([[*words], environment, str(directory), [*title]]).encode()
            socket.send_fds(self._begun(), [asked], [*pipes, teller.fileno()])
        return told


FORKER = Forker()


def can_fork(environment):
    """Whether the environment is one that would not have made another interpreter."""
    return not COLD and interpreter_of(environment) == HERE


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


class Spawned:
    """A process that was forked and lives on, as `subprocess.Popen` has it."""

    def __init__(self, told):
        self._told = told.detach()
        self.pid = int(self._line())
        self.returncode = None

    def _line(self):
        said = b""
        while (byte := os.read(self._told, 1)) not in (b"", b"\n"):
            said += byte
        return said or b"-9"  # who forked it is gone

    def poll(self):
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = int(self._line())
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def __del__(self):
        with suppress(AttributeError, OSError):
            os.close(self._told)


def warm_nodes():
    """From now on the nodes that this process starts are forked."""
    from hightide_cli import processes

    cold = processes.spawn

    def spawn(command, output):
        if command[: len(NODE)] != NODE or not can_fork(os.environ):
            return cold(command, output)
        with open(os.devnull, "rb") as nothing:
            pipes = nothing.fileno(), output.fileno(), output.fileno()
            words = command[NODE.index("server") :]
            return Spawned(FORKER.start(words, dict(os.environ), os.getcwd(), pipes, command))

    if not COLD:
        processes.spawn = spawn


# -- who forks -------------------------------------------------------------------------------------


def serve(door, inner):
    """Fork for each command, of who has this process, by its `door`, and of those that were forked.
    Returns in a command's process; this one ends with who asked for it."""
    woken, wakes = os.pipe()
    for pipe in (woken, wakes):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tellers = {}
    while True:
        ready, _, _ = select.select([door, inner, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            tell_ended(tellers)
        asking = next((each for each in (door, inner) if each in ready), None)
        if asking is None:
            continue
        asked, pipes, *_ = socket.recv_fds(asking, 1 << 20, 4)
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


def become(words, environment, directory, title, pipes):
    if title:
        os.setsid()
        call_it(title)
    for number, pipe in enumerate(pipes[:3]):
        os.dup2(pipe, number)
    for pipe in pipes:
        os.close(pipe)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = words
    sys.orig_argv[1:] = ["-m", "hightide_cli.main", *words]
    for hook in hooks_of(environment):
        runpy.run_path(os.path.join(hook, "sitecustomize.py"))


def call_it(title):
    """Have this process be found by its words: they take the place of those it was started with."""
    be_listed(b"\0".join(word.encode() for word in title))


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
    for_children, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    import_all()
    FORKER = Forker(for_children)
    warm_nodes()
    gc.freeze()
    serve(its_door, inner)
    its_door.close()
    inner.close()
    sys.argv[0] = "hightide"
    main = import_module("hightide_cli.main").main
    end(exit_code(main))
