"""Certificates that are replaced while a node works: who is in stays in and is served, a file of no
use changes nothing, and an authority that is gone lets nobody in, whatever was saved of it.

Method: a node with both doors under TLS, certificates of authorities that the test makes; raw
sockets in threads where a TLS session is taken up again. Every test is of both doors.
"""

import random
import socket
import ssl
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from brokers import settings
from certificates import Authority, replace
from patience import PATIENCE_S
from test_doors import client_by, inside, internal_port, outside
from tries import few

from hightide.net.ports import SystemClock
from hightide.net.tcp import listen
from hightide.net.tls import Tls
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide_broker.opening import open_node
from hightide_broker.runtime.server.door import doors_of
from hightide_broker.simulation.disk import SimDisk

REQUESTS = 1000
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
PEERS = {"clients": ("broker", "alice"), "nodes": ("node-1", "node-2")}
"""By door: what the node shows there, and who comes in."""


class Reloading:
    """A node, and one of its doors."""

    def __init__(self, tmp_path, of):
        self.authority = Authority(tmp_path / of)
        self.other = Authority(tmp_path / "other")
        self.of = of
        self.name, self.visitor = PEERS[of]
        self.files = self.authority.issue(self.name)
        """What the node shows at the door, and whom it believes there."""
        self.mine = self.authority.issue(self.visitor)
        elsewhere = Authority(tmp_path / "elsewhere")
        shown = {of: self.files}
        config = settings(
            {
                **inside(shown.get("nodes") or elsewhere.issue("node-1")),
                **outside(shown.get("clients") or elsewhere.issue("broker"), "required"),
            }
        )
        self.config, self.doors = config, doors_of(config)
        self.port = 0

    async def shown(self):
        """The certificate that a new connection is shown."""
        stream = await TlsNetwork(Tls(self.mine)).connect("127.0.0.1", self.port)
        try:
            return stream._tls.getpeercert(binary_form=True)
        finally:
            await stream.aclose()


@asynccontextmanager
async def reloading(tmp_path, of):
    found = Reloading(tmp_path, of)
    async with open_node(
        found.config,
        disk=SimDisk(),
        clock=SystemClock(),
        random=random.Random(1),
        listen=listen,
        doors=found.doors,
    ) as node:
        found.port = node.port if of == "clients" else internal_port(node)
        yield found


@pytest.mark.parametrize("of", few(PEERS, 1))
async def test_who_is_in_stays_in_and_is_served(tmp_path, of, caplog):
    async with (
        reloading(tmp_path, of) as node,
        client_by(TlsNetwork(Tls(node.mine)), node.port) as client,
    ):

        async def ask(times):
            for _ in range(times):
                assert (await client.call(m.DescribeClusterRequest())).controller == 1

        await ask(1)
        first = await node.shown()
        node.authority.issue(node.name, at=node.files)
        node.doors.renew()
        second = await node.shown()
        assert second != first
        await ask(REQUESTS)

        for kind in ("key", "certificate"):  # of one that has nothing to do with the other
            replace(getattr(node.files, kind), one_more(node.authority, kind))
            caplog.clear()
            node.doors.renew()
            assert "of no use" in caplog.text
            assert await node.shown() == second
        await ask(REQUESTS)

        node.authority.issue(node.name, at=node.files)
        node.doors.renew()
        assert await node.shown() not in (first, second)
        await ask(REQUESTS)


def one_more(authority, kind):
    """A key or a certificate that nobody has."""
    with open(getattr(authority.issue(), kind), "rb") as file:
        return file.read()


def visit(port, context, session=None):
    """Come in, ask, and leave: whether a session was taken up again, and the one there is now."""
    asked = b"".join(wire.encode_request(m.ApiVersionsRequest(), request_id=1, client="c"))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, session=session) as stream,
    ):
        stream.sendall(asked)
        length = wire.frame_length(_exactly(stream, wire.LENGTH_BYTES))
        _exactly(stream, length)
        found = stream.session_reused, stream.session
        stream.unwrap()  # a session whose connection broke is none
        return found


def _exactly(stream, size):
    data = b""
    while len(data) < size:
        more = stream.recv(size - len(data))
        assert more, "the stream ended"
        data += more
    return data


def context_of(files, version):
    """Of a visitor that believes everything that it is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(files.certificate, files.key)
    return context


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("of", PEERS)
async def test_an_authority_that_is_gone_lets_nobody_in_with_an_old_session_either(
    tmp_path, of, version, monkeypatch
):
    monkeypatch.setattr("hightide.net.tls_stream.LAST_WORDS_S", PATIENCE_S)
    in_thread = trio.to_thread.run_sync
    async with reloading(tmp_path, of) as node:
        come = partial(visit, node.port, context_of(node.mine, version))
        _, session = await in_thread(come)
        is_taken_up, session = await in_thread(come, session)
        assert is_taken_up == (version is ssl.TLSVersion.TLSv1_2), "the newer has no tickets"

        with open(node.other.file, "rb") as file:
            replace(node.files.authorities, file.read())
        theirs = node.other.issue(node.visitor)
        node.other.issue(node.name, at=node.files)
        node.doors.renew()
        for saved in (session, None):
            with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
                await in_thread(come, saved)
        await in_thread(visit, node.port, context_of(theirs, version))
