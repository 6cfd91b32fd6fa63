"""Looks at the cluster for one user: every 0.75 s while anybody watches, once for all who do.

What was seen is replaced whole; who waits for news is told of the newest, never of all there was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import trio

from hightide import (
    ApiError,
    AuthenticationFailed,
    ErrorCode,
    HightideError,
    LogDirDescription,
    TracePlace,
)
from hightide_broker.trace.lines import read_lines
from hightide_broker.trace.order import in_order
from hightide_broker.trace.ring import KINDS
from hightide_console.history import History
from hightide_console.quorum_view import quorum_view
from hightide_console.timeline import epoch_starts, notches, quorum_notches
from hightide_console.views import (
    Held,
    View,
    cluster_view,
    group_view,
    held_by,
    open_view,
    topic_view,
)

if TYPE_CHECKING:
    from hightide import (
        Admin,
        ClusterDescription,
        MetadataLogDescription,
        QuorumDescription,
        TopicDescription,
    )

LOOK_S = 0.75
"""From the start of one look to the next: with what a look takes, a change is seen in a second."""
PAUSE_S = 0.25
"""At least so long nothing is asked, however long a look took."""
SILENCE_S = 2.5
"""A look that takes longer is told of."""
ANSWER_S = 1.0
"""A broker that says nothing of its replicas for so long is shown as one that does not answer."""
AGAIN_S = 0.2
"""So long one that did not answer is waited for, or else a dead one would hold up every look."""
QUORUM_S = 5.0
"""A broker that knows of no leader says so within less."""
NO_LEADER = -1
LEADERLESS = (
    "no controller is active: what is shown is what brokers heard last. Until a majority of the "
    "controllers is there, nothing can be created, changed or deleted, and no partition gets "
    "another leader"
)
UNTOLD = (
    "how far replicas are, brokers tell those who may DESCRIBE the cluster (hightide acls allow)"
)
DISKS_S = 5.0
"""How often the sizes of everything are asked for, a controller that did not answer is asked again,
and a broker that did not is waited for as long as any."""
KEPT_MAX = 1_000
"""Answers; who asks for groups by chance makes no end of them."""
FRESH_S = 0.9
"""What was asked for so long ago, or less, is not asked for again."""


class Eye:
    """What one user sees of the cluster."""

    def __init__(self, admin: Admin, *, is_nobody: bool = False) -> None:
        """`is_nobody`: its user does not prove who it is; who is let in by that, all are."""
        self.admin = admin
        self._is_nobody = is_nobody
        self.life = token_hex(4)
        """Numbers of another eye's events are none of this one's."""
        self.version = 0
        """Rises with each look that saw something new."""
        self.cluster: View = {"error": "not looked yet"}
        self.topics: dict[str, View] = {}
        """By name, of those that somebody watches."""
        self.history = History()
        self._watched: Counter[str] = Counter()
        self._watchers = 0
        self._news = trio.Event()
        self._wake = trio.Event()
        self._disks: dict[int, LogDirDescription] = {}
        self._disks_at = float("-inf")
        self._places: dict[tuple[int, str], TracePlace] = {}
        self._quorum: QuorumDescription | None = None
        self._logs: dict[int, MetadataLogDescription] = {}
        """By node: what those that answered in the last look have of the metadata log."""
        self._logs_before: dict[int, MetadataLogDescription] = {}
        """What they, and others, said in looks before."""
        self._silent: set[int] = set()
        """Brokers that did not answer in the last look."""
        self._waited_at = float("-inf")
        """When all brokers were waited for, those as well."""
        self._lost: dict[int, float] = {}
        """Controllers of their own that did not answer; when to ask them again."""
        self._is_untold = False
        """Whether brokers answered that this user may not know what they hold."""
        self._for_nodes: set[int] = set()
        """Controllers where only nodes may come: their traces are not seen."""
        self._held: Held = {}
        """What brokers said last of the topics that are watched."""
        self._kept: dict[str, tuple[float, View]] = {}
        self._asking: dict[str, trio.Lock] = {}
        self.is_untraced = ""
        """Why this user may not see what happened; empty: it may."""

    async def run(self) -> None:
        """Look while anybody watches, until cancelled."""
        while True:
            if not self._watchers:
                self._wake = trio.Event()
                await self._wake.wait()
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_of_silence)
                await self.look()
                nursery.cancel_scope.cancel()
            await trio.sleep_until(max(began + LOOK_S, trio.current_time() + PAUSE_S))

    async def _tell_of_silence(self) -> None:
        await trio.sleep(SILENCE_S)
        why = f"no answer for {SILENCE_S:g} s: what is shown is old"
        self._show({**self.cluster, "error": why}, self.topics)

    @contextmanager
    def watched(self, topic: str) -> Iterator[None]:
        """Somebody watches, one topic more closely if it has a name."""
        self._watchers += 1
        self._watched[topic] += 1
        self._wake.set()
        try:
            yield
        finally:
            self._watchers -= 1
            self._watched[topic] -= 1
            self._watched += Counter()  # forgets what nobody watches

    async def news(self, seen: int) -> None:
        """Until there is something newer than version `seen`."""
        while self.version == seen:
            await self._news.wait()

    async def look(self) -> None:
        """One look; what cannot be seen is said in the view."""
        try:
            cluster = await self.admin.describe_cluster()
            topics = await self.admin.list_topics()
        except HightideError as error:
            self._show({**self.cluster, "error": str(error)}, self.topics)
            return
        quorum = self._quorum = await self._see_quorum(cluster)
        brokers = [broker.id for broker in cluster.brokers]
        wanted = [topic for topic in topics if self._watched[topic.topic] > 0]
        held = await self._ask_brokers(brokers, [topic.topic for topic in wanted])
        seen = {topic.topic: await self._topic(topic, held) for topic in wanted}
        self._held = {key: each for key, each in {**self._held, **held}.items() if key[1] in seen}
        await self._ask_nodes(cluster, quorum)
        view = cluster_view(cluster, topics, self._disks)
        view["quorum"] = None if quorum is None else self._quorum_view(quorum)
        view["open"] = open_view(cluster) if self._is_nobody else None
        view["error"] = "" if _is_led(cluster) else LEADERLESS
        self._show(view, seen)

    def _quorum_view(self, quorum: QuorumDescription) -> View:
        cut = quorum_notches(self.history.events(), quorum.epoch)
        silent = {*self._silent, *self._lost}
        return quorum_view(quorum, self._logs, silent, cut, self._logs_before)

    async def _see_quorum(self, cluster: ClusterDescription) -> QuorumDescription | None:
        """Who votes; where nobody leads, as it was known last: a broker takes seconds to say so,
        and all else would be old meanwhile. None: this user may not ask, or nobody says."""
        if self._quorum is not None and not _is_led(cluster):
            return replace(self._quorum, leader=NO_LEADER)
        with trio.move_on_after(QUORUM_S), suppress(HightideError):
            return await self.admin.describe_quorum(even_without_leader=True)
        return None

    def _show(self, cluster: View, topics: dict[str, View]) -> None:
        if (cluster, topics) != (self.cluster, self.topics):
            self.cluster, self.topics = cluster, topics
            self.tell()

    def tell(self) -> None:
        """There is something new."""
        self.version += 1
        self._news.set()
        self._news = trio.Event()

    async def _ask_brokers(self, brokers: list[int], topics: list[str]) -> Held:
        """What brokers hold of these topics; and, where it is time, how much they hold. They are
        asked for both at once: one that hangs holds up a look by one `ANSWER_S`, whatever is
        watched."""
        told: list[LogDirDescription] = []
        now = trio.current_time()
        is_due = bool(self._silent) or now >= self._disks_at + DISKS_S
        if not (topics or is_due):
            return {}
        patience = dict.fromkeys(brokers, ANSWER_S)
        if now >= self._waited_at + DISKS_S:
            self._waited_at = now
        else:
            patience |= dict.fromkeys(self._silent.intersection(brokers), AGAIN_S)
        self._is_untold = False
        disks: list[LogDirDescription] = []
        async with trio.open_nursery() as nursery:
            if topics:
                nursery.start_soon(self._directories, topics, patience, told)
            if is_due:
                nursery.start_soon(self._directories, None, patience, disks)
        if is_due:
            self._disks = {each.broker: each for each in disks}
            self._disks_at = trio.current_time()
        self._silent = {each.broker for each in (*told, *disks) if each.error}
        return held_by(told)

    async def _directories(
        self, topics: list[str] | None, brokers: dict[int, float], told: list[LogDirDescription]
    ) -> None:
        """What brokers hold, each waited for so long; nothing of one that does not tell this user.
        Each is asked by itself: one that hangs holds up nobody."""
        found = {each: LogDirDescription(each, "", [], -1, "no answer") for each in brokers}

        async def ask(broker: int) -> None:
            try:
                with trio.move_on_after(brokers[broker]):
                    (found[broker],) = await self.admin.describe_log_dirs(topics, brokers=[broker])
            except HightideError as error:
                if _is_denied(error):
                    self._is_untold = True
                    del found[broker]

        async with trio.open_nursery() as nursery:
            for broker in brokers:
                nursery.start_soon(ask, broker)
        told.extend(found.values())

    async def _topic(self, topic: TopicDescription, held: Held) -> View:
        name = topic.topic
        min_isr = await self._min_isr_of(name)
        untold = UNTOLD if self._is_untold else ""
        view = topic_view(topic, held, min_isr, self._held, untold=untold)
        starts = epoch_starts(self.history.events(), name)
        epochs = {part.partition: part.leader_epoch for part in topic.partitions}
        cut = notches(self.history.events(), name, epochs)
        for part in view["partitions"]:
            part["starts"] = starts.get(part["partition"], [])
            for lane in part["lanes"]:
                lane["cut"] = cut.get((part["partition"], lane["broker"]), [])
        return view

    async def _min_isr_of(self, topic: str) -> int:
        async def ask() -> View:
            configs = await self.admin.describe_configs("topic", topic)
            return {each.name: each.value for each in configs}

        try:
            configs = await self.once(f"configs of {topic}", ask, DISKS_S)
            return int(configs["min.insync.replicas"])
        except (HightideError, KeyError, ValueError):
            return 1

    async def _ask_nodes(
        self, cluster: ClusterDescription, quorum: QuorumDescription | None
    ) -> None:
        """What nodes have of the metadata log; and what they told since they were asked last, in
        one order."""
        found: list[bytes] = []
        self._logs_before |= self._logs
        self._logs = {}
        brokers = [each.id for each in cluster.brokers]
        voters = [each.id for each in quorum.voters] if quorum is not None else []

        async def ask(node: int) -> None:
            traces = (partial(self._read_trace, node, kind, found) for kind in KINDS)
            is_heard = False
            with trio.move_on_after(ANSWER_S) as asking:
                for question in (partial(self._see_log, node), *traces):
                    try:
                        await question()
                        is_heard = True
                    except ApiError as error:
                        is_heard = True
                        if _is_denied(error):
                            self.is_untraced = str(error)
                    except AuthenticationFailed:
                        self._for_nodes.add(node)
                        return  # everything would be asked for at the same door
                    except HightideError:
                        continue  # the next look tries again from the same place
            if node in brokers:
                if asking.cancelled_caught:
                    self._silent.add(node)
            elif is_heard:
                self._lost.pop(node, None)
            else:
                self._lost[node] = trio.current_time() + DISKS_S

        if not self._is_untold:
            self.is_untraced = ""  # the same permission opens both, and it may have been given
        if self.is_untraced:
            return
        serving = [each.id for each in cluster.brokers if not each.fenced]
        controllers = {*voters} - {*brokers} - self._for_nodes
        now = trio.current_time()
        self._lost = {node: at for node, at in self._lost.items() if node in controllers}
        async with trio.open_nursery() as nursery:
            for node in (*serving, *sorted(controllers)):
                if node not in self._silent and now >= self._lost.get(node, now):
                    nursery.start_soon(ask, node)
        new = in_order(read_lines(found))
        self.history.learn(new)
        if new:
            self.tell()

    async def _see_log(self, node: int) -> None:
        self._logs[node] = await self.admin.describe_metadata_log(node)

    async def _read_trace(self, node: int, kind: str, found: list[bytes]) -> None:
        place = self._places.get((node, kind), TracePlace())
        lines, self._places[node, kind] = await self.admin.read_trace(node, kind, place)
        found.extend(lines.splitlines())

    async def group(self, name: str) -> View:
        """A group as it is now."""

        async def ask() -> View:
            described = await self.admin.describe_group(name)
            return group_view(described, await self.admin.group_lag(name))

        return await self.once(f"group {name}", ask)

    async def groups(self) -> View:
        """All groups, by name."""

        async def ask() -> View:
            found = await self.admin.list_groups()
            return {
                "groups": [
                    {"group": each.group, "state": each.state, "members": each.members}
                    for each in sorted(found, key=lambda each: each.group)
                ]
            }

        return await self.once("groups", ask)

    def forget(self, what: str) -> None:
        """What was asked for is different now."""
        self._kept.pop(what, None)

    async def once(self, what: str, ask: Any, fresh_s: float = FRESH_S) -> View:
        """What `ask` answers, asked once for all who want it at the same time."""
        if max(len(self._kept), len(self._asking)) > KEPT_MAX:
            self._kept.clear()
            self._asking.clear()
        async with self._asking.setdefault(what, trio.Lock()):
            at, view = self._kept.get(what, (float("-inf"), {}))
            if trio.current_time() > at + fresh_s:
                view = await ask()
                self._kept[what] = (trio.current_time(), view)
            return view


def _is_led(cluster: ClusterDescription) -> bool:
    """Whether a controller is active, as far as the broker that was asked knows."""
    return cluster.controller != NO_LEADER


def _is_denied(error: HightideError) -> bool:
    """Whether it is a no to this user, and not the want of an answer."""
    return isinstance(error, ApiError) and error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
