"""What TLS needs on both ends of a connection: contexts from files, and what its failures mean.

TLS 1.2 or newer, without renegotiation. Certificates are reloaded by making a new context and
exchanging it whole: one that was loaded into twice keeps the authorities that were removed, and one
whose key does not fit serves nobody. The stream itself is in `tls_stream.py`.
"""

from __future__ import annotations

import math
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hightide.protocol.errors import AuthenticationFailed, UsageError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_FLIGHTS_MAX = 8


def read_password(path: str, option: str) -> str:
    """What a file holds, which `option` names; raises `UsageError`."""
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option}: {path} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where PEM files lie; empty: there is none."""

    authorities: str = ""
    """Whose certificates are believed; for a client, empty: the system's."""
    certificate: str = ""
    """This side's own, and those between it and an authority."""
    key: str = ""
    """The certificate's; empty: in the same file."""
    password: str = field(default="", repr=False)
    """The key's, if it is encrypted."""
    password_location: str = ""
    """A file with the key's password, instead."""

    def secret(self) -> str:
        """The key's password; raises `UsageError` if there is none."""
        if self.password_location:
            return read_password(self.password_location, "ssl.key.password.location")
        if not self.password:
            raise UsageError("the key is encrypted, expected ssl.key.password.location with it")
        return self.password

    def stamp(self) -> tuple[object, ...]:
        """Changes when a file is replaced, also behind a link."""
        found = []
        paths = (self.authorities, self.certificate, self.key, self.password_location)
        for path in filter(None, paths):
            with suppress(OSError):
                stat = Path(path).stat()
                found.append((path, stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client uses TLS."""

    files: TlsFiles = TlsFiles()
    check_host: bool = True
    """Whether a broker's certificate must be of the host that was asked for."""

    def context(self) -> ssl.SSLContext:
        """For connections; raises `UsageError`."""
        return client_context(self.files, check_host=self.check_host)


class ClientContext:
    """A client's context, exchanged whole when its files were replaced."""

    def __init__(self, tls: Tls, *, follows_files: bool = True) -> None:
        """`follows_files`: whether replaced files are taken without being told. Raises `UsageError`
        for files that are of no use."""
        self._tls = tls
        self._follows_files = follows_files
        self.renew()

    def renew(self) -> None:
        """Use the files as they are now; raises `UsageError`, and goes on with what it had."""
        stamp = self._tls.files.stamp()
        self._context, self._stamp = self._tls.context(), stamp

    def current(self) -> ssl.SSLContext:
        """For the next connection; what is half replaced is not taken yet."""
        if self._follows_files and self._tls.files.stamp() != self._stamp:
            with suppress(UsageError):
                self.renew()
        return self._context


def client_context(files: TlsFiles, *, check_host: bool = True) -> ssl.SSLContext:
    """For connections that this side opens. Raises `UsageError` for a file that is of no use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_host
    if files.authorities:
        _authorities(context, files.authorities)
    else:
        context.load_default_certs()
    if files.certificate:
        _own(context, files)
    return _bounded(context)


def server_context(files: TlsFiles, *, asks: ssl.VerifyMode) -> ssl.SSLContext:
    """For connections that others open; `asks`: whether they need a certificate, may have one, or
    are not asked. Raises `UsageError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _own(context, files)
    if asks is not ssl.CERT_NONE:
        _authorities(context, files.authorities)
        # A session that is taken up again is not asked for its certificate again.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    context.verify_mode = asks
    return _bounded(context)


def _bounded(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{path!r} holds no certificates of authorities: {error}") from error


def _own(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        # Asked for encrypted keys alone; without it OpenSSL would ask at the terminal.
        context.load_cert_chain(files.certificate, files.key or None, password=files.secret)
    except (OSError, ssl.SSLError, ValueError) as error:
        named = files.certificate + (f" with {files.key}" if files.key else "")
        raise UsageError(f"{named!r} is no certificate with its key: {error}") from error


def subject(end: ssl.SSLObject) -> list[tuple[str, str]]:
    """Of the certificate that the other end showed, kinds and values; empty if it showed none.
    Raises `AuthenticationFailed` where its names cannot be read."""
    try:
        shown: dict[str, Any] = end.getpeercert() or {}
    except ValueError as error:  # names that are no text
        raise AuthenticationFailed(f"its certificate cannot be read: {error}") from error
    return [pair for part in shown.get("subject", ()) for pair in part]


def check_resumed(end: ssl.SSLObject) -> None:
    """Raise `AuthenticationFailed` if the other end took a session up again with a certificate that
    has expired since: nobody looks at it then (TLS 1.2 has no way to forbid that here)."""
    if not end.session_reused:
        return
    try:
        shown: dict[str, Any] = end.getpeercert() or {}
        until = ssl.cert_time_to_seconds(shown["notAfter"]) if shown else math.inf
    except ValueError as error:
        raise AuthenticationFailed(f"its certificate cannot be read: {error}") from error
    if until < time.time():
        raise AuthenticationFailed("its certificate has expired, and its session with it")


def common_name(end: ssl.SSLObject) -> str:
    """Of that subject; empty if there is none. Raises as `subject`."""
    return next((value for kind, value in reversed(subject(end)) if kind == "commonName"), "")


PLAIN_PEER = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE")


def failed(error: ssl.SSLError) -> OSError | AuthenticationFailed:
    """What a failure of TLS means: that somebody is turned away, or that the connection broke."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationFailed(
            f"its certificate is not believed: {error.verify_message} (ssl.ca.location)"
        )
    if reason in PLAIN_PEER:
        return AuthenticationFailed(
            "it does not speak TLS there: security.protocol is PLAINTEXT on the other side"
        )
    if "ALERT" in reason:
        told = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return AuthenticationFailed(
            f"it turned this side away: {told} (ssl.certificate.location, ssl.ca.location)"
        )
    return OSError(f"TLS failed: {reason or error}")


def check_pair(server: ssl.SSLContext, files: TlsFiles) -> str:
    """The common name of a certificate that those who have these files believe: by a handshake in
    memory, before anybody depends on it. Raises `UsageError` if they do not."""
    try:
        return common_name(_visit(client_context(files, check_host=False), server))
    except (ssl.SSLError, AuthenticationFailed) as error:
        raise UsageError(
            f"{files.certificate!r} is not believed by {files.authorities!r}: {error}"
        ) from error


def check_own(files: TlsFiles) -> None:
    """Raise `UsageError` for a certificate that no client would believe, whatever authorities it
    knows: it has expired, is not good yet, or is no server's."""
    server = server_context(files, asks=ssl.CERT_NONE)
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    shown = _visit(anybody, server).getpeercert(binary_form=True)
    assert shown is not None, "a server shows a certificate"
    knows_it = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    knows_it.check_hostname = False
    knows_it.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    knows_it.load_verify_locations(cadata=shown)
    try:
        _visit(knows_it, server)
    except ssl.SSLCertVerificationError as error:
        raise UsageError(
            f"{files.certificate!r} is of no use to any client: {error.verify_message}"
        ) from error


def _visit(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end of a handshake in memory; raises `ssl.SSLError`."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    visitor = client.wrap_bio(to_client, to_server)
    waiting = [visitor, server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(_FLIGHTS_MAX):
        waiting = [end for end in waiting if not _has_agreed(end)]
    assert not waiting, "a handshake takes fewer flights"
    return visitor


def _has_agreed(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def tls_of(*, protocol: str, files: TlsFiles, identification: str) -> Tls | None:
    """What a client is told by Kafka's names: `protocol` is security.protocol, `identification`
    ssl.endpoint.identification.algorithm. None: no TLS. Raises `UsageError`."""
    if identification not in ("https", "none"):
        name = "ssl.endpoint.identification.algorithm"
        raise UsageError(f"{name} is {identification!r}, expected https or none")
    if protocol not in PROTOCOLS:
        raise UsageError(f"security.protocol is {protocol!r}, expected {', '.join(PROTOCOLS)}")
    if protocol.endswith("SSL"):
        return Tls(files, check_host=identification == "https")
    if files != TlsFiles():
        raise UsageError(
            f"certificates are given, and security.protocol is {protocol}: expected SSL"
        )
    return None
