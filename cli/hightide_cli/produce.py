"""`hightide produce`: lines of stdin or files become records."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from hightide.protocol.errors import UsageError
from hightide_cli.options import (
    TellOnce,
    bootstrap_option,
    config_option,
    output_option,
    run,
    say,
    timeout_option,
)


@click.command(
    epilog="Examples: echo hello | hightide produce orders · "
    "hightide produce orders -K , keyed.csv · "
    "hightide consume a -J --from start -e | hightide produce b -J"
)
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-K", "key_separator", metavar="SEP", help="Lines are KEY SEP VALUE.")
@click.option("-k", "--key", help="One key for all records.")
@click.option("-p", "--partition", type=int, help="One partition for all records.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header.")
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option(
    "-J",
    "--json-lines",
    is_flag=True,
    help="Lines are records as `consume -J` writes them; they go to TOPIC, whatever theirs was.",
)
@click.option(
    "--keep-partition", is_flag=True, help="With -J: to the partition that the line names."
)
@click.option("--null-empty", "-Z", is_flag=True, help="An empty value is a null.")
@config_option
@bootstrap_option
@output_option
@timeout_option
def produce(topic: str, files: tuple[Path, ...], **flags: Any) -> None:
    """Write lines to TOPIC; returns when every record is acknowledged."""
    for pair in flags["headers"]:
        if "=" not in pair:
            raise click.UsageError(f"-H {pair!r}, expected name=value")
    started = time.monotonic()
    count = run(_produce, topic, files, flags)
    seconds = round(time.monotonic() - started, 3)
    if flags["output"] in ("json", "ndjson"):
        click.echo(json.dumps({"records": count, "acks": flags["acks"], "seconds": seconds}))
    elif flags["output"] == "table":
        say(f"{count} records in {seconds:.2f} s, acks={flags['acks']}")


async def _produce(topic: str, files: tuple[Path, ...], flags: dict[str, Any]) -> int:
    from hightide import Producer, ProducerOptions
    from hightide.net.options import from_config

    timeout_ms = flags["timeout_s"] * 1000
    options: dict[str, Any] = {
        "bootstrap_servers": flags["bootstrap"],
        "acks": flags["acks"],
        "compression_type": flags["compression"],
        "delivery_timeout_ms": timeout_ms,
        "request_timeout_ms": min(timeout_ms, 30_000),
        "max_block_ms": timeout_ms,
        "linger_ms": 0 if sys.stdin.isatty() and not files else 5,
        "batch_size": 128 << 10,
        "on_retry": TellOnce(),
    }
    async with Producer(**options | from_config(ProducerOptions, flags["config"])) as producer:
        count, others, bad = 0, set[str](), ""
        for where, line in _lines(files):
            try:
                record = _record(line, flags)
            except UsageError as error:
                bad = f"{where}: {error}"
                break
            named = record.pop("topic", None)
            if named not in (None, topic, *others):
                others.add(named)
                say(f"{where} is a record of {named}; it is written to {topic}")
            await producer.send(topic, **record)
            count += 1
    if bad:
        done = "sent" if flags["acks"] == "0" else "stored"
        raise UsageError(f"{bad}; what came before it is {done}: {count} records")
    return count


def _lines(files: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    """Lines without their ends, of the files or of stdin, and the place of each."""
    if not files:
        yield from _lines_of(sys.stdin.buffer, "")
    for path in files:
        with path.open("rb") as file:
            yield from _lines_of(file, f"{path} ")


def _lines_of(file: BinaryIO, name: str) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(file, 1):
        yield f"{name}line {number}", line.removesuffix(b"\n").removesuffix(b"\r")


def _record(line: bytes, flags: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `send` for a line."""
    if flags["json_lines"]:
        from hightide_cli.record_json import decode_line

        record = decode_line(line)
        if not flags["keep_partition"]:
            record["partition"] = flags["partition"]
        return record
    key: bytes | None = flags["key"].encode() if flags["key"] is not None else None
    value: bytes | None = line
    separator = flags["key_separator"]
    if separator is not None:
        head, found, tail = line.partition(separator.encode())
        if not found:
            raise UsageError(f"no key separator {separator!r} in {line[:80]!r}")
        key, value = head, tail
    if flags["null_empty"] and not value:
        value = None
    headers = tuple(
        (name, text.encode())
        for name, _, text in (pair.partition("=") for pair in flags["headers"])
    )
    return {"key": key, "value": value, "partition": flags["partition"], "headers": headers}
