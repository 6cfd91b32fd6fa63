"""What a Spark task asks ahead: dropped, refused, too late, never answered, or of a replica nearby.

Goal: whatever becomes of a request that is on its way while its task does other work, nobody gets
another's answer, and a range is read whole and in order. Method: the test itself plays the broker
on a plain socket: what it says waits in the kernel until the client listens. Ranges are read from
real brokers, in fetches and Arrow batches so small that there are many of them.
"""

# ruff: noqa: F811 - fixtures are imported by name

import math
import socket
from contextlib import closing
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import msgspec
import pytest
from patience import PATIENCE_S
from secure_run import direct, own_cluster, reaching

pytest.importorskip("pyspark")

from fake_broker import NO_FRAME
from spark_support import Broker, broker, numbered, until  # noqa: F401

from hightide import ApiError, BrokerUnreachable, ErrorCode, RequestTimedOut
from hightide.blocking import Admin
from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.protocol.errors import RemoteProtocolError
from hightide.spark import connection, fetch
from hightide.spark.client import BlockingClient, client_for, is_here
from hightide.spark.connection import REQUEST_TIMEOUT_S, BlockingConnection
from hightide.spark.fetch import read_range
from hightide.spark.ranges import OffsetRange

A_MOMENT_S = 0.05
HERE, ELSEWHERE = "127.0.0.1", "192.0.2.1"
COUNT, WIRE_BYTES, VALUE_BYTES, MANY = 600, 200, 6, 1 << 30
LEADER, FOLLOWER = 1, 2
LIMITS = "FETCH_BYTES", "ROWS_PER_BATCH", "BYTES_PER_BATCH"
REFUSAL = ErrorCode.NOT_LEADER_OR_FOLLOWER
ASK = m.MetadataRequest(topics=[])
NO_TOPICS = m.MetadataResponse(cluster_id="c", controller=1, brokers=[], topics=[])


class Peer:
    """A broker that the test plays, on its newest connection."""

    def __init__(self):
        self._listener = socket.create_server((HERE, 0))
        self._listener.settimeout(PATIENCE_S)
        self.address = self._listener.getsockname()
        self.link = socket.socket()

    def accept(self):
        self.link.close()
        self.link, _ = self._listener.accept()
        self.link.settimeout(PATIENCE_S)

    def take(self):
        """The id of the next request."""
        return self.take_request().id

    def take_request(self):
        length = wire.frame_length(self.link.recv(wire.LENGTH_BYTES))
        frame = wire.split_frame(self.link.recv(length), message_limit=wire.MESSAGE_BYTES_MAX)
        return wire.decode_request_envelope(frame)

    def say(self, number, answer=NO_TOPICS, *, error=None, data=None):
        """Answer a request, with `data` or its number beside the message."""
        message = wire.encode_response(answer, request_id=number, error=error)
        self.link.sendall(b"".join(wire.frame_buffers(message, [data or b"%d" % number])))

    def close(self):
        self.link.close()
        self._listener.close()


@pytest.fixture
def played():
    """A client, and two brokers that it may connect to."""
    with closing(Peer()) as one, closing(Peer()) as other, closing(BlockingClient("b:1")) as client:
        yield client, one, other


def answered(on, asked):
    """Whether the answer is that to the request."""
    _, attachments = on.answer(asked, timeout_s=PATIENCE_S)
    return [bytes(each) for each in attachments] == [b"%d" % asked.id]


@pytest.mark.parametrize(("awaited", "error"), [(0, None), (1, None), (1, REFUSAL)])
def test_what_is_answered_before_the_awaited_answer_is_dropped(played, awaited, error):
    _, peer, _ = played
    with closing(BlockingConnection(*peer.address)) as connection:
        peer.accept()
        asked = [connection.ask(ASK), connection.ask(ASK)]
        numbers = [peer.take(), peer.take()]
        peer.say(numbers[1 - awaited], error=error)
        peer.say(numbers[awaited])
        assert answered(connection, asked[awaited])
        for gone in asked:
            with pytest.raises(BrokerUnreachable, match="dropped"):
                connection.answer(gone, timeout_s=A_MOMENT_S)


def test_an_answer_that_is_to_be_kept_is_there_when_it_is_waited_for(played):
    client, peer, _ = played
    asked = [client.ask(peer.address, ASK, is_kept=is_kept) for is_kept in (True, False, True)]
    last = client.ask(peer.address, ASK)
    peer.accept()
    numbers = [peer.take() for _ in range(4)]
    for number in (2, 1, 0, 3):
        peer.say(numbers[number], error=REFUSAL if number == 2 else None)
    assert answered(client, last)
    assert answered(client, asked[0])
    with pytest.raises(ApiError, match=REFUSAL):
        client.answer(asked[2], timeout_s=A_MOMENT_S)
    for gone in (*asked, last):
        with pytest.raises(BrokerUnreachable, match="dropped"):
            client.answer(gone, timeout_s=A_MOMENT_S)


def test_answers_that_nobody_waits_for_any_more_are_not_kept_for_ever(played, monkeypatch):
    monkeypatch.setattr(connection, "EARLY_MAX", 2)
    client, peer, _ = played
    asked = [client.ask(peer.address, ASK, is_kept=True) for _ in range(4)]
    peer.accept()
    for _ in asked:
        peer.say(peer.take())
    assert answered(client, asked[3])
    assert answered(client, asked[1])
    assert answered(client, asked[2])
    with pytest.raises(BrokerUnreachable, match="dropped"):
        client.answer(asked[0], timeout_s=A_MOMENT_S)


def test_a_login_is_made_again_unless_an_answer_would_be_dropped_by_it(played, monkeypatch):
    made = []
    monkeypatch.setattr(BlockingConnection, "_log_in", lambda _, login: made.append(login))
    _, peer, _ = played
    with closing(BlockingConnection(*peer.address, login="again")) as connection:
        peer.accept()
        for is_kept, times in ((True, 2), (False, 3), (True, 3)):
            connection._login_again_at = -math.inf  # it is time to
            asked = connection.ask(ASK, is_kept=is_kept)
            assert made == ["again"] * times
        for _ in range(3):
            peer.say(peer.take())
        assert answered(connection, asked)
        connection.ask(ASK)
        assert made == ["again"] * 4


def test_a_refusal_leaves_its_connection_to_the_next_call(played):
    client, peer, _ = played
    first = client.ask(peer.address, ASK)
    peer.accept()
    peer.say(peer.take(), error=REFUSAL)
    with pytest.raises(ApiError, match=REFUSAL):
        client.answer(first, timeout_s=PATIENCE_S)
    second = client.ask(peer.address, ASK)
    assert second.connection is first.connection
    peer.say(peer.take())
    assert answered(client, second)


FAILURES = {
    "says nothing": (RequestTimedOut, lambda peer, number: None),
    "closes": (BrokerUnreachable, lambda peer, number: peer.link.close()),
    "answers what nobody asked": (RemoteProtocolError, lambda peer, number: peer.say(number + 1)),
    "answers no frame": (RemoteProtocolError, lambda peer, _: peer.link.sendall(NO_FRAME.instead)),
}


@pytest.mark.parametrize(("kind", "fail"), FAILURES.values(), ids=FAILURES.keys())
def test_after_a_failure_the_next_call_opens_a_connection(played, kind, fail):
    client, peer, other = played
    elsewhere, first = client.ask(other.address, ASK), client.ask(peer.address, ASK)
    peer.accept()
    fail(peer, peer.take())
    with pytest.raises(kind):
        client.answer(first, timeout_s=A_MOMENT_S if kind is RequestTimedOut else PATIENCE_S)
    assert first.connection._socket.fileno() < 0, "it is closed"
    second = client.ask(peer.address, ASK)
    for each, asked in (peer, second), (other, elsewhere):
        each.accept()
        each.say(each.take())
        assert answered(client, asked)


def test_bytes_that_come_now_and_then_do_not_put_off_the_deadline(played, monkeypatch):
    client, peer, _ = played
    asked = client.ask(peer.address, ASK)
    peer.accept()
    peer.take()
    peer.link.sendall((100).to_bytes(wire.LENGTH_BYTES, "big") + b"a")  # the first byte of a frame
    peer.link.shutdown(socket.SHUT_WR)
    clock = SimpleNamespace(monotonic=count(0.0, REQUEST_TIMEOUT_S / 3).__next__)
    monkeypatch.setattr(connection, "time", clock)
    with pytest.raises(RequestTimedOut, match=f"within {REQUEST_TIMEOUT_S:g} s"):
        client.answer(asked)


def broker_at(number, host, port=1):
    return m.BrokerInfo(id=number, host=host, port=port)


def led_by(leader, isr):
    part = m.PartitionMetadata(partition=0, leader=leader, leader_epoch=0, replicas=isr, isr=isr)
    return m.TopicMetadata(topic="t", partitions=[part])


def knows(client, brokers, topic):
    """A client was told so."""
    answer = msgspec.structs.replace(NO_TOPICS, brokers=brokers, topics=[topic])
    client.metadata.learn(answer, is_complete=True, now=0.0)


def test_a_leader_that_refuses_is_asked_for_the_next_one(played, monkeypatch):
    monkeypatch.setattr("hightide.net.retries.BACKOFF_S", 0)
    client, *peers = played
    brokers = [broker_at(number, *peer.address) for number, peer in enumerate(peers)]
    knows(client, brokers[:1], led_by(0, [0]))
    for peer in peers:
        client.ask(peer.address, ASK)
        peer.accept()
    no, yes = (m.FetchResult(topic="t", partition=0, error=e) for e in (REFUSAL, None))
    peers[0].say(2, m.FetchResponse(partitions=[no]))
    peers[0].say(3, msgspec.structs.replace(NO_TOPICS, brokers=brokers, topics=[led_by(1, [1])]))
    peers[1].say(2, m.FetchResponse(partitions=[yes]))
    request = m.FetchRequest(max_wait_ms=0, partitions=[])
    answer, _ = client.call_leader("t", 0, request, timeout_s=PATIENCE_S)
    assert answer.partitions == [yes]


def test_what_only_a_broker_of_old_still_has_is_gone(monkeypatch):
    """One knows of the deletion, the next one that is asked does not yet."""
    client, gone = BlockingClient("b:1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    told = [
        (led_by(1, [1]), 99),
        (m.TopicMetadata(topic="t", error=gone), 100),
        (led_by(1, [1]), 99),
    ]
    answers = iter(
        msgspec.structs.replace(NO_TOPICS, topics=[topic], metadata_offset=offset)
        for topic, offset in told
    )
    monkeypatch.setattr(client, "_any", lambda request, timeout_s: next(answers))
    assert client._refresh_once(["t"], 1.0, frozenset()) == frozenset()
    for _ in range(2):
        assert client._refresh_once(["t"], 1.0, frozenset(["t"])) == {"t"}
        assert client.metadata.topics == {}


def test_a_broker_that_is_behind_is_asked_last(monkeypatch):
    """It is cut off and tells of an older epoch; another one knows who leads."""
    client = BlockingClient("behind:1")
    asked = []

    def call(_, address, request, **rest):
        asked.append(address[0])
        brokers = [broker_at(1, "behind", 1), broker_at(2, "leads", 1)]
        led = led_by(2, [1, 2])
        newer = [msgspec.structs.replace(led.partitions[0], leader_epoch=5)]
        if address[0] == "leads":
            led = msgspec.structs.replace(led, partitions=newer)
        return msgspec.structs.replace(NO_TOPICS, brokers=brokers, topics=[led]), []

    monkeypatch.setattr(BlockingClient, "call", call)
    client.refresh(["t"], timeout_s=PATIENCE_S)
    assert client.leader("t", 0).leader_epoch == 0
    hint = m.LeaderHint(leader=2, leader_epoch=5)
    client.metadata.lost_leader("t", 0, hint)
    client.metadata.lost_leader("t", 0)
    asked.clear()
    assert client.leader_of is not None
    with pytest.raises(ApiError, match="has no leader"):
        client.leader_of("t", 0, timeout_s=PATIENCE_S)
    assert client.leader_of("t", 0, timeout_s=PATIENCE_S).host == "leads"
    assert asked == ["behind", "leads"]


def test_who_does_not_lead_any_more_says_who_does(monkeypatch):
    """KIP-951: nobody needs to be asked for metadata, which may be behind."""
    client, asked = BlockingClient("b:1"), []
    knows(client, [broker_at(1, "old", 1), broker_at(2, "new", 1)], led_by(1, [1, 2]))

    def call(_, address, request, **rest):
        asked.append((address[0], type(request)))
        hint = m.LeaderHint(leader=2, leader_epoch=5) if address[0] == "old" else None
        error = None if hint is None else ErrorCode.NOT_LEADER_OR_FOLLOWER
        part = m.FetchResult(topic="t", partition=0, error=error, current_leader=hint)
        return m.FetchResponse(partitions=[part]), []

    monkeypatch.setattr(BlockingClient, "call", call)
    part = m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=1)
    request = m.FetchRequest(max_wait_ms=0, max_bytes=1, partitions=[part])
    client.call_leader("t", 0, request, timeout_s=PATIENCE_S)
    assert asked == [("old", m.FetchRequest), ("new", m.FetchRequest)]


def test_a_coordinator_is_found_although_the_first_address_is_a_controllers(monkeypatch):
    """Only brokers know coordinators; a controller names the brokers."""
    client, asked = BlockingClient("controller:1"), []

    def call(_, address, request, **rest):
        asked.append((address[0], type(request)))
        if isinstance(request, m.MetadataRequest):
            return msgspec.structs.replace(NO_TOPICS, brokers=[broker_at(1, "broker", 1)]), []
        if isinstance(request, g.FindCoordinatorRequest):
            return g.FindCoordinatorResponse(broker=1, host="broker", port=1), []
        return g.OffsetFetchResponse(partitions=[]), []

    monkeypatch.setattr(BlockingClient, "call", call)
    assert client.committed("g") == []
    assert asked == [
        ("controller", m.MetadataRequest),
        ("broker", g.FindCoordinatorRequest),
        ("broker", g.OffsetFetchRequest),
    ]


def test_a_topic_that_was_unknown_once_before_silence_is_not_gone(monkeypatch):
    client, told = BlockingClient("b:1"), []

    def call(self, address, request, *, timeout_s=0.0, **_):
        if isinstance(request, m.MetadataRequest):
            broker = broker_at(1, "b", 1)
            return msgspec.structs.replace(NO_TOPICS, brokers=[broker], topics=[led_by(1, [1])]), []
        told.append(request)
        if len(told) > 1:
            raise RequestTimedOut("silence")
        unknown = m.ListOffsetsResult(
            topic="t", partition=0, offset=-1, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        return m.ListOffsetsResponse(partitions=[unknown]), []

    monkeypatch.setattr(BlockingClient, "call", call)
    with pytest.raises(RequestTimedOut):
        client.offset("t", 0, m.LATEST, timeout_s=0.5)


def test_who_waits_for_more_does_so_also_while_nobody_leads(played):
    """A leader may have died since the ends were found; a query that waits looks for them again."""
    client, peer, _ = played
    knows(client, [broker_at(1, *peer.address)], led_by(-1, [1]))
    client.wait_for_more({("t", 0): 5, ("gone", 0): 5}, 0.0)
    assert client.ask(peer.address, ASK).id == 1  # the first request of all


@pytest.mark.parametrize(
    ("hosts", "isr", "near"),
    [
        ((HERE, HERE, HERE), [1, 2, 3], None),
        ((ELSEWHERE, HERE, HERE), [1, 3], 3),
        ((ELSEWHERE, ELSEWHERE, HERE), [1, 2, 3], 3),
        ((ELSEWHERE, ELSEWHERE, HERE), [1, 2], None),
        ((ELSEWHERE, HERE), [1, 3, 2], 2),
    ],
)
def test_nearby_is_a_replica_in_sync_on_this_host_if_its_leader_is_not(hosts, isr, near):
    client = BlockingClient("nobody:1")
    knows(client, [broker_at(n, host) for n, host in enumerate(hosts, 1)], led_by(1, isr))
    assert client.nearby("t", 0) == client.metadata.brokers.get(near)


def test_only_an_address_of_this_machine_is_here():
    assert [is_here(host) for host in (HERE, "localhost", ELSEWHERE)] == [True, True, False]


def stored(at, topic, values, **options):
    """Where the values are, now that a broker or a cluster has them."""
    Broker.fill(at, topic, values, **options)
    return OffsetRange(topic, Broker.topic_id(at, topic), 0, 0, len(values))


@pytest.fixture(scope="module")
def filled(broker):
    """Many small batches."""
    with closing(client_for(*direct(broker.address))):
        yield stored(broker, broker.topic(), numbered(0, COUNT), batch_size=WIRE_BYTES)


@pytest.fixture
def fetched(monkeypatch):
    """(port, offset) of each fetch that is asked for by a range, in order."""
    sent, ask = [], BlockingClient.ask

    def noted(self, address, request, **options):
        if isinstance(request, m.FetchRequest):
            sent.append((address[1], request.partitions[0].fetch_offset))
        return ask(self, address, request, **options)

    monkeypatch.setattr(BlockingClient, "ask", noted)
    return sent


def limit(monkeypatch, *values):
    for name, value in zip(LIMITS, values, strict=False):
        monkeypatch.setattr(fetch, name, value)


def read(address, wanted):
    options = {"include_headers": False, "fail_on_data_loss": True, "timeout_s": PATIENCE_S}
    return read_range(address, wanted, way=direct(address)[1], **options)


def values_of(batches):
    return [value for batch in batches for value in batch["value"].to_pylist()]


@pytest.mark.live
@pytest.mark.slow
def test_an_abandoned_range_leaves_nothing_to_the_next_one(broker, filled, monkeypatch):
    limit(monkeypatch, 1, 1)
    abandoned = read(broker.address, filled)
    assert values_of([next(abandoned)])[0] == b"000000"
    (connection,) = client_for(*direct(broker.address))._connections.values()
    assert len(connection._unanswered) == 1, "the next fetch is asked for ahead"
    abandoned.close()
    rest = read(broker.address, replace(filled, start=300, end=500))
    batches, ahead = zip(*((batch, len(connection._unanswered)) for batch in rest), strict=True)
    assert values_of(batches) == numbered(300, 500)
    assert (max(ahead), ahead[0], ahead[-1]) == (1, 1, 0), "none behind the end"
    assert [*client_for(*direct(broker.address))._connections.values()] == [connection]


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("limits", [(1, 1), (1, MANY, 300), (999, 50, 120), (MANY, 50)])
def test_a_range_of_many_batches_is_whole(broker, filled, fetched, monkeypatch, limits):
    limit(monkeypatch, *limits)
    batches = list(read(broker.address, replace(filled, start=13, end=500)))
    assert values_of(batches) == numbered(13, 500)
    enough = min(fetch.ROWS_PER_BATCH, fetch.BYTES_PER_BATCH // VALUE_BYTES)
    rows = [len(batch) for batch in batches]
    assert min(rows[1:-1]) >= enough
    assert max(rows) < enough + WIRE_BYTES // VALUE_BYTES
    offsets = [offset for _, offset in fetched]
    assert offsets == sorted(set(offsets)), "nothing is asked for twice"
    assert (len(offsets) > 5) == (limits[0] < MANY)


@pytest.mark.live
@pytest.mark.slow
def test_large_records_come_in_batches_of_so_many_bytes(broker, monkeypatch):
    limit(monkeypatch, MANY, MANY, 3 * 20_000 * VALUE_BYTES)
    large = [value * 20_000 for value in numbered(0, 16)]
    with closing(client_for(*direct(broker.address))):
        batches = list(read(broker.address, stored(broker, broker.topic(), large, batch_size=1)))
    assert [len(batch) for batch in batches] == [3, 3, 3, 3, 3, 1]
    assert values_of(batches) == large


def replicated(cluster, client):
    """A range whose follower knows that all of it is committed."""
    with Admin(**reaching(cluster.address)) as admin:
        admin.create_topic("t", assignment=[[LEADER, FOLLOWER, 3]])
    wanted = stored(cluster, "t", numbered(0, COUNT), batch_size=WIRE_BYTES)
    client.refresh(["t"], timeout_s=PATIENCE_S)
    last = m.FetchPartition(topic="t", partition=0, fetch_offset=COUNT - 1)
    request = m.FetchRequest(max_wait_ms=0, partitions=[last], rack="here")
    where = HERE, client.metadata.brokers[FOLLOWER].port
    until(lambda: client.call(where, request)[1], "the follower gives the last record")
    return wanted


@pytest.mark.live
@pytest.mark.slow
def test_a_replica_nearby_is_read_and_once_it_is_dead_its_leader(fetched, monkeypatch):
    limit(monkeypatch, 999, 1)
    with own_cluster(brokers=3) as cluster, closing(client_for(*direct(cluster.address))) as client:
        wanted = replicated(cluster, client)
        near = client.metadata.brokers[FOLLOWER]  # nobody knows it any more once it is fenced
        monkeypatch.setattr(BlockingClient, "nearby", lambda *_: near)
        # On a busy machine another one may lead by now; who answers for the dead one does lead.
        known = client.metadata.brokers
        others = {node.port for number, node in known.items() if number != FOLLOWER}
        follower = known[FOLLOWER].port
        fetched.clear()
        assert values_of(read(cluster.address, wanted)) == numbered(0, COUNT)
        assert {port for port, _ in fetched} == {follower}, "the leader is left alone"
        batches = read(cluster.address, wanted)
        begun = [next(batches)]
        cluster.stop(FOLLOWER, kill=True)
        assert values_of([*begun, *batches]) == numbered(0, COUNT)
        assert fetched[-1][0] in others
        fetched.clear()
        assert values_of(read(cluster.address, wanted)) == numbered(0, COUNT)
        assert fetched[0] == (follower, 0)
        assert fetched[-1][0] in others
