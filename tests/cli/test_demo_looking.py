"""The console beside the demo's cluster: there for the demo and for who looks, and then gone.

Method: a cluster of one broker in this process's care instead of the demo's three and its pipeline.
"""

import json
import signal
import urllib.request

import pytest
from secure_run import IS_ON

from hightide_cli import console_process
from hightide_cli.console_process import NEEDS_MORE, running, start_console
from hightide_cli.demo import looking
from hightide_cli.demo.looking import console_beside, let_look
from hightide_cli.own_cluster import OwnCluster


@pytest.mark.live
@pytest.mark.slow
def test_there_is_a_console_for_the_block_and_none_behind_it(capsys):
    with OwnCluster(brokers=1, secure=IS_ON) as cluster:
        with console_beside(cluster.data, cluster.way) as address:
            with urllib.request.urlopen(f"{address}api/session") as answer:
                assert json.load(answer)["sign_in"] is IS_ON
            assert running(cluster.data)["address"] == address
        assert running(cluster.data) == {}
    assert f"the console: {address}" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["anycorn", "starlette"])
def test_without_its_extra_the_demo_goes_on_and_says_so(monkeypatch, tmp_path, capsys, missing):
    monkeypatch.setattr(console_process, "find_spec", lambda name: None if name == missing else 1)
    with console_beside(tmp_path, {"bootstrap_servers": "nobody:1"}) as address:
        assert address == ""
    assert capsys.readouterr().err == f"it goes on without one: {NEEDS_MORE}\n"


def test_without_its_extra_no_console_is_started_and_it_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(console_process, "find_spec", lambda _: None)
    assert start_console(tmp_path, "nobody:1", []) == ("", None)
    assert capsys.readouterr().err == f"{NEEDS_MORE}\n"


def test_who_looks_may_do_so_until_ctrl_c(capsys, monkeypatch):
    def interrupted(_):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(looking.time, "sleep", interrupted)
    let_look("http://h:1/", "flights")
    said = capsys.readouterr().err
    assert "http://h:1/#/timeline/flights/0" in said
    assert "stay until Ctrl-C" in said
    assert said.endswith("stopping\n")
