"""The page of the quorum: who has how much of the metadata log, and why its watermark is there.
Pure. The rules of `views.py` hold here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hightide import MetadataLogDescription, QuorumDescription

Logs = Mapping[int, MetadataLogDescription]
"""By node."""
UNKNOWN = -1


def quorum_view(
    quorum: QuorumDescription,
    logs: Logs,
    silent: set[int],
    cut: Mapping[int, list[int]],
    before: Logs,
) -> dict[str, Any]:
    """A lane for each node that has the metadata log. `logs`: what nodes say of their own, and said
    `before`; `silent`: who did not answer; `cut`: by node, from where to where."""

    def lane(node: int, badge: str) -> dict[str, Any]:
        known = logs.get(node) or _as_told(node, ends[node], quorum, before.get(node))
        is_stale = node in silent or node in quorum.silent
        epoch = UNKNOWN if is_stale else quorum.epoch
        return {
            "broker": node,
            "leads": node == quorum.leader,
            "badge": badge,
            "stale": is_stale,
            "error": "",
            "log_start": known.log_start_offset,
            "high_watermark": known.high_watermark,
            "log_end": known.log_end_offset,
            "synced": known.synced_offset,
            "epoch": known.epochs[-1].epoch if known.epochs else epoch,
            "starts": [(each.epoch, each.start_offset) for each in known.epochs] or None,
            "cut": cut.get(node, []),
        }

    ends = {each.id: each.log_end_offset for each in (*quorum.voters, *quorum.observers)}
    voting = {each.id for each in quorum.voters}
    voters = [lane(each, "votes") for each in sorted(voting)]
    observers = {*ends, *logs} - voting  # where nobody leads, nobody knows of them
    return {
        "leader": quorum.leader,
        "epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "lanes": [*voters, *(lane(each, "observes") for each in sorted(observers))],
        "why": why_committed(quorum, voters),
    }


def _as_told(
    node: int, end: int, quorum: QuorumDescription, before: MetadataLogDescription | None
) -> MetadataLogDescription:
    """The log of a node that does not describe it now: where it ends (`end`) is what the quorum's
    leader says, and where it and its epochs begin what the node said before. A leader that never
    heard it knows nothing."""
    if before and end < 0:
        return before
    start = before.log_start_offset if before else UNKNOWN
    epochs = before.epochs if before else []
    watermark = min(quorum.high_watermark, end)
    return MetadataLogDescription(node, start, watermark, UNKNOWN, end, epochs)


def why_committed(quorum: QuorumDescription, voters: list[dict[str, Any]]) -> str:
    """Why the watermark of the metadata log is where it is, in a sentence."""
    if quorum.leader < 0:
        return "nobody leads: nothing more is committed until a majority of the voters is there"
    majority = f"a majority of the voters ({len(voters) // 2 + 1} of {len(voters)})"
    leader = next((lane for lane in voters if lane["leads"]), None)
    if leader is None or leader["log_end"] <= leader["high_watermark"]:
        return f"everything is committed: {majority} has every record on its disk"
    behind = [lane for lane in voters if lane["log_end"] < leader["log_end"]]
    named = ", ".join(str(lane["broker"]) for lane in behind)
    return f"it waits for {majority}: behind are {named}" if behind else f"it waits for {majority}"
