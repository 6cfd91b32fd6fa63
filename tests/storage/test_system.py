"""Goal: what is synced is on the disk also where the system calls that by another name.

Method: this system, with the names taken away or added that others lack or have.
"""

import errno
import fcntl
import os

import pytest

from hightide_broker.runtime.base import system

FULL_SYNC = 51
"""F_FULLFSYNC, as macOS counts."""


@pytest.fixture
def descriptor(tmp_path):
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


@pytest.fixture
def calls(monkeypatch):
    """Which of the system's calls were made, in order."""
    made = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _, name=name: made.append(name))
    return made


def on_macos(monkeypatch, calls, *, failing=None):
    def answer(_, command):
        calls.append(command)
        if failing is not None:
            raise OSError(failing, os.strerror(failing))

    monkeypatch.setattr(system, "_FULL_SYNC", FULL_SYNC)
    monkeypatch.setattr(fcntl, "fcntl", answer)
    monkeypatch.delattr(os, "fdatasync")


def test_linux_syncs_no_more_than_it_must(descriptor, calls):
    system.sync_data(descriptor)
    system.sync_all(descriptor)
    assert calls == ["fdatasync", "fsync"]


def test_macos_empties_the_cache_of_the_drive(descriptor, calls, monkeypatch):
    on_macos(monkeypatch, calls)
    system.sync_data(descriptor)
    system.sync_all(descriptor)
    assert calls == [FULL_SYNC, FULL_SYNC]


@pytest.mark.parametrize("unknown", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_without_that_call_is_synced_as_it_can(
    descriptor, calls, monkeypatch, unknown
):
    on_macos(monkeypatch, calls, failing=unknown)
    system.sync_data(descriptor)
    assert calls == [FULL_SYNC, "fsync"]


def test_a_failed_sync_is_one(descriptor, calls, monkeypatch):
    on_macos(monkeypatch, calls, failing=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        system.sync_data(descriptor)
    assert calls == [FULL_SYNC]


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_room_is_taken_by_zeroes_where_there_is_no_call_for_it(descriptor, monkeypatch, size):
    monkeypatch.delattr(os, "posix_fallocate")
    os.pwrite(descriptor, b"kept", 0)
    system.allocate(descriptor, size)
    facts = os.fstat(descriptor)
    assert facts.st_size == max(size, 4)
    assert facts.st_blocks * 512 >= size
    assert os.pread(descriptor, 8, 0)[:4] == b"kept"
