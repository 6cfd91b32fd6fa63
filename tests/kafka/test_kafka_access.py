"""Rules, users and quotas by Kafka's protocol, in every version.

Goal: what Kafka's tools set is what hightide's tools show, and the other way round. Method: a node
where users log in, a bare client beside hightide's own; librdkafka's and kafka-python's at the end.
"""

from contextlib import asynccontextmanager
from hashlib import pbkdf2_hmac

import pytest
from brokers import quiet
from kafkakit import both, kafka_client, quiet_clients
from logins import PASSWORD
from test_kafka_logins import a_client_of_users, log_in
from test_login import a_node_with_users
from trio.to_thread import run_sync

from hightide import Acl, Admin, Quota
from hightide_broker.kafka.tables import API_BY_KEY

ANY, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 1, 2, 3, 4, 5
MATCH, LITERAL, PREFIXED = 2, 3, 4
READ, WRITE, ALTER, CLUSTER_ACTION = 3, 4, 7, 9
DENY, ALLOW = 2, 3
ALICE = "User:alice"


@asynccontextmanager
async def both_admins(tmp_path):
    """The admin of ours, and a bare client of Kafka's protocol, both logged in as such."""
    async with a_client_of_users(tmp_path) as (served, client):
        assert (await log_in(client))["error_code"] == 0
        async with Admin(served.address, **served.options("admin")) as ours:
            yield ours, client


def rule(kind=TOPIC, name="a", operation=READ, permission=ALLOW, pattern=LITERAL, principal=ALICE):
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission_type": permission,
    }


def wanted(kind=ANY, name=None, pattern=ANY, principal=None, operation=ANY, permission=ANY):
    return {
        "resource_type_filter": kind,
        "resource_name_filter": name,
        "pattern_type_filter": pattern,
        "principal_filter": principal,
        "host_filter": None,
        "operation": operation,
        "permission_type": permission,
    }


RULES = (
    rule(),
    rule(operation=WRITE),
    rule(name="a", pattern=PREFIXED, permission=DENY),
    rule(GROUP, "*", principal="User:*"),
    rule(CLUSTER, "kafka-cluster", CLUSTER_ACTION),
)


async def create(client, version, *rules):
    answer = await client.call("create_acls", version, creations=list(rules))
    return [(each["error_code"], each["error_message"]) for each in answer["results"]]


def told(resources):
    """Rules in an answer, as they are asked for."""
    return {
        (each["resource_type"], each["resource_name"], each["pattern_type"], *acl.values())
        for each in resources
        for acl in each["acls"]
    }


def as_told(fields):
    kind, name, pattern, principal, host, operation, permission = fields.values()
    return kind, name, pattern, principal, host, operation, permission


async def listed(client, version, **what):
    answer = await client.call("describe_acls", version, **wanted(**what))
    assert answer["error_code"] == 0, answer["error_message"]
    return told(answer["resources"])


@pytest.mark.parametrize("version", range(1, 4))
async def test_rules_are_made_found_and_removed(tmp_path, version):
    async with both_admins(tmp_path) as (ours, client):
        assert await create(client, version, *RULES) == [(0, None)] * len(RULES)
        made = {as_told(each) for each in RULES}
        assert await listed(client, version) >= made
        cluster = [each for each in await ours.describe_acls() if each.principal == ALICE]
        assert {each.name for each in cluster if each.resource == "cluster"} == {"cluster"}
        assert await listed(client, version, kind=CLUSTER, name="kafka-cluster") >= {
            as_told(RULES[-1])
        }
        assert await listed(client, version, kind=TOPIC, name="abc", pattern=MATCH) == {
            as_told(RULES[2])
        }
        assert await listed(client, version, kind=TOPIC, name="abc") == set()
        assert await listed(client, version, kind=TRANSACTIONAL_ID) == set()
        assert await listed(client, version, operation=13) == set()
        answer = await client.call("describe_acls", version, **wanted(kind=99))
        assert answer["error_code"] == 42
        filters = [
            wanted(kind=TOPIC, name="a", operation=READ, pattern=LITERAL),
            wanted(kind=TOPIC, name="a", pattern=MATCH),
            wanted(kind=TRANSACTIONAL_ID),
            wanted(permission=7),
        ]
        answer = await client.call("delete_acls", version, filters=filters)
        codes = [each["error_code"] for each in answer["filter_results"]]
        found = [
            {(each["operation"], each["permission_type"]) for each in result["matching_acls"]}
            for result in answer["filter_results"]
        ]
        assert codes == [0, 0, 0, 42]
        assert found == [
            {(READ, ALLOW)},
            {(READ, ALLOW), (WRITE, ALLOW), (READ, DENY)},
            set(),
            set(),
        ]
        assert await listed(client, version, kind=TOPIC) == set()


async def test_a_rule_that_can_be_none_is_refused_alone_and_in_its_place(tmp_path):
    async with both_admins(tmp_path) as (ours, client):
        asked = [
            rule(kind=TRANSACTIONAL_ID),
            rule(),
            rule(pattern=MATCH),
            rule(operation=99),
            rule(name="b"),
            rule(principal="alice"),
        ]
        results = await create(client, 3, *asked)
        assert [number for number, _ in results] == [42, 0, 42, 42, 0, 42]
        assert "resource type 5, expected one of 2 (topic)" in results[0][1]
        assert {each.name for each in await ours.describe_acls() if each.principal == ALICE} == {
            "a",
            "b",
        }


async def test_where_nobody_asks_for_permissions_there_are_no_rules():
    async with both() as (_ours, client):
        for version in (1, 2, 3):
            answer = await client.call("describe_acls", version, **wanted())
            why = "authorizer.enable is false here: everybody may do everything"
            assert (answer["error_code"], answer["error_message"]) == (54, why)
            assert answer["resources"] == []
        assert [number for number, _ in await create(client, 3, rule())] == [54]
        answer = await client.call("delete_acls", 3, filters=[wanted()])
        assert [each["error_code"] for each in answer["filter_results"]] == [54]


OF_ADMINS = {
    29: wanted(),
    30: {"creations": [rule()]},
    31: {"filters": [wanted()]},
    48: {"components": [], "strict": False},
    49: {
        "entries": [{"entity": [{"entity_type": "ip", "entity_name": None}], "ops": []}],
        "validate_only": False,
    },
    50: {"users": None},
    51: {"deletions": [{"name": "admin", "mechanism": 1}], "upsertions": []},
}


async def test_who_has_no_permission_learns_nothing_and_changes_nothing(tmp_path):
    async with a_node_with_users(tmp_path) as served:
        async with Admin(served.address, **served.options("admin")) as ours:
            await ours.set_password("alice", "pw")
            await ours.create_acls([Acl("topic", "t", "LITERAL", ALICE, "*", "READ", "ALLOW")])
        before = served.node.image.copy()
        async with kafka_client(served.node, served.files.authorities) as client:
            assert (await log_in(client, "alice", "pw"))["error_code"] == 0
            for key, fields in OF_ADMINS.items():
                api = API_BY_KEY[key]
                answer = await client.call(api.name, api.versions.last, **fields)
                assert 31 in values_in(answer), api.name
                assert not {"SCRAM-SHA-256", "t", 4096} & set(values_in(answer)), api.name
        assert served.node.image == before


def values_in(answer):
    if isinstance(answer, dict):
        return [each for value in answer.values() for each in values_in(value)]
    if isinstance(answer, list):
        return [each for value in answer for each in values_in(value)]
    return [answer]


# -- users ----------------------------------------------------------------------------------------


async def test_users_get_passwords_and_lose_them(tmp_path):
    async with both_admins(tmp_path) as (ours, client):
        await ours.set_password("bob", "pw", iterations=5000)

        async def described(*names):
            users = [{"name": name} for name in names] or None
            answer = await client.call("describe_user_scram_credentials", 0, users=users)
            assert answer["error_code"] == 0
            return {
                each["user"]: (
                    each["error_code"],
                    {info["mechanism"]: info["iterations"] for info in each["credential_infos"]},
                )
                for each in answer["results"]
            }

        assert (await described())["bob"] == (0, {1: 5000, 2: 5000})
        assert await described("bob", "carol") == {
            "bob": (0, {1: 5000, 2: 5000}),
            "carol": (91, {}),
        }
        given = {"name": "carol", "iterations": 8192, "salt": bytes(16)}
        answer = await client.call(
            "alter_user_scram_credentials",
            0,
            deletions=[{"name": "bob", "mechanism": 2}, {"name": "dave", "mechanism": 1}],
            upsertions=[
                {**given, "mechanism": 1, "salted_password": salted("hers", 8192)},
                {**given, "name": "erin", "mechanism": 7, "salted_password": bytes(32)},
                {**given, "name": "fred", "mechanism": 1, "salted_password": b"short"},
            ],
        )
        results = {each["user"]: each["error_code"] for each in answer["results"]}
        assert results == {"bob": 0, "dave": 91, "carol": 0, "erin": 33, "fred": 93}
        assert await described("bob", "carol") == {"bob": (0, {1: 5000}), "carol": (0, {1: 8192})}


async def test_a_password_that_was_set_by_kafkas_protocol_lets_its_user_in(tmp_path):
    async with a_node_with_users(tmp_path) as served:
        async with kafka_client(served.node, served.files.authorities) as client:
            await log_in(client)
            upsertion = {
                "name": "carol",
                "mechanism": 1,
                "iterations": 8192,
                "salt": bytes(16),
                "salted_password": salted("hers", 8192),
            }
            answer = await client.call(
                "alter_user_scram_credentials", 0, deletions=[], upsertions=[upsertion]
            )
            assert [each["error_code"] for each in answer["results"]] == [0]
        async with kafka_client(served.node, served.files.authorities) as client:
            assert (await log_in(client, "carol", "hers"))["error_code"] == 0


def salted(password, iterations):
    return pbkdf2_hmac("sha256", password.encode(), bytes(16), iterations)


# -- quotas ---------------------------------------------------------------------------------------


def entity(**names):
    return [
        {"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in names.items()
    ]


def entry(ops, **names):
    made = [
        {"key": key, "value": float(value or 0), "remove": value is None}
        for key, value in ops.items()
    ]
    return {"entity": entity(**names), "ops": made}


async def alter(client, version, *entries, validate_only=False):
    answer = await client.call(
        "alter_client_quotas", version, entries=list(entries), validate_only=validate_only
    )
    assert [each["entity"] for each in answer["entries"]] == [each["entity"] for each in entries]
    return [each["error_code"] for each in answer["entries"]]


async def quotas(client, version, *components, strict=False):
    """By whose they are."""
    asked = [
        {"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components
    ]
    answer = await client.call("describe_client_quotas", version, components=asked, strict=strict)
    if answer["error_code"]:
        assert answer["entries"] is None
        return answer["error_code"]
    return {
        tuple((part["entity_type"], part["entity_name"]) for part in each["entity"]): {
            value["key"]: value["value"] for value in each["values"]
        }
        for each in answer["entries"]
    }


PRODUCE, CONSUME, CONNECT = "producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"
EXACT, DEFAULT, OF_ANY = 0, 1, 2
ALICES, EVERYBODYS = (("user", "alice"),), (("user", None),)
ALICES_ETL, LOCAL = (("user", "alice"), ("client-id", "etl")), (("ip", "127.0.0.1"),)


@pytest.mark.parametrize("version", range(2))
async def test_quotas_are_set_and_found(version):
    async with both() as (ours, client):
        entries = [
            entry({PRODUCE: 1000, CONSUME: 2000}, user="alice"),
            entry({PRODUCE: 10}, user=None),
            entry({CONSUME: 5}, user="alice", client_id="etl"),
            entry({CONNECT: 7}, ip="127.0.0.1"),
        ]
        assert await alter(client, version, *entries, validate_only=True) == [0, 0, 0, 0]
        assert await quotas(client, version) == {}
        assert await alter(client, version, *entries) == [0, 0, 0, 0]
        every = {
            ALICES: {PRODUCE: 1000.0, CONSUME: 2000.0},
            EVERYBODYS: {PRODUCE: 10.0},
            ALICES_ETL: {CONSUME: 5.0},
            LOCAL: {CONNECT: 7.0},
        }
        assert await quotas(client, version) == every
        async with Admin(ours.connection.address) as admin:
            assert Quota(CONSUME, 5, "alice", "etl") in await admin.describe_quotas()

        async def found(*components, strict=False):
            return set(await quotas(client, version, *components, strict=strict))

        assert await found(("user", EXACT, "alice")) == {ALICES, ALICES_ETL}
        assert await found(("user", EXACT, "alice"), strict=True) == {ALICES}
        assert await found(("user", DEFAULT, None)) == {EVERYBODYS}
        assert await found(("user", OF_ANY, None), strict=True) == {ALICES, EVERYBODYS}
        assert await found(("user", OF_ANY, None), ("client-id", EXACT, "etl")) == {ALICES_ETL}
        assert await found(strict=True) == set()
        for wrong in [
            [("user", EXACT, None)],
            [("user", OF_ANY, "alice")],
            [("user", 9, None)],
            [("tenant", OF_ANY, None)],
            [("ip", OF_ANY, None), ("ip", DEFAULT, None)],
        ]:
            assert await quotas(client, version, *wrong) == 42
        assert await alter(client, version, entry({PRODUCE: None}, user="alice")) == [0]
        assert (await quotas(client, version))[ALICES] == {CONSUME: 2000.0}


@pytest.mark.parametrize(
    "wrong",
    [
        entry({CONSUME: 5, PRODUCE: 0}, user="bob"),
        entry({CONSUME: 5, PRODUCE: 0.5}, user="bob"),
        entry({CONSUME: 5, PRODUCE: "inf"}, user="bob"),
        entry({CONSUME: 5, "request_percentage": 5}, user="bob"),
        entry({CONSUME: 5}, tenant="bob"),
        entry({CONSUME: 5}, user="bob", ip="127.0.0.1"),
        entry({CONSUME: 5}),
    ],
)
async def test_an_entry_is_set_whole_or_not_at_all_and_spoils_no_other(wrong):
    async with both() as (_ours, client):
        right = entry({PRODUCE: 1}, user="carol")
        assert await alter(client, 1, wrong, right) == [42, 0]
        assert set(await quotas(client, 1)) == {(("user", "carol"),)}


# -- clients that nobody here wrote ---------------------------------------------------------------


def by_librdkafka(address, authorities):
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient(
        {
            "bootstrap.servers": address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authorities,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": PASSWORD,
        }
    )
    made = AclBinding(
        ResourceType.BROKER,
        "kafka-cluster",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.CREATE,
        AclPermissionType.ALLOW,
    )
    (future,) = admin.create_acls([made]).values()
    assert future.result(30) is None
    about_bob = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        "User:bob",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(about_bob).result(30) == [made]
    (future,) = admin.delete_acls([about_bob]).values()
    assert future.result(30) == [made]
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    (future,) = admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("bob", info, b"his", b"0123456789abcdef")]
    ).values()
    assert future.result(30) is None
    found = admin.describe_user_scram_credentials(["bob"])["bob"].result(30)
    assert [(each.mechanism, each.iterations) for each in found.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 8192)
    ]


def by_kafka_python(address, authorities):
    with quiet_clients():
        from kafka.admin import (
            ACL,
            ACLFilter,
            ACLOperation,
            ACLPermissionType,
            KafkaAdminClient,
            ResourcePattern,
            ResourcePatternFilter,
            ResourceType,
        )
        from kafka.admin import ACLResourcePatternType as Pattern

        admin = KafkaAdminClient(
            bootstrap_servers=address,
            security_protocol="SASL_SSL",
            ssl_cafile=authorities,
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="admin",
            sasl_plain_password=PASSWORD,
        )
        made = ACL(
            "User:bob",
            "*",
            ACLOperation.READ,
            ACLPermissionType.DENY,
            ResourcePattern(ResourceType.TOPIC, "secret-", Pattern.PREFIXED),
        )
        created = admin.create_acls([made])
        assert [*created["succeeded"]] == [made], created
        about_bob = ACLFilter(
            "User:bob",
            None,
            ACLOperation.ANY,
            ACLPermissionType.ANY,
            ResourcePatternFilter(ResourceType.ANY, None, Pattern.ANY),
        )
        found, _error = admin.describe_acls(about_bob)
        assert found == [made]
        admin.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("administer", [by_librdkafka, by_kafka_python])
async def test_admin_clients_of_others_set_rules_and_passwords(tmp_path, administer):
    async with a_node_with_users(tmp_path) as served:
        where = served.address, served.files.authorities
        await run_sync(administer, *where, abandon_on_cancel=True)
        await quiet()
