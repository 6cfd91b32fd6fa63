"""Who leads instead, inside a refusal, and where that broker is (KIP-951)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hightide.protocol import messages as m
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.reading import Fields


class _Hinting(Protocol):
    @property
    def current_leader(self) -> m.LeaderHint | None: ...


def hinted(hint: m.LeaderHint | None) -> Fields:
    """The field that tells it, if it is known."""
    if hint is None:
        return {}
    return {"current_leader": {"leader_id": hint.leader, "leader_epoch": hint.leader_epoch}}


def endpoints(facts: Facts, results: Sequence[_Hinting]) -> list[Fields]:
    """Where all of those are."""
    leaders = {part.current_leader.leader for part in results if part.current_leader is not None}
    return [found for leader in sorted(leaders) if (found := facts.endpoint(leader)) is not None]
