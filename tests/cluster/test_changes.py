"""What records of the metadata say: every log that was ever written can be read.

Method: each kind of change against its record, written out.
"""

from typing import Any, get_args

import msgpack
import msgspec
import pytest

from hightide_broker.core.cluster.changes import (
    AllocateProducerIds,
    AnyChange,
    ChangePartition,
    CreateAcl,
    CreatePartition,
    CreateTopic,
    FenceBroker,
    RegisterBroker,
    RemoveAcl,
    RemoveScramCredential,
    RemoveTopic,
    SetConfig,
    SetQuota,
    SetScramCredential,
    SetUsersSecret,
    SetVoters,
    StopBroker,
    UnfenceBroker,
    decode_change,
    encode_change,
)
from hightide_broker.core.quorum.roles import Voter

A_RULE = dict.fromkeys(("id", "resource", "name", "pattern", "principal", "host"), "x")
A_RULE |= {"operation": "READ", "permission": "ALLOW"}
A_PASSWORD = {
    "user": "u",
    "mechanism": "SCRAM-SHA-256",
    "salt": b"1",
    "stored_key": b"2",
    "server_key": b"3",
    "iterations": 4096,
}

OLD_RECORDS = [
    (
        RegisterBroker(broker=1, incarnation="i", host="h", port=9, rack="r", roles=("broker",)),
        {
            "type": "register_broker",
            "broker": 1,
            "incarnation": "i",
            "host": "h",
            "port": 9,
            "rack": "r",
            "roles": ["broker"],
        },
    ),
    (
        FenceBroker(broker=1, broker_epoch=2),
        {"type": "fence_broker", "broker": 1, "broker_epoch": 2},
    ),
    (
        UnfenceBroker(broker=1, broker_epoch=2),
        {"type": "unfence_broker", "broker": 1, "broker_epoch": 2},
    ),
    (
        StopBroker(broker=1, broker_epoch=2),
        {"type": "stop_broker", "broker": 1, "broker_epoch": 2},
    ),
    (
        RegisterBroker(
            broker=1,
            incarnation="i",
            host="h",
            port=9,
            clean=False,
            directory="d",
            broker_epoch=5,
            fenced=False,
            stopping=True,
        ),
        {
            "type": "register_broker",
            "broker": 1,
            "incarnation": "i",
            "host": "h",
            "port": 9,
            "clean": False,
            "directory": "d",
            "broker_epoch": 5,
            "fenced": False,
            "stopping": True,
        },
    ),
    (CreateTopic(topic="a", topic_id="x"), {"type": "topic", "topic": "a", "topic_id": "x"}),
    (RemoveTopic(topic_id="x"), {"type": "remove_topic", "topic_id": "x"}),
    (
        CreatePartition(topic_id="x", partition=0, replicas=(1, 2), isr=(1,), leader=1),
        {
            "type": "partition",
            "topic_id": "x",
            "partition": 0,
            "replicas": [1, 2],
            "isr": [1],
            "leader": 1,
        },
    ),
    (
        ChangePartition(topic_id="x", partition=0, isr=(2,), leader=2),
        {"type": "partition_change", "topic_id": "x", "partition": 0, "isr": [2], "leader": 2},
    ),
    (
        ChangePartition(topic_id="x", partition=0, isr=(), leader=-1, elr=(2,), last_leader=1),
        {
            "type": "partition_change",
            "topic_id": "x",
            "partition": 0,
            "isr": [],
            "leader": -1,
            "elr": [2],
            "last_leader": 1,
        },
    ),
    (
        ChangePartition(topic_id="x", partition=0),
        {"type": "partition_change", "topic_id": "x", "partition": 0},
    ),
    (
        SetConfig(kind="topic", name="a", key="flush", value=None),
        {"type": "config", "kind": "topic", "name": "a", "key": "flush", "value": None},
    ),
    (
        SetVoters(voters=(Voter(id=2, directory="d", host="h", port=9),)),
        {"type": "voters", "voters": [{"id": 2, "directory": "d", "host": "h", "port": 9}]},
    ),
    (AllocateProducerIds(next_id=1000), {"type": "producer_ids", "next_id": 1000}),
    (
        SetQuota(key="producer_byte_rate", user="u", client_id=None, value=15),
        {
            "type": "quota",
            "key": "producer_byte_rate",
            "user": "u",
            "client_id": None,
            "value": 15,
        },
    ),
    (CreateAcl(**A_RULE), {"type": "acl", **A_RULE}),
    (RemoveAcl(id="x"), {"type": "remove_acl", "id": "x"}),
    (SetUsersSecret(secret=b"s"), {"type": "users_secret", "secret": b"s"}),
    (SetScramCredential(**A_PASSWORD), {"type": "user_scram", **A_PASSWORD}),
    (
        RemoveScramCredential(user="u", mechanism="SCRAM-SHA-256"),
        {"type": "remove_user_scram", "user": "u", "mechanism": "SCRAM-SHA-256"},
    ),
]


@pytest.mark.parametrize(("change", "record"), OLD_RECORDS, ids=lambda one: type(one).__name__)
def test_a_change_is_written_as_it_always_was(change: AnyChange, record: dict[str, Any]) -> None:
    """A tag or a field that is renamed makes every old log unreadable."""
    assert msgpack.unpackb(encode_change(change)) == record
    assert decode_change(msgpack.packb({**record, "added later": 1})) == change
    for field in ("type", list(record)[1]):
        broken = {name: value for name, value in record.items() if name != field}
        with pytest.raises(msgspec.MsgspecError):
            decode_change(msgpack.packb(broken))


def test_every_kind_of_change_has_an_old_record() -> None:
    assert {type(change) for change, _ in OLD_RECORDS} == set(get_args(AnyChange))


@pytest.mark.parametrize(
    "record",
    [b"", b"\x80", b"\xa4type", b"\x81\xa4type\xa1x", b"\x81\xa4type\xa1\xff", b"\x91" * 3000],
    ids=range(6),
)
def test_what_is_no_change_is_refused_in_one_way(record: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_change(record)
