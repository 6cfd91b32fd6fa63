"""What the controller's log says of changes to topics, their settings and their partitions."""

import pytest

from hightide_broker.core.cluster.change_texts import sentence
from hightide_broker.core.cluster.changes import (
    ChangePartition,
    CreateAcl,
    CreatePartition,
    CreateTopic,
    FenceBroker,
    RemoveAcl,
    RemoveScramCredential,
    RemoveTopic,
    SetConfig,
    SetQuota,
    SetScramCredential,
)
from hightide_broker.core.cluster.image import ClusterImage

TOPIC = {"topic_id": "x"}
FIRST = {**TOPIC, "partition": 0}
RULE = CreateAcl(
    id="r",
    resource="topic",
    name="orders",
    pattern="LITERAL",
    principal="User:alice",
    host="*",
    operation="READ",
    permission="ALLOW",
)
BYTES = "producer_byte_rate"


def quota(value, user=None, client_id=None, ip=None):
    return SetQuota(key=BYTES, user=user, client_id=client_id, ip=ip, value=value)


def image():
    made = ClusterImage()
    made.replay(CreateTopic(topic="orders", **TOPIC), 0)
    made.replay(CreatePartition(**FIRST, replicas=(1, 2, 3), isr=(1, 2), leader=1), 1)
    made.replay(RULE, 2)
    return made


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (CreateTopic(topic="fresh", topic_id="y"), "topic fresh is created, its id is y"),
        (RemoveTopic(**TOPIC), "topic orders is deleted"),
        (
            SetConfig(kind="topic", name="orders", key="flush", value="synced"),
            "flush of topic orders is set to 'synced'",
        ),
        (
            SetConfig(kind="cluster", name="", key="flush", value=None),
            "flush of cluster is back to its default",
        ),
        (
            CreatePartition(**TOPIC, partition=1, replicas=(2, 3), isr=(2,), leader=2),
            "partition orders-1 is created, its replicas are 2,3",
        ),
        (
            ChangePartition(**FIRST, leader=2, isr=(2,), elr=(1,)),
            "partition orders-0: leader 1 -> 2 in epoch 1, ISR 1,2 -> 2, ELR nobody -> 1",
        ),
        (
            ChangePartition(**FIRST, leader=-1, isr=(), last_known_elr=(1,)),
            "partition orders-0: leader 1 -> nobody in epoch 1, ISR 1,2 -> nobody, "
            "last known ELR nobody -> 1",
        ),
        (quota(9, "alice", "etl"), f"{BYTES} of user alice, client etl is set to 9"),
        (quota(9, "alice"), f"{BYTES} of user alice, client any is set to 9"),
        (quota(None, client_id="etl"), f"{BYTES} of user any, client etl is removed"),
        (quota(9, ip="10.0.0.1"), f"{BYTES} of address 10.0.0.1 is set to 9"),
        (
            SetScramCredential(
                user="eve",
                mechanism="SCRAM-SHA-256",
                salt=b"s",
                stored_key=b"k",
                server_key=b"k",
                iterations=4096,
            ),
            "the SCRAM-SHA-256 password of user 'eve' is set",
        ),
        (
            RemoveScramCredential(user="eve", mechanism="SCRAM-SHA-512"),
            "the SCRAM-SHA-512 password of user 'eve' is removed",
        ),
        (RULE, "rule ALLOW User:alice READ topic:orders (LITERAL) is made"),
        (RemoveAcl(id="r"), "rule allow User:alice READ topic:orders is removed"),
        (ChangePartition(**FIRST, last_leader=1), ""),
        (FenceBroker(broker=1, broker_epoch=1), ""),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_a_change_is_told_as_it_is_before_it_is_made(change, told):
    assert sentence(change, image()) == told
