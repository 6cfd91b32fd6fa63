"""The machine and the versions, as far as they say something of the figures."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from compare.needs import java_version
from compare.places import CACHE, ROOT

_ESCAPES = {"\\040": " ", "\\011": "\t"}


def machine() -> dict[str, str]:
    """What it is made of."""
    return {
        "CPU": fact("/proc/cpuinfo", "model name"),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(fact('/proc/meminfo', 'MemTotal').split()[0]) / (1 << 20):.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(CACHE),
        "load before the run": f"{os.getloadavg()[0]:.2f}",
    }


def versions(kafka: str, spark: str) -> dict[str, str]:
    """Of everything that takes part; `spark` empty: it does not."""
    import confluent_kafka

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    found = {
        "Apache Kafka": kafka,
        "hightide": f"{version('hightide')} ({commit.stdout.strip() or 'no commit'})",
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka": confluent_kafka.libversion()[0],
        "Java": java_version(),
        "Python": platform.python_version(),
    }
    return found | ({"Spark": spark} if spark else {})


def fact(path: str, name: str) -> str:
    """A line of a file of the kernel's; `unknown` where it has none."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _file_system(directory: Path) -> str:
    """Its kind: what a sync costs depends on it."""
    found = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        for escape, character in _ESCAPES.items():
            place = place.replace(escape, character)
        if directory.resolve().is_relative_to(place):
            found = max(found, (place, kind), key=lambda each: len(each[0]))
    return found[1]
