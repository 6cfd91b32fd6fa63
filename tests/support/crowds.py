"""Crowds: many sockets at a time, and what they are to a process. No test lives here."""

import resource
from contextlib import contextmanager
from pathlib import Path

STATUS = Path("/proc/self/status")
"""There where a system tells what its processes hold."""


@contextmanager
def many_files():
    """As many may be open in this process as its system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_open(stream):
    """Whether the other end has not closed it; what that said is thrown away."""
    try:
        while stream._socket.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class Crowd:
    """Peers that come, say what they are told to say, and stay."""

    def __init__(self):
        self._streams = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for stream in self._streams:
            await stream.aclose()

    async def come(self, network, port, count, said=b""):
        for _ in range(count):
            self._streams.append(await network.connect("127.0.0.1", port))
            if said:
                self._streams[-1].send_now([said])

    async def prune(self):
        """Forget those that were closed; how many are left."""
        closed = [stream for stream in self._streams if not is_open(stream)]
        for stream in closed:
            self._streams.remove(stream)
            await stream.aclose()
        return len(self._streams)

    @property
    def left(self):
        """How many were not closed by the other end."""
        return sum(map(is_open, self._streams))


class Held:
    """What a process holds in memory."""

    def __init__(self, pid):
        self._status = Path(f"/proc/{pid}/status")

    def _bytes(self, name):
        lines = dict(line.split(":", 1) for line in self._status.read_text().splitlines())
        return int(lines[name].split()[0]) << 10

    @property
    def now(self):
        return self._bytes("VmRSS")

    @property
    def most(self):
        """At any time until now."""
        return self._bytes("VmHWM")
