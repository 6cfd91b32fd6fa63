"""Users, rules and quotas on the console: seen as far as they may be, changed after a look.

Goal: a change is said before it is made, and made only where changes are allowed; no answer repeats
a password. Method: the whole application without a socket, beside a fake administrator.
"""

import json
import shlex
from types import SimpleNamespace

import pytest
from consolekit import answered
from test_console_guards import SIGNED_IN, WITH_TOKEN, World

from hightide import AccessVerdict, Acl, ApiError, ErrorCode, Quota, UserDescription

SECRET = "opens-all-Zk3"
RULE = Acl("topic", "a-", "PREFIXED", "User:ann", "*", "READ", "ALLOW")
AS_SENT = {
    "resource": "topic",
    "name": "a-",
    "pattern": "PREFIXED",
    "principal": "User:ann",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}


class Access:
    """What an administrator does of it; notes what was changed."""

    def __init__(self):
        self.made = []
        self.refuses = set()
        """Methods that this user may not ask."""
        self.users = [UserDescription("ann", [SimpleNamespace(mechanism="SCRAM-SHA-256")])]
        self.rules = [RULE]
        self.quotas = [Quota("producer_byte_rate", 100, user="ann")]

    def plant(self, admin):
        for name in ("list_users", "describe_acls", "describe_quotas"):
            setattr(admin, name, self._asked(name))
        for name in ("set_password", "delete_user", "create_acls", "delete_acls", "alter_quotas"):
            setattr(admin, name, self._changed(name))

        async def explain_access(*asked):
            return AccessVerdict(asked[0] == "User:ann", "a rule says so", RULE)

        admin.explain_access = explain_access

    def _asked(self, name):
        found = {"list_users": "users", "describe_acls": "rules", "describe_quotas": "quotas"}

        async def ask():
            if name in self.refuses:
                raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not for you")
            return getattr(self, found[name])

        return ask

    def _changed(self, name):
        async def change(*args):
            self.made.append((name, *args))

        return change


@pytest.fixture
async def world():
    made = World()
    made.access = Access()
    made.access.plant(made.session.eye.admin)
    return made


async def change(world, *, code=200, **said):
    body = json.dumps(said).encode()
    status, _, answer = await world.post(WITH_TOKEN, body, "/api/access/change")
    assert status == code, answer
    assert SECRET.encode() not in answer
    return json.loads(answer)


async def seen(world, path="/api/access"):
    status, _, answer = await answered(world.app, path, headers=SIGNED_IN)
    assert status == 200
    return json.loads(answer)


async def test_what_may_be_seen_is_and_of_the_rest_it_is_said_why(world):
    world.access.refuses = {"list_users"}
    view = await seen(world)
    assert (view["users"], view["rules"]) == ([], [AS_SENT])
    assert [each["value"] for each in view["quotas"]] == [100]
    assert "not for you" in view["why"]["users"]
    assert view["why"]["rules"] == view["why"]["quotas"] == ""


async def test_of_a_user_it_is_told_that_there_is_a_password_and_no_more(world):
    assert (await seen(world))["users"] == [{"user": "ann", "mechanisms": ["SCRAM-SHA-256"]}]


async def test_who_may_what_is_answered_by_the_cluster(world):
    asked = "operation=READ&resource=topic&name=a-b"
    yes = await seen(world, f"/api/access/explain?principal=User:ann&{asked}")
    no = await seen(world, f"/api/access/explain?principal=User:bob&{asked}")
    assert (yes["allowed"], no["allowed"]) == (True, False)
    assert yes["rule"] == "User:ann may READ topic whose name begins with a-"


CHANGES = {
    "a first password": (
        {"what": "password", "user": "bob", "password": SECRET},
        "bob may log in from now on",
        "hightide users create bob",
        [("set_password", "bob", SECRET)],
    ),
    "another password": (
        {"what": "password", "user": "ann", "password": SECRET},
        "ann gets another password",
        "hightide users alter ann",
        [("set_password", "ann", SECRET)],
    ),
    "a user less": (
        {"what": "delete-user", "user": "ann"},
        "1 rules that name ann stay",
        "hightide users delete ann",
        [("delete_user", "ann")],
    ),
    "a rule more": (
        {"what": "add-rule", **AS_SENT, "permission": "DENY"},
        "User:ann may not READ topic whose name begins with a-",
        "hightide acls deny ann READ 'topic:a-*'",
        [("create_acls", [Acl(**{**AS_SENT, "permission": "DENY"})])],
    ),
    "a rule that there is": (
        {"what": "add-rule", **AS_SENT},
        "that is a rule already",
        "hightide acls allow ann READ 'topic:a-*'",
        [("create_acls", [RULE])],
    ),
    "a rule less": (
        {"what": "delete-rule", **AS_SENT},
        "no rule says any more: User:ann may READ",
        "--user ann --operation READ --resource 'topic:a-*' --permission ALLOW",
        None,
    ),
    "another quota": (
        {"what": "quota", "key": "producer_byte_rate", "value": 7, "user": "ann"},
        "producer_byte_rate of user ann is limited to 7 a second, 100 until now",
        "hightide quotas set --user ann producer_byte_rate=7",
        [("alter_quotas", [Quota("producer_byte_rate", 7, user="ann")])],
    ),
    "a quota less": (
        {"what": "quota", "key": "producer_byte_rate", "value": None, "user": "ann"},
        "is limited no more",
        "hightide quotas delete --user ann",
        [("alter_quotas", [Quota("producer_byte_rate", None, user="ann")])],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_is_said_first_and_made_when_it_is_asked_for_once_more(world, name):
    said, told, command, made = CHANGES[name]
    before = await change(world, **said)
    assert told in " · ".join(before["told"])
    assert command in before["command"]
    assert (before["done"], world.access.made) == (False, [])
    after = await change(world, **said, preview=False)
    assert after["done"]
    assert len(world.access.made) == 1
    if made is not None:
        assert world.access.made == made


async def test_what_was_changed_is_seen_at_once(world):
    await seen(world)
    world.access.rules = []
    assert (await seen(world))["rules"] == [AS_SENT], "it was asked for just now"
    await change(world, what="delete-user", user="ann", preview=False)
    assert (await seen(world))["rules"] == []


@pytest.mark.parametrize(
    "said",
    [
        {"what": "everything"},
        {},
        {"what": "delete-user", "user": ""},
        {"what": "delete-user", "user": ["ann"]},
        {"what": "add-rule", **AS_SENT, "host": None},
        {"what": "delete-rule", **AS_SENT, "name": "b-"},
        {"what": "quota", "key": "producer_byte_rate", "value": "many", "user": "ann"},
    ],
)
async def test_what_is_not_clear_changes_nothing(world, said):
    assert (await change(world, **said, preview=False, code=400))["error"]
    assert world.access.made == []


async def test_where_changes_are_not_allowed_nothing_is_even_previewed():
    world = World(changes=False)
    answer = await change(world, what="delete-user", user="ann", code=403)
    assert "--allow-changes" in answer["error"]


async def test_a_command_is_one_for_any_name(world):
    hostile = "x; rm -rf $(HOME) '"
    told = (await change(world, what="password", user=hostile))["command"]
    assert shlex.split(told) == ["hightide", "users", "create", hostile]
