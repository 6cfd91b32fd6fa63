"""The first user of a cluster is made with its directories, once: others are made by it.

Method: directories on simulated disks, nodes over them; what the image says of users.
"""

import random

import pytest
from brokers import DATA, new_node, settings

from hightide.admin.passwords import salted
from hightide.protocol import login_messages as u
from hightide.protocol.errors import Refused
from hightide_broker.formatting import FIRST_USERS, first_users, format_node
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.directory import WrongDirectory

ADMIN = salted("admin", "pencil")


def made(*users, disk=None):
    disk = disk or SimDisk()
    format_node(settings(), disk, random.Random(1), users=users)
    return disk


def contents(disk):
    file = disk.open(f"{DATA}/{FIRST_USERS}")
    return file.read(0, file.size())


async def test_the_first_user_is_there_when_the_node_serves_and_is_not_made_again():
    disk = made(*ADMIN)
    async with new_node(disk, settings()) as node:
        first = dict(node.image.users)
        assert set(first) == {("admin", mechanism) for mechanism in u.MECHANISMS}
        gone = [u.ScramDeletion(user="admin", mechanism=mechanism) for mechanism in u.MECHANISMS]
        wish = u.AlterUserScramCredentialsRequest(deletions=gone)
        await node.change(wish)
    async with new_node(disk, settings()) as node:
        assert node.image.users == {}


async def test_a_directory_without_users_makes_none():
    async with new_node(made(), settings()) as node:
        assert (node.image.users, node.image.users_secret) == ({}, b"")


def test_what_is_kept_in_the_directory_does_not_log_in():
    found = contents(made(*ADMIN))
    for each in ADMIN:
        assert each.salted_password not in found


def test_a_directory_and_its_files_are_for_their_owner_alone(tmp_path):
    config = settings(data=str(tmp_path / "node"))
    format_node(config, RealDisk(), random.Random(1), users=ADMIN)
    found = [tmp_path / "node", *(tmp_path / "node").rglob("*")]
    assert len(found) > 4
    assert [path for path in found if path.stat().st_mode & 0o077] == []


def test_a_directory_that_is_there_keeps_its_users():
    disk = made(*ADMIN)
    before = contents(disk)
    made(*salted("mallory", "pencil"), disk=disk)
    assert contents(disk) == before


def test_what_was_damaged_is_told():
    disk = made(*ADMIN)
    disk.replace(f"{DATA}/{FIRST_USERS}", b"\x91\xc1")
    with pytest.raises(WrongDirectory, match="first-users is damaged"):
        first_users(disk, DATA)


def test_a_user_that_cannot_be_is_refused_before_anything_is_made():
    disk = SimDisk()
    bad = u.ScramUpsertion(
        user="admin", mechanism="PLAIN", iterations=1, salt=b"", salted_password=b""
    )
    with pytest.raises(Refused, match="mechanism 'PLAIN'"):
        made(bad, disk=disk)
    assert not disk.exists(DATA)
