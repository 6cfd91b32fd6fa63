"""Goal: `log dump` and `log verify` say what is in the files, and a cluster comes back from `down`.

Method: a real broker writes the files; the commands read them as processes of their own, while the
broker runs, on damaged copies, and after it was stopped and started again.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json
import re
import shutil
import signal
import socket
import subprocess
import typing

import msgspec
import pytest
from commands import COMMAND, PATIENCE_S, StartedCluster, environment, hightide, topic  # noqa: F401
from secure_run import WORDS, remember

from hightide.protocol.columns import encode_columns
from hightide.protocol.records import encode_batch
from hightide_broker.core.cluster.changes import (
    AnyChange,
    SetScramCredential,
    SetUsersSecret,
    encode_change,
)
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.disk import RealDisk
from hightide_cli.log import SECRETS
from hightide_cli.record_json import encode_bytes

pytestmark = pytest.mark.live

BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: -?\d+ lastSequence: -?\d+ "
    r"producerId: -?\d+ producerEpoch: -?\d+ partitionLeaderEpoch: \d+ isTransactional: false "
    r"isControl: false deleteHorizonMs: \S+ position: (\d+) CreateTime: \d+ size: (\d+) "
    r"magic: 72 form: columns compresscodec: none crc: \d+ isvalid: true"
)
FIELDS = [
    *("base_offset", "last_offset", "count", "base_sequence", "last_sequence", "producer_id"),
    *("producer_epoch", "leader_epoch", "is_control", "delete_horizon", "timestamp_type"),
    *("base_timestamp", "max_timestamp", "position", "size", "magic", "form", "codec", "crc"),
    "valid",
]


UP = ("--topic", "orders:3")
HUSHED = b"\xffhush"


@pytest.fixture
def batches(cluster, topic):
    """A partition's directory with three batches: one record, two, one with a key and a header."""
    cluster.run("produce", topic, stdin=b"a\n")
    cluster.run("produce", topic, "-X", "linger.ms=60000", stdin=b"b\nc\n")  # one batch, surely
    cluster.run("produce", topic, "-k", "key", "-H", "h=1", stdin=b"\xff\n")
    return cluster.partition(topic)


def test_dump_prints_batches_and_records_as_kafkas_tool_does(batches):
    (segment,) = batches.glob("*.log")
    head, start, *lines = hightide("log", "dump", batches, "--records").out.decode().splitlines()
    assert (head, start) == (f"Dumping {segment}", "Log starting offset: 0")
    found = [BATCH.fullmatch(line) for line in lines if not line.startswith("| ")]
    numbers = [tuple(map(int, match.groups())) for match in found]
    assert [each[:3] for each in numbers] == [(0, 0, 1), (1, 2, 2), (3, 3, 1)]
    position = 0
    for _, _, _, at, size in numbers:
        assert at == position
        position += size
    assert position == segment.stat().st_size
    records = [line for line in lines if line.startswith("| ")]
    assert re.fullmatch(
        r"\| offset: 2 CreateTime: \d+ keySize: -1 valueSize: 1 sequence: 1 "
        r"headerKeys: \[\] key: None payload: c",
        records[2],
    )
    assert "keySize: 3 valueSize: 1 sequence: 0 headerKeys: [h] key: key" in records[3]
    assert hightide("log", "dump", segment).lines[2:] == [
        line.encode() for line in lines if not line.startswith("| ")
    ]


def test_dump_as_json_has_one_object_a_batch_and_records_if_asked(batches):
    plain = hightide("log", "dump", batches, "-J").rows
    assert [list(row) for row in plain] == [FIELDS] * 3
    full = hightide("log", "dump", batches, "-J", "--records").rows
    assert [{k: v for k, v in row.items() if k != "records"} for row in full] == plain
    assert [record["offset"] for row in full for record in row["records"]] == [0, 1, 2, 3]
    last = full[2]["records"][0]
    assert (last["key"], last["value"], last["headers"]) == ("key", {"b64": "/w=="}, [["h", "1"]])


def test_the_metadata_log_is_dumped_decoded(cluster):
    where = cluster.data / "broker-1" / "__cluster_metadata-0"
    rows = hightide("log", "dump", where, "-J", "--records").rows
    changes = [record["value"] for row in rows for record in row["records"]]
    assert all(isinstance(change["type"], str) for change in changes)
    known = {change["type"]: change for change in changes}
    assert known["register_broker"]["broker"] == 1
    assert any("orders" in json.dumps(change) for change in changes)
    assert '"register_broker"' in hightide("log", "dump", where, "--records").out.decode()


def written(place, *values):
    """A segment in a folder of some name, with records that have these values."""
    place.mkdir()
    times = [1] * len(values)
    columns = encode_columns(times, None, [*values], base_timestamp=1)
    batch = encode_batch(columns, record_count=len(values), base_timestamp=1, max_timestamp=1)
    (place / f"{0:020}.log").write_bytes(batch)
    return place


@pytest.mark.parametrize("name", ["copied", "orders-0", "__consumer_offsets-0"])
def test_secrets_of_a_metadata_log_are_hidden_wherever_a_copy_of_it_lies(tmp_path, name):
    kept = dict.fromkeys(("salt", "stored_key", "server_key"), HUSHED)
    user = SetScramCredential(user="alice", mechanism="SCRAM-SHA-256", iterations=4096, **kept)
    users = SetUsersSecret(secret=HUSHED)
    place = written(tmp_path / name, *map(encode_change, (user, users)))
    hidden = dict.fromkeys(kept, "…")
    for where in (place, *place.iterdir()):
        (row,) = hightide("log", "dump", where, "-J", "--records").rows
        first, second = (record["value"] for record in row["records"])
        assert first == {**msgspec.to_builtins(user), **hidden}
        assert second == {"type": "users_secret", "secret": "…"}
        text = hightide("log", "dump", where, "--records").out.decode()
        assert text.count("…") == 4
        assert encode_bytes(HUSHED)["b64"] not in text


def test_what_is_no_change_is_shown_as_it_is(tmp_path):
    values = [
        b"text",
        b"\xff",
        msgspec.msgpack.encode({"type": "topic"}),
        msgspec.msgpack.encode({"type": "mine", "secret": b"no secret"}),
        b"\x91" * 100_000,
        b"\x82\xa4type\xa5topic\xa1\xff\xc0",
    ]
    place = written(tmp_path / "orders-0", *values)
    (row,) = hightide("log", "dump", place, "-J", "--records").rows
    assert [record["value"] for record in row["records"]] == list(map(encode_bytes, values))


def test_all_bytes_in_changes_are_hidden():
    """Nothing else in the metadata is bytes; what comes there is to be looked at."""
    kinds = typing.get_args(AnyChange)
    found = {
        field.name
        for kind in kinds
        for field in msgspec.structs.fields(kind)
        if field.type is bytes
    }
    assert found == {*SECRETS}


def test_what_groups_committed_is_dumped_decoded(cluster, topic):
    cluster.run("produce", topic, stdin=b"a\nb\n")
    cluster.run("consume", topic, "-g", "readers", "--from", "start", "-c", "2")
    rows = [
        row
        for segment in (cluster.data / "broker-1").glob("__consumer_offsets-*/*.log")
        if segment.stat().st_size
        for row in hightide("log", "dump", segment.parent, "-J", "--records").rows
    ]
    records = [record for row in rows for record in row["records"]]
    told = [(record["key"], record["value"]) for record in records]
    committed = {"type": "offset", "group": "readers", "topic": topic, "partition": 0}
    assert [value["offset"] for key, value in told if key == committed][-1] == 2
    kept = [value for key, value in told if key == {"type": "group", "group": "readers"}]
    (member,) = next(value["members"] for value in kept if value["members"])
    assert isinstance(member["assignment"], dict | str), "bytes, as everywhere in JSON"


def test_index_files_are_dumped_and_point_at_batches(cluster):
    cluster.run("topics", "create", "indexed", "--config", "segment.bytes=65536")
    for part in range(4):
        lines = b"".join(b"%d %0200d\n" % (part, n) for n in range(150))
        cluster.run("produce", "indexed", stdin=lines)
    sealed = min(cluster.partition("indexed").glob("*.log"))
    assert len(list(cluster.partition("indexed").glob("*.log"))) > 1
    batches = {row["position"]: row for row in hightide("log", "dump", sealed, "-J").rows}
    entries = hightide("log", "dump", sealed.with_suffix(".index"), "-J").rows
    assert entries
    for entry in entries:
        batch = batches[entry["position"]]
        assert batch["base_offset"] <= entry["offset"] <= batch["last_offset"]
    times = hightide("log", "dump", sealed.with_suffix(".timeindex"), "-J").rows
    newest = max(row["max_timestamp"] for row in batches.values())
    assert times[-1]["timestamp"] == newest
    text = hightide("log", "dump", sealed.with_suffix(".index")).out.decode().splitlines()
    assert text[0] == f"offset: {entries[0]['offset']} position: {entries[0]['position']}"


def test_verify_passes_good_files_and_names_file_and_byte_of_damage(batches, tmp_path):
    copy = shutil.copytree(batches, tmp_path / "copy-0")
    (segment,) = copy.glob("*.log")
    assert "0 damaged" in hightide("log", "verify", copy).err
    second = hightide("log", "dump", copy, "-J").rows[1]
    damaged = bytearray(segment.read_bytes())
    damaged[second["position"] + second["size"] - 1] ^= 1
    segment.write_bytes(damaged)

    ended = hightide("log", "verify", copy, code=7)
    (line,) = ended.out.decode().splitlines()
    assert line.startswith(f"{segment}: byte {second['position']}: ")
    rows = hightide("log", "dump", copy, "-J", code=7).rows
    assert [row["valid"] for row in rows] == [True, False, True]
    assert rows[1]["position"] == second["position"]
    assert segment.read_bytes() == damaged


def test_verify_misses_what_was_on_disk_and_names_checkpoints_that_are_none(batches, tmp_path):
    copy = shutil.copytree(batches, tmp_path / "data" / batches.name)
    (segment,) = copy.glob("*.log")
    topic, _, number = copy.name.rpartition("-")
    points = copy.parent / "recovery-point-offset-checkpoint"
    rows = hightide("log", "dump", copy, "-J").rows
    end = rows[-1]["last_offset"] + 1
    points.write_text(f"0\n1\n{topic} {number} {end}\n")
    assert "0 damaged" in hightide("log", "verify", copy.parent).err

    segment.write_bytes(segment.read_bytes()[: rows[-1]["position"]])
    (line,) = hightide("log", "verify", copy.parent, code=7).out.decode().splitlines()
    short = rows[-1]["base_offset"]
    assert line == f"{copy} ends at offset {short}, but was on disk up to offset {end}"

    points.write_text("0\n2\n")
    (line,) = hightide("log", "verify", copy.parent, code=7).out.decode().splitlines()
    assert line.startswith(f"{points} announces '2' entries")


def test_verify_writes_nothing(batches, tmp_path):
    """Also where nothing could be written: it opens files to read them."""
    (segment,) = batches.glob("*.log")
    disk = RealDisk(writes=False)
    file = disk.open(str(segment))
    assert file.read(0, file.size()) == segment.read_bytes()
    with pytest.raises(DiskError):
        file.append(b"x")
    file.close()


# -- down and again --------------------------------------------------------------------------------


def test_down_stops_and_up_resumes_the_same_cluster(tmp_path):
    made = StartedCluster(tmp_path / "d", "--port", "0", "--topic", "t:2")
    try:
        made.run("produce", "t", "-p", "1", "-k", "k", stdin=b"one\ntwo\n")
        before, name = made.read("t"), made.describe("t")
        identity = re.search(r"cluster (\S+) is up", made.up.err)[1]
        assert "stopped" in hightide("down", "--data", made.data).err
        (row,) = made.ps()
        assert (row["alive"], row["pid"]) == (False, None)
        made.run("topics", "list", "--timeout", "0.5", code=3)
        assert "does not run" in hightide("down", "--data", made.data).err

        again = StartedCluster(made.data, "--topic", "t:2")
        assert again.address == made.address
        assert f"cluster {identity} is up" in again.up.err
        assert again.read("t") == before
        assert [row["value"] for row in before] == ["one", "two"]
        assert again.describe("t")["topic_id"] == name["topic_id"]
        assert "was killed" in hightide("down", "--data", made.data, "--kill").err
        assert not made.ps()[0]["alive"]
    finally:
        made.end()


def test_up_in_the_foreground_stops_its_broker_at_sigterm(tmp_path):
    data = tmp_path / "d"
    with subprocess.Popen(
        [*COMMAND, "up", "--data", str(data), "--port", "0", *WORDS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as up:
        try:
            address = up.stdout.readline().decode().strip()
            remember(data)
            hightide("topics", "create", "t", address=address)
            up.send_signal(signal.SIGTERM)
            _, err = up.communicate(timeout=PATIENCE_S)
        finally:
            hightide("down", "--data", data)
            up.kill()
    assert up.returncode == 0
    assert b"stopping" in err
    (row,) = json.loads(hightide("ps", "--data", data, "-o", "json").out)
    assert not row["alive"]
    with socket.socket() as probe:
        host, _, port = address.partition(":")
        assert probe.connect_ex((host, int(port)))
