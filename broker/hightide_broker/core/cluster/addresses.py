"""What may be recorded as an address. Pure.

Everybody connects to what is in the metadata, controllers too: what can never be one must not get
there, for it comes back with every start.
"""

from __future__ import annotations

from hightide.protocol.errors import ErrorCode, Refused

HOST_CHARACTERS_MAX = 253
PORTS = range(1, 65_536)


def check_address(host: str, port: int) -> None:
    """Raise `Refused` for what is no host, or no port."""
    if port not in PORTS:
        raise Refused(ErrorCode.INVALID_REQUEST, f"port {port}, expected 1 to {PORTS[-1]}")
    if not _may_be_host(host):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"host {host[:HOST_CHARACTERS_MAX]!r}, expected a name, or an address of IPv4 or IPv6",
        )


def _may_be_host(host: str) -> bool:
    if not 0 < len(host) <= HOST_CHARACTERS_MAX or not host.isprintable() or " " in host:
        return False
    try:
        host.encode("idna")
    except UnicodeError:  # a label is empty, or longer than 63
        return False
    return True
