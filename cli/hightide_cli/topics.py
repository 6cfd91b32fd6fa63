"""`hightide topics` and `hightide configs`: what exists, and how it is set."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol.topic_partition import INTERNAL
from hightide.protocol.words import counted
from hightide_cli.client_config import client_config_option
from hightide_cli.failures import USAGE
from hightide_cli.leaderless import known_topics, say_if_leaderless
from hightide_cli.options import (
    admin,
    ask,
    bootstrap_option,
    client_options,
    run,
    shared_options,
    timeout_option,
    yes_option,
)
from hightide_cli.output import say, show
from hightide_cli.watching import watchable

if TYPE_CHECKING:
    from hightide.admin.descriptions import ConfigEntry, ReplicaDescription, TopicDescription


LOST_WITH = {
    "__consumer_offsets": "all groups lose their offsets with it, and Spark's sinks their places"
}


def parse_pairs(pairs: tuple[str, ...], flag: str) -> dict[str, str]:
    """`k=v` flags as a dict."""
    parsed = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"{flag} {pair!r}, expected key=value")
        parsed[name] = value
    return parsed


def _configs(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> tuple[str, ...]:
    """--config of a command about topics, unless it was meant for the command line."""
    for pair in pairs:
        if "=" not in pair and pair.endswith(".toml"):
            raise click.UsageError(
                f"--config {pair!r}, expected key=value; a file for clients comes first: "
                f"hightide --config {pair} topics …"
            )
    return pairs


def parse_settings(pairs: tuple[str, ...], flag: str) -> dict[str, str]:
    """The same, as a topic keeps it: times and sizes may be written with a unit."""
    from hightide.protocol.errors import UsageError
    from hightide_broker.core.cluster.config_key import Unfit, as_sent

    try:
        return {name: as_sent(name, text) for name, text in parse_pairs(pairs, flag).items()}
    except Unfit as unfit:
        raise UsageError(str(unfit)) from unfit


def _told(settings: dict[str, str]) -> str:
    """What was stored, behind what was done."""
    return f": {json.dumps(settings)}" if settings else ""


@click.group()
def topics() -> None:
    """Create, list, describe, alter and delete topics."""


@topics.command(name="list", epilog="Example: hightide topics list -o quiet")
@watchable
@click.option("--internal", is_flag=True, help="Those whose names begin with __ too.")
@client_options
def list_(internal: bool, bootstrap: str, output: str, timeout_s: float) -> None:
    """List topics."""
    rows = [
        {
            "topic": topic.topic,
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            "replication_factor": len(topic.partitions[0].replicas) if topic.partitions else 0,
        }
        for topic in ask(bootstrap, timeout_s, known_topics)
        if internal or not topic.internal
    ]
    show(rows, output, columns=["topic", "partitions", "replication_factor"], key="topic")


@topics.command(
    epilog="Examples: hightide topics create orders -p 3 --config retention.ms=7d · "
    "hightide topics create orders -r 3 --config segment.bytes=64MiB"
)
@click.argument("topic")
@click.option("-p", "--partitions", type=int, default=-1, help="[default: num.partitions]")
@click.option(
    "-r", "--replicas", type=int, default=-1, help="[default: default.replication.factor]"
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_configs,
    help="May be repeated. Times take s, m, h, d; sizes KiB, MiB, GiB.",
)
@click.option("--if-not-exists", is_flag=True, help="Fine if the topic is there.")
@shared_options
def create(
    topic: str,
    partitions: int,
    replicas: int,
    configs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str,
    output: str,
    timeout_s: float,
) -> None:
    """Create a topic; it can be used when this returns."""
    from hightide import ApiError, ErrorCode

    settings = parse_settings(configs, "--config")

    async def work() -> Any:
        async with admin(bootstrap, timeout_s) as client:
            return await client.create_topic(
                topic,
                partitions=partitions,
                replication_factor=replicas,
                configs=settings,
            )

    try:
        result = run(work)
    except ApiError as error:
        if if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            say(f"topic {topic} exists")
            return
        raise
    fields = {
        "topic": topic,
        "topic_id": result.topic_id,
        "partitions": result.partitions,
        "replication_factor": result.replication_factor,
    }
    if output == "table":
        shown = counted(result.partitions, "partition")
        say(f"created topic {topic} with {shown}{_told(settings)}")
    else:
        show([fields], output, columns=list(fields), key="topic")


@topics.command(
    epilog="Examples: hightide topics describe orders · hightide topics describe --under-replicated"
)
@watchable
@click.argument("topic", required=False)
@click.option("--under-replicated", is_flag=True, help="Partitions with replicas out of sync.")
@click.option("--at-min-isr", is_flag=True, help="Partitions that can lose no replica more.")
@click.option("--under-min-isr", is_flag=True, help="Partitions that take no acks=all now.")
@click.option("--unavailable", is_flag=True, help="Partitions that nobody leads.")
@client_options
def describe(
    topic: str | None,
    under_replicated: bool,
    at_min_isr: bool,
    under_min_isr: bool,
    unavailable: bool,
    bootstrap: str,
    output: str,
    timeout_s: float,
) -> None:
    """Describe one topic or all: leaders, replicas, in-sync replicas, offsets.

    With a condition, only the partitions that meet it; of several, any.
    """
    rows = run(_describe, topic, bootstrap, timeout_s)
    wanted = {
        "under-replicated": under_replicated,
        "at-min-isr": at_min_isr,
        "under-min-isr": under_min_isr,
        "unavailable": unavailable,
    }
    if any(wanted.values()):
        rows = _only([name for name, is_wanted in wanted.items() if is_wanted], rows)
    if output == "table":
        for row in rows:
            _print_as_kafka(row)
    else:
        show(rows, output, columns=["topic"], key="topic")


def _only(conditions: list[str], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The partitions that meet any of these conditions, and the topics that have some."""
    found = []
    for row in rows:
        min_isr = int(row["min_insync_replicas"])
        parts = [p for p in row["partitions"] if {*conditions} & _states(p, min_isr)]
        if parts:
            found.append({**row, "partitions": parts})
    return found


def _states(partition: dict[str, Any], min_isr: int) -> set[str]:
    """How a partition is, in the words of the flags."""
    in_sync, needed = len(partition["isr"]), min(min_isr, len(partition["replicas"]))
    states = {
        "under-replicated": in_sync < len(partition["replicas"]),
        "at-min-isr": in_sync == needed,
        "under-min-isr": in_sync < needed,
        "unavailable": partition["leader"] < 0,
    }
    return {name for name, holds in states.items() if holds}


async def _describe(topic: str | None, bootstrap: str, timeout_s: float) -> list[dict[str, Any]]:
    async with admin(bootstrap, timeout_s) as client:
        if topic is None:
            found = [t for t in await known_topics(client) if not t.internal]
        else:
            found = [await client.describe_topic(topic)]
            say_if_leaderless(await client.describe_cluster())
        replicas: dict[tuple[str, int, int], ReplicaDescription] = {}
        for directory in await client.describe_log_dirs([t.topic for t in found]):
            for info in directory.replicas:
                replicas[(info.topic, info.partition, directory.broker)] = info
        rows = []
        for known in found:
            entries = await client.describe_configs("topic", known.topic)
            rows.append(_topic_row(known, entries, replicas))
        return rows


def _topic_row(
    topic: TopicDescription,
    entries: list[ConfigEntry],
    replicas: dict[tuple[str, int, int], ReplicaDescription],
) -> dict[str, Any]:
    partitions = []
    for partition in topic.partitions:
        info = replicas.get((topic.topic, partition.partition, partition.leader))
        row = {
            "partition": partition.partition,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replicas": partition.replicas,
            "isr": partition.isr,
            "elr": partition.elr,
            "last_known_elr": partition.last_known_elr,
            "last_leader": partition.last_leader,
            "high_watermark": info.high_watermark if info else None,
            "log_end_offset": info.log_end_offset if info else None,
        }
        if info is not None and info.error:
            row["error"] = info.error
        elif partition.message:
            row["error"] = partition.message
        partitions.append(row)
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "configs": {entry.name: entry.value for entry in entries if not entry.default},
        "min_insync_replicas": next(
            (int(entry.value) for entry in entries if entry.name == "min.insync.replicas"), 1
        ),
        "partitions": partitions,
    }


def _print_as_kafka(row: dict[str, Any]) -> None:
    """Kafka's two describe lines."""
    partitions = row["partitions"]
    factor = len(partitions[0]["replicas"]) if partitions else 0
    configs = ",".join(f"{name}={value}" for name, value in row["configs"].items())
    click.echo(
        f"Topic: {row['topic']}\tTopicId: {row['topic_id']}\tPartitionCount: {len(partitions)}\t"
        f"ReplicationFactor: {factor}\tConfigs: {configs}"
    )
    for partition in partitions:
        leader = partition["leader"] if partition["leader"] >= 0 else "none"
        line = (
            f"\tTopic: {row['topic']}\tPartition: {partition['partition']}\tLeader: {leader}\t"
            f"Replicas: {_ids(partition['replicas'])}\tIsr: {_ids(partition['isr'])}\t"
            f"Elr: {_ids(partition['elr'])}\tHighWatermark: {partition['high_watermark']}\t"
            f"LogEndOffset: {partition['log_end_offset']}"
        )
        click.echo(f"{line}\tOffline: {partition['error']}" if "error" in partition else line)


def _ids(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))


@topics.command(epilog="Example: hightide topics alter orders -p 6 --config retention.ms=-1")
@click.argument("topic")
@click.option("-p", "--partitions", type=int, help="As many in all.")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_configs,
    help="Set a key. Times take s, m, h, d; sizes KiB, MiB, GiB.",
)
@click.option("--unset", multiple=True, metavar="KEY", help="Take a key back to its default.")
@bootstrap_option
@timeout_option
def alter(
    topic: str,
    partitions: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    bootstrap: str,
    timeout_s: float,
) -> None:
    """Give a topic more partitions, or set its configuration."""
    if partitions is None and not configs and not unset:
        raise click.UsageError("nothing to alter: give -p, --config or --unset")
    settings = parse_settings(configs, "--config")

    async def work() -> None:
        async with admin(bootstrap, timeout_s) as client:
            if partitions is not None:
                await client.create_partitions(topic, partitions)
            if configs or unset:
                await client.alter_topic_configs(topic, set_=settings, unset=unset)

    run(work)
    say(f"altered topic {topic}{_told(settings)}")


@topics.command(epilog="Example: hightide topics delete orders --yes")
@click.argument("topic")
@click.option("--if-exists", is_flag=True, help="Fine if there is none.")
@click.option(
    "--internal",
    metavar="NAME",
    help="Once more the name of an internal topic, which others rely on.",
)
@yes_option
@client_config_option
@bootstrap_option
@timeout_option
def delete(
    topic: str,
    if_exists: bool,
    internal: str | None,
    yes: bool,
    bootstrap: str,
    timeout_s: float,
) -> None:
    """Delete a topic and its records."""
    from hightide import ApiError, ErrorCode

    if topic.startswith(INTERNAL) and internal != topic:
        raise click.UsageError(
            f"{topic} is internal: {LOST_WITH.get(topic, 'others rely on it')}; if that is what "
            f"you want, add --internal {topic}"
        )
    if not yes:
        say(f"this deletes topic {topic} and all its records: add --yes")
        raise click.exceptions.Exit(USAGE)

    async def work() -> None:
        async with admin(bootstrap, timeout_s) as client:
            await client.delete_topic(topic, internal=topic == internal)

    try:
        run(work)
    except ApiError as error:
        if not (if_exists and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise
        say(f"there is no topic {topic}")
    else:
        say(f"deleted topic {topic}")


@topics.command(epilog="Example: hightide topics offsets orders --at 2013-06-01T00:00:00Z")
@click.argument("topic")
@click.option("--at", help="A time (ISO or ms) instead of earliest and latest.")
@client_options
def offsets(topic: str, at: str | None, bootstrap: str, output: str, timeout_s: float) -> None:
    """Each partition's first and next offset, or the offset at a time."""
    from hightide import EARLIEST, LATEST, TopicPartition
    from hightide_cli.times import parse_time

    timestamp = None if at is None else parse_time(at)

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap, timeout_s) as client:
            known = await client.describe_topic(topic)
            partitions = [TopicPartition(topic, p.partition) for p in known.partitions]
            if timestamp is not None:
                found = await client.offsets(partitions, timestamp)
                return [
                    {"topic": t, "partition": p, "offset": r.offset, "timestamp": r.timestamp}
                    for (t, p), r in found.items()
                ]
            first = await client.offsets(partitions, EARLIEST)
            last = await client.offsets(partitions, LATEST)
            return [
                {**tp._asdict(), "earliest": first[tp].offset, "latest": last[tp].offset}
                for tp in partitions
            ]

    rows = run(work)
    show(rows, output, columns=list(rows[0]), key="partition")


@click.group()
def configs() -> None:
    """Describe and alter configurations."""


@configs.command(
    name="describe",
    epilog="Examples: hightide configs describe topic orders · hightide configs describe cluster",
)
@click.argument("kind", type=click.Choice(["topic", "broker", "cluster"]))
@click.argument("name", default="")
@click.option("--all", "everything", is_flag=True, help="Defaults too.")
@client_options
def describe_configs(
    kind: str, name: str, everything: bool, bootstrap: str, output: str, timeout_s: float
) -> None:
    """The keys of a topic, a broker, or the cluster that are set, or all of them."""
    _check_name(kind, name)

    async def work() -> Any:
        async with admin(bootstrap, timeout_s) as client:
            return await client.describe_configs(kind, name)

    rows = [
        {"name": e.name, "value": e.value, "default": e.default, "doc": e.doc}
        for e in run(work)
        if everything or not e.default
    ]
    show(rows, output, columns=["name", "value", "default", "doc"], key="name")
    if not rows:
        say(f"nothing is set for {f'{kind} {name}'.strip()}: --all shows the defaults it goes by")


@configs.command(
    name="alter",
    epilog="Examples: hightide configs alter topic orders --set retention.ms=7d · "
    "hightide configs alter cluster --set min.insync.replicas=2",
)
@click.argument("kind", type=click.Choice(["topic", "cluster"]))
@click.argument("name", default="")
@click.option(
    "--set",
    "set_",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key. Times take s, m, h, d; sizes KiB, MiB, GiB.",
)
@click.option("--unset", multiple=True, metavar="KEY", help="Take a key back to its default.")
@client_config_option
@bootstrap_option
@timeout_option
def alter_configs(
    kind: str,
    name: str,
    set_: tuple[str, ...],
    unset: tuple[str, ...],
    bootstrap: str,
    timeout_s: float,
) -> None:
    """Set the configuration of a topic, or what holds for all topics that do not say themselves:
    min.insync.replicas, flush and unclean.leader.election.enable of the cluster."""
    _check_name(kind, name)
    if not set_ and not unset:
        raise click.UsageError("nothing to alter: give --set or --unset")
    settings = parse_settings(set_, "--set")

    async def work() -> None:
        async with admin(bootstrap, timeout_s) as client:
            if kind == "cluster":
                await client.alter_cluster_configs(set_=settings, unset=unset)
            else:
                await client.alter_topic_configs(name, set_=settings, unset=unset)

    run(work)
    say(f"altered {f'{kind} {name}'.strip()}{_told(settings)}")


def _check_name(kind: str, name: str) -> None:
    """The cluster has no name, everything else has one."""
    if (kind == "cluster") == bool(name):
        expected = "no name" if name else "a name"
        raise click.UsageError(f"{kind} {name!r}, expected {expected} after {kind}")
