"""Who may ask the console, and what its pages may do.

Goal: a page of a stranger gets nothing and changes nothing, and every answer has its policy;
method: the whole application without a socket, asked as a browser asks.
"""

import json
import socket
import threading

import pytest
import trio
from consolekit import HOST, ORIGIN, SERVED_AS, answered, session_of

from hightide import ApiError, ErrorCode
from hightide_console import app
from hightide_console.app import COOKIE, Console
from hightide_console.guards import BODY_BYTES_MAX, POLICY, TOKEN_HEADER
from hightide_console.serving import listening, names_of
from hightide_console.sessions import Sessions

FROM_US = [("origin", ORIGIN)]
SIGNED_IN = [("cookie", f"{COOKIE}=c")]
WITH_TOKEN = [*FROM_US, *SIGNED_IN, (TOKEN_HEADER, "the-token")]
MOVE = json.dumps({"group": "g", "partitions": [["orders", 0]], "to": "start"}).encode()


class World:
    """A console with one session, of the cookie `c`."""

    def __init__(self, *, changes=True):
        self.sessions = Sessions("127.0.0.1:1", {}, users_sign_in=False)
        self.session = session_of()
        self.session.used_at = trio.current_time()
        self.sessions._by_cookie["c"] = self.session
        self.moves = []
        self.session.eye.admin.move_group = self._move
        self.app = Console(self.sessions, allows_changes=changes).app(SERVED_AS)

    async def _move(self, group, partitions, **how):
        self.moves.append((group, partitions, how))
        return []

    async def post(self, headers, body=MOVE, path="/api/group/move", host=HOST):
        return await answered(self.app, path, method="POST", headers=headers, body=body, host=host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:19080", f"{HOST}.evil", "[::1]"],
)
@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/session", "/api/groups"])
async def test_by_another_name_nothing_is_served(host, path):
    status, headers, body = await answered(World().app, path, headers=SIGNED_IN, host=host)
    assert status == 403
    assert "not served by that name" in json.loads(body)["error"]
    assert headers["content-security-policy"] == POLICY


async def test_two_names_are_none():
    world = World()
    status, _, _ = await answered(world.app, "/", headers=[("host", HOST)])
    assert status == 403
    assert (await answered(world.app, "/", host=HOST.upper()))[0] == 200


@pytest.mark.parametrize("origin", ["", "null", "http://evil.example", f"ftp://{HOST}", HOST])
async def test_a_change_from_elsewhere_is_refused(origin):
    world = World()
    from_there = [("origin", origin)] if origin else []
    status, headers, body = await world.post([*WITH_TOKEN[1:], *from_there])
    assert (status, world.moves) == (403, [])
    assert "must come from a page of this console" in json.loads(body)["error"]
    assert headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("origin", [ORIGIN, f"https://{HOST}", "http://localhost:19080"])
async def test_a_change_from_a_page_of_ours_is_made_by_whatever_name_we_have(origin):
    world = World()
    status, _, _ = await world.post([("origin", origin), *WITH_TOKEN[1:]])
    assert (status, len(world.moves)) == (200, 1)


@pytest.mark.parametrize("token", ["", "another", "the-toke", "\xff"])
async def test_a_change_without_the_token_of_its_session_is_refused(token):
    world = World()
    said = [(TOKEN_HEADER, token)] if token else []
    status, _, body = await world.post([*FROM_US, *SIGNED_IN, *said])
    assert (status, world.moves) == (403, [])
    assert "token" in json.loads(body)["error"]


async def test_who_has_not_signed_in_is_told_to():
    status, _, _ = await World().post([*FROM_US, (TOKEN_HEADER, "the-token")])
    assert status == 401
    for path in ("groups", "group?group=g", "messages?topic=t", "timeline", "stream"):
        assert (await answered(World().app, f"/api/{path}"))[0] == 401


async def test_a_console_that_changes_nothing_refuses_moves_and_previews():
    world = World(changes=False)
    status, _, body = await world.post(WITH_TOKEN)
    assert (status, world.moves) == (403, [])
    assert "--allow-changes" in json.loads(body)["error"]


async def test_a_move_is_a_preview_unless_it_says_otherwise():
    world = World()
    await world.post(WITH_TOKEN)
    await world.post(WITH_TOKEN, json.dumps({**json.loads(MOVE), "preview": False}).encode())
    assert [how["dry_run"] for _, _, how in world.moves] == [True, False]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_what_is_asked_for_from_another_site_is_not_told(site):
    asked = [*SIGNED_IN, ("sec-fetch-site", site)]
    assert (await answered(World().app, "/api/groups", headers=asked))[0] == 403
    assert (await answered(World().app, "/", headers=asked))[0] == 200, "a link may lead here"


UNCLEAR = {
    "no JSON": b"{",
    "no object": b"[]",
    "no text": b"\xff",
    "too deep": b"[" * 60_000,
    "partitions that are none": b'{"group": "g", "partitions": [1]}',
    "an offset that is none": b'{"group": "g", "partitions": [], "offset": [1]}',
    "an endless offset": b'{"group": "g", "partitions": [], "offset": Infinity}',
}


@pytest.mark.parametrize("name", UNCLEAR)
async def test_a_body_that_is_none_is_told_so(name):
    status, headers, body = await World().post(WITH_TOKEN, UNCLEAR[name])
    assert status == 400
    assert "not clear" in json.loads(body)["error"]
    assert headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("name", ["no JSON", "no object", "no text", "too deep"])
async def test_a_sign_in_that_is_none_is_told_so(name):
    status, _, body = await World().post(FROM_US, UNCLEAR[name], "/api/sign-in")
    assert status == 400
    assert "not clear" in json.loads(body)["error"]


@pytest.mark.parametrize("path", ["/api/sign-in", "/api/group/move"])
async def test_a_body_that_is_too_long_is_refused_before_it_is_read_whole(path):
    world = World()
    status, headers, _ = await world.post(WITH_TOKEN, b" " * (BODY_BYTES_MAX + 1), path)
    assert (status, world.moves) == (413, [])
    assert headers["content-security-policy"] == POLICY


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", 200),
        ("/static/main.js", 200),
        ("/static/vendor/preact.mjs", 200),
        ("/static/nothing.js", 404),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/nowhere", 404),
        ("/api/session", 200),
        ("/api/sign-in", 405),
        ("/api/messages", 400),
        ("/api/timeline?topic=orders&partition=x", 400),
    ],
)
async def test_every_answer_has_the_policy(path, expected):
    status, headers, _ = await answered(World().app, path, headers=SIGNED_IN)
    assert status == expected
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


async def test_what_the_cluster_refuses_is_told_with_its_code():
    world = World()

    async def refuse(*_, **__):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no")

    world.session.eye.admin.move_group = refuse
    status, _, body = await world.post(WITH_TOKEN)
    assert status == 409
    assert json.loads(body)["code"] == "GROUP_AUTHORIZATION_FAILED"


def test_the_policy_lets_a_page_load_and_run_only_what_is_here():
    rules = dict(rule.strip().split(" ", 1) for rule in POLICY.split(";"))
    assert rules.pop("img-src") == "'self' data:"
    assert set(rules.values()) == {"'self'", "'none'"}
    assert rules["default-src"] == rules["frame-ancestors"] == "'none'"


def test_names_are_those_of_loopback_and_what_was_allowed_as_a_proxy_says_it():
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        names = names_of(listener, ["console.example"])
    assert set(names) == {
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        f"[::1]:{port}",
        f"console.example:{port}",
        "console.example",
    }


def test_a_port_that_is_taken_leaves_no_socket_open():
    with listening("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        listening(*taken.getsockname())
    assert socket.socket  # an unclosed socket would warn, and a warning fails


async def test_a_long_story_is_told_by_a_thread(monkeypatch):
    told_by = []

    def slow(*_):
        told_by.append(threading.current_thread())
        return []

    monkeypatch.setattr(app, "frames", slow)
    path = "/api/timeline?topic=orders"
    status, _, body = await answered(World().app, path, headers=SIGNED_IN)
    assert (status, json.loads(body)["frames"]) == (200, [])
    assert told_by != [threading.main_thread()]
