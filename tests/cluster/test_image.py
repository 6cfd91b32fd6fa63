"""The cluster image as a snapshot, as a copy, and as the difference to a later one.

Goal: a snapshot makes the same image, down to the order in it, and goes on as the log would have; a
copy is its own; anybody who got a snapshot in place of changes and looks again at what
`differences` names has missed nothing, and looks at nothing else. Method: histories that a seeded
small cluster decides; images are compared whole.
"""

from __future__ import annotations

import random

import pytest
from controller_cluster import ControlledCluster

from hightide_broker.core.cluster.changes import (
    AnyChange,
    ChangePartition,
    CreatePartition,
    RemoveTopic,
    SetConfig,
    decode_change,
    encode_change,
)
from hightide_broker.core.cluster.image import ClusterImage, TopicState, differences

SEEDS = range(60)
NAMES = ["a", "b", "c", "d", "a-b"]
ACTS = [
    "create",
    "create",
    "delete",
    "more",
    "set",
    "unset",
    "fence",
    "join",
    "join",
    "stop",
    "isr",
]
ACTS += ["isr", "isr", "ids", "elect"]
SETTINGS = [{}, {"flush": "replicated"}, {"segment.ms": "5", "min.insync.replicas": "2"}]


def act(cluster: ControlledCluster, chance: random.Random) -> None:
    """One request of somebody, whether it is granted or not."""
    broker, name = chance.choice([1, 2, 3]), chance.choice(NAMES)
    state = cluster.image.brokers[broker]
    match chance.choice(ACTS):
        case "create":
            assignment = [chance.sample([1, 2, 3], 2) for _ in range(chance.randint(1, 3))]
            cluster.create(name, assignment=assignment, configs=chance.choice(SETTINGS))
        case "delete":
            cluster.delete(name)
        case "more":
            cluster.more(name, chance.randint(1, 4))
        case "set":
            cluster.alter(name, segment_ms=str(chance.randint(1, 3)))
        case "unset":
            cluster.alter(name, "segment.ms", "flush")
        case "fence":
            cluster.heartbeat(broker, want_fence=True)
        case "join":
            previous = chance.choice([-1, state.epoch])
            cluster.register(broker, previous=previous, directory=state.directory)
            cluster.heartbeat(broker)
        case "stop":
            cluster.heartbeat(broker, want_shut_down=True)
        case "isr" if name in cluster.image.topics:
            leader = cluster.partition(name).leader
            if leader in cluster.image.brokers:
                cluster.alter_isr(name, *{leader, chance.choice([1, 2, 3])})
        case "ids":
            cluster.allocate(broker)
        case "elect":
            cluster.elect(unclean=chance.random() < 0.5)


def history(seed: int, *, steps: int = 40) -> tuple[ControlledCluster, random.Random]:
    chance = random.Random(seed)
    cluster = ControlledCluster(1, 2, 3)
    for _ in range(chance.randrange(steps)):
        act(cluster, chance)
    return cluster, chance


def order_of(image: ClusterImage) -> list[object]:
    """The order of everything in an image is part of it."""
    return [
        list(image.brokers),
        list(image.topics),
        list(image.topics_by_id),
        [(resource, list(entries)) for resource, entries in image.configs.items()],
    ]


def restored(image: ClusterImage) -> ClusterImage:
    """The image that a node makes of another's snapshot, which it got as bytes."""
    values = [encode_change(change) for change in image.changes()]
    return ClusterImage.of_snapshot(map(decode_change, values), image.offset)


def test_the_histories_have_everything_in_them() -> None:
    """So that what holds for them holds for something."""
    images = [history(seed)[0].image for seed in SEEDS]
    brokers = [state for image in images for state in image.brokers.values()]
    partitions = [p for i in images for t in i.topics.values() for p in t.partitions]
    for found in (
        [state for state in brokers if state.fenced],
        [state for state in brokers if state.stopping],
        [state for state in brokers if not state.clean],
        [p for p in partitions if p.elr],
        [p for p in partitions if p.last_leader >= 0],
        [p for p in partitions if p.leader_epoch > 1],
        [image for image in images if image.configs and image.next_producer_id],
    ):
        assert len(found) > 3


# Snapshots.


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_makes_the_same_image(seed: int) -> None:
    cluster, _ = history(seed)
    again = restored(cluster.image)
    assert again == cluster.image
    assert order_of(again) == order_of(cluster.image)
    assert all(again.topics_by_id[t.topic_id] is t for t in again.topics.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_goes_on_as_the_log_would_have(seed: int) -> None:
    cluster, chance = history(seed)
    early = restored(cluster.image)
    for _ in range(20):
        act(cluster, chance)
    for offset in range(early.offset, len(cluster.log)):
        early.replay(decode_change(cluster.log[offset]), offset)
    assert early == cluster.image == cluster.replayed()
    assert order_of(early) == order_of(cluster.image)


def test_a_snapshot_keeps_where_a_broker_is_reached_by_the_others() -> None:
    cluster = ControlledCluster()
    cluster.register(1, internal=("10.0.0.1", 9093))
    again = ClusterImage.of_snapshot(cluster.image.changes(), cluster.image.offset)
    assert again.brokers[1].internal == ("10.0.0.1", 9093)
    assert again == cluster.image


def test_an_empty_image_is_an_empty_snapshot() -> None:
    assert ClusterImage().changes() == []
    image = ClusterImage.of_snapshot([], 7)
    assert image == ClusterImage(offset=7)


def test_the_log_goes_on_behind_a_snapshot_and_not_before() -> None:
    cluster, _ = history(3)
    image = restored(cluster.image)
    late = SetConfig(kind="topic", name="x", key="flush", value="synced")
    with pytest.raises(AssertionError, match="replay of offset"):
        image.replay(late, image.offset - 1)
    image.replay(late, image.offset + 5)
    assert image.offset == cluster.image.offset + 6


# Copies.


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_a_copy_is_equal_and_its_own(seed: int) -> None:
    cluster, chance = history(seed)
    frozen, before = cluster.image.copy(), cluster.replayed()
    assert (frozen, order_of(frozen)) == (before, order_of(before))
    for _ in range(20):
        act(cluster, chance)
    assert frozen == before, "what happens to the original does not reach the copy"
    at, now = cluster.image.copy(), cluster.replayed()
    for topic in list(at.topics.values()):
        at.replay(SetConfig(kind="topic", name=topic.name, key="k", value="v"), at.offset)
        partition = ChangePartition(topic_id=topic.topic_id, partition=0, leader=-1)
        at.replay(partition, at.offset)
        at.replay(RemoveTopic(topic_id=topic.topic_id), at.offset)
    assert cluster.image == now, "nor the other way round"
    assert at.topics == {}


# Differences.

View = dict[str, tuple[TopicState, dict[str, str]]]


def view_of(image: ClusterImage) -> View:
    """What a broker carries out: topics by id, with their partitions and settings."""
    return {
        topic_id: (
            TopicState(topic.name, topic_id, list(topic.partitions)),
            dict(image.topic_config(topic.name)),
        )
        for topic_id, topic in image.topics_by_id.items()
    }


def follow(view: View, changes: list[AnyChange], image: ClusterImage) -> None:
    """Look again at what the changes name, and at nothing else."""
    for change in changes:
        if isinstance(change, RemoveTopic):
            del view[change.topic_id]
    for change in changes:
        if isinstance(change, CreatePartition | ChangePartition):
            topic = image.topics_by_id[change.topic_id]
            known, _ = view.setdefault(
                topic.topic_id,
                (TopicState(topic.name, topic.topic_id), dict(image.topic_config(topic.name))),
            )
            state = topic.partitions[change.partition]
            known.partitions[change.partition : change.partition + 1] = [state]
        elif isinstance(change, SetConfig):
            topic = image.topics[change.name]
            if topic.topic_id in view:
                known, _ = view[topic.topic_id]
                view[topic.topic_id] = (known, dict(image.topic_config(topic.name)))


@pytest.mark.parametrize("seed", SEEDS)
def test_differences_name_whatever_differs(seed: int) -> None:
    cluster, chance = history(seed)
    old = cluster.image.copy()
    for _ in range(chance.randrange(30)):
        act(cluster, chance)
    view = view_of(old)
    follow(view, differences(old, cluster.image), cluster.image)
    assert view == view_of(cluster.image)


@pytest.mark.parametrize("seed", SEEDS)
def test_differences_name_nothing_else(seed: int) -> None:
    cluster, chance = history(seed)
    old = cluster.image.copy()
    for _ in range(chance.randrange(30)):
        act(cluster, chance)
    new = cluster.image
    found = differences(old, new)
    assert len(set(map(str, found))) == len(found)
    for change in found:
        match change:
            case RemoveTopic():
                assert change.topic_id in old.topics_by_id
                assert change.topic_id not in new.topics_by_id
            case ChangePartition():
                before = old.topics_by_id.get(change.topic_id)
                known = before.partitions[change.partition :][:1] if before is not None else []
                assert known != [new.topics_by_id[change.topic_id].partitions[change.partition]]
            case SetConfig():
                assert old.topic_config(change.name) != new.topic_config(change.name)
            case _:
                raise AssertionError(change)


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_equal_images_do_not_differ(seed: int) -> None:
    cluster, _ = history(seed)
    assert differences(cluster.image, cluster.replayed()) == []


def test_from_nothing_everything_differs() -> None:
    cluster = ControlledCluster(1, 2)
    cluster.create("a", assignment=[[1], [2]], configs={"flush": "replicated"})
    named = differences(ClusterImage(), cluster.image)
    assert [(type(change), getattr(change, "partition", None)) for change in named] == [
        (ChangePartition, 0),
        (ChangePartition, 1),
        (SetConfig, None),
    ]


def test_a_topic_that_was_made_again_under_its_name_is_another_one() -> None:
    cluster = ControlledCluster(1)
    cluster.create("a", configs={"flush": "replicated"})
    old = cluster.image.copy()
    cluster.delete("a")
    cluster.create("a")
    named = differences(old, cluster.image)
    assert named[0] == RemoveTopic(topic_id="id-1")
    assert ChangePartition(topic_id="id-2", partition=0) in named
    assert [c.name for c in named if isinstance(c, SetConfig)] == ["a"]
