"""How Kafka's protocol is spoken on a connection, and which of its APIs are offered.

A request of a key or version that was not advertised ends the connection, as with Kafka; but for
ApiVersions, whose answer says what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hightide.protocol import messages as m
from hightide.protocol.codecs import Steps
from hightide.protocol.errors import ErrorCode, RemoteProtocolError
from hightide.protocol.wire import MESSAGE_BYTES_MAX
from hightide.protocol.words import counted
from hightide_broker.kafka import (
    about_acls,
    about_cluster,
    about_commits,
    about_configs,
    about_fetches,
    about_groups,
    about_logins,
    about_offsets,
    about_partitions,
    about_quorum,
    about_quotas,
    about_records,
    about_topics,
    about_users,
)
from hightide_broker.kafka.asked import Asked, question
from hightide_broker.kafka.codec import API_VERSIONS_KEY, Header, read_header, reading_request
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.portions import in_portions
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.tables import API_BY_KEY
from hightide_broker.runtime.server.tongue import Heard, Parts

OTHERS_BYTES_MAX = 8 << 20
"""The largest request but for a produce, and those of which the coordinator keeps what they say."""
KEPT_BYTES_MAX = MESSAGE_BYTES_MAX
"""The largest one of those, as by our own protocol."""
PRODUCE_KEY = 0
KEPT_KEYS = (8, 11, 14)
"""offset_commit, join_group, sync_group."""
Translate = Callable[[Asked, Facts], Heard]


def api_versions(asked: Asked, _facts: Facts) -> Heard:
    """Which APIs are offered, in which versions (KIP-35, KIP-511)."""
    name = asked.fields.get("client_software_name", "")
    version = asked.fields.get("client_software_version", "")
    request = m.ApiVersionsRequest(client_name=name, client_version=version)
    return question(asked, request, lambda _body, _parts: _offered(None, TRANSLATORS))


def _offered(error: str | None, keys: Iterable[int]) -> Fields:
    return {
        "error_code": number_of(error),
        "api_keys": [
            {
                "api_key": key,
                "min_version": API_BY_KEY[key].versions.first,
                "max_version": API_BY_KEY[key].versions.last,
            }
            for key in sorted(keys)
        ],
    }


TRANSLATORS: dict[int, Translate] = {
    API_VERSIONS_KEY: api_versions,
    **about_cluster.TRANSLATORS,
    **about_records.TRANSLATORS,
    **about_fetches.TRANSLATORS,
    **about_offsets.TRANSLATORS,
    **about_groups.TRANSLATORS,
    **about_commits.TRANSLATORS,
    **about_logins.TRANSLATORS,
    **about_topics.TRANSLATORS,
    **about_configs.TRANSLATORS,
    **about_partitions.TRANSLATORS,
    **about_quorum.TRANSLATORS,
    **about_acls.TRANSLATORS,
    **about_users.TRANSLATORS,
    **about_quotas.TRANSLATORS,
}


class KafkaTongue:
    """Implements `tongue.Tongue`."""

    in_order = True

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def hearing(self, body: bytearray) -> Steps[Heard]:
        """What a frame asks. Raises `RemoteProtocolError`."""
        view = memoryview(body)
        header = read_header(view)
        translate = TRANSLATORS.get(header.key)
        if translate is None:
            raise RemoteProtocolError(f"API {header.key} of Kafka's protocol is not offered here")
        api = API_BY_KEY[header.key]
        if header.version not in api.versions:
            if api.key == API_VERSIONS_KEY:
                return _newer(header)
            first, last = api.versions
            raise RemoteProtocolError(
                f"{api.name} version {header.version} of Kafka's protocol, offered are "
                f"{first} to {last}"
            )
        fields = yield from reading_request(api, header, view)
        asked = Asked(api, header.version, header.correlation_id, header.client_id, fields)
        return in_portions(asked, lambda asked: translate(asked, self._facts))

    def may_follow(self, start: bytes | bytearray) -> bool:
        """A produce may: its answer is small, and it waits for other replicas longest."""
        return _key_of(start) == PRODUCE_KEY

    def check_length(self, length: int, start: bytes) -> None:
        """Only records may be many."""
        key = _key_of(start)
        limit = KEPT_BYTES_MAX if key in KEPT_KEYS else OTHERS_BYTES_MAX
        if key != PRODUCE_KEY and length > limit:
            raise RemoteProtocolError(
                f"a request of {counted(length, 'byte')} to API {key}, the limit is {limit}"
            )

    def farewell(self, why: str) -> Parts:
        """There are no words for that."""
        return []


def _key_of(start: bytes | bytearray) -> int:
    return int.from_bytes(start[:2], "big")


def _newer(header: Header) -> Heard:
    """To who speaks a newer ApiVersions: in its first version, which it speaks, too."""
    asked = Asked(API_BY_KEY[API_VERSIONS_KEY], 0, header.correlation_id, header.client_id, {})
    unknown = ErrorCode.UNSUPPORTED_VERSION
    return question(
        asked,
        m.ApiVersionsRequest(),
        lambda _body, _parts: _offered(unknown, (API_VERSIONS_KEY,)),
    )
