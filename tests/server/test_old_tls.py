"""Who speaks a TLS older than 1.2 is told that it is too old, at both doors of a node.

Method: the first bytes of a handshake, written by hand as a client of that version says them, since
a library may refuse to; and a client of the library that may speak nothing newer.
"""

import socket
import ssl
from contextlib import asynccontextmanager

import pytest
import trio
from brokers import new_node, settings
from certificates import Authority
from patience import PATIENCE_S
from streams import send_all
from test_doors import inside, internal_port, outside

from hightide.net.tcp import TcpNetwork
from hightide_broker.simulation.disk import SimDisk

ALERT, HANDSHAKE = 0x15, 0x16
FATAL, HANDSHAKE_FAILURE, PROTOCOL_VERSION = 2, 40, 70
SERVER_HELLO = 2
SUITES = (0xC02B, 0xC02F, 0xC009, 0xC00A, 0xC013, 0xC014, 0x009C, 0x002F, 0x0035)
"""Of every version, with elliptic curves and without."""
EXTENSIONS = bytes.fromhex(
    "000a 0006 0004 0017 0018"  # curves
    "000b 0002 01 00"  # points
    "000d 000a 0008 0403 0401 0203 0201"  # signatures, which TLS 1.2 asks for
)
TOO_OLD = {
    "SSL 3.0": (0, HANDSHAKE_FAILURE),  # it has no word for it
    "TLS 1.0": (1, PROTOCOL_VERSION),
    "TLS 1.1": (2, PROTOCOL_VERSION),
}
"""The second byte of a version, the first is 3; and what its client is told."""
SPOKEN = 3


def sized(data, size):
    return len(data).to_bytes(size) + data


def client_hello(version):
    """Of a client that speaks this version and nothing newer."""
    suites = b"".join(each.to_bytes(2) for each in SUITES)
    said = bytes((3, version)) + bytes(range(32)) + sized(b"", 1)
    said += sized(suites, 2) + sized(b"\0", 1) + sized(EXTENSIONS, 2)
    return bytes((HANDSHAKE, 3, min(version, 1))) + sized(b"\1" + sized(said, 3), 2)


@asynccontextmanager
async def both_doors(tmp_path):
    """The ports of a node, and who may come in by each."""
    nodes, clients = Authority(tmp_path / "nodes"), Authority(tmp_path / "clients")
    config = settings(
        {**inside(nodes.issue("node-1")), **outside(clients.issue("broker"), "required")}
    )
    async with new_node(SimDisk(), config) as node:
        yield {node.port: clients.issue("alice"), internal_port(node): nodes.issue("node-2")}


async def answer_to(port, said, size):
    """The first bytes of it."""
    stream = await TcpNetwork().connect("127.0.0.1", port)
    try:
        with trio.fail_after(PATIENCE_S):
            await send_all(stream, said)
            data, filled = bytearray(size), 0
            while filled < size and (more := await stream.receive_into(memoryview(data)[filled:])):
                filled += more
            return bytes(data[:filled])
    finally:
        await stream.aclose()


async def test_a_client_that_is_too_old_is_told_so(tmp_path):
    async with both_doors(tmp_path) as doors:
        for port in doors:
            for name, (version, told) in TOO_OLD.items():
                kind, _, _, *rest = await answer_to(port, client_hello(version), 7)
                assert (kind, rest) == (ALERT, [0, 2, FATAL, told]), name
            kind, *_, first = await answer_to(port, client_hello(SPOKEN), 6)
            assert (kind, first) == (HANDSHAKE, SERVER_HELLO), "the same words in TLS 1.2"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_a_library_that_may_speak_nothing_newer_does_not_come_in(tmp_path):
    async with both_doors(tmp_path) as doors:
        for port, files in doors.items():
            for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.set_ciphers("ALL:@SECLEVEL=0")
                context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
                context.load_cert_chain(files.certificate, files.key)

                def agreed(port=port, context=context):
                    where = ("127.0.0.1", port)
                    with (
                        socket.create_connection(where, timeout=PATIENCE_S) as plain,
                        context.wrap_socket(plain) as stream,
                    ):
                        return stream.version()

                if version is ssl.TLSVersion.TLSv1_2:
                    assert await trio.to_thread.run_sync(agreed) == "TLSv1.2"
                else:
                    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
                        await trio.to_thread.run_sync(agreed)
