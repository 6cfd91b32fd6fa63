"""Which address is answered by what."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from hightide import ApiError, HightideError
from hightide_console.access import access_view, change_of, explained
from hightide_console.guards import Guards, check_token
from hightide_console.messages import Wanted, search
from hightide_console.sessions import COOKIE, Session, Sessions, SignInFailed
from hightide_console.stream import Stream, Streams
from hightide_console.timeline import frames

STATIC = Path(__file__).parent / "static"
Answer = Callable[[Request, Session], Awaitable[ASGIApp]]


class Console:
    """What the pages ask for."""

    def __init__(self, sessions: Sessions, *, allows_changes: bool, cookie: str = COOKIE) -> None:
        self._sessions = sessions
        self._cookie = cookie
        self._allows_changes = allows_changes
        self._streams = Streams()

    def app(self, hosts: list[str]) -> ASGIApp:
        """The whole application; `hosts` are the names it is served by."""
        asked = self._asked
        routes = [
            Route("/", self._page),
            Route("/api/session", self._session),
            Route("/api/sign-in", self._sign_in, methods=["POST"]),
            Route("/api/sign-out", self._sign_out, methods=["POST"]),
            Route("/api/stream", asked(self._stream)),
            Route("/api/groups", asked(self._groups)),
            Route("/api/group", asked(self._group)),
            Route("/api/messages", asked(self._messages)),
            Route("/api/timeline", asked(self._timeline)),
            Route("/api/lab", asked(self._lab)),
            Route("/api/access", asked(self._access)),
            Route("/api/access/explain", asked(self._explain)),
            Route("/api/access/change", asked(self._change, changes=True), methods=["POST"]),
            Route("/api/group/move", asked(self._move, changes=True), methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        return Guards(Starlette(routes=routes), hosts)

    async def _page(self, _: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    # -- sessions --------------------------------------------------------------------------------

    async def _session(self, request: Request) -> Response:
        """Who looks; where nobody has to sign in, a session begins here."""
        session = self._session_of(request)
        if session is not None:
            return self._told(session)
        if self._sessions.users_sign_in:
            return JSONResponse({"sign_in": True})
        return await self._begin("", "")

    async def _sign_in(self, request: Request) -> Response:
        try:
            said = await _json(request)
            if not self._sessions.users_sign_in:
                return await self._begin("", "")
            return await self._begin(str(said.get("user", "")), str(said.get("password", "")))
        except ValueError as error:
            return _unclear(error)

    async def _begin(self, user: str, password: str) -> Response:
        try:
            cookie, session = await self._sessions.begin(user, password)
        except SignInFailed as failure:
            return JSONResponse({"error": str(failure)}, 401)
        except HightideError as error:
            return JSONResponse({"error": str(error)}, 502)
        answer = self._told(session)
        answer.set_cookie(self._cookie, cookie, httponly=True, samesite="strict", path="/")
        return answer

    def _told(self, session: Session) -> Response:
        return JSONResponse(
            {
                "sign_in": False,
                "user": session.user,
                "token": session.token,
                "changes": self._allows_changes,
                "users": self._sessions.users_sign_in,
            }
        )

    async def _sign_out(self, request: Request) -> Response:
        self._sessions.end(request.cookies.get(self._cookie, ""))
        answer = JSONResponse({})
        answer.delete_cookie(self._cookie, path="/")
        return answer

    def _session_of(self, request: Request) -> Session | None:
        return self._sessions.find(request.cookies.get(self._cookie, ""))

    def _asked(self, answer: Answer, *, changes: bool = False) -> Callable[[Request], Any]:
        """An answer to who has signed in; what it says no to is said with its reason."""

        async def endpoint(request: Request) -> ASGIApp:
            session = self._session_of(request)
            if session is None:
                return JSONResponse({"error": "sign in first"}, 401)
            if changes and not self._allows_changes:
                why = "this console changes nothing: start it with --allow-changes"
                return JSONResponse({"error": why}, 403)
            if changes and not check_token(request, session.token):
                return JSONResponse({"error": "the token of this session is missing"}, 403)
            try:
                return await answer(request, session)
            except ApiError as error:
                return JSONResponse({"error": str(error), "code": error.code}, 409)
            except HightideError as error:
                return JSONResponse({"error": str(error)}, 502)
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                return _unclear(error)

        return endpoint

    # -- what is looked at -----------------------------------------------------------------------

    async def _stream(self, request: Request, session: Session) -> ASGIApp:
        topic = request.query_params.get("topic", "")
        last = request.headers.get("last-event-id", "")
        return Stream(self._streams, session, topic, last)

    async def _groups(self, _: Request, session: Session) -> Response:
        return JSONResponse(await session.eye.groups())

    async def _group(self, request: Request, session: Session) -> Response:
        return JSONResponse(await session.eye.group(request.query_params["group"]))

    async def _messages(self, request: Request, session: Session) -> Response:
        asked = request.query_params
        wanted = Wanted(
            topic=asked["topic"],
            partition=int(asked.get("partition", "0")),
            offset=int(asked.get("offset", "-1")),
            time_ms=int(asked.get("time_ms", "-1")),
            key=asked.get("key", ""),
            limit=int(asked.get("limit", "50")),
        )
        return JSONResponse(await search(self._sessions.bootstrap, session.options, wanted))

    async def _timeline(self, request: Request, session: Session) -> Response:
        """In a thread: of a hundred thousand positions it takes seconds, and others look, too."""
        asked, eye = request.query_params, session.eye
        topic, partition = asked["topic"], int(asked.get("partition", "0"))
        known = [*eye.history.everything()]
        found = await trio.to_thread.run_sync(frames, known, topic, partition)
        return JSONResponse({"frames": found, "untraced": eye.is_untraced})

    async def _lab(self, request: Request, _: Session) -> Response:
        """The lessons of `hightide lab`, or one of them step by step."""
        name = request.query_params.get("name", "")
        return JSONResponse(await trio.to_thread.run_sync(_lesson, name))

    async def _access(self, _: Request, session: Session) -> Response:
        admin = session.eye.admin
        return JSONResponse(await session.eye.once("access", lambda: access_view(admin)))

    async def _explain(self, request: Request, session: Session) -> Response:
        return JSONResponse(await explained(session.eye.admin, request.query_params))

    # -- what is changed -------------------------------------------------------------------------

    async def _move(self, request: Request, session: Session) -> Response:
        """Have a group go on elsewhere; `preview`: only say where."""
        said = await _json(request)
        moves = await session.eye.admin.move_group(
            str(said["group"]),
            [(str(topic), int(number)) for topic, number in said["partitions"]],
            to={"start": "start", "end": "end"}.get(str(said.get("to"))),  # type: ignore[arg-type]
            to_offset=None if said.get("offset") is None else int(said["offset"]),
            dry_run=bool(said.get("preview", True)),
        )
        return JSONResponse({"moves": [each._asdict() for each in moves]})

    async def _change(self, request: Request, session: Session) -> Response:
        """Change users, rules or quotas; `preview`: only say what would change."""
        said = await _json(request)
        change = await change_of(session.eye.admin, said)
        is_made = not said.get("preview", True)
        if is_made:
            await change.make()
            session.eye.forget("access")
        return JSONResponse({"told": change.told, "command": change.command, "done": is_made})


def _unclear(error: Exception) -> Response:
    return JSONResponse({"error": f"what is asked for is not clear: {error}"}, 400)


async def _json(request: Request) -> dict[str, Any]:
    """The object that a request carries; raises `ValueError` for anything else."""
    body = await request.body()
    try:
        found = json.loads(body or b"{}")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("an object is expected")
    return found


def _lesson(name: str) -> dict[str, Any]:
    """One of them, or which there are."""
    # What plays them is a quarter of all that a console imports, and most never ask for one.
    from hightide_console.lessons import lesson_view, lessons_view

    return lesson_view(name) if name else lessons_view()
