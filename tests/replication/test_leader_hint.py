"""Who asks the wrong broker hears which one leads (KIP-951), and who waits in vain hears for whom.

Method: the handlers over real replicas on a simulated disk, and metadata by hand; what clients make
of a hint is in `tests/client`.
"""

import pytest
import trio
from askers import Asker
from brokers import batch
from leaderkit import EPOCH, ME, THREE, TWO, Here, part, question, settled

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.leader_hint import leader_hint
from hightide_broker.runtime.base.call import Call, Reply

LED_BY_TWO = m.LeaderHint(leader=TWO, leader_epoch=EPOCH + 1)


def produce(here, *, acks=1, topic="jade"):
    parts = [m.ProducePartition(topic=topic, partition=0, records=0)]
    request = m.ProduceRequest(acks=acks, timeout_ms=9_000, partitions=parts)
    return here.records.produce(Call(request, [memoryview(batch(b"x"))]))


def only(reply):
    (found,) = reply.body.partitions
    return found


async def test_a_producer_hears_who_leads_in_its_place():
    here = Here()
    await here.create()
    assert only(produce(here)).current_leader is None
    await here.change(leader=TWO)
    refused = only(produce(here))
    assert refused.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.current_leader == LED_BY_TWO


async def test_a_producer_that_waits_hears_who_leads_now(nursery):
    here, answers = Here(), []
    await here.create(min_insync_replicas="2")
    here.run_agenda(nursery)
    produce(here, acks=m.ACKS_ALL).begin(Asker(lambda reply: answers.append(only(reply))))
    await here.change(leader=TWO)
    await settled()
    (refused,) = answers
    assert refused.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.current_leader == LED_BY_TWO


async def test_a_producer_that_waited_too_long_hears_who_has_not_fetched(nursery, autojump_clock):
    here, answers = Here(), []
    await here.create(min_insync_replicas="2")
    here.run_agenda(nursery)
    produce(here, acks=m.ACKS_ALL).begin(Asker(lambda reply: answers.append(only(reply))))
    await trio.sleep(10)
    (late,) = answers
    assert late.error == ErrorCode.REQUEST_TIMED_OUT
    assert "not committed within 9 s; the records may still be" in late.message
    assert f"{[TWO, THREE]} have not fetched them: a controller has to be active" in late.message


async def test_who_waited_on_in_a_new_epoch_hears_who_is_in_sync_in_that_one(
    nursery, autojump_clock
):
    here, answers = Here(), []
    await here.create(min_insync_replicas="2")
    here.run_agenda(nursery)
    produce(here, acks=m.ACKS_ALL).begin(Asker(lambda reply: answers.append(only(reply))))
    await here.change(leader=ME, isr=(ME, TWO))
    await trio.sleep(10)
    (late,) = answers
    assert f"In sync are {[ME, TWO]}, and {[TWO]} have not fetched them" in late.message


@pytest.mark.parametrize("in_a_new_epoch", [True, False])
async def test_who_waits_while_others_may_yet_lead_hears_so_and_then_is_answered(
    nursery, autojump_clock, in_a_new_epoch
):
    """What those hold who left the ISR last is all that is committed, until they are let go."""
    here, answers = Here(), []
    await here.create()
    here.run_agenda(nursery)
    contested = {"isr": (ME,), "elr": (TWO,), "last_known_elr": (THREE,)}
    await here.change(**contested, **({"leader": ME} if in_a_new_epoch else {}))
    for _ in range(2):
        produce(here, acks=m.ACKS_ALL).begin(Asker(lambda reply: answers.append(only(reply))))
    await trio.sleep(10)
    for late in answers:
        assert late.error == ErrorCode.REQUEST_TIMED_OUT
        assert f"Others than those in sync, {[ME]}, may yet lead: a controller" in late.message
    produce(here, acks=m.ACKS_ALL).begin(Asker(lambda reply: answers.append(only(reply))))
    await trio.sleep(1)
    assert len(answers) == 2
    await here.change(elr=(), last_known_elr=())
    await trio.sleep(1)
    assert (len(answers), answers[2].error) == (3, None)


@pytest.mark.parametrize("by", [-1, THREE])
async def test_a_reader_hears_who_leads(by):
    here = Here()
    await here.create()
    await here.change(leader=TWO)
    reply = here.records.fetch(Call(question(part(0, current_leader_epoch=-1), by=by, wait_ms=0)))
    assert isinstance(reply, Reply)
    assert only(reply).current_leader == LED_BY_TWO


async def test_who_asks_in_an_older_epoch_hears_of_the_newer_one():
    here = Here()
    await here.create()
    await here.change(leader=ME)
    refused = here.fetch_one(0, by=-1, current_leader_epoch=EPOCH).result
    assert refused.error == ErrorCode.FENCED_LEADER_EPOCH
    assert refused.current_leader == m.LeaderHint(leader=ME, leader_epoch=EPOCH + 1)


async def test_nothing_is_told_where_nobody_leads_or_the_refusal_is_another():
    here = Here()
    await here.create()
    wrong = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader_hint(here.image, "jade", 0, wrong) is not None
    assert leader_hint(here.image, "jade", 0, ErrorCode.NOT_ENOUGH_REPLICAS) is None
    assert leader_hint(here.image, "jade", 1, wrong) is None
    assert leader_hint(here.image, "jade", -1, wrong) is None
    assert leader_hint(here.image, "nowhere", 0, wrong) is None
    await here.change(leader=-1)
    assert leader_hint(here.image, "jade", 0, wrong) is None
