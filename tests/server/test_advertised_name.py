"""A node whose name nobody can look up says so: clients are told it, and would find nobody."""

import socket

import pytest
import trio
from trio.abc import HostnameResolver

from hightide_cli.serving import warn_of_unknown


class Names(HostnameResolver):
    """Knows these names only."""

    def __init__(self, *known):
        self._known = known

    async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):  # noqa: A002
        if host.decode() in self._known:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def getnameinfo(self, sockaddr, flags):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("node-1.example", ""),
        ("10.0.0.7", ""),
        ("node-2.example", "'node-2.example', unknown here: [Errno -2] Name or service not known"),
        ("no..name", "'no..name', unknown here: "),
    ],
)
async def test_a_name_that_cannot_be_looked_up_is_warned_of(host, told, caplog):
    before = trio.socket.set_custom_hostname_resolver(Names("node-1.example"))
    try:
        await warn_of_unknown(host)
    finally:
        trio.socket.set_custom_hostname_resolver(before)
    if told:
        assert f"clients and other nodes are told to come to advertised.host {told}" in caplog.text
    else:
        assert caplog.text == ""
