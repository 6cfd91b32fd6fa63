"""Who has signed in. A session belongs to a browser, an eye to a user: all pages of one user share
what it sees, and nobody sees by another's eye.

Where the cluster's users log in, so do those who look, with the same names and passwords; otherwise
everybody looks as the console itself. A password is kept in memory alone, by the client that uses
it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from hightide import Admin, AuthenticationFailed
from hightide_console.eye import Eye

SESSIONS_MAX = 200
IDLE_S = 12 * 3600.0
"""A session that nobody used for so long is over; a page that is open uses it."""
TIMEOUT_S = 10.0
REQUEST_S = 2.0
"""A broker that does not answer for so long: another one is asked."""
COOKIE = "hightide_console"


class SignInFailed(Exception):
    """The message says why."""


@dataclass(slots=True)
class Session:
    """A browser that may look."""

    user: str
    eye: Eye = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    """How this user comes to the cluster."""
    token: str = field(default_factory=secrets.token_urlsafe, repr=False)
    used_at: float = 0.0
    ended: trio.Event = field(default_factory=trio.Event, repr=False)


class Sessions:
    """All of them; looks by the nursery that `run` opens."""

    def __init__(self, bootstrap: str, options: Mapping[str, Any], *, users_sign_in: bool) -> None:
        """`options`: how clients come to the cluster, and who this console is."""
        self.users_sign_in = users_sign_in
        self.bootstrap = bootstrap
        self._options = options
        self._by_cookie: dict[str, Session] = {}
        self._eyes: dict[str, tuple[Eye, trio.CancelScope, str]] = {}
        """By user: the eye, what ends it, and the password that it came in with."""
        self._nursery: trio.Nursery | None = None
        self._signing_in = trio.Lock()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie, if it is not over."""
        session = self._by_cookie.get(cookie)
        if session is None:
            return None
        if trio.current_time() > session.used_at + IDLE_S:
            self.end(cookie)
            return None
        session.used_at = trio.current_time()
        return session

    async def begin(self, user: str = "", password: str = "") -> tuple[str, Session]:
        """A new session, and its cookie. Raises `SignInFailed`."""
        async with self._signing_in:  # whoever guesses passwords does so one at a time
            options = dict(self._options)
            if self.users_sign_in:
                options.pop("sasl_password_location", None)
                options |= {"sasl_username": user, "sasl_password": password}
            eye = await self._eye_of(user, password, options)
        cookie = secrets.token_urlsafe(32)
        session = Session(user, eye, options, used_at=trio.current_time())
        self._by_cookie[cookie] = session
        while len(self._by_cookie) > SESSIONS_MAX:  # behind the new one, so that its eye stays
            self.end(min(self._by_cookie, key=lambda each: self._by_cookie[each].used_at))
        return cookie, session

    def end(self, cookie: str) -> None:
        """A browser looks no more; the last one of a user takes the eye with it."""
        session = self._by_cookie.pop(cookie, None)
        if session is None:
            return
        session.ended.set()
        if any(s.eye is session.eye for s in self._by_cookie.values()):
            return
        known = self._eyes.get(session.user)
        if known is not None and known[0] is session.eye:
            del self._eyes[session.user]
            known[1].cancel()

    def end_all(self) -> None:
        """Nobody looks any more."""
        for cookie in list(self._by_cookie):
            self.end(cookie)

    async def _eye_of(self, user: str, password: str, options: Mapping[str, Any]) -> Eye:
        if self.users_sign_in:
            await self._check(options)  # each time: what was right once may be right no more
        known = self._eyes.get(user)
        if known is not None:
            if secrets.compare_digest(known[2].encode(), password.encode()):
                return known[0]
            for cookie in [c for c, s in self._by_cookie.items() if s.eye is known[0]]:
                self.end(cookie)  # by an old password
        if self._nursery is None:
            raise SignInFailed("the console is about to end")
        started: tuple[Eye, trio.CancelScope] = await self._nursery.start(self._live, options)
        self._eyes[user] = (*started, password)
        return started[0]

    async def _check(self, options: Mapping[str, Any]) -> None:
        try:
            async with self._admin(options) as admin:
                await admin.describe_cluster()
        except AuthenticationFailed:
            raise SignInFailed("the cluster does not know this name and password") from None

    def _admin(self, options: Mapping[str, Any]) -> Admin:
        waits = {"request_timeout_ms": REQUEST_S * 1000, **options}
        return Admin(self.bootstrap, default_api_timeout_ms=TIMEOUT_S * 1000, **waits)

    async def _live(
        self,
        options: Mapping[str, Any],
        *,
        task_status: trio.TaskStatus[tuple[Eye, trio.CancelScope]],
    ) -> None:
        """One user's client and eye, from sign-in to the end of the last session."""
        with trio.CancelScope() as scope:
            async with self._admin(options) as admin:
                eye = Eye(admin, is_nobody=not proves_who_it_is(options))
                task_status.started((eye, scope))
                await eye.run()


def proves_who_it_is(options: Mapping[str, Any]) -> bool:
    """Whether a client with these options logs in, or shows a certificate."""
    logs_in = str(options.get("security_protocol", "")).startswith("SASL_")
    return logs_in or bool(options.get("ssl_certificate_location"))
