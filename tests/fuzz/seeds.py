"""What fuzzers begin with: small inputs that our own encoders make, good ones and a few that are
known to be bad. No test lives here."""

import struct
import zlib
from random import Random
from types import UnionType

import msgspec
from batches import INFLATED_MAX, NOW_MS
from kafka_records import BUILDERS
from kafkakit import records, request_bytes, rows
from kept_files import SNAPSHOT
from logs import CLEAN, CUT, FROM_END
from logs import SEALED as LOG_SEALED
from members import MEMBERS_MAX, NAMES
from scram import BY_A_CLIENT, MECHANISMS, NONCE, SHA_512, WRONG_USER
from sealing import BARE, CONVERTED, JUDGED, PACKED, PRODUCED, SEALED, WITH_ARROW
from test_kafka_connection import senseless

from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.protocol.apis import APIS
from hightide.protocol.codecs import CODECS, ROW_CODECS, compress
from hightide.protocol.columns import encode_columns
from hightide.protocol.consumer_protocol import pack_assigned, pack_subscription
from hightide.protocol.records import ROWS_MAGIC, encode_batch, parse_header
from hightide.protocol.rows import encode_rows
from hightide_broker.core.cluster.changes import AnyChange
from hightide_broker.core.groups import records as group_records
from hightide_broker.core.replication.producers import Producers
from hightide_broker.kafka.fields import fields_of
from hightide_broker.kafka.tables import API_BY_KEY
from hightide_broker.kafka.tongue import TRANSLATORS
from hightide_broker.storage.checkpoint import format_entries
from hightide_broker.storage.directory import Meta
from hightide_broker.storage.quorum_state import QuorumState
from hightide_broker.storage.snapshots import encode_snapshot

TIMES = [NOW_MS, NOW_MS + 5, NOW_MS - 3]
KEYS = [b"k", None, b""]
VALUES = [b"one", b"", None]
SMALLEST = {int: 1, str: "t", bytes: b"b", bool: True, float: 1.0}
HEADERS = {0: (("h", b"x"), ("h", None)), 2: (("é", b""),)}


def of_kafkas_requests():
    """Messages with anything in them that their types allow, and produces that would be stored."""
    chance = Random(1)
    for key in sorted(TRANSLATORS):
        api = API_BY_KEY[key]
        for version in sorted({api.versions.first, api.versions.last}):
            for _ in range(2):
                fields = senseless(chance, fields_of(api.request), version)
                yield request_bytes(api.name, version, fields)[4:]
    for version in (3, 9, 11):
        yield request_bytes("produce", version, _produced())[4:]


def _produced():
    data = rows(b"one", None, keys=[b"k", None])
    part = {"index": 0, "records": records(data)}
    topic = {"name": "t", "partition_data": [part]}
    return {"transactional_id": None, "acks": -1, "timeout_ms": 5, "topic_data": [topic]}


def of_rows():
    """Batches in every codec, as they are written here and by two other clients; bombs, too."""
    payload = encode_rows([0, 5, -3], [0, 1, 2], KEYS, VALUES, HEADERS)
    for codec in ROW_CODECS:
        batch = _batch(payload, codec=codec, magic=ROWS_MAGIC)
        plain = batch[:61] + payload
        yield from _flagged(batch, (0, SEALED, SEALED | PRODUCED | WITH_ARROW | CONVERTED | JUDGED))
        for flags in (PACKED, PACKED | BARE, PACKED | PRODUCED | CONVERTED | JUDGED):
            yield bytes([SEALED | flags]) + plain
        bomb = bytes(compress(bytes(INFLATED_MAX + 1), codec, lz4_linked=False))
        if codec != "none":
            yield bytes([SEALED | PRODUCED]) + batch[:61] + bomb
    for builder in BUILDERS.values():
        built = builder(2, 0, 0, 5, 1, 40, 1 << 20)
        for offset, (time, key, value) in enumerate(zip(TIMES, KEYS, VALUES, strict=True)):
            built.append(offset, time, key, value, [])
        yield from _flagged(bytes(built.build()), (0, SEALED | PRODUCED))
    gapped = encode_rows([0, 0], [3, 70_000], [None, None], [b"a", b"b"], {})
    yield from _flagged(_batch(gapped, record_count=2, last=70_000, magic=ROWS_MAGIC), (SEALED,))
    many = encode_rows([*range(40)], [*range(40)], [None] * 40, [b"v"] * 40, {})
    yield from _flagged(_batch(many, record_count=40, magic=ROWS_MAGIC), (SEALED, 0))


def of_columns():
    """The same of columns."""
    payload = encode_columns(TIMES, KEYS, VALUES, HEADERS, base_timestamp=NOW_MS)
    for codec in CODECS:
        batch = _batch(payload, codec=codec)
        plain = batch[:61] + payload
        yield from _flagged(batch, (0, SEALED, SEALED | PRODUCED | WITH_ARROW | CONVERTED | JUDGED))
        yield bytes([SEALED | PACKED | PRODUCED | JUDGED]) + plain
        if codec != "none":
            bomb = bytes(compress(bytes(INFLATED_MAX + 1), codec))
            yield bytes([SEALED | PRODUCED]) + batch[:61] + bomb
    wide = encode_columns([0, 1 << 40], None, [b"a", b"b"], base_timestamp=0)
    yield from _flagged(_batch(wide, record_count=2), (SEALED | WITH_ARROW,))
    gapped = encode_columns(TIMES, None, VALUES, base_timestamp=NOW_MS, offset_deltas=[1, 4, 9])
    yield from _flagged(_batch(gapped, last=9), (SEALED | WITH_ARROW,))
    empty = encode_columns([], [], [], base_timestamp=0, offset_deltas=[])
    yield from _flagged(_batch(empty, record_count=0, last=9), (SEALED | WITH_ARROW,))


def _batch(payload, *, record_count=3, last=None, **more):
    batch = encode_batch(
        payload,
        record_count=record_count,
        last_offset_delta=last,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS + 5,
        **more,
    )
    return bytes(batch)


def _flagged(batch, every):
    return [bytes([flags]) + batch for flags in every]


def of_frames():
    """A request and an answer of each API with nothing in it that may be left out."""
    for number, api in enumerate(APIS):
        for kind, head in (
            (api.request, {"api": api.name, "version": 1, "id": number, "client": "c"}),
            (api.response, {"id": number, "error": None}),
        ):
            yield msgspec.msgpack.encode({**head, "body": _smallest(kind)})
    part = m.ProducePartition(topic="t", partition=0, records=0)
    request = m.ProduceRequest(acks=-1, timeout_ms=5, partitions=[part])
    frame = wire.encode_request(request, request_id=5, client="c", attachments=[b"batch", b""])
    yield b"".join(map(bytes, frame))[wire.LENGTH_BYTES :]
    refusal = {"code": "NOT_LEADER_OR_FOLLOWER", "message": "no"}
    yield msgspec.msgpack.encode({"id": 3, "error": refusal, "body": {}})


def _smallest(kind):
    """A value of a type, with nothing in it that may be left out."""
    if isinstance(kind, UnionType):
        kind = kind.__args__[0]
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return SMALLEST.get(kind, [])
    fields = [field for field in msgspec.structs.fields(kind) if field.required]
    return {field.encode_name: _smallest(field.type) for field in fields}


def of_members():
    """What members of each assignor say: of the same topics, of others, of what they own."""
    first = g.TopicPartitions(topic="t", partitions=[0, 2])
    second = g.TopicPartitions(topic="t", partitions=[1, 2])
    alone = g.TopicPartitions(topic="u", partitions=[0])
    for number, name in enumerate(NAMES):
        said = [
            g.Subscription(topics=["t"], owned=[first], generation=3),
            g.Subscription(topics=["t"], owned=[second], generation=4),
            g.Subscription(topics=["u", "orders"], owned=[alone], generation=4),
            g.Subscription(topics=["missing"]),
        ]
        words = [pack_subscription(each, name) for each in said]
        for pieces in (words[:1], words[:2], words[:MEMBERS_MAX]):
            yield bytes([number]) + _pieces(pieces)
        yield bytes([number]) + _pieces([msgspec.msgpack.encode(said[0]), words[1]])
    assigned = g.Assigned(partitions=[first, alone])
    yield b"\0" + _pieces([pack_assigned(assigned), msgspec.msgpack.encode(assigned)])


def _pieces(pieces):
    return b"".join(struct.pack(">H", len(each)) + each for each in pieces)


def of_logins():
    """The exchange of RFC 7677, section 3, and what an impostor might say."""
    own = "rOprNGfwEbeRWgbNEkqO"
    first = f"n,,n=user,r={own}"
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    last = f"c=biws,r={own}{NONCE},p={proof}"
    for flags in (0, WRONG_USER, SHA_512):
        yield bytes([flags]) + f"{first}\n{last}".encode()
    answer = f"r={own}{NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=16"
    for flags in (BY_A_CLIENT, BY_A_CLIENT | SHA_512):
        yield bytes([flags]) + f"{answer}\nv=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=".encode()
    yield bytes([BY_A_CLIENT]) + b"r=,s=,i=1\ne=other-error"
    yield b"\0p=tls-unique,a=admin,n=user,r=x\n" + MECHANISMS[0].encode()


def of_logs():
    """Places that are written to, in files by their order of names."""
    for number in range(12):
        for flags in (0, LOG_SEALED, CLEAN, CUT, FROM_END | LOG_SEALED):
            yield bytes([flags]) + struct.pack(">BHB", number, 57, 4) + b"\0\0\0\2"
    two = struct.pack(">BHB", 1, 7, 1) + b"\x01" + struct.pack(">BHB", 1, 110, 8) + bytes(8)
    yield bytes([LOG_SEALED]) + two
    yield bytes([0]) + struct.pack(">BHB", 0, 0, 32) + zlib.compress(bytes(1000)).ljust(32, b"\0")


def of_files():
    """One of each kind, in the order of `kept_files.KINDS`."""
    changes = [msgspec.msgpack.encode(_change(kind)) for kind in AnyChange.__args__]
    snapshot = b"".join(encode_snapshot(changes[:3], epoch=SNAPSHOT[1], now_ms=NOW_MS))
    producers = Producers()
    header = parse_header(_batch(b"", producer_id=5, producer_epoch=1, base_sequence=40))
    producers.update(header, now_ms=NOW_MS)
    places = [
        (group_records.OffsetKey("g", "t", 0), group_records.OffsetValue(offset=5)),
        (group_records.GroupKey("g"), _group()),
    ]
    yield b"\0" + QuorumState(1, 4, 1).format()
    yield b"\1" + b'{"version": 0, "brokerEpoch": 17}'
    yield b"\2" + Meta("cluster", 1, "directory", joining=True).format()
    yield b"\3" + format_entries([("t", 0, 17), ("u", 3, 5)])
    yield b"\4" + format_entries([(0, 0), (3, 17)])
    yield b"\5" + b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"
    yield b"\6" + producers.snapshot()
    for key, value in places:
        packed = group_records.encode(key)
        yield bytes([7, len(packed)]) + packed + group_records.encode(value)
        yield bytes([7, len(packed)]) + packed
    for change in changes:
        yield b"\x08" + change
    yield b"\x09" + snapshot


def _change(kind):
    return {**_smallest(kind), "type": kind.__struct_config__.tag}


def _group():
    offered = [group_records.Protocol(name="range", metadata=b"m")]
    member = group_records.MemberValue(
        member_id="m", session_ms=9, rebalance_ms=9, protocols=offered
    )
    return group_records.GroupValue(generation=1, protocol="range", leader="m", members=[member])
