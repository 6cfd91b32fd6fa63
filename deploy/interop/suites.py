"""The own tests of other clients: kafka-python's, and franz-go's."""

from __future__ import annotations

import re
import sys
import tarfile
from pathlib import Path

from compare.processes import Failed

from interop.place import SHOWN, Place, needed, ran

SUITE_S = 1800.0
KAFKA_PYTHON = "3.0.12"
PARTS = ("consumer", "producer", "admin")
SERVICE = """class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
"""
"""What the tests import, and their archive lacks."""
FRANZ_GO = "v1.22.2"
GO_TESTS = (
    "TestPing|TestGroupSimple|TestConsumeRegex|TestAddRemovePartitions|TestIssue.*|TestGroupETL"
)
GO_RECORDS = 50_000


def kafka_python(place: Place) -> str:
    """kafka-python's own integration tests."""
    source = _unpacked(place.directory)
    (source / "test/__init__.py").touch()
    (source / "test/service.py").write_text(SERVICE)
    names = [f"test/integration/test_{part}_integration.py" for part in PARTS]
    told = ran(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=",
            "-rfE",
            *names,
        ],
        cwd=source,
        timeout_s=SUITE_S,
        environment={
            "KAFKA_URI": f"kafka://{place.address.split(',')[0]}",
            "KAFKA_VERSION": "4.1.0",
            "KAFKA_ROOT": str(source),
            "PYTHONPATH": str(source),
        },
        may_fail=True,
    )
    if not re.search(r"\d+ passed", told):
        raise Failed(told.strip()[-SHOWN:])
    failed = re.findall(r"^(?:FAILED|ERROR) \S+::(\S+)", told, re.MULTILINE)
    return _counted(told) + (f"; not: {', '.join(failed)}" if failed else "")


def _unpacked(directory: Path) -> Path:
    """The sources of the client, with its tests."""
    wanted = f"kafka-python=={KAFKA_PYTHON}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    ran([*pip, "--no-binary", ":all:", "-d", str(directory), wanted], timeout_s=SUITE_S)
    (archive,) = directory.glob("kafka*python*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(directory, filter="data")
    return directory / archive.name.removesuffix(".tar.gz")


def _counted(told: str) -> str:
    """The last line of pytest, without its time."""
    last = [line for line in told.splitlines() if " passed" in line][-1]
    return re.sub(r" in [\d.]+s.*", "", last.strip("= "))


def franz_go(place: Place) -> str:
    """franz-go's own tests, of those that need neither transactions nor new groups."""
    go, module = needed("go"), place.directory / "franz"
    module.mkdir()
    (module / "go.mod").write_text(
        f"module interop\n\ngo 1.24\n\nrequire github.com/twmb/franz-go {FRANZ_GO}\n"
    )
    (module / "main.go").write_text(
        'package main\n\nimport _ "github.com/twmb/franz-go/pkg/kgo"\n\nfunc main() {}\n'
    )
    ran([go, "mod", "tidy"], cwd=module, timeout_s=SUITE_S)
    tests = module / "kgo.test"
    package = "github.com/twmb/franz-go/pkg/kgo"
    ran([go, "test", "-mod=mod", "-c", "-o", tests, package], cwd=module, timeout_s=SUITE_S)
    told = ran(
        [tests, "-test.v", f"-test.run=^({GO_TESTS})$"],
        cwd=module,
        timeout_s=SUITE_S,
        environment={
            "KGO_SEEDS": place.address,
            "KGO_TEST_RF": "3",
            "KGO_TEST_RECORDS": str(GO_RECORDS),
        },
        may_fail=True,
    )
    ended = re.findall(r"^--- (PASS|FAIL|SKIP): (\S+)", told, re.MULTILINE)
    if not ended:
        raise Failed(told.strip()[-SHOWN:])
    by = {kind: [name for each, name in ended if each == kind] for kind in ("PASS", "FAIL", "SKIP")}
    counts = f"{len(by['PASS'])} passed, {len(by['FAIL'])} failed, {len(by['SKIP'])} skipped"
    return counts + (f"; not: {', '.join(by['FAIL'])}" if by["FAIL"] else "")
