"""Directories of the real disk, and whether a loss of power would leave them.

Goal: `make_dirs` makes durable what it makes, each name in the directory above it; a node's data
directory is there after a loss of power, no matter who made it, with all that says whose it is.
Method: every sync of the process is watched, and what a crash would leave is worked out from it.
"""

from __future__ import annotations

import os

import pytest
from brokers import broker, settings
from powerkit import Power

from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.storage.directory import META, METADATA_DIRECTORY
from hightide_broker.storage.quorum_state import QUORUM_STATE


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty directory in which a test works."""
    found = tmp_path / "place"
    found.mkdir()
    monkeypatch.chdir(found)
    return found


@pytest.fixture
def power(place, monkeypatch):
    return Power(monkeypatch, place)


@pytest.mark.parametrize("path", ["a", "a/b", "a/b/c/d", "a/b/"])
@pytest.mark.parametrize("is_relative", [False, True])
def test_directories_that_are_made_are_durable_up_to_what_was_there(
    place, power, path, is_relative
):
    RealDisk().make_dirs(path if is_relative else f"{place}/{path}")
    assert power.lost(place / path) == ""


def test_what_is_made_below_a_directory_that_is_there_is_durable(place, monkeypatch):
    (place / "a" / "other").mkdir(parents=True)
    power = Power(monkeypatch, place)
    RealDisk().make_dirs(f"{place}/a/b/c")
    assert power.lost(place / "a" / "b" / "c") == ""
    RealDisk().make_dirs(f"{place}/a/b/d")
    assert power.lost(place / "a" / "b" / "d") == ""


def test_a_disk_that_cannot_sync_a_new_name_says_so(place, monkeypatch):
    def fail(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskError, match="Input/output error"):
        RealDisk().make_dirs(f"{place}/a/b")


def test_a_directory_that_is_there_is_no_error_though_another_makes_it_meanwhile(
    place, power, monkeypatch
):
    """Several threads make partitions below one directory."""
    mkdir = os.mkdir

    def late(path, *args, **kwargs):
        mkdir(path, *args, **kwargs)
        return mkdir(path, *args, **kwargs)

    monkeypatch.setattr(os, "mkdir", late)
    RealDisk().make_dirs(f"{place}/a/b")
    assert power.lost(place / "a" / "b") == ""


@pytest.mark.parametrize("is_made_before", [False, True])
async def test_the_directory_of_a_node_is_durable_once_it_serves(place, power, is_made_before):
    """`hightide up` makes it before the node does."""
    if is_made_before:
        (place / "broker-1").mkdir()
    async with broker(RealDisk(), settings(data=f"{place}/broker-1")) as client:
        await client.create("t")
        await client.produce(b"kept")
        names = [META, f"{METADATA_DIRECTORY}/{QUORUM_STATE}", "t-0/partition.metadata"]
        found = {name: power.lost(place / "broker-1" / name) for name in names}
        assert found == dict.fromkeys(names, "")
        assert power.lost(place / "broker-1" / "t-0" / "00000000000000000000.log") == ""
