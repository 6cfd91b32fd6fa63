"""How much users, clients and addresses may do: described and set (KIP-546)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hightide.protocol import quota_messages as k
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.kafka.asked import Asked, at_once, question, told
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Heard

FIELDS = {"user": "user", "client-id": "client_id", "ip": "ip"}
"""What Kafka calls whom a quota is of, and where that stands in ours."""
EXACT, DEFAULT, ANY = 0, 1, 2
"""How a part of a filter matches: by its name, those without one of their own, whatever it is."""
Entity = Mapping[str, str]
"""Names, by Kafka's words for whose they are."""


def describe_quotas(asked: Asked, _facts: Facts) -> Heard:
    """The quotas that a filter means, by whose they are."""

    def refuse(number: int, message: str) -> Fields:
        return {"error_code": number, "error_message": message, "entries": None}

    strict = asked.fields["strict"]
    try:
        wanted = _filter(asked.fields["components"])
    except Refused as why:
        return at_once(asked, refuse(number_of(why.code), why.message))

    def answer(body: k.DescribeClientQuotasResponse, _parts: Sequence[Attached]) -> Fields:
        found: dict[tuple[object, ...], Fields] = {}
        for setting in body.quotas:
            entity = _entity_told(setting)
            if not _is_wanted(entity, wanted, strict):
                continue
            entry = {"entity": _named(entity), "values": []}
            values = found.setdefault((*entity.items(),), entry)["values"]
            values.append({"key": setting.key, "value": float(setting.value or 0)})
        return {"error_code": 0, "entries": [*found.values()]}

    return question(asked, k.DescribeClientQuotasRequest(), answer, refuse)


def _filter(components: Sequence[Fields]) -> dict[str, str | None]:
    """The name that is wanted of each kind; None: any. Raises `Refused`."""
    wanted: dict[str, str | None] = {}
    for each in components:
        kind, how, name = each["entity_type"], each["match_type"], each["match"]
        _check_kind(kind, wanted)
        if how not in (EXACT, DEFAULT, ANY) or (name is None) == (how == EXACT):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"match type {how} with name {name!r}, expected {EXACT} with a name, {DEFAULT} or "
                f"{ANY} without one",
            )
        wanted[kind] = {EXACT: name, DEFAULT: k.DEFAULT, ANY: None}[how]
    return wanted


def _check_kind(kind: str, others: Mapping[str, str | None]) -> None:
    if kind not in FIELDS:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"a quota of {kind[:60]!r}, expected one of {', '.join(FIELDS)}",
        )
    if kind in others:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{kind} is named twice")


def _is_wanted(entity: Entity, wanted: Mapping[str, str | None], strict: bool) -> bool:
    """Whether it has everything that is named; `strict`: and nothing else."""
    if strict and len(entity) != len(wanted):
        return False
    return all(kind in entity and name in (None, entity[kind]) for kind, name in wanted.items())


def _entity_told(setting: k.QuotaSetting) -> Entity:
    names = {kind: getattr(setting, field) for kind, field in FIELDS.items()}
    return {kind: name for kind, name in names.items() if name is not None}


def _named(entity: Entity) -> list[Fields]:
    return [
        {"entity_type": kind, "entity_name": None if name == k.DEFAULT else name}
        for kind, name in entity.items()
    ]


def alter_quotas(asked: Asked, _facts: Facts) -> Heard:
    """Set and remove quotas: all of one entry, or none of it."""
    entries: Sequence[Fields] = asked.fields["entries"]
    settings: list[k.QuotaSetting] = []
    places: list[int] = []
    """By setting, which entry it is of."""
    whys: dict[int, tuple[int, str]] = {}
    """By entry, why it is refused."""
    for place, entry in enumerate(entries):
        try:
            made = _settings(entry)
        except Refused as why:
            whys[place] = number_of(why.code), why.message
        else:
            settings += made
            places += [place] * len(made)

    def told_of(refused: Mapping[int, tuple[int, str]]) -> Fields:
        results = [_result(entry, *refused.get(n, (0, ""))) for n, entry in enumerate(entries)]
        return {"entries": results}

    def answer(body: k.AlterClientQuotasResponse, _parts: Sequence[Attached]) -> Fields:
        for each in body.quotas:
            if each.error is not None:
                why = number_of(each.error), told(each.message)
                whys.setdefault(places[each.number], why)
        return told_of(whys)

    def refuse(number: int, message: str) -> Fields:
        return told_of(dict.fromkeys(range(len(entries)), (number, message)))

    request = k.AlterClientQuotasRequest(
        quotas=settings, validate_only=asked.fields["validate_only"]
    )
    return question(asked, request, answer, refuse)


def _settings(entry: Fields) -> list[k.QuotaSetting]:
    """What an entry comes to. Raises `Refused`."""
    entity: dict[str, str | None] = {}
    for each in entry["entity"]:
        _check_kind(each["entity_type"], entity)
        name = each["entity_name"]
        entity[each["entity_type"]] = k.DEFAULT if name is None else name
    if not entity:
        raise Refused(ErrorCode.INVALID_REQUEST, f"a quota of nobody, expected {', '.join(FIELDS)}")
    holder = {FIELDS[kind]: name for kind, name in entity.items()}
    return [k.QuotaSetting(key=op["key"], value=_value(op), **holder) for op in entry["ops"]]


def _value(op: Fields) -> int | float | None:
    """None: none any more. Raises `Refused`."""
    if op["remove"]:
        return None
    value: float = op["value"]
    if abs(value) >= 1 << 63:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{op['key'][:60]} {value:g}, expected less")
    return int(value) if value.is_integer() else value


def _result(entry: Fields, number: int, message: str) -> Fields:
    return {"error_code": number, "error_message": message or None, "entity": entry["entity"]}


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {48: describe_quotas, 49: alter_quotas}
