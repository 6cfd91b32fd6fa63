"""The page of the quorum: who has how much of the metadata log, and why its watermark is there.
Pure. The rules of `views.py` hold here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hightide import MetadataLogDescription, QuorumDescription, QuorumReplica

Logs = Mapping[int, MetadataLogDescription]
"""By node."""


def quorum_view(
    quorum: QuorumDescription, logs: Logs, silent: set[int], cut: Mapping[int, list[int]]
) -> dict[str, Any]:
    """A lane for each node that has the metadata log. `logs`: what nodes say of their own;
    `silent`: who did not answer; `cut`: by node, from where to where."""

    def lane(node: QuorumReplica, badge: str) -> dict[str, Any]:
        known = logs.get(node.id) or _as_told(node, quorum)
        return {
            "broker": node.id,
            "leads": node.id == quorum.leader,
            "badge": badge,
            "stale": node.id in silent or node.id in quorum.silent,
            "error": "",
            "log_start": known.log_start_offset,
            "high_watermark": known.high_watermark,
            "log_end": known.log_end_offset,
            "synced": known.synced_offset,
            "epoch": known.epochs[-1].epoch if known.epochs else quorum.epoch,
            "starts": [(each.epoch, each.start_offset) for each in known.epochs] or None,
            "cut": cut.get(node.id, []),
        }

    voters = [lane(each, "votes") for each in sorted(quorum.voters, key=lambda each: each.id)]
    observers = sorted(quorum.observers, key=lambda each: each.id)
    return {
        "leader": quorum.leader,
        "epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "lanes": [*voters, *(lane(each, "observes") for each in observers)],
        "why": why_committed(quorum, voters),
    }


def _as_told(node: QuorumReplica, quorum: QuorumDescription) -> MetadataLogDescription:
    """The log of a node that does not describe it to who asks: what the quorum's leader says."""
    end = node.log_end_offset
    watermark = min(quorum.high_watermark, end)
    return MetadataLogDescription(node.id, -1, watermark, -1, end, [])


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
