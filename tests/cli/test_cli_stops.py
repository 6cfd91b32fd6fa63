"""Goal: commands that read and write as it comes lose nothing when they are told to stop, and say
where they begin; where there is nothing to read from or to write to, they do without.

Method: commands as processes of their own against one broker process; each test has a topic. A
shell closes their streams.
"""

# ruff: noqa: F811 - fixtures are imported by name

import signal
import subprocess

import pytest
from commands import COMMAND, PATIENCE_S, StartedCluster, environment, topic  # noqa: F401
from three_nodes import until
from tries import few

pytestmark = [pytest.mark.live, pytest.mark.slow]

UP = ()
TOPIC = "closed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_produce_writes_lines_as_they_come_and_what_it_has_read_when_it_is_told_to_stop(
    cluster, topic, number
):
    before = [row["value"] for row in cluster.read(topic)]
    with subprocess.Popen(
        [*COMMAND, "produce", topic],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(cluster.address),
    ) as writer:
        try:
            for line in ("one", "two"):
                writer.stdin.write(f"{line}\n".encode())
                writer.stdin.flush()
                before.append(line)
                until(lambda: [row["value"] for row in cluster.read(topic)] == before, what=line)
            writer.send_signal(number)
            said = writer.stderr.read().decode()
        finally:
            writer.kill()
    assert writer.returncode == 128 + number
    assert said.startswith("2 records in ")


def test_what_ends_a_group_reader_has_it_leave_the_group(cluster, topic):
    cluster.run("produce", topic, stdin=b"first\n")
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "--from", "start", "-g", topic],
        stdout=subprocess.PIPE,
        env=environment(cluster.address),
    ) as reader:
        try:
            assert reader.stdout.readline() == b"first\n"
            reader.terminate()
            reader.communicate(timeout=PATIENCE_S)
        finally:
            reader.kill()
    assert reader.returncode == 128 + signal.SIGTERM
    cluster.run("groups", "delete", topic, "--yes")


def test_consume_from_an_offset_that_a_partition_does_not_hold_begins_at_the_nearest(
    cluster, topic
):
    cluster.run("produce", topic, stdin=b"a\nb\n")
    ended = cluster.run("consume", topic, "--from", "9", "-e")
    assert (ended.out, ended.err) == (b"", f"{topic}-0 holds 0 to 2: read from the nearest\n")
    assert cluster.run("consume", topic, "--from", "1", "-e").out == b"b\n"


@pytest.mark.parametrize("closed", few(["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"], 2))
@pytest.mark.parametrize(
    "words",
    [
        ["topics", "list"],
        ["produce", TOPIC],
        ["consume", TOPIC, "--from", "start", "-e"],
        ["ps", "--data", "nowhere"],
    ],
    ids=lambda words: words[0],
)
def test_a_stream_that_is_closed_is_empty_or_takes_anything(cluster, tmp_path, words, closed):
    cluster.run("topics", "create", TOPIC, "--if-not-exists")
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *words],
        input=b"a line\n",
        capture_output=True,
        env=environment(cluster.address),
        cwd=tmp_path,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended
    assert b"Traceback" not in ended.stderr
    if words[0] == "produce" and "2>&-" not in closed:
        assert ended.stderr.startswith(b"0 records" if "<&-" in closed else b"1 record")
