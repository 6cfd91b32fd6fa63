"""Kafka's own command line tools, and kcat."""

from __future__ import annotations

import re
from collections.abc import Sequence

from interop.place import CODECS, Place, expect, needed, ran

LINES = 500
COMPRESSED = CODECS[1:]


def _lines(word: str) -> str:
    return "".join(f"{word}-{number}\n" for number in range(LINES))


def console(place: Place) -> str:
    """ConsoleProducer writes, ConsoleConsumer reads in a group, and so does hightide."""
    java, topic, lines = place.tools(), place.topic("java-console"), _lines("line")
    server = ("--bootstrap-server", place.address, "--topic", topic)
    for codec in COMPRESSED:
        java.tool("ConsoleProducer", *server, "--compression-codec", codec, stdin=lines)
    count = LINES * len(COMPRESSED)
    more = ("--from-beginning", "--max-messages", str(count), "--group", "java-console")
    found = java.tool("consumer.ConsoleConsumer", *server, *more, "--timeout-ms", "60000")
    expect(found.startswith(lines * len(COMPRESSED)), "what was read is not what was written")
    native = place.hightide("consume", topic, "-b", place.address, "-o", "beginning", "-e")
    expect(native.startswith(lines * len(COMPRESSED)), "hightide reads something else")
    return f"{count} lines in {len(COMPRESSED)} codecs"


def native_to_java(place: Place) -> str:
    """hightide writes with keys and headers, ConsoleConsumer reads."""
    java, topic = place.tools(), place.topic("native-java")
    place.produce(topic, "one", "two", options=("-k", "key", "-H", "from=hightide"))
    found = java.tool(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", place.address, "--topic", topic, "--from-beginning"),
        *("--max-messages", "2", "--timeout-ms", "60000", "--property"),
        *("print.key=true", "--property", "print.headers=true"),
    )
    expected = "from:hightide\tkey\tone\nfrom:hightide\tkey\ttwo\n"
    expect(found.startswith(expected), f"it read {found[:200]!r}")
    return "keys, values, headers"


def topics(place: Place) -> str:
    """TopicCommand creates, describes, enlarges and deletes; ConfigCommand alters."""
    java, server = place.tools(), ("--bootstrap-server", place.address)
    made = ("--topic", "java-topic", "--partitions", "2", "--replication-factor", "3")
    java.tool("TopicCommand", *server, "--create", *made, "--config", "retention.ms=3600000")
    java.tool("TopicCommand", *server, "--alter", "--topic", "java-topic", "--partitions", "5")
    told = java.tool("TopicCommand", *server, "--describe", "--topic", "java-topic")
    expect("PartitionCount: 5" in told, told)
    expect("retention.ms=3600000" in told, told)
    named = ("--entity-type", "topics", "--entity-name", "java-topic")
    config = "kafka.admin.ConfigCommand"
    java.tool(config, *server, *named, "--alter", "--add-config", "min.insync.replicas=2")
    told = java.tool(config, *server, *named, "--describe")
    expect("min.insync.replicas=2" in told, told)
    java.tool("TopicCommand", *server, "--delete", "--topic", "java-topic")
    expect("java-topic" not in java.tool("TopicCommand", *server, "--list"), "it is still there")
    return "create, alter, describe, delete, list; configs"


def groups(place: Place) -> str:
    """ConsumerGroupCommand describes, resets and deletes a group of hightide's."""
    java, topic = place.tools(), place.topic("java-groups")
    place.produce(topic, "a", "b", "c")
    consume = ("consume", topic, "-b", place.address, "-g", "shared", "-o", "beginning", "-e")
    place.hightide(*consume)
    server = ("--bootstrap-server", place.address, "--group", "shared")
    command = "consumer.group.ConsumerGroupCommand"
    told = java.tool(command, *server, "--describe")
    expect(re.search(rf"shared\s+{topic}\s+0\s+3\s+3\s+0", told), told)
    reset = ("--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    java.tool(command, *server, *reset)
    expect(place.hightide(*consume).startswith("a\nb\nc\n"), "it was not reset")
    java.tool(command, *server, "--delete")
    listed = java.tool(command, "--bootstrap-server", place.address, "--list")
    expect("shared" not in listed.split(), listed)
    return "describe, reset, delete, list"


def offsets(place: Place) -> str:
    """GetOffsetShell, DeleteRecordsCommand."""
    java, topic = place.tools(), place.topic("java-offsets")
    place.produce(topic, "a", "b", "c")
    server = ("--bootstrap-server", place.address)
    told = java.tool("GetOffsetShell", *server, "--topic", topic)
    expect(f"{topic}:0:3" in told, told)
    wanted = (
        f'{{"partitions": [{{"topic": "{topic}", "partition": 0, "offset": 2}}], "version": 1}}'
    )
    file = place.directory / "delete.json"
    file.write_text(wanted)
    java.tool("DeleteRecordsCommand", *server, "--offset-json-file", str(file))
    told = java.tool("GetOffsetShell", *server, "--topic", topic, "--time", "-2")
    expect(f"{topic}:0:2" in told, told)
    return "ends, starts, records deleted"


def cluster(place: Place) -> str:
    """BrokerApiVersionsCommand, LeaderElectionCommand, LogDirsCommand, MetadataQuorumCommand."""
    java, topic = place.tools(), place.topic("java-cluster")
    server = ("--bootstrap-server", place.address)
    told = java.tool("BrokerApiVersionsCommand", *server)
    expect(told.count("Produce(0)") == 3, told)
    chosen = ("--election-type", "PREFERRED", "--topic", topic, "--partition", "0")
    java.tool("LeaderElectionCommand", *server, *chosen)
    told = java.tool("LogDirsCommand", *server, "--describe", "--topic-list", topic)
    expect(f"{topic}-0" in told, told)
    told = java.tool("MetadataQuorumCommand", *server, "describe", "--status")
    expect("LeaderId:" in told, told)
    return "versions, election, log directories, quorum"


def kcat(place: Place) -> str:
    """kcat lists, writes in every codec and in none, idempotently, reads, finds by time, and reads
    in a group that goes on where it was; hightide reads what it wrote, and it what hightide did."""
    program, topic, lines = needed("kcat"), place.topic("kcat"), _lines("cat")
    at = (program, "-q", "-b", place.address)
    told = ran([*at, "-L", "-t", topic])
    expect(re.search(r"partition 0, leader \d, replicas: \d,\d,\d, isrs: \d,\d,\d\n", told), told)
    codecs = (*COMPRESSED, "none")
    for codec in codecs:
        writes = ("-P", "-t", topic, "-z", codec, "-X", "enable.idempotence=true")
        ran([*at, *writes], stdin=lines)
    written = lines * len(codecs)
    whole = ("-C", "-t", topic, "-o", "beginning", "-e")
    expect(ran([*at, *whole]) == written, "what was read is not what was written")
    native = place.hightide("consume", topic, "-b", place.address, "-o", "beginning", "-e")
    expect(native.startswith(written), "hightide reads something else")
    _kcat_by_time(at, topic, [int(each) for each in ran([*at, *whole, "-f", "%T "]).split()])
    group = ("-G", "kcat", "-X", "auto.offset.reset=earliest", "-e", topic)
    expect(ran([*at, *group]) == written, "its group read something else")
    place.produce(topic, "native", options=("-k", "key", "-H", "from=hightide"))
    told = ran([*at, *group, "-f", "%o %h %k %s"])
    end = LINES * len(codecs)
    expect(told == f"{end} from=hightide key native", f"its group went on with {told[:200]!r}")
    return f"{end} lines, {', '.join(codecs)}; a group, times"


def _kcat_by_time(at: Sequence[str], topic: str, times: list[int]) -> None:
    """The first offset of each time that there is, the end, the start, and a time to come."""
    wanted = {time: times.index(time) for time in dict.fromkeys(times)}
    wanted |= {-1: len(times), -2: 0, times[-1] + 3_600_000: -1}
    for time, offset in wanted.items():
        told = ran([*at, "-Q", "-t", f"{topic}:0:{time}"])
        expect(told == f"{topic} [0] offset {offset}\n", f"{told} for {time}, expected {offset}")
