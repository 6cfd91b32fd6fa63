"""librdkafka's own tests; the crate rdkafka-sys brings its sources with them."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from compare.places import CACHE
from compare.processes import Failed

from interop.place import SHOWN, Java, Place, needed, ran

CRATE = "4.10.0"
CARGO = f"""[package]
name = "interop"
version = "0.0.0"
edition = "2021"

[dependencies]
rdkafka-sys = {{ version = "={CRATE}", default-features = false }}
"""
FEATURES = ("--disable-ssl", "--disable-gssapi", "--disable-curl", "--disable-optimization")
TESTS = (
    "0001,0002,0003,0005,0007,0008,0011,0012,0013,0014,0015,0017,0021,0022,0028,0029,0030,0031,"
    "0033,0034,0036,0039,0040,0041,0042,0044,0045,0048,0049,0050,0051,0052,0053,0054,0055,0056,"
    "0057,0059,0060,0061,0063,0064,0065,0067,0069,0070,0073,0081,0083,0084,0085,0086,0090,0091,"
    "0093,0099,0107,0111,0112,0113,0114,0118,0123,0125,0127,0130,0140"
)
"""Of those that want a broker: none that needs transactions, ACLs, or a program that starts Kafka,
and none that does nothing when it is to be quick. 0077 wants a `segment.bytes` that Kafka's own
tool has refused since 4.0."""
AT_ONCE = 4
KAFKA = "4.1.0"
"""The version of brokers that the tests are told."""
PATIENCE = 4
"""By how much the tests' own times are stretched."""
BUILD_S = 3600.0
TESTS_S = 1800.0


def librdkafka_tests(place: Place) -> str:
    """librdkafka's own tests, of those that need neither transactions nor ACLs."""
    java, tests = place.tools(), _built() / "tests"
    kafka = place.directory / "kafka"
    _write_topics_script(kafka / "bin" / "kafka-topics.sh", java)
    settings = place.directory / "test.conf"
    settings.write_text(
        f"metadata.broker.list={place.address}\ntest.timeout.multiplier={PATIENCE}\n"
    )
    told = ran(
        [tests / "test-runner", f"-p{AT_ONCE}", "-Q", "-E", "-L"],
        cwd=tests,
        timeout_s=TESTS_S,
        environment={
            "TESTS": TESTS,
            "TEST_KAFKA_VERSION": KAFKA,
            "RDKAFKA_TEST_CONF": str(settings),
            "KAFKA_PATH": str(kafka),
            "BROKERS": place.address,
            "LD_LIBRARY_PATH": f"{tests.parent}/src:{tests.parent}/src-cpp",
        },
        may_fail=True,
    )
    return _counted(re.sub(r"\x1b\[[0-9;]*m", "", told))


def _counted(told: str) -> str:
    # What took no time did nothing.
    ended = dict(re.findall(r"/ *(?!0\.000)[\d.]+s\] =+ Test (\S+) (PASSED|SKIPPED) =", told))
    failed = dict.fromkeys(re.findall(r'^### Test "(\d\S+?)[" ].* failed at', told, re.MULTILINE))
    passed = [name for name, how in ended.items() if how == "PASSED" and name not in failed]
    if not passed:
        raise Failed(told.strip()[-SHOWN:])
    return f"{len(passed)} passed" + (f"; not: {', '.join(failed)}" if failed else "")


def _built() -> Path:
    """The directory of its sources, built."""
    directory = CACHE / f"librdkafka-{CRATE}"
    sources = directory / "librdkafka"
    if (directory / "complete").exists():
        return sources
    cargo, make = needed("cargo"), needed("make")
    needed("g++")
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "src").mkdir(parents=True)
    (directory / "src" / "lib.rs").touch()
    (directory / "Cargo.toml").write_text(CARGO)
    ran([cargo, "vendor", "--quiet", "vendor"], cwd=directory, timeout_s=BUILD_S)
    (directory / "vendor" / "rdkafka-sys" / "librdkafka").rename(sources)
    ran(["./configure", *FEATURES], cwd=sources, timeout_s=BUILD_S)
    ran([make, "-j2", "libs"], cwd=sources, timeout_s=BUILD_S)
    ran([make, "-j2", "build"], cwd=sources / "tests", timeout_s=BUILD_S)
    (directory / "complete").touch()
    return sources


def _write_topics_script(path: Path, java: Java) -> None:
    """Some tests make their topics by Kafka's script, which its jars do not bring."""
    path.parent.mkdir(parents=True)
    command = shlex.join(java.command("org.apache.kafka.tools.TopicCommand"))
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
