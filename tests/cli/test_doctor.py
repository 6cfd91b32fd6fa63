"""Goal: `hightide doctor` gives its whole table whatever is wrong, and says what to do about it.

Method: the command in this process; a port that is taken is taken, a disk that is full is a write
that fails as one.
"""

import errno
import json
import os
import socket
from pathlib import Path

import pytest
from certificates import Authority
from click.testing import CliRunner

from hightide.net.tcp import free_ports
from hightide_broker.certificates import create_authority
from hightide_cli.doctor import doctor

CHECKS = [
    "python",
    "java",
    "spark",
    "port",
    "open files",
    "data directory",
    "disk space",
    "sync time",
]


def examined(directory, *more, port=None, checks=CHECKS):
    """(exit code, check → its row)."""
    words = ["--data", str(directory), "--port", str(port or free_ports(1)[0]), "-o", "json"]
    words += more
    ended = CliRunner().invoke(doctor, words)
    rows = json.loads(ended.stdout)
    assert [row["check"] for row in rows] == checks
    return ended.exit_code, {row["check"]: row for row in rows}


def test_a_machine_that_is_fit(tmp_path):
    code, found = examined(tmp_path / "new")
    assert code == 0
    assert found["data directory"]["found"].endswith("new will be made")
    assert {row["status"] for row in found.values()} <= {"ok", "warn"}
    assert all(row["advice"] for row in found.values() if row["status"] != "ok")
    assert os.listdir(tmp_path) == [], "nothing is left behind"


def test_a_port_that_somebody_else_has(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, found = examined(tmp_path, port=port)
    assert (code, found["port"]["status"]) == (6, "fail")
    assert found["port"]["found"] == f"{port}: Address already in use"
    assert "--port" in found["port"]["advice"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def test_a_disk_that_takes_nothing_more(tmp_path, monkeypatch, number):
    def refused(descriptor, data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refused)
    code, found = examined(tmp_path)
    assert (code, found["sync time"]["status"]) == (6, "fail")
    assert found["sync time"]["found"] == f"{tmp_path}: {os.strerror(number)}"
    assert "make room" in found["sync time"]["advice"]


@pytest.mark.parametrize(
    ("state", "status", "said"),
    [
        ("good", "ok", "node-1.pem is good for 364 days"),
        ("soon", "warn", "node-1.pem is good for 19 days"),
        ("expired", "fail", "node-1.pem has expired"),
        ("open", "fail", "node-1-key.pem: others may read it"),
        ("none", "fail", "none in"),
    ],
)
def test_the_certificates_of_a_secure_cluster_are_looked_at(tmp_path, state, status, said):
    place = tmp_path / "certs"
    if state == "none":
        place.mkdir()
    elif state == "expired":
        files = Authority(tmp_path).issue("node-1", expired=True)
        create_authority(place)
        Path(files.certificate).rename(place / "node-1.pem")
    else:
        create_authority(place).issue("node-1", days=20 if state == "soon" else 365)
    if state == "open":
        (place / "node-1-key.pem").chmod(0o644)
    checks = [*CHECKS[:6], "certificates", *CHECKS[6:]]
    code, found = examined(tmp_path, checks=checks)
    assert found["certificates"]["status"] == status
    assert said in found["certificates"]["found"]
    assert code == (6 if status == "fail" else 0)
    assert bool(found["certificates"]["advice"]) == (status != "ok")
