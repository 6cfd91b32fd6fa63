"""What becomes of logins, written down in `hightide.audit` and counted: sparingly, since strangers
have a say in how many there are.

Kinds of lines are counted apart, and each by whom it concerns: nobody hides behind others' noise,
and nothing that is not routine behind one's own routine.
"""

from __future__ import annotations

import logging
from functools import partial

from hightide.net.ports import Stream
from hightide.net.tls_stream import TlsStream
from hightide_broker.core.cluster.users import USERS_MAX
from hightide_broker.runtime.base.call import Peer
from hightide_broker.runtime.base.sparing import SparingLogs
from hightide_broker.runtime.server.counts import Counts

LOGIN_LINES_MAX = 100
"""Of one who comes in, in the time that `sparing.py` counts."""
CERTIFICATE = "certificate"
"""How somebody has proven who it is, where it is not by a mechanism of SASL."""


class LoginLines:
    """The lines about logins at one node."""

    def __init__(self, counts: Counts) -> None:
        logs = partial(SparingLogs, logging.getLogger("hightide.audit"), strangers_max=USERS_MAX)
        self._counts = counts
        self._in, self._again = logs(lines_max=LOGIN_LINES_MAX), logs()
        self._refused_again, self._over = logs(), logs()
        """These four by the principal that has proven to be one."""
        self._turned_away = logs()
        """By the user whose name was tried, all together where there is none."""

    def came_in(self, listener: str, peer: Peer, how: str, stream: Stream) -> None:
        """Somebody has proven who it is."""
        self._counts.logins[listener, "TLS" if how == CERTIFICATE else "SCRAM", True] += 1
        by = f"{how} under {stream.version}" if isinstance(stream, TlsStream) else how
        told = (peer.shown, by, stream.peer)
        self._in.write(peer.principal, logging.INFO, "logged in: %s by %s, from %s", *told)

    def turned_away(self, listener: str, why: str, account: str | None, whence: str) -> None:
        """Somebody has not; `account`: the user that there is, by whose name it was tried, empty
        where there is none, None where it was by a certificate."""
        self._counts.logins[listener, "TLS" if account is None else "SCRAM", False] += 1
        told = "turned away: %s, from %s", why, whence
        self._turned_away.write(account or "", logging.INFO, *told)

    def came_again(self, listener: str, peer: Peer, whence: str) -> None:
        """A user has logged in again, on the same connection (KIP-368)."""
        self._counts.logins[listener, "SCRAM", True] += 1
        self._again.write(
            peer.principal, logging.INFO, "logged in again: %s, from %s", peer.shown, whence
        )

    def refused_again(self, listener: str, peer: Peer, why: str, said: str, whence: str) -> None:
        """It was tried again on a user's connection, and failed; `said`: as whom."""
        self._counts.logins[listener, "SCRAM", False] += 1
        line = "turned away: %s, as %s, on a connection of %s, from %s"
        told = (why, repr(said[:60]), peer.shown, whence)
        self._refused_again.write(peer.principal, logging.INFO, line, *told)

    def over(self, peer: Peer, why: str, whence: str) -> None:
        """A user has not logged in again in time, and its connection is closed."""
        told = (peer.shown, why, whence)
        self._over.write(peer.principal, logging.INFO, "login over: %s, %s, from %s", *told)
