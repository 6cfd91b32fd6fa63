"""Goal: a node that waits for the others can be told to stop.

Method: one node of a quorum of three, started on its own: it never serves. It is sent the signals
that `down`, systemd and a terminal send.
"""

import signal
import subprocess

import pytest
from commands import COMMAND, PATIENCE_S, environment, hightide

from hightide.net.tcp import free_ports

pytestmark = pytest.mark.live


def wait_until_said(process, *words):
    """In whatever order."""
    missing = {*words}
    for line in process.stderr:
        missing -= {each for each in missing if each in line}
        if not missing:
            return
    pytest.fail(f"it ended without saying {missing}")


@pytest.fixture
def lonely(tmp_path):
    """A node that has begun to look for the others, and its directory."""
    ports = free_ports(3)
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports, 1))
    directory = tmp_path / "lonely"
    keys = [
        f"log.dirs={directory}",
        f"listen.port={ports[0]}",
        f"controller.quorum.voters={voters}",
        "cluster.id=ours",
        "metrics.listen=127.1:0",  # loopback, but not by its name
    ]
    words = [word for key in keys for word in ("--set", key)]
    hightide("storage", "format", "--cluster-id", "ours", *words)
    with subprocess.Popen(
        [*COMMAND, "server", "start", *words], stderr=subprocess.PIPE, env=environment()
    ) as process:
        try:
            wait_until_said(
                process, b"prospective epoch=0", b"all who reach 127.1:0 are told metrics"
            )
            yield process, directory
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_a_node_that_waits_for_a_quorum_stops_when_it_is_told_to(lonely, number):
    process, directory = lonely
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert b"Traceback" not in said
    # Nothing was lost, but nothing was opened either: what is there is not vouched for.
    assert not (directory / ".clean_shutdown").exists()
    again = hightide("storage", "info", "--set", f"log.dirs={directory}")
    assert "cluster_id: ours" in again.out.decode()
