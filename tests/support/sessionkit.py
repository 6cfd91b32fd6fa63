"""What the tests of the leader's end of a fetch session share: a follower made by hand.

No test lives here. `Session` counts the epochs of its requests as a follower does; what they are
answered with, and when, is kept with each. `leading` makes the world of most tests: broker 1 leads
some topics of four batches, of which broker 3 has said to have three and broker 2 has all.
"""

from __future__ import annotations

from typing import Any

from askers import Asker
from leaderkit import THREE, TWO, Here, Served, part, question, served

from hightide.protocol import messages as m
from hightide_broker.runtime.base.call import Call, Reply
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.replication.replica import Replica

TOPICS = ("jade", "onyx", "opal")
COMMITTED, END = 3, 4


def same(topic: str = "jade", **over: Any) -> m.FetchPartition:
    """What there is nothing to say about, unless a test says otherwise."""
    facts = {"high_watermark": COMMITTED, "log_start_offset": 0, **over}
    return part(facts.pop("offset", END), topic=topic, **facts)


class Asked:
    """One request of a session, begun as a listener begins it."""

    def __init__(self, here: Here, request: m.FetchRequest) -> None:
        self.answer: dict[tuple[str, int], Served] | None = None
        """None while it waits."""
        self.session_id: int | None = None
        self.parked: Any = None
        with here.agenda.stretch():
            found = here.records.fetch(Call(request))
            if isinstance(found, Reply):
                self._take(found)
            else:
                self.parked = found
                found.begin(Asker(self._take))

    def _take(self, reply: Reply) -> None:
        self.answer, self.session_id = served(reply), reply.body.session_id

    @property
    def is_waiting(self) -> bool:
        return self.answer is None

    @property
    def named(self) -> list[str]:
        """The topics of which the answer says something, in its order."""
        assert self.answer is not None, "it still waits"
        return [topic for topic, _ in self.answer]

    @property
    def only(self) -> Served:
        assert self.answer is not None, "it still waits"
        (found,) = self.answer.values()
        return found


class Session:
    """A follower's end of a session: a number, and the epoch of its next request."""

    def __init__(self, here: Here, *, by: int = TWO, number: int = 7) -> None:
        self._here = here
        self.by = by
        self.number = number
        self.epoch = 0

    def request(self, *parts: m.FetchPartition, **over: Any) -> m.FetchRequest:
        facts = {"session_id": self.number, "session_epoch": self.epoch, **over}
        return question(*parts, by=self.by, **facts)

    def ask(self, *parts: m.FetchPartition, **over: Any) -> Asked:
        """The next request; raises `Refused`."""
        asked = Asked(self._here, self.request(*parts, **over))
        self.epoch += 1
        return asked


async def leading(*topics: str, **facts: Any) -> Here:
    """All replicas are in sync, if not told; broker 2 may hand over what `same` says."""
    here = Here()
    for topic in topics or TOPICS:
        await here.create(topic, **facts)
        here.append(COMMITTED, topic=topic)
        for broker in (TWO, THREE):
            here.fetch_one(COMMITTED, by=broker, topic=topic)
        here.append(topic=topic)
        assert here.replicas.get(topic, 0).high_watermark == COMMITTED
    return here


def live_wakers(*replicas: Replica) -> int:
    """So many wait for an offset of these."""
    found: list[Watermark] = [replica.committed for replica in replicas]
    found += [each.leadership.appended for each in replicas if each.leadership is not None]
    return sum(not waker.is_set for mark in found for _, _, waker in mark._heap)


def remote_of(here: Here, topic: str = "jade", broker: int = TWO) -> Any:
    """What the leader of a topic knows of another replica."""
    return here.replicas.get(topic, 0).leader.remotes[broker]
