"""Which content of a small file is the newest, and whether the file has it."""

import pytest

from hightide_broker.ports import DiskError
from hightide_broker.storage.versions import Versions


def test_a_file_that_is_being_replaced_is_behind_until_it_is():
    """Who asks meanwhile relies on what is on the disk."""
    versions, seen = Versions(), []

    def replace(unless):
        assert not unless()
        seen.append(versions.is_behind)

    versions.write(versions.give(), replace)
    assert (seen, versions.is_behind) == ([True], False)


def test_an_older_content_is_not_written_once_a_newer_one_has_begun():
    versions, written = Versions(), []
    old, new = versions.give(), versions.give()

    def replace_old(unless):
        if not unless():
            written.append("old")

    def replace_new(unless):
        assert not unless()
        versions.write(old, replace_old)
        assert versions.is_behind
        written.append("new")

    versions.write(new, replace_new)
    assert (written, versions.is_behind) == (["new"], False)


def test_what_could_not_be_written_is_written_again():
    versions = Versions()
    number = versions.give()

    def fail(unless):
        assert not unless()
        raise DiskError("f", "replace", "no")

    with pytest.raises(DiskError):
        versions.write(number, fail)
    assert versions.is_behind
    versions.write(number, lambda unless: unless() and None)
    assert not versions.is_behind
