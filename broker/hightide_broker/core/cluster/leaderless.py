"""Why nobody leads a partition, in a sentence for people. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hightide_broker.core.cluster.image import NO_LEADER, PartitionState


def why_nobody_leads(name: str, state: PartitionState, is_active: Callable[[int], bool]) -> str:
    """What a partition waits for, and what there is to do; empty if it has a leader."""
    if state.leader != NO_LEADER:
        return ""
    if state.elr:
        return (
            f"nobody leads {name}: what is committed is on {_brokers(state.elr)}, of which one is "
            f"waited for"
        )
    if state.last_known_elr:
        gone = [b for b in state.last_known_elr if not is_active(b)] or state.last_known_elr
        return (
            f"nobody leads {name}: {_brokers(state.last_known_elr)} stopped uncleanly and may lack "
            f"what was not synced; the longest log leads once all of them are back, and "
            f"{_brokers(gone)} is waited for"
        )
    held = f"broker {state.last_leader}" if state.last_leader != NO_LEADER else "nobody known"
    return (
        f"nobody leads {name}: no disk is left that certainly has all that was committed; it was "
        f"held last by {held}, whose disk was lost or replaced. Put that disk back if there is a "
        f"way, then have the longest log lead: hightide partitions elect --unclean, which shows "
        f"first what each replica holds; what only a lost disk held is given up"
    )


def _brokers(brokers: Sequence[int]) -> str:
    numbers = ", ".join(map(str, brokers))
    return f"broker {numbers}" if len(brokers) == 1 else f"brokers {numbers}"
