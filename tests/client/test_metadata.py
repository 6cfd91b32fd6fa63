"""What both kinds of client know of a cluster, and when they try again.

Goal: nobody who was cut off is believed, a topic that was made again is another one, and a call
ends with what its user can act upon. Pure: answers are made by hand, times are numbers.
"""

import pytest

from hightide.net.metadata import DOUBT_S, Metadata
from hightide.net.retries import (
    AWAY_MAX_S,
    BACKOFF_MAX_S,
    BACKOFF_S,
    Retries,
    backoff_s,
    or_unknown_topic,
)
from hightide.protocol import messages as m
from hightide.protocol.errors import (
    ApiError,
    BrokerUnreachable,
    ErrorCode,
    NobodyListens,
    RequestTimedOut,
)

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def topic(*leaders, epoch=0, topic_id="id", name="t", error=None):
    parts = [
        m.PartitionMetadata(
            partition=number, leader=leader, leader_epoch=epoch, replicas=[1, 2], isr=[1, 2]
        )
        for number, leader in enumerate(leaders)
    ]
    return m.TopicMetadata(topic=name, topic_id=topic_id, partitions=parts, error=error)


def learned(known, *topics, is_complete=False, now=0.0, brokers=(1, 2), as_of=-1, cluster="c"):
    infos = [m.BrokerInfo(id=broker, host=f"b{broker}", port=1) for broker in brokers]
    answer = m.MetadataResponse(
        cluster_id=cluster,
        controller=1,
        brokers=infos,
        topics=[*topics],
        metadata_offset=as_of,
    )
    known.learn(answer, is_complete=is_complete, now=now)
    return known


def ids(known):
    return {name: each.topic_id for name, each in known.topics.items()}


def leader_of(known, partition=0):
    found = known.leader("t", partition)
    return None if found is None else (found.leader, found.leader_epoch)


def test_an_older_leader_epoch_is_not_believed():
    known = learned(Metadata(), topic(1, epoch=5))
    assert leader_of(learned(known, topic(2, epoch=4))) == (1, 5)
    assert leader_of(learned(known, topic(2, epoch=5))) == (2, 5)


def test_an_older_leader_epoch_is_not_believed_either_after_the_leader_was_lost():
    known = learned(Metadata(), topic(1, epoch=5))
    assert known.lost_leader("t", 0)
    assert leader_of(learned(known, topic(2, epoch=4))) is None
    assert not known.lost_leader("t", 0), "nobody was known"
    assert leader_of(learned(known, topic(2, epoch=6))) == (2, 6)


def test_who_tells_of_an_older_epoch_is_behind():
    known = learned(Metadata(), topic(1, 1, epoch=5))
    answers = {5: True, 4: False, 6: True}
    for epoch, is_believed in answers.items():
        answer = m.MetadataResponse(
            cluster_id="c", controller=1, brokers=[], topics=[topic(2, 2, epoch=epoch)]
        )
        assert known.learn(answer, is_complete=False, now=0.0) is is_believed


def test_a_topic_that_was_made_again_begins_with_its_own_epochs():
    known = learned(Metadata(), topic(1, epoch=5))
    assert leader_of(learned(known, topic(2, epoch=0, topic_id="other"))) == (2, 0)


OLD, NEW = topic(1, topic_id="old"), topic(2, topic_id="new")
GONE = topic(error=UNKNOWN)


@pytest.mark.parametrize("is_complete", [False, True])
def test_of_two_topics_of_one_name_who_knows_more_tells_the_newer(is_complete):
    known = learned(Metadata(), OLD, as_of=90)
    for told, as_of, left in (
        (NEW, 100, "new"),
        (OLD, 99, "new"),  # it was deleted and made again behind that broker's back
        (GONE, 95, "new"),
        (OLD, 100, "old"),
        (GONE, 101, None),
        (OLD, 100, None),
        (NEW, 102, "new"),
    ):
        told = [each for each in [told] if not (is_complete and each is GONE)]
        learned(known, *told, as_of=as_of, is_complete=is_complete)
        assert ids(known) == ({"t": left} if left else {}), (told, as_of)


def test_a_broker_of_old_takes_no_partition_away_and_is_not_asked_next():
    known = learned(Metadata(), topic(1, 1), as_of=100)
    for leaders, as_of, is_believed in (((2,), 99, False), ((2, 2), 99, True), ((1,), 100, True)):
        answer = m.MetadataResponse(
            cluster_id="c",
            controller=1,
            brokers=[],
            topics=[topic(*leaders)],
            metadata_offset=as_of,
        )
        assert known.learn(answer, is_complete=False, now=0.0) is is_believed
        assert known.partition_count("t") == (1 if as_of == 100 else 2)


def test_a_broker_of_old_tells_who_leads_the_same_topic_also_where_that_was_forgotten():
    known = learned(Metadata(), topic(1, epoch=5), as_of=100)
    known.forget("t")
    assert leader_of(learned(known, topic(2, epoch=6), as_of=99)) == (2, 6)
    assert ids(known) == {"t": "id"}


def test_metadata_that_begins_again_is_believed_in_the_end():
    known = learned(Metadata(), NEW, as_of=100)
    for at, as_of, left in ((0.5, 3, "new"), (1.5, 100, "new"), (2.4, 3, "new"), (2.6, 3, "old")):
        told = NEW if as_of == 100 else OLD
        assert ids(learned(known, told, as_of=as_of, now=at * DOUBT_S)) == {"t": left}


@pytest.mark.parametrize("which", [{"as_of": -1}, {"as_of": 3, "cluster": "another"}])
def test_who_does_not_say_how_much_he_knows_is_believed_and_so_is_another_cluster(which):
    known = learned(Metadata(), NEW, as_of=100)
    assert ids(learned(known, OLD, **which)) == {"t": "old"}


@pytest.mark.parametrize(("epoch", "led"), [(6, (2, 6)), (5, None), (4, None)])
def test_a_hint_is_believed_if_it_is_newer(epoch, led):
    known = learned(Metadata(), topic(1, epoch=5))
    assert known.lost_leader("t", 0, m.LeaderHint(leader=2, leader_epoch=epoch))
    assert leader_of(known) == led
    learned(known, topic(1, epoch=5))
    assert leader_of(known) == (led or (1, 5)), "what a hint said is the newest, too"


def test_only_a_complete_answer_says_what_there_is_no_more():
    known = learned(Metadata(), topic(1), topic(1, name="u"))
    learned(known, topic(1))
    assert [*known.topics] == ["t", "u"]
    learned(known, topic(1), is_complete=True)
    assert [*known.topics] == ["t"]
    learned(known, topic(name="t", error=UNKNOWN))
    assert (known.topics, leader_of(known)) == ({}, None)


def test_a_leader_that_is_no_broker_any_more_leads_nothing():
    known = learned(Metadata(), topic(1, 2, 1))
    assert (known.partition_count("t"), [*known.available("t")]) == (3, [0, 1, 2])
    learned(known, brokers=(2,))
    assert (leader_of(known), [*known.available("t")]) == (None, [1])
    learned(known, brokers=())
    assert [*known.available("t")] == [0, 1, 2], "all, if none is led"
    assert known.why_leaderless("t", 0) == "t-0 has no leader"


def test_it_gets_stale():
    known = Metadata(max_age_s=10.0)
    assert known.stale_at == float("-inf")
    assert learned(known, now=5.0).stale_at == 15.0


# -- trying again ----------------------------------------------------------------------------------


class Even:
    """Chance that never chooses either side."""

    def random(self):
        return 0.5


def retries(timeout_s=10.0, **rest):
    return Retries(timeout_s=timeout_s, now=100.0, random=Even(), **rest)


def test_pauses_double_up_to_a_limit_and_are_never_alike():
    found = [backoff_s(attempts, Even()) for attempts in range(1, 7)]
    assert found == pytest.approx([BACKOFF_S * 2**n for n in range(4)] + [BACKOFF_MAX_S] * 2)
    for edge, factor in ((0.0, 0.8), (1.0, 1.2)):
        even = Even()
        even.random = lambda edge=edge: edge
        assert backoff_s(3, even) == pytest.approx(4 * BACKOFF_S * factor)
    assert backoff_s(10_000, Even()) == pytest.approx(BACKOFF_MAX_S)


def test_each_attempt_gets_what_is_left():
    tries = retries()
    assert [tries.left_s(now) for now in (100.0, 103.0, 110.0, 111.0)] == [10.0, 7.0, 0.0, 0.0]


def test_what_may_go_well_later_is_tried_until_the_time_is_over():
    tries, refused = retries(), ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no")
    for now in (100.0, 109.5):
        tries.left_s(now)
        assert tries.pause_s(refused, now) > 0
    tries.left_s(109.9)
    with pytest.raises(ApiError) as told:
        tries.pause_s(refused, 109.9)
    assert told.value is refused
    assert (refused.attempts, refused.elapsed_s) == (3, pytest.approx(9.9))
    assert refused.knob == "timeout 10 s"


def test_who_is_not_there_is_looked_for_soon_and_who_refuses_is_left_in_peace():
    refused, broken = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no"), BrokerUnreachable("broke")
    tries, pauses = retries(), []
    for error in [NobodyListens("away")] * 4 + [refused, broken] * 3:
        tries.left_s(100.0)
        pauses.append(tries.pause_s(error, 100.0))
    assert pauses[:4] == pytest.approx([BACKOFF_S, 2 * BACKOFF_S, AWAY_MAX_S, AWAY_MAX_S])
    assert pauses[4:] == pytest.approx([BACKOFF_S * 2**n for n in range(4)] + [BACKOFF_MAX_S] * 2)


def test_silence_at_the_end_says_less_than_what_was_refused_before():
    refused, silent = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no"), RequestTimedOut("late")
    tries = retries()
    tries.pause_s(refused, 101.0)
    with pytest.raises(ApiError):
        tries.pause_s(silent, 110.0)
    with pytest.raises(RequestTimedOut):
        retries().pause_s(silent, 110.0)
    tries = retries()
    tries.pause_s(refused, 101.0)
    with pytest.raises(BrokerUnreachable):  # that is news
        tries.pause_s(BrokerUnreachable("gone"), 110.0)


def test_what_is_final_ends_it_at_once_and_blames_no_setting():
    refused = ApiError(ErrorCode.MESSAGE_TOO_LARGE, "no")
    with pytest.raises(ApiError):
        retries().pause_s(refused, 100.0)
    assert refused.knob == ""


def test_that_a_topic_was_unknown_once_is_no_verdict_when_nobody_answers_any_more():
    for is_verdict, told in ((True, RequestTimedOut), (False, ApiError)):
        tries = retries(is_final=or_unknown_topic(5.0), unknown_is_verdict=is_verdict)
        tries.pause_s(ApiError(UNKNOWN, "what?"), 101.0)
        with pytest.raises(told):
            tries.pause_s(RequestTimedOut("late"), 110.0)


def test_an_unknown_topic_may_be_new_for_a_while():
    unknown = ApiError(UNKNOWN, "what?")
    assert retries().pause_s(unknown, 105.0) > 0, "in general it may come"
    tries = retries(is_final=or_unknown_topic(1.0))
    assert tries.pause_s(unknown, 100.5) > 0
    with pytest.raises(ApiError):
        tries.pause_s(unknown, 100.95)
    with pytest.raises(ApiError):
        tries.pause_s(ApiError(ErrorCode.MESSAGE_TOO_LARGE, "no"), 100.0)
