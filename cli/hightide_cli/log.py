"""`hightide log dump` and `verify`: what is in segment files, read without a broker and without
writing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hightide.protocol.columns import to_records
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import BatchHeader, check_crc, iter_batches
from hightide.protocol.words import counted
from hightide_cli.failures import CORRUPT, NOT_FOUND
from hightide_cli.output import say
from hightide_cli.record_json import encode_bytes

if TYPE_CHECKING:
    from hightide.protocol.columns import Record
    from hightide_broker.storage.segment import Segment

METADATA = "__cluster_metadata"
OFFSETS = "__consumer_offsets"
_NAME = re.compile(r"\d{20}(-\d{10})?")


@click.group()
def log() -> None:
    """Look into segment files: dump, verify."""


@log.command(epilog="Example: hightide log dump .hightide/broker-1/orders-0 --records")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--records", is_flag=True, help="Every record too; those of internal topics decoded.")
@click.option("-J", "--json-lines", is_flag=True, help="One JSON object a batch.")
def dump(path: Path, records: bool, json_lines: bool) -> None:
    """Print the batches of a segment or metadata snapshot, or of all in a directory; indexes
    too."""
    damaged = False
    whole = (".log", ".checkpoint")
    for file in files_of(path, (*whole, ".index", ".timeindex") if path.is_file() else whole):
        if file.suffix not in whole:
            _dump_index(file, json_lines)
            continue
        is_snapshot = file.suffix == ".checkpoint"
        if not json_lines:
            what = "Snapshot of everything below" if is_snapshot else "Log starting"
            click.echo(f"Dumping {file}")
            click.echo(f"{what} offset: {int(file.stem[:20])}")
        read = snapshot_rows if is_snapshot else batch_rows
        for row in read(file, with_records=records):
            damaged = damaged or not row["valid"]
            click.echo(json.dumps(row, ensure_ascii=False) if json_lines else _line(row))
    if damaged:
        raise click.exceptions.Exit(CORRUPT)


@log.command(epilog="Example: hightide log verify .hightide/broker-1")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def verify(path: Path) -> None:
    """Check every batch of every segment below PATH, the checkpoints beside them, and that no log
    ends before what was durable; exit 7 and name what is bad."""
    from hightide_broker.runtime.base.disk import RealDisk
    from hightide_cli.log_verify import Verification

    files = files_of(path, (".log", ".checkpoint"))
    verification = Verification(RealDisk(writes=False), files)
    verification.run()
    say(f"{counted(len(files), 'file')} checked, {counted(verification.bad, 'damaged place')}")
    if verification.bad:
        raise click.exceptions.Exit(CORRUPT)


def files_of(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Segment files at or below a path, in order; exits with 4 if there is none."""
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    files = [file for file in found if file.suffix in suffixes and _NAME.fullmatch(file.stem)]
    if not files:
        say(f"no segment files at {path}")
        raise click.exceptions.Exit(NOT_FOUND)
    return files


def open_segment(file: Path) -> Segment:
    """A segment to read from."""
    from hightide_broker.runtime.base.disk import RealDisk
    from hightide_cli import log_verify

    return log_verify.open_segment(RealDisk(writes=False), file)


def batch_rows(file: Path, *, with_records: bool) -> Iterator[dict[str, Any]]:
    """Each batch of a segment as fields; a damaged place as a row with `valid` false."""
    from hightide_broker.storage.resync import next_whole_batch
    from hightide_broker.storage.segment import SegmentDamage

    segment = open_segment(file)
    topic, _, partition = file.parent.name.rpartition("-")
    position: int | None = 0
    while position is not None and position < segment.size:
        try:
            for header, at, data in segment.batches(position):
                row = _header_fields(header, at)
                if with_records:
                    number = int(partition) if partition.isdigit() else 0
                    row["records"] = list(_record_rows(header, data, topic, number))
                yield row
            return
        except SegmentDamage as damage:
            yield {"position": damage.position, "valid": False, "error": damage.why}
            position = next_whole_batch(segment, damage.position + 1)


def snapshot_rows(file: Path, *, with_records: bool) -> Iterator[dict[str, Any]]:
    """Each batch of a metadata snapshot as fields; the damage that ends it as the last row."""
    data, position = file.read_bytes(), 0
    try:
        for header, batch in iter_batches(data):
            check_crc(batch, header)
            row = _header_fields(header, position)
            if with_records:
                row["records"] = list(_record_rows(header, batch, METADATA, 0))
            yield row
            position += header.size
    except CorruptBatch as error:
        yield {"position": position, "valid": False, "error": str(error)}
        return
    if position < len(data):
        yield {"position": position, "valid": False, "error": "the last batch is cut off"}


def _header_fields(header: BatchHeader, position: int) -> dict[str, Any]:
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "leader_epoch": header.leader_epoch,
        "is_control": header.is_control,
        "delete_horizon": header.delete_horizon,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "position": position,
        "size": header.size,
        "magic": header.magic,
        "form": "rows" if header.has_rows else "columns",
        "codec": header.codec,
        "crc": header.crc,
        "valid": True,
    }


def _record_rows(
    header: BatchHeader, data: memoryview, topic: str, partition: int
) -> Iterator[dict[str, Any]]:
    for record in to_records(data, header, topic, partition):
        key, value = _decoded(topic, record)
        yield {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": key,
            "value": value,
            "key_size": -1 if record.key is None else len(record.key),
            "value_size": -1 if record.value is None else len(record.value),
            "headers": [[name, encode_bytes(text)] for name, text in record.headers],
        }


SECRETS = ("secret", "salt", "stored_key", "server_key")
"""Fields of records about users."""


def _decoded(topic: str, record: Record) -> tuple[Any, Any]:
    """Key and value; those of hightide's own topics as what they mean."""
    from hightide_broker.core.groups.records import GroupRecordDamaged, decode

    if record.value is not None and (topic == METADATA or _is_change(record.value)):
        said = msgspec.msgpack.decode(record.value)
        return encode_bytes(record.key), _with_bytes(_without_secrets(said))
    if topic == OFFSETS:
        with suppress(GroupRecordDamaged):
            key, value = decode(record.key or b"", record.value)
            kind = type(key).__struct_config__.tag
            said = None if value is None else _with_bytes(msgspec.structs.asdict(value))
            return {"type": kind, **msgspec.structs.asdict(key)}, said
    return encode_bytes(record.key), encode_bytes(record.value)


def _is_change(value: bytes) -> bool:
    """Whether a record is of the metadata log: a copy of that may lie under any name."""
    from hightide_broker.core.cluster.changes import decode_change

    try:
        decode_change(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _without_secrets(change: dict[str, Any]) -> dict[str, Any]:
    """What is kept of passwords is of use to who would guess them."""
    return {name: "…" if name in SECRETS else value for name, value in change.items()}


def _with_bytes(value: Any) -> Any:
    """Plain data; bytes as everywhere in hightide's JSON."""
    if isinstance(value, bytes):
        return encode_bytes(value)
    if isinstance(value, msgspec.Struct):
        return _with_bytes(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return {name: _with_bytes(each) for name, each in value.items()}
    return [_with_bytes(each) for each in value] if isinstance(value, list) else value


def _line(row: dict[str, Any]) -> str:
    """A batch, and its records below it, as Kafka's tool prints them."""
    if not row["valid"]:
        return f"position: {row['position']} isvalid: false error: {row['error']}"
    lines = [
        f"baseOffset: {row['base_offset']} lastOffset: {row['last_offset']} count: {row['count']} "
        f"baseSequence: {row['base_sequence']} lastSequence: {row['last_sequence']} "
        f"producerId: {row['producer_id']} producerEpoch: {row['producer_epoch']} "
        f"partitionLeaderEpoch: {row['leader_epoch']} isTransactional: false "
        f"isControl: {str(row['is_control']).lower()} deleteHorizonMs: {row['delete_horizon']} "
        f"position: {row['position']} {row['timestamp_type']}: {row['max_timestamp']} "
        f"size: {row['size']} magic: {row['magic']} form: {row['form']} "
        f"compresscodec: {row['codec']} "
        f"crc: {row['crc']} isvalid: true"
    ]
    for number, record in enumerate(row.get("records", [])):
        sequence = -1 if row["base_sequence"] < 0 else row["base_sequence"] + number
        names = ",".join(name for name, _ in record["headers"])
        key = None if record["key"] is None else _text(record["key"])
        lines.append(
            f"| offset: {record['offset']} {row['timestamp_type']}: {record['timestamp']} "
            f"keySize: {record['key_size']} valueSize: {record['value_size']} sequence: {sequence} "
            f"headerKeys: [{names}] key: {key} payload: {_text(record['value'])}"
        )
    return "\n".join(lines)


def _text(shown: Any) -> str:
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


def _dump_index(file: Path, json_lines: bool) -> None:
    """The entries of an index file."""
    from hightide_broker.runtime.base.disk import RealDisk
    from hightide_broker.storage.index import offset_index, time_index

    base = int(file.stem)
    if file.suffix == ".index":
        entries = offset_index(RealDisk(), str(file)).entries()
        rows = [{"offset": base + relative, "position": at} for relative, at in entries]
    else:
        entries = time_index(RealDisk(), str(file)).entries()
        rows = [{"timestamp": timestamp, "offset": base + rel} for timestamp, rel in entries]
    for row in rows:
        text = " ".join(f"{name}: {value}" for name, value in row.items())
        click.echo(json.dumps(row) if json_lines else text)
