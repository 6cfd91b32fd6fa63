"""`produce` ends with the first record that it knows to be lost, and says how many are not.

Method: the feed of lines with a producer that is a fake; and the command against a broker that
refuses one record.
"""

import pytest
from commands import StartedCluster, hightide

from hightide import RequestTimedOut
from hightide_cli.produce import _Feed

FLAGS = {
    "json_lines": False,
    "key": None,
    "key_separator": None,
    "null_empty": False,
    "headers": (),
    "partition": None,
}


class Outcome:
    """Of a record, which is known from the start."""

    is_done = True

    def __init__(self, error):
        self._error = error

    def result(self):
        if self._error:
            raise self._error


class FakeProducer:
    """What was sent, of which some is lost."""

    def __init__(self, *lost):
        self.sent = []
        self._lost = lost

    async def send(self, _topic, value, **_):
        self.sent.append(value)
        return Outcome(RequestTimedOut("nobody answers") if value in self._lost else None)


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(10)))
    return path


async def test_lines_are_read_until_a_record_is_lost(lines):
    producer, feed = FakeProducer(b"3"), _Feed("t", FLAGS)
    await feed.run(producer, (lines,))
    assert (str(feed.failure), feed.count) == ("nobody answers [1 attempt, 0.0 s]", 5)
    assert producer.sent == [b"%d" % number for number in range(5)]


async def test_all_lines_are_read_where_none_is_lost(lines):
    producer, feed = FakeProducer(), _Feed("t", FLAGS)
    await feed.run(producer, (lines, lines))
    assert (feed.failure, feed.count, len(producer.sent)) == (None, 20, 20)


@pytest.mark.live
@pytest.mark.slow
def test_what_was_acknowledged_before_is_said(tmp_path, lines):
    cluster = StartedCluster(tmp_path / "data", "--port", "0", "--topic", "t")
    try:
        cluster.run("configs", "alter", "topic", "t", "--set", "max.message.bytes=1000")
        with lines.open("ab") as file:
            file.write(b"x" * 2000)
        refused = hightide("produce", "t", lines, address=cluster.address, code=None)
        assert refused.code != 0
        assert "MESSAGE_TOO_LARGE" in refused.err
        assert refused.err.rstrip().endswith("; acknowledged: 10 of 11 records")
        assert len(cluster.read("t")) == 10
    finally:
        cluster.end()
