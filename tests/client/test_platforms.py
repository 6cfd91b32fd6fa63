"""Goal: a client works where Python lacks what only Unix has, and commands that need it say so.

Method: programs of their own, in which the modules and calls that Windows lacks were taken away
once the packages of others were there.
"""

import json
import os
import subprocess
import sys

import pytest
from patience import PATIENCE_S
from secure_run import IS_ON, blocking_cluster, reaching, variables
from tries import few

pytestmark = [pytest.mark.live, pytest.mark.slow]

ELSEWHERE = """
import os, signal, sys
import click, crc32c, lz4.frame, msgpack, msgspec, rich.console, rich.table, trio, zstandard
import multiprocessing.pool, socket, subprocess, tempfile  # Python's own may need them
for name in ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty"):
    sys.modules[name] = None
for name in (
    "fdatasync", "sendfile", "posix_fallocate", "preadv", "pread", "pwrite", "register_at_fork",
    "fork", "geteuid", "getuid", "statvfs", "sysconf", "O_DIRECTORY", "O_CLOEXEC",
):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGPIPE", "SIGCHLD", "pthread_sigmask"):
    delattr(signal, name)
"""
PROGRAM = """
import json
import hightide
from hightide.blocking import Admin, Consumer, Producer

way = json.loads(sys.argv[1])
with Admin(**way) as admin:
    admin.create_topic("t", partitions=1)
for codec in ("none", "lz4", "zstd"):
    with Producer(**way, compression_type=codec) as producer:
        producer.send_many("t", [b"a", b"b"]).result()
with Consumer(**way, topics=["t"], auto_offset_reset="earliest", group_id="g") as consumer:
    found = []
    for record in consumer:
        found.append(record.value)
        if len(found) == 6:
            break

async def main():
    async with hightide.Producer(**way) as producer:
        print((await (await producer.send("t", b"c"))).offset, len(found))

trio.run(main)
"""


def elsewhere(program, *words, address=None):
    return subprocess.run(
        [sys.executable, "-c", ELSEWHERE + program, *words],
        env=os.environ | variables(address),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def address():
    with blocking_cluster(1) as cluster:
        yield cluster.bootstrap


def test_clients_need_nothing_of_unix(address):
    ended = elsewhere(PROGRAM, json.dumps(reaching(address)))
    assert (ended.returncode, ended.stdout.split()) == (0, ["6", "6"]), ended.stderr


def test_spark_s_client_needs_nothing_of_unix():
    pytest.importorskip("pyspark")
    names = ("", ".source", ".sink", ".builder", ".client")
    ended = elsewhere("".join(f"import hightide.spark{name}\n" for name in names))
    assert ended.returncode == 0, ended.stderr


MACOS = """
import fcntl, os, sys
fcntl.F_FULLFSYNC = 51  # which this system's files do not know, as some of macOS do not
for name in ("fdatasync", "posix_fallocate", "sched_getaffinity"):
    delattr(os, name)
from hightide.blocking import Admin, Producer
from hightide.testing import BlockingCluster
with BlockingCluster(3, secure="secure" in sys.argv) as cluster:
    way = {"bootstrap_servers": cluster.bootstrap, **cluster.client_options}
    with Admin(**way) as admin, Producer(**way, acks="all") as producer:
        admin.create_topic("t", partitions=1, replication_factor=3)
        print(producer.send("t", b"one").result().offset)
"""


def test_brokers_need_nothing_that_macos_has_not():
    ended = subprocess.run(
        [sys.executable, "-c", MACOS, *["secure"] * IS_ON],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "0\n"), ended.stderr


COMMAND = "from hightide_cli.main import main\nmain()\n"


@pytest.mark.parametrize(
    "words",
    few(
        [
            ["--help"],
            ["topics", "list"],
            ["groups", "list"],
            ["quorum", "status"],
            ["brokers", "list"],
            ["partitions", "elect", "--all"],
        ],
        2,
    ),
    ids=lambda words: words[0],
)
def test_commands_that_ask_brokers_work(address, words):
    asks = [] if words == ["--help"] else ["-b", address]
    ended = elsewhere(COMMAND, *words, *asks, address=address)
    assert ended.returncode == 0, ended.stderr


def test_lines_are_produced_and_consumed(address):
    read = ["consume", "lines", "--from", "start", "-c", "1", "-b", address]
    made = elsewhere(COMMAND, "topics", "create", "lines", "-b", address, address=address)
    assert made.returncode == 0, made.stderr
    lines = "import io\nsys.stdin = io.TextIOWrapper(io.BytesIO(b'hello\\n'))\n"
    written = elsewhere(lines + COMMAND, "produce", "lines", "-b", address, address=address)
    assert written.returncode == 0, written.stderr
    assert "hello" in elsewhere(COMMAND, *read, address=address).stdout


def test_a_variable_that_nobody_reads_is_named_and_harms_nothing(address, monkeypatch):
    monkeypatch.setenv("HIGHTIDE_BOOTSTRAPP", address)
    ended = elsewhere(COMMAND, "topics", "list", "-b", address, address=address)
    assert ended.returncode == 0, ended.stderr
    assert "HIGHTIDE_BOOTSTRAPP is set, and nothing reads it" in ended.stderr


@pytest.mark.parametrize(
    "words", few([["up"], ["ps"], ["server", "start"], ["doctor"]], 1), ids=str
)
def test_what_needs_unix_says_so_in_a_sentence(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = elsewhere(COMMAND, *words)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]  # above it may stand what a variable of the tests is
    assert last.startswith("hightide: this needs Linux or macOS")
    assert "Traceback" not in ended.stderr


def test_without_spark_its_import_says_what_to_install():
    program = "import sys; sys.modules['pyspark'] = None; import hightide.spark"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    told = done.stderr.strip().splitlines()[-1]
    assert "hightide.spark needs pyspark" in told
    assert told.endswith("pip install 'hightide[spark]'")
