"""Events as lines of a file, and as sentences.

Goal: what was told is read back, whatever it says; what is none of ours is left out; no event is
without a sentence, and no sentence is more than one line. Method: a sample of every event there is,
so that a new one is tested without being named here; hostile bytes (Hypothesis).
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit import KINDS_OF_EVENTS, STOPPED, elected, follows, leads, role, sample, told

from hightide_broker.trace.events import (
    BrokerChanged,
    Event,
    EventsLost,
    FollowerBegan,
    GroupChanged,
    IsrProposed,
    IsrRefused,
    LeaderBegan,
    NodeServes,
    NodeStarted,
    Offsets,
    PartitionChanged,
    QuorumTruncated,
    QuorumVote,
    RepairEnded,
    ReplicaOffline,
    TopicChanged,
    Truncated,
    VotersChanged,
    WatermarksMoved,
)
from hightide_broker.trace.lines import LINE_BYTES_MAX, MS_MAX, line_of, read_line, read_lines
from hightide_broker.trace.text import sentence

EVERY = pytest.mark.parametrize("kind", KINDS_OF_EVENTS, ids=lambda kind: kind.__name__)
T0 = {"topic": "t", "partition": 0, "leader_epoch": 3}


def leaves(kind: type) -> set[type]:
    below = kind.__subclasses__()
    return set().union(*map(leaves, below)) if below else {kind}


def test_every_event_can_be_read_back() -> None:
    assert leaves(Event) == set(KINDS_OF_EVENTS)


@EVERY
def test_an_event_survives_its_line(kind: type[Event]) -> None:
    for what in (sample(kind), few_facts(kind)):
        line = line_of(5, 1, 2, what)
        assert line.count(b"\n") == 1
        assert line.endswith(b"\n")
        assert read_line(line) == told(5, 1, 2, what)


def few_facts(kind: type[Event]) -> Event:
    """With the fields alone that have no default: as an older version wrote it."""
    wanted = {f.name for f in msgspec.structs.fields(kind) if f.required}
    return kind(**{name: getattr(sample(kind), name) for name in wanted})


@EVERY
def test_every_event_has_a_sentence_on_one_line(kind: type[Event]) -> None:
    for what in (sample(kind), few_facts(kind)):
        text = sentence(7, what)
        assert len(text) > 10
        assert text.isprintable()


OURS = line_of(5, 1, 2, STOPPED)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"null",
        OURS[:-9],
        b"\0" * 50 + OURS,
        OURS.replace(b"node_stopped", b"node_exploded"),
        OURS.replace(b'"is_clean":true', b'"is_clean":"yes"'),
        OURS.replace(b'"ms":5', b'"ms":-5'),
        OURS.replace(b'"ms":5', b'"ms":%d' % (MS_MAX + 1)),
        OURS.replace(b'"node":1,', b""),
        OURS.rstrip(b"\n") + b" " * LINE_BYTES_MAX,
    ],
)
def test_what_is_none_of_ours_is_left_out(line: bytes) -> None:
    assert read_line(line) is None
    assert [each.what for each in read_lines([OURS, line, OURS])] == [STOPPED, STOPPED]


def test_a_field_of_a_newer_version_does_no_harm() -> None:
    newer = OURS.replace(b'"is_clean"', b'"mood":"good","is_clean"')
    assert read_line(newer) == told(5, 1, 2, STOPPED)


@given(st.binary(max_size=80))
def test_garbage_is_left_out(data: bytes) -> None:
    assert [*read_lines(data.splitlines())] == []


@given(st.text(), st.text())
def test_what_clients_call_themselves_is_not_a_line_of_its_own(name: str, reason: str) -> None:
    group = GroupChanged(group=name, state="Empty", generation=1, members=0, cause=reason)
    assert sentence(1, group).isprintable()
    assert read_line(line_of(5, 1, 2, group)) == told(5, 1, 2, group)


SENTENCES = [
    (
        NodeStarted(version="1", roles=("broker", "controller"), was_clean=False),
        "node 7 starts as broker and controller, version 1, after a stop that was not orderly",
    ),
    (NodeServes(address="h:1"), "node 7 serves on h:1"),
    (EventsLost(count=3), "3 events of node 7 before this one were not kept"),
    (
        role("leader", 4, 7),
        "node 7 is the leader of epoch 4 of the quorum, its log ends at -1",
    ),
    (role("follower", 4, 2), "node 7 follows node 2 in epoch 4 of the quorum"),
    (role("unattached", 4), "node 7 is unattached in epoch 4 of the quorum"),
    (
        QuorumVote(candidate=2, epoch=5, granted=False, why="node 3 leads"),
        "node 2 asked node 7 for its vote in epoch 5: no: node 3 leads",
    ),
    (
        QuorumVote(candidate=2, epoch=5, granted=True, is_pre_vote=True),
        "node 2 asked node 7 whether it could win after epoch 5: yes",
    ),
    (VotersChanged(offset=1, voters=(1, 2)), "the voters become 1,2"),
    (
        QuorumTruncated(
            leader=2, epoch=6, before=8, after=7, epoch_before=5, epoch_after=4, high_watermark=7
        ),
        "node 7 cut its metadata log from 8 to 7 (epoch 5 -> 4): node 2 does not have this "
        "record; the watermark that it knew was 7",
    ),
    (
        BrokerChanged(offset=1, broker=2, broker_epoch=9, state="fenced", cause="silence"),
        "broker 2 is fenced (epoch 9): silence",
    ),
    (
        BrokerChanged(offset=1, broker=2, broker_epoch=-1, state="from a newer version"),
        "broker 2 from a newer version",
    ),
    (TopicChanged(offset=1, topic="t", state="deleted"), "topic t is deleted"),
    (
        elected(4, 2, 1, election="elr", isr_before=(), elr_before=(2, 3), elr=(3,), cause="why"),
        "t-0: broker 2 leads in epoch 4 after broker 1 (from the ELR), ISR nobody -> 2, "
        "ELR 2,3 -> 3: why",
    ),
    (
        elected(4, 2, election="a new way", isr_before=(2,)),
        "t-0: broker 2 leads in epoch 4 (a new way)",
    ),
    (elected(5, -1, 2, isr=(), isr_before=()), "t-0: nobody leads in epoch 5 after broker 2"),
    (
        elected(5, 2, 2, isr_before=(2,), cause="why"),
        "t-0: what is remembered of those that led or were eligible changed: why",
    ),
    (
        leads(3),
        "broker 7 leads t-0 in epoch 3 from offset 5 on; the watermark stands at 4, ISR 1,2",
    ),
    (
        follows(3, 2, last_epoch=1),
        "broker 7 follows broker 2 for t-0 in epoch 3 with records up to 7, the last of epoch 1",
    ),
    (follows(3, -1), "broker 7 has no leader for t-0 in epoch 3"),
    (
        IsrProposed(
            **T0,
            broker=2,
            joins=False,
            isr=(1, 2),
            behind_ms=1540,
            its_end=5,
            log_end=9,
            high_watermark=5,
        ),
        "broker 2 is to leave the ISR of t-0: 1.5 s behind, by 4 records; the watermark stood at 5",
    ),
    (
        IsrProposed(**T0, broker=2, joins=True, isr=(1,), high_watermark=9),
        "broker 2 caught up with t-0: it may join the ISR again; the watermark stood at 9",
    ),
    (
        IsrRefused(**T0, isr=(1, 2), error="INELIGIBLE_REPLICA", message="it is fenced"),
        "t-0: ISR 1,2 was refused (INELIGIBLE_REPLICA: it is fenced)",
    ),
    (
        Truncated(
            **T0,
            leader=2,
            before=10,
            after=7,
            epoch_before=2,
            epoch_after=1,
            high_watermark=6,
        ),
        "broker 7 cut t-0 from 10 to 7 (epoch 2 -> 1): broker 2 does not have these 3 records; "
        "the watermark stood at 6",
    ),
    (
        WatermarksMoved(replicas=tuple(Offsets("t", n, 1, 0, n, 9, 9) for n in range(6))),
        "broker 7: committed t-0 0 of 9, t-1 1 of 9, t-2 2 of 9, t-3 3 of 9 and 2 more",
    ),
    (ReplicaOffline(**T0, why="no disk"), "t-0 is offline on broker 7: no disk"),
    (RepairEnded(**T0, log_end=-1), "broker 7 could not repair t-0"),
    (
        GroupChanged(group="g\n2026 t-0 is fine", state="Stable", generation=2, members=1),
        r"group g\n2026 t-0 is fine is Stable, generation 2, 1 member",
    ),
]


@pytest.mark.parametrize(("what", "text"), SENTENCES, ids=lambda each: type(each).__name__)
def test_a_sentence_says_what_happened(what: Event, text: str) -> None:
    assert sentence(7, what) == text


def test_what_people_look_for_has_an_example_here() -> None:
    shown = {type(what) for what, _ in SENTENCES}
    assert shown >= {PartitionChanged, LeaderBegan, FollowerBegan, Truncated, IsrProposed}
