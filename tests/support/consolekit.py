"""What the tests of the console share: a fake administrator, sessions, requests without a socket.

No test lives here. A request goes to the application as a server would hand it over, so that what a
page is answered is seen byte for byte, on virtual time.
"""

import json
from types import SimpleNamespace

import trio

from hightide import (
    ApiError,
    AuthenticationFailed,
    BrokerDescription,
    ClusterDescription,
    EpochStart,
    ErrorCode,
    LogDirDescription,
    MetadataLogDescription,
    PartitionDescription,
    QuorumDescription,
    QuorumReplica,
    ReplicaDescription,
    RequestTimedOut,
    TopicDescription,
    TracePlace,
)
from hightide_broker.trace.events import LeaderBegan
from hightide_broker.trace.lines import line_of
from hightide_console.eye import Eye
from hightide_console.sessions import Session

HOST = "127.0.0.1:19080"
ORIGIN = f"http://{HOST}"
SERVED_AS = [HOST, "localhost:19080"]


def made(kind, **values):
    """A description with these values, and what else it has as nothing."""
    blank = dict.fromkeys(kind.__dataclass_fields__)
    return kind(**{**blank, **values})


def part(number=0, *, leader=1, epoch=3, replicas=(1, 2, 3), isr=(1, 2, 3), elr=(), message=""):
    return made(
        PartitionDescription,
        partition=number,
        leader=leader,
        leader_epoch=epoch,
        replicas=list(replicas),
        isr=list(isr),
        elr=list(elr),
        last_known_elr=[],
        message=message,
    )


def topic_of(*parts, name="orders", internal=False):
    return made(TopicDescription, topic=name, topic_id="id", internal=internal, partitions=[*parts])


def replica(log_end=10, watermark=10, *, synced=None, error="", topic="orders", partition=0):
    return made(
        ReplicaDescription,
        topic=topic,
        partition=partition,
        log_start_offset=0,
        high_watermark=watermark,
        log_end_offset=log_end,
        synced_offset=log_end if synced is None else synced,
        leader_epoch=3,
        size_bytes=100,
        error=error,
    )


def directory(broker, *replicas, error=""):
    return LogDirDescription(broker, "data", [*replicas], 1_000, error)


def broker(number, *, fenced=False, host="here"):
    return made(
        BrokerDescription,
        id=number,
        host=host,
        port=number,
        rack="",
        roles=["broker"],
        fenced=fenced,
        epoch=1,
    )


def began(number, *, node=1, epoch=3, log_end=0, topic="orders", ms=None):
    """A line of a trace: a replica leads an epoch."""
    what = LeaderBegan(
        topic=topic,
        partition=0,
        leader_epoch=epoch,
        log_end=log_end,
        high_watermark=log_end,
        isr=(1, 2, 3),
    )
    return line_of(number if ms is None else ms, node, number, what)


TOPICS = "orders", "other", "third"


class FakeAdmin:
    """A cluster of three, as an administrator hears of it; counts what it is asked."""

    def __init__(self):
        self.asked = []
        self.hanging = set()
        """Brokers that do not answer."""
        self.log_end = 10
        self.lines = []
        """What broker 1 told, and was not asked for yet."""
        self.controller = 1
        self.quorum_s = 0.0
        """How long it takes to say who votes."""
        self.voters = []
        """Ids of controllers."""
        self.turns_away = set()
        """Controllers that let in nodes alone."""
        self.may_describe = True
        """Whether this user may DESCRIBE the cluster."""

    async def describe_cluster(self):
        self.asked.append("cluster")
        await trio.lowlevel.checkpoint()
        return made(
            ClusterDescription,
            cluster_id="c",
            controller=self.controller,
            brokers=[broker(number) for number in (1, 2, 3)],
        )

    async def list_topics(self):
        self.asked.append("topics")
        return [topic_of(part(), name=name) for name in TOPICS]

    async def describe_quorum(self, *, even_without_leader=False):
        self.asked.append("quorum")
        await trio.sleep(self.quorum_s)
        if self.controller < 0 and not even_without_leader:
            raise RequestTimedOut("no controller was active")
        voters = [
            made(QuorumReplica, id=voter, log_end_offset=1, lag=0, last_fetch_ms_ago=0)
            for voter in self.voters
        ]
        return made(
            QuorumDescription,
            leader=self.controller,
            epoch=1,
            high_watermark=1,
            voters=voters,
            observers=[],
        )

    async def describe_log_dirs(self, topics=None, *, brokers=None):
        self.asked.append(("disks", topics and topics[0], *brokers))
        if self.hanging.intersection(brokers):
            await trio.sleep_forever()
        self._check()
        held = [replica(self.log_end, self.log_end, topic=name) for name in topics or TOPICS]
        return [directory(brokers[0], *held)]

    async def describe_configs(self, kind, name):
        self.asked.append(("configs", name))
        return [SimpleNamespace(name="min.insync.replicas", value="2")]

    async def describe_metadata_log(self, node):
        await self._ask(("log", node), node)
        return MetadataLogDescription(node, 0, 5, 6, 7, [EpochStart(1, 0), EpochStart(3, 4)])

    async def read_trace(self, node, kind, place):
        await self._ask(("trace", node, kind), node)
        lines = []
        if node == 1 and kind == "events":
            lines, self.lines = self.lines, []
        return b"".join(lines), TracePlace()

    async def _ask(self, question, node):
        self.asked.append(question)
        if node in self.hanging:
            await trio.sleep_forever()
        if node in self.turns_away:
            raise AuthenticationFailed("certificate required")
        self._check()

    def _check(self):
        if not self.may_describe:
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "may not DESCRIBE")


def session_of(admin=None):
    """Somebody who looks at a fake cluster."""
    return Session("", Eye(admin or FakeAdmin()), {}, token="the-token")


async def answered(app, path, *, method="GET", headers=None, body=b"", host=HOST):
    """A status, headers and a body."""
    named = [("host", host), *(headers or [])]
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in named],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 19080),
    }
    pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)] or [b""]
    said = []

    async def receive():
        await trio.lowlevel.checkpoint()
        if not pieces:
            await trio.sleep_forever()
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message):
        said.append(message)

    await app(scope, receive, send)
    found = b"".join(message.get("body", b"") for message in said[1:])
    return said[0]["status"], {k.decode(): v.decode() for k, v in said[0]["headers"]}, found


def events_of(data):
    """[(id, event, what)] of a piece of a stream."""
    found = []
    for block in data.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line[1:])
        if "id" in lines:
            found.append((lines["id"], lines["event"], json.loads(lines["data"])))
    return found


class Browser:
    """Reads a stream, in the order in which it is sent; may stop to."""

    def __init__(self, stream):
        self.said = []
        self.status = None
        self.reads = trio.Event()
        self.reads.set()
        self.ended = trio.Event()
        self._stream = stream
        self._gone = trio.Event()

    async def run(self):
        try:
            await self._stream({"type": "http"}, self._receive, self._send)
        finally:
            self.ended.set()

    def leave(self):
        self._gone.set()

    async def _receive(self):
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            await self.reads.wait()
            self.said.extend(events_of(message.get("body", b"")) or [message.get("body", b"")])

    def states(self):
        return [what for _, event, what in self._events() if event == "state"]

    def numbers(self):
        """Of the events of the trace that came."""
        return [
            each["number"] for _, event, what in self._events() if event == "trace" for each in what
        ]

    @property
    def last_id(self):
        return self._events()[-1][0]

    def _events(self):
        return [each for each in self.said if isinstance(each, tuple)]
