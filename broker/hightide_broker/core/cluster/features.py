"""Feature levels: what every registered broker can be relied on to understand. Pure.

A broker says at its registration up to which level it knows each feature. The cluster has the
lowest of these levels: only what it covers is written. From then on no broker may come back that
knows less, as it would not understand what may be stored. Source: KIP-584; there an operator raises
a level, here it rises with the last broker that is upgraded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hightide.protocol.errors import ErrorCode, Refused

ROWS = "rows"
"""Level 1: batches of Kafka's rows may be stored."""
QUOTAS = "quotas"
"""Level 1: a quota may be a fraction."""
KNOWN_LEVELS: Mapping[str, int] = {ROWS: 1, QUOTAS: 1}
"""What this version knows."""
NO_LEVELS: Mapping[str, int] = MappingProxyType({})
"""Nothing is known of any."""
FEATURES_MAX = 64
"""What a broker may say that it knows."""


def lowest_levels(told: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """What all of these know; nothing, if there are none."""
    all_told = list(told)
    names = all_told[0] if all_told else {}
    return {name: min(each.get(name, 0) for each in all_told) for name in names}


def check_levels(broker: int, told: Mapping[str, int], cluster: Mapping[str, int]) -> None:
    """Raise `Refused` if a broker that registers knows less than the cluster relies on."""
    if len(told) > FEATURES_MAX:
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"{len(told)} features, expected {FEATURES_MAX} at most"
        )
    for name, level in cluster.items():
        if told.get(name, 0) < level:
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"all brokers know feature {name} up to level {level}, and may have stored what "
                f"needs it; broker {broker} is of a version that knows it up to level "
                f"{told.get(name, 0)}: start a newer one",
            )
