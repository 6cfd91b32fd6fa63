"""What the machine has to bring: run before anything is installed, so with nothing but Python.

Without a Java or Maven there is nothing to compare with. That is no failure, so it is said in one
sentence, and the script ends well.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

JAVA_VERSION_MIN = 17
ANSWER_S = 120.0
SKIPPED = 77
"""The exit code that says it, told from that of a Python that failed."""


def java_version() -> str:
    """What the `java` of PATH calls itself; empty if there is none that answers."""
    java = shutil.which("java")
    if java is None:
        return ""
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_S)
    found = re.search(r'version "([^"]+)"', told.stderr)
    return found[1] if found else ""


def missing() -> str:
    """What this machine lacks, in words; empty if it lacks nothing."""
    version = java_version()
    if not version:
        return f"Apache Kafka needs a Java of version {JAVA_VERSION_MIN} or newer on PATH"
    # Java 8 called itself 1.8.
    if int(re.split(r"\D", version.removeprefix("1."))[0]) < JAVA_VERSION_MIN:
        return f"Apache Kafka needs Java {JAVA_VERSION_MIN} or newer, and PATH has {version}"
    if shutil.which("mvn") is None:
        return "Apache Kafka is fetched by Maven, and PATH has no mvn"
    return ""


if __name__ == "__main__":
    if lacks := missing():
        print(f"skipped: {lacks}")
        sys.exit(SKIPPED)
