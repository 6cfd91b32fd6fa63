"""`hightide produce`: lines of stdin or files become records."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol.errors import HightideError, UsageError
from hightide.protocol.words import counted
from hightide_cli.client_config import client_config_option, client_settings
from hightide_cli.failures import SIGNALLED
from hightide_cli.options import (
    bootstrap_option,
    check_own,
    config_option,
    output_option,
    run,
    timeout_option,
    until_interrupted,
)
from hightide_cli.output import TellOnce, say

if TYPE_CHECKING:
    from hightide import Delivery, Producer

TRIES = 3
"""A request has a third of the time: a broker says why it cannot once that is over, and is asked
again."""
READ_BYTES = 256 << 10
"""Read of a file or pipe at a time."""


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
@client_config_option
@bootstrap_option
@output_option
@timeout_option
def produce(topic: str, files: tuple[Path, ...], **flags: Any) -> None:
    """Write lines to TOPIC, each as it comes; returns when every record is acknowledged.
    A line ends with a newline, or with a carriage return and a newline.

    Ctrl-C ends the reading; what was read is still written."""
    if flags["key_separator"] == "":
        raise click.UsageError("-K is empty, expected what stands between key and value")
    for pair in flags["headers"]:
        if "=" not in pair:
            raise click.UsageError(f"-H {pair!r}, expected name=value")
    check_own(flags["config"], {"acks": "--acks", "bootstrap.servers": "-b"})
    started = time.monotonic()
    count, stopped = run(_produce, topic, files, flags)
    seconds = round(time.monotonic() - started, 3)
    if flags["output"] in ("json", "ndjson"):
        click.echo(json.dumps({"records": count, "acks": flags["acks"], "seconds": seconds}))
    elif flags["output"] == "table":
        say(f"{counted(count, 'record')} in {seconds:.2f} s, acks={flags['acks']}")
    if stopped:
        raise click.exceptions.Exit(SIGNALLED + stopped)


async def _produce(topic: str, files: tuple[Path, ...], flags: dict[str, Any]) -> tuple[int, int]:
    import trio

    from hightide import Producer, ProducerOptions
    from hightide.net.options import from_config

    timeout_ms = flags["timeout_s"] * 1000
    options: dict[str, Any] = {
        **client_settings(),
        "bootstrap_servers": flags["bootstrap"],
        "acks": flags["acks"],
        "compression_type": flags["compression"],
        "delivery_timeout_ms": timeout_ms,
        "request_timeout_ms": min(timeout_ms / TRIES, 30_000),
        "max_block_ms": timeout_ms,
        "linger_ms": 0 if sys.stdin.isatty() and not files else 5,
        "on_retry": TellOnce(),
    }
    feed = _Feed(topic, flags)
    acknowledged = 0
    try:
        with trio.CancelScope() as giving_up:
            async with Producer(
                **options | from_config(ProducerOptions, flags["config"])
            ) as producer:
                stopped = await until_interrupted(partial(feed.run, producer, files))
                if feed.failure is None:
                    await producer.flush()
                else:  # what is still on its way would fail as late as it can
                    giving_up.cancel()
                acknowledged = int(producer.metrics()["record_send_total"])
        if feed.failure is not None:
            raise feed.failure
    except HightideError as error:
        if feed.count:
            known = "sent" if flags["acks"] == "0" else "acknowledged"
            error.add_note(f"; {known}: {acknowledged} of {counted(feed.count, 'record')}")
        raise
    if feed.bad:
        done = "sent" if flags["acks"] == "0" else "stored"
        raise UsageError(
            f"{feed.bad}; what came before it is {done}: {counted(feed.count, 'record')}"
        )
    return feed.count, stopped


class _Feed:
    """Lines that become records."""

    def __init__(self, topic: str, flags: dict[str, Any]) -> None:
        self.count = 0
        self.bad = ""
        """Which line is no record, and why."""
        self.failure: HightideError | None = None
        """Why a record was not stored."""
        self._awaited: Delivery | None = None
        """Of the records whose outcome is not known, one of the first."""
        self._topic, self._flags = topic, flags
        self._others = {topic}

    async def run(self, producer: Producer, files: tuple[Path, ...]) -> None:
        """Send the lines of the files or of stdin, each as it comes, up to one that is none, or
        until a record is known to be lost."""
        for path in files or (None,):
            name = "" if path is None else f"{path} "
            number = 0
            async with aclosing(_lines_of(path)) as lines:
                async for line in lines:
                    number += 1
                    try:
                        await self._send(producer, f"{name}line {number}", line)
                    except UsageError as error:
                        self.bad = f"{name}line {number}: {error}"
                        return
                    except HightideError as error:
                        self.failure = error
                        return

    async def _send(self, producer: Producer, where: str, line: bytes) -> None:
        record = _record(line.removesuffix(b"\r"), self._flags)
        named = record.pop("topic", None)
        if named not in (None, *self._others):
            self._others.add(named)
            say(f"{where} is a record of {named}; it is written to {self._topic}")
        delivery = await producer.send(self._topic, **record)
        self.count += 1
        awaited = self._awaited
        if awaited is None or awaited.is_done:
            self._awaited = delivery
            if awaited is not None:
                awaited.result()


async def _lines_of(path: Path | None) -> AsyncGenerator[bytes]:
    """Lines without their ends. Who writes them may be slow: a thread waits, which is left
    alone when this is told to stop."""
    import trio

    with _opened(path) as read:
        rest = b""
        while data := await trio.to_thread.run_sync(read, READ_BYTES, abandon_on_cancel=True):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line
        if rest:
            yield rest


@contextmanager
def _opened(path: Path | None) -> Iterator[Callable[[int], bytes]]:
    """What reads a file or stdin: past Python's buffers, whose locks a thread would keep."""
    if path is not None:
        with path.open("rb", buffering=0) as file:
            yield partial(os.read, file.fileno())
        return
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # it is no file but an object of Python's
        yield sys.stdin.buffer.read
    else:
        yield partial(os.read, descriptor)


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
