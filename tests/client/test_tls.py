"""TLS on both ends: bytes arrive whole, and who is turned away hears why, at once.

Method: real sockets on loopback, both ends in this process; certificates of an authority that the
test makes.
"""

import random
import socket
import ssl
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from certificates import Authority
from patience import PATIENCE_S
from tls_records import key_updates, secret_of
from trio.testing import wait_all_tasks_blocked

from hightide import AuthenticationFailed
from hightide.net.background import single
from hightide.net.connection import FrameReader
from hightide.net.outbox import Outbox
from hightide.net.tcp import TcpNetwork, listen
from hightide.net.tls import (
    Tls,
    TlsFiles,
    check_pair,
    client_context,
    server_context,
)
from hightide.net.tls_stream import FRUITLESS_BYTES_MAX, TlsNetwork, secured
from hightide.protocol.errors import RemoteProtocolError, UsageError
from hightide.protocol.wire import frame_length


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ours")


@pytest.fixture
def stranger(tmp_path):
    return Authority(tmp_path / "theirs")


class Ends:
    """Both ends of a connection; a failed handshake is the server's `error`."""

    def __init__(self):
        self.client = self.server = self.error = None


@asynccontextmanager
async def connected(network, files, *, asks=ssl.CERT_NONE):
    """Both ends for the block, once both have agreed or one of them has not."""
    ends, listener = Ends(), await listen("127.0.0.1", 0)

    async def serve():
        try:
            plain = await listener.accept()
            ends.server = await secured(plain, server_context(files, asks=asks), server_side=True)
        except (AuthenticationFailed, OSError) as error:
            ends.error = error

    with trio.fail_after(PATIENCE_S):
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                ends.client = await network.connect("127.0.0.1", listener.port)
        except ExceptionGroup as group:
            # Not by `except*`: Python 3.11.2 makes a group again of what is raised in it.
            raise single(group) from None
        finally:
            await listener.aclose()
    try:
        yield ends
    finally:
        for end in filter(None, (ends.client, ends.server)):
            await end.aclose()


async def received(stream, size):
    """So many bytes, or less where the stream ends."""
    data, filled = bytearray(size), 0
    view = memoryview(data)
    while filled < size and (count := await stream.receive_into(view[filled:])):
        filled += count
    return bytes(data[:filled])


async def sent(raw, data):
    """Send all of it on a socket, as it is."""
    left = memoryview(data)
    while left:
        await trio.lowlevel.wait_writable(raw)
        left = left[raw.send(left) :]


async def test_what_is_sent_arrives_whole_in_both_directions_whatever_the_sizes(authority):
    async with connected(TlsNetwork(Tls(authority.believed)), authority.issue()) as ends:
        rng = random.Random(1)
        messages = [
            [rng.randbytes(size) for size in sizes]
            for sizes in ([1, 2, 3], [100_000, 5, 0, 70_000], [24_000_000], [16_384], [16_385, 1])
        ]
        whole = b"".join(b"".join(parts) for parts in messages)
        with trio.fail_after(PATIENCE_S):
            for sender, receiver in ((ends.client, ends.server), (ends.server, ends.client)):
                outbox = Outbox(sender)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(outbox.run)
                    for parts in messages:
                        outbox.put(parts, timeout_s=PATIENCE_S)
                    assert not outbox.is_empty, "more than the socket takes"
                    assert await received(receiver, len(whole)) == whole
                    nursery.cancel_scope.cancel()


async def test_what_came_with_other_bytes_is_not_waited_for(authority):
    """One record brings both; the second is inside TLS, where a socket does not show it."""
    async with connected(TlsNetwork(Tls(authority.believed)), authority.issue()) as ends:
        assert ends.client.send_now([b"one", b"two"]) == 6
        with trio.fail_after(PATIENCE_S):
            assert await received(ends.server, 3) == b"one"
            assert await received(ends.server, 3) == b"two"


@pytest.mark.parametrize("rest", [1, 100, 5_000, 16_000, 17_500, 60_000, 90_000])
async def test_the_rest_of_a_large_frame_is_heard_wherever_it_is_cut(authority, rest):
    """TLS keeps what it has of a record, so that less may be to come than is wanted."""
    body = random.Random(rest).randbytes(300_000)
    async with connected(TlsNetwork(Tls(authority.believed)), authority.issue()) as ends:
        ends.client._encrypt(len(body).to_bytes(4, "big") + body)
        data = ends.client._outgoing.read()
        frames = []

        async def hear():
            frames.append(await FrameReader(ends.server).next_frame())

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hear)
                for part in (data[:-rest], data[-rest:]):
                    await sent(ends.client._socket, part)
                    await wait_all_tasks_blocked()
        assert frames == [body]


@pytest.mark.parametrize("count", [500, 5_000])
async def test_changes_of_keys_are_answered_but_not_taken_without_end(authority, tmp_path, count):
    """OpenSSL on a socket goes on for as long as there is another one."""
    network, log = TlsNetwork(Tls(authority.believed)), tmp_path / "secrets"
    network._context.current().keylog_filename = str(log)
    async with connected(network, authority.issue()) as ends:
        flood = b"".join(key_updates(secret_of(log), count))

        async def send():
            with suppress(OSError):
                await sent(ends.client._socket, flood)
                ends.client._socket.shutdown(socket.SHUT_WR)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                if count * 27 > FRUITLESS_BYTES_MAX:
                    with pytest.raises(RemoteProtocolError, match="nothing in them"):
                        await received(ends.server, 1)
                    nursery.cancel_scope.cancel()
                else:
                    assert await received(ends.server, 1) == b""


async def test_an_end_is_seen_and_a_closed_stream_is_not_used(authority):
    async with connected(TlsNetwork(Tls(authority.believed)), authority.issue()) as ends:
        async with trio.open_nursery() as nursery:

            async def reading():
                with pytest.raises(trio.ClosedResourceError):
                    await ends.client.receive_into(memoryview(bytearray(1)))

            nursery.start_soon(reading)
            await wait_all_tasks_blocked()
            await ends.client.aclose()
        with trio.fail_after(PATIENCE_S):
            assert await received(ends.server, 1) == b""
        with pytest.raises(trio.ClosedResourceError):
            ends.client.send_now([b"x"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("another authority's", "is not believed: unable to get local issuer certificate"),
        ("expired", "is not believed: certificate has expired"),
        ("another host's", "is not believed: IP address mismatch"),
    ],
)
async def test_a_server_that_is_not_believed_is_left_and_hears_so(authority, stranger, name, said):
    files = {
        "another authority's": lambda: stranger.issue(),
        "expired": lambda: authority.issue(expired=True),
        "another host's": lambda: authority.issue("", "broker.example.org"),
    }[name]()
    with pytest.raises(AuthenticationFailed) as failed:
        async with connected(TlsNetwork(Tls(authority.believed)), files):
            pass
    assert said in failed.value.message
    assert "ssl.ca.location" in failed.value.message


async def test_a_host_that_is_not_checked_may_be_any(authority):
    files = authority.issue("", "broker.example.org")
    async with connected(TlsNetwork(Tls(authority.believed, check_host=False)), files) as ends:
        assert ends.client is not None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("shows", "told"),
    [("nothing", ("certificate required", "handshake failure")), ("a stranger's", ("unknown ca",))],
)
async def test_a_client_that_is_turned_away_hears_why(authority, stranger, version, shows, told):
    """With TLS 1.3 it has agreed before it is judged, and hears at its first read."""
    own = stranger.issue() if shows == "a stranger's" else TlsFiles()
    network = TlsNetwork(Tls(TlsFiles(authority.file, own.certificate, own.key)))
    network._context.current().maximum_version = version

    async def ask():
        async with connected(network, authority.issue(), asks=ssl.CERT_REQUIRED) as ends:
            with trio.fail_after(PATIENCE_S):
                await received(ends.client, 1)

    with pytest.raises(AuthenticationFailed) as failed:
        await ask()
    assert any(each in failed.value.message for each in told), failed.value.message
    assert "ssl.certificate.location" in failed.value.message


async def test_a_certificate_tells_its_common_name(authority):
    shown = authority.issue("node-7")
    async with connected(
        TlsNetwork(Tls(shown)), authority.issue("broker"), asks=ssl.CERT_REQUIRED
    ) as ends:
        assert (ends.server.common_name, ends.client.common_name) == ("node-7", "broker")


async def test_a_port_without_tls_is_told_from_a_broken_one(authority):
    listener = await listen("127.0.0.1", 0)

    async def plain():
        stream = await listener.accept()
        await received(stream, 5)
        stream.send_now([bytes(16)])
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(plain)
        with pytest.raises(AuthenticationFailed, match="does not speak TLS there"):
            await TlsNetwork(Tls(authority.believed)).connect("127.0.0.1", listener.port)
    await listener.aclose()


async def test_a_plain_client_at_a_port_with_tls_is_told_from_a_broken_one(authority):
    ends, told = await connected_plainly(authority.issue(), b"\0\0\0\x04body")
    assert "does not speak TLS there" in ends.error.message
    with pytest.raises(RemoteProtocolError, match=r"speak TLS: security\.protocol is SSL"):
        frame_length(told)


async def connected_plainly(files, first):
    ends, listener = Ends(), await listen("127.0.0.1", 0)

    async def serve():
        plain = await listener.accept()
        try:
            await secured(plain, server_context(files, asks=ssl.CERT_NONE), server_side=True)
        except AuthenticationFailed as error:
            ends.error = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        ends.client = await TcpNetwork().connect("127.0.0.1", listener.port)
        ends.client.send_now([first])
        with trio.fail_after(PATIENCE_S):
            told = await received(ends.client, 1 << 10)
        await ends.client.aclose()
    await listener.aclose()
    return ends, told


async def test_a_handshake_with_somebody_silent_ends_with_its_deadline_and_is_closed(authority):
    listener = await listen("127.0.0.1", 0)
    context = server_context(authority.issue(), asks=ssl.CERT_NONE)
    silent = await TcpNetwork().connect("127.0.0.1", listener.port)
    plain = await listener.accept()
    with trio.move_on_after(0.01) as scope:
        await secured(plain, context, server_side=True)
    assert scope.cancelled_caught
    with trio.fail_after(PATIENCE_S):
        assert await received(silent, 1) == b""
    await silent.aclose()
    await listener.aclose()


def test_files_that_are_of_no_use_are_named(authority, stranger, tmp_path):
    mine, other = authority.issue(), authority.issue()
    (tmp_path / "empty.pem").write_text("")
    for files, named in (
        (TlsFiles(authorities=str(tmp_path / "none.pem")), "none.pem"),
        (TlsFiles(authorities=str(tmp_path / "empty.pem")), "empty.pem"),
        (TlsFiles(authority.file, mine.certificate, other.key), mine.certificate),
        (TlsFiles(authority.file, str(tmp_path / "none.pem")), "none.pem"),
    ):
        with pytest.raises(UsageError, match=named):
            client_context(files)
    strange = TlsFiles(stranger.file, mine.certificate, mine.key)
    context = server_context(strange, asks=ssl.CERT_REQUIRED)
    with pytest.raises(UsageError, match="is not believed by"):
        check_pair(context, strange)
    assert check_pair(server_context(mine, asks=ssl.CERT_REQUIRED), mine) == ""
