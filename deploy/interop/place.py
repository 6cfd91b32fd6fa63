"""What a case is run with: a cluster, Kafka's tools, a directory, and words for what they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from compare.hightide_nodes import DATA, HIGHTIDE
from compare.processes import Failed

TOOL_S = 180.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""That Kafka's clients compress by, and none."""
JVM = ("-XX:TieredStopAtLevel=1", "-Xmx256m")
"""For programs of a few seconds."""
SHOWN = 400
"""Characters of what a program said that failed."""


class Skipped(Exception):
    """This machine lacks something."""


def ran(
    command: Sequence[str | Path],
    *,
    stdin: str = "",
    timeout_s: float = TOOL_S,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    may_fail: bool = False,
) -> str:
    """What a program printed, stdout and then stderr; raises `Failed` if it ends badly, or not."""
    words = [str(word) for word in command]
    try:
        ended = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=cwd,
            env=None if environment is None else {**os.environ, **environment},
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{Path(words[0]).name} did not end within {timeout_s:g} s") from late
    said = ended.stdout + ended.stderr
    if ended.returncode and not may_fail:
        raise Failed(f"exit code {ended.returncode}: {said.strip()[-SHOWN:]}")
    return said


class Java(NamedTuple):
    """Kafka's own programs."""

    version: str
    jars: Path

    def command(self, name: str, *words: str, jvm: Sequence[str] = JVM) -> list[str]:
        """How one of them is called."""
        return ["java", *jvm, "-cp", f"{self.jars}/*", name, *words]

    def tool(
        self,
        name: str,
        *words: str,
        stdin: str = "",
        jvm: Sequence[str] = JVM,
        timeout_s: float = TOOL_S,
    ) -> str:
        """What `org.apache.kafka.tools.NAME` prints; raises `Failed`."""
        full = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
        return ran(self.command(full, *words, jvm=jvm), stdin=stdin, timeout_s=timeout_s)


class Place(NamedTuple):
    """Where a case runs."""

    address: str
    directory: Path
    java: Java | None

    def tools(self) -> Java:
        """Kafka's programs; raises `Skipped`."""
        if self.java is None:
            raise Skipped("needs Java 17 and Maven on PATH")
        return self.java

    def hightide(self, *words: str) -> str:
        """What a command of hightide's prints about this cluster; raises `Failed`."""
        return ran([*HIGHTIDE, *words])

    def produce(self, topic: str, *lines: str, options: Sequence[str] = ()) -> None:
        """Have hightide write some lines."""
        command = [*HIGHTIDE, "produce", topic]
        text = "".join(f"{line}\n" for line in lines)
        ran([*command, "-b", self.address, *options], stdin=text)

    def topic(self, name: str, *configs: str) -> str:
        """Make a topic of one partition and three replicas; `configs`: KEY=VALUE. Its name."""
        options = [word for each in configs for word in ("--config", each)]
        command = ("topics", "create", name, "-b", self.address, "-p", "1", "-r", "3")
        self.hightide(*command, *options)
        return name

    def leader(self, topic: str) -> int:
        """Who leads partition 0."""
        told = self.hightide("topics", "describe", topic, "-b", self.address, "-o", "json")
        return int(json.loads(told)[0]["partitions"][0]["leader"])

    def segments(self, topic: str) -> list[Path]:
        """The files of partition 0's segments where it is led, in order."""
        log = self.directory / DATA / f"broker-{self.leader(topic)}" / f"{topic}-0"
        return sorted(each for each in log.iterdir() if each.stem.isdigit())

    def kill(self, node: int) -> None:
        """End a broker with `kill -9`."""
        self.hightide("down", "--data", str(self.directory / DATA), "--node", str(node), "--kill")

    def start(self) -> None:
        """Have all brokers run again."""
        self.hightide("up", "--data", str(self.directory / DATA), "--detach")


def needed(program: str) -> str:
    """The path of a program; raises `Skipped`."""
    found = shutil.which(program)
    if found is None:
        raise Skipped(f"needs {program} on PATH")
    return found


def expect(true: object, why: str) -> None:
    """Raise `Failed` unless it is so."""
    if not true:
        raise Failed(why)
