"""The commands of the stories in `scenarios/elections`, told to a controller. Not a test.

One partition, a-0, of a cluster whose decisions are committed at once (`ControlledCluster`). What
a step answers is how the partition stands, and how the trace says that its leader was found.
"""

from __future__ import annotations

from controller_cluster import ControlledCluster, cluster_of

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import Refused
from hightide_broker.core.cluster.change_events import event_of
from hightide_broker.core.cluster.controller import Decision
from hightide_broker.core.cluster.log_ends import LogEnds
from hightide_broker.trace.events import Event, PartitionChanged


class Told:
    """The cluster's decisions as events, each told before it counts."""

    def __init__(self, cluster: ControlledCluster) -> None:
        self.cluster = cluster
        self.events: list[Event] = []
        self._commit, cluster.commit = cluster.commit, self.commit  # type: ignore[method-assign]

    def commit(self, decision: Decision) -> object:
        image, first = self.cluster.replayed(), len(self.cluster.log)
        for number, change in enumerate(decision.changes):
            event = event_of(change, image, self.heard, offset=first + number, cause="why")
            self.events += [event] if event is not None else []
            image.replay(change, first + number)
        return self._commit(decision)

    @property
    def heard(self) -> LogEnds:
        """What brokers said of their logs."""
        return self.cluster.controller.partitions.log_ends

    @property
    def last(self) -> PartitionChanged:
        return [each for each in self.events if isinstance(each, PartitionChanged)][-1]

    @property
    def elections(self) -> list[str]:
        """Of all partitions, as far as a leader was found."""
        changes = [each for each in self.events if isinstance(each, PartitionChanged)]
        return [each.election for each in changes if each.election]


class ElectionStory:
    """A controller, its brokers, and the partition a-0."""

    refusals = (Refused,)

    def __init__(self) -> None:
        self._told = Told(ControlledCluster())

    def check_invariants(self) -> None:
        """A leader has all that its ISR has, and is in it."""
        for topic in self._told.cluster.image.topics.values():
            for state in topic.partitions:
                state.assert_consistent()

    def brokers(
        self, *numbers: str, min_isr: str = "1", flush: str = "synced", unclean: str = "no"
    ) -> str:
        """Begin: all are in sync, the first leads."""
        configs = {"flush": flush}
        if unclean == "yes":
            configs["unclean_leader_election_enable"] = "true"
        self._told = Told(cluster_of(*map(int, numbers), min_isr=int(min_isr), **configs))
        return self._partition()

    def fence(self, *numbers: str) -> str:
        """They are silent for too long, one after the other."""
        self._told.cluster.fence(*map(int, numbers))
        return self._partition()

    def crashed(self, *numbers: str) -> str:
        """New processes on the disks of ones that did not stop in order."""
        for number in map(int, numbers):
            self._told.cluster.register(number)
        return self._partition()

    def new_disk(self, number: str) -> str:
        """A new process that has nothing of what the last one had."""
        self._told.cluster.register(int(number), directory=f"new-disk-of-{number}")
        return self._partition()

    def back(self, number: str, end: str = "-1/0") -> str:
        """It is heard of again, and says where its log ends: epoch/offset."""
        broker, (epoch, offset) = int(number), map(int, end.split("/"))
        told = self._told.cluster.leaderless(broker, (epoch, offset))
        self._told.cluster.heartbeat(broker, leaderless=told)
        return self._partition()

    def damaged(self, number: str) -> str:
        """It is heard of again, and its replica serves nobody."""
        topic = self._told.cluster.image.topics["a"]
        offline = [c.OfflineReplica(topic_id=topic.topic_id, partition=0)]
        self._told.cluster.heartbeat(int(number), offline=offline)
        return self._partition()

    def joins(self, *isr: str) -> str:
        """The leader asks for this ISR."""
        self._told.cluster.alter_isr("a", *map(int, isr))
        return self._partition()

    def elect(self, kind: str) -> str:
        """Somebody asks for an election, `unclean` or `preferred`."""
        (result,) = self._told.cluster.elect(("a", 0), unclean=kind == "unclean")
        if result.error is not None:
            return str(result.error)
        return self._partition()

    def _partition(self) -> str:
        """As the controller has it, and how it came to its leader if that was just found."""
        state = self._told.cluster.partition("a")
        words = ["nobody leads" if state.leader < 0 else f"{state.leader} leads"]
        for name in ("isr", "elr", "last_known_elr"):
            members = getattr(state, name)
            words += [f"{name}={','.join(map(str, members))}"] if members else []
        found, self._told.events = self._told.elections, []
        words += [f"election={found[-1]}"] if found else []
        return " ".join(words)
