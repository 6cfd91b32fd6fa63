"""Sessions belong to browsers, eyes to users.

Goal: who signed out sees nothing more, who knows an old password does not come in, and pages of one
user cost the cluster one look; method: a fake cluster, virtual time.
"""

import pytest
import trio
from consolekit import FakeAdmin
from trio.testing import wait_all_tasks_blocked

from hightide import AuthenticationFailed
from hightide_console import sessions as module
from hightide_console.sessions import IDLE_S, SESSIONS_MAX, Sessions, SignInFailed


class Cluster:
    """Users with passwords, and who is logged in."""

    def __init__(self):
        self.passwords = {"alice": "one", "bob": "one"}
        self.logged_in = []
        self.logins = 0

    def admin(self, bootstrap, **options):
        return Client(self, options)


class Client(FakeAdmin):
    def __init__(self, cluster, options):
        super().__init__()
        self._cluster = cluster
        self.options = options

    async def __aenter__(self):
        self._cluster.logged_in.append(self)
        return self

    async def __aexit__(self, *_):
        self._cluster.logged_in.remove(self)

    async def describe_cluster(self):
        self._cluster.logins += 1
        user, password = self.options["sasl_username"], self.options["sasl_password"]
        await trio.lowlevel.checkpoint()
        if self._cluster.passwords.get(user) != password:
            raise AuthenticationFailed("no")
        return await super().describe_cluster()


@pytest.fixture
def cluster(monkeypatch):
    made = Cluster()
    monkeypatch.setattr(module, "Admin", made.admin)
    return made


@pytest.fixture
async def signing_in(cluster, nursery):
    made = Sessions("b", {"sasl_password_location": "/file"}, users_sign_in=True)
    nursery.start_soon(made.run)
    await wait_all_tasks_blocked()
    return made


@pytest.fixture
async def open_to_all(cluster, nursery):
    made = Sessions("b", {}, users_sign_in=False)
    nursery.start_soon(made.run)
    await wait_all_tasks_blocked()
    return made


async def test_browsers_of_one_user_share_an_eye_and_users_do_not(signing_in, cluster):
    first, one = await signing_in.begin("alice", "one")
    second, other = await signing_in.begin("alice", "one")
    _, bobs = await signing_in.begin("bob", "one")
    assert one.eye is other.eye is not bobs.eye
    assert first != second
    assert one.token != other.token
    assert len(cluster.logged_in) == 2
    assert signing_in.find(second) is other


async def test_a_user_comes_by_its_own_password_and_not_by_the_consoles(signing_in, cluster):
    await signing_in.begin("alice", "one")
    (client,) = cluster.logged_in
    assert client.options["sasl_username"] == "alice"
    assert "sasl_password_location" not in client.options


@pytest.mark.parametrize(("user", "password"), [("alice", "two"), ("mallory", ""), ("", "")])
async def test_who_is_not_known_does_not_come_in(signing_in, cluster, user, password):
    with pytest.raises(SignInFailed, match="does not know this name and password"):
        await signing_in.begin(user, password)
    assert cluster.logged_in == []


async def test_a_password_that_is_right_no_more_opens_nothing_while_its_session_lives(
    signing_in, cluster
):
    await signing_in.begin("alice", "one")
    cluster.passwords["alice"] = "two"
    with pytest.raises(SignInFailed):
        await signing_in.begin("alice", "one")


async def test_who_comes_by_a_new_password_ends_the_sessions_of_the_old_one(signing_in, cluster):
    cookie, before = await signing_in.begin("alice", "one")
    cluster.passwords["alice"] = "two"
    _, after = await signing_in.begin("alice", "two")
    await wait_all_tasks_blocked()
    assert before.ended.is_set()
    assert signing_in.find(cookie) is None
    assert after.eye is not before.eye
    assert [client.options["sasl_password"] for client in cluster.logged_in] == ["two"]


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ({}, True),
        ({"security_protocol": "SSL", "ssl_ca_location": "/ca"}, True),
        ({"security_protocol": "SSL", "ssl_certificate_location": "/own"}, False),
        ({"security_protocol": "SASL_SSL", "sasl_username": "console"}, False),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_username": "console"}, False),
    ],
)
async def test_that_a_cluster_lets_in_anybody_is_said_where_the_console_itself_was(
    cluster, nursery, options, is_said
):
    options |= {"sasl_username": "alice", "sasl_password": "one"}
    sessions = Sessions("b", options, users_sign_in=False)
    nursery.start_soon(sessions.run)
    await wait_all_tasks_blocked()
    _, session = await sessions.begin()
    await session.eye.look()
    assert (session.eye.cluster["open"] is not None) is is_said


async def test_the_last_session_of_a_user_takes_the_eye_with_it(signing_in, cluster):
    first, one = await signing_in.begin("alice", "one")
    second, _ = await signing_in.begin("alice", "one")
    signing_in.end(first)
    await wait_all_tasks_blocked()
    assert one.ended.is_set()
    assert len(cluster.logged_in) == 1
    signing_in.end(second)
    await wait_all_tasks_blocked()
    assert cluster.logged_in == []
    assert (signing_in.find(first), signing_in.find("")) == (None, None)
    _, again = await signing_in.begin("alice", "one")
    assert again.eye is not one.eye


async def test_a_session_that_nobody_uses_is_over(open_to_all, autojump_clock):
    used, _ = await open_to_all.begin()
    unused, session = await open_to_all.begin()
    for _ in range(3):
        await trio.sleep(IDLE_S / 2)
        assert open_to_all.find(used)
    assert open_to_all.find(unused) is None
    assert session.ended.is_set()


async def test_of_too_many_sessions_those_end_that_were_not_used_for_longest(
    open_to_all, autojump_clock
):
    cookies = []
    for _ in range(SESSIONS_MAX):
        cookies.append((await open_to_all.begin())[0])
        await trio.sleep(1)
    open_to_all.find(cookies[0])
    cookies.append((await open_to_all.begin())[0])
    ended = [cookie for cookie in cookies if open_to_all.find(cookie) is None]
    assert ended == [cookies[1]]


async def test_a_new_session_never_has_an_eye_that_is_ended_to_make_room_for_it(
    signing_in, cluster, autojump_clock, monkeypatch
):
    monkeypatch.setattr(module, "SESSIONS_MAX", 1)
    await signing_in.begin("alice", "one")
    await trio.sleep(1)
    _, session = await signing_in.begin("alice", "one")
    await wait_all_tasks_blocked()
    assert len(cluster.logged_in) == 1
    assert cluster.logged_in[0] is session.eye.admin


async def test_at_the_end_of_the_console_all_sessions_end(signing_in, cluster):
    begun = [(await signing_in.begin(user, "one"))[1] for user in ("alice", "bob")]
    signing_in.end_all()
    await wait_all_tasks_blocked()
    assert all(session.ended.is_set() for session in begun)
    assert cluster.logged_in == []


def test_a_session_tells_no_secret_of_itself():
    session = module.Session("alice", None, {"sasl_password": "hush"}, token="a-token")
    assert "hush" not in repr(session)
    assert "a-token" not in repr(session)
