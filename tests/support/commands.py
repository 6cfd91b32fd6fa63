"""What the live tests share: commands run as processes, and a cluster that `up --detach` started.

No test lives here, but a fixture, which is imported by name. The command is found through the
interpreter that runs the tests (`warm_commands.py`), and sees none of the HIGHTIDE_ variables of
the shell that started them.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
import warm_commands
from patience import PATIENCE_S
from secure_run import WORDS, remember, variables

COMMAND = [sys.executable, "-m", "hightide_cli.main"]


def environment(address=None):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HIGHTIDE_")}
    return kept | variables(address) | ({"HIGHTIDE_BOOTSTRAP": address} if address else {})


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def rows(self):
        """What was printed, one JSON value a line."""
        return [json.loads(line) for line in self.lines]


def hightide(
    *words,
    stdin=b"",
    address=None,
    code=0,
    patience_s=PATIENCE_S,
    cwd=None,
    config=None,
    variables=MappingProxyType({}),
):
    """Run a command to its end; its exit code must be `code` (None: any). `config` is in the
    environment, as HIGHTIDE_CONFIG, and so are the `variables`."""
    told = {"HIGHTIDE_CONFIG": str(config)} if config else {}
    env = environment(address) | told | dict(variables)
    ended = (warm_commands.run if warm_commands.can_fork(env) else cold)(
        [*map(str, words)], stdin, env, cwd or os.getcwd(), patience_s
    )
    err = ended.stderr.decode()
    assert code in (None, ended.returncode), f"exit code {ended.returncode}: {ended.stdout!r} {err}"
    assert "Traceback" not in err
    return Ended(ended.returncode, ended.stdout, err)


def cold(words, stdin, env, cwd, patience_s):
    """A command with an interpreter of its own."""
    return subprocess.run(
        [*COMMAND, *words],
        input=stdin,
        capture_output=True,
        timeout=patience_s,
        env=env,
        cwd=cwd,
        check=False,
    )


class StartedCluster:
    """A cluster that `up --detach` started."""

    def __init__(self, data: Path, *words: str) -> None:
        self.data = data
        try:
            self.up = hightide("up", "--detach", "--data", data, *WORDS, *words)
        except BaseException:
            self.end()
            raise
        self.address = self.up.out.decode().splitlines()[0]
        remember(Path(data))

    def run(self, *words, stdin=b"", code=0):
        return hightide(*words, stdin=stdin, code=code, address=self.address)

    def ps(self):
        return json.loads(hightide("ps", "--data", self.data, "-o", "json").out)

    def read(self, topic, *words, code=0):
        """The records of a topic from its start to its end."""
        return self.run("consume", topic, "--from", "start", "-e", "-J", *words, code=code).rows

    def describe(self, topic):
        (row,) = json.loads(self.run("topics", "describe", topic, "-o", "json").out)
        return row

    def partition(self, topic, number=0):
        return self.data / "broker-1" / f"{topic}-{number}"

    def end(self):
        for row in self.ps():
            if row["pid"] is not None:
                with suppress(ProcessLookupError):
                    os.kill(row["pid"], signal.SIGKILL)


@pytest.fixture
def topic(cluster, request):
    """A topic of one partition, named after its test, on the `cluster` of the test's module."""
    name = request.node.originalname[5:60]
    cluster.run("topics", "create", name, "--if-not-exists")
    return name
