"""The lessons of `hightide lab`, step by step: real replicas, moved by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

from hightide_broker.simulation.lab_scenarios import LESSONS, Frame, frames
from hightide_broker.trace.lanes import badge_of

Notches = dict[str, list[int]]
"""By broker."""


def lessons_view() -> dict[str, Any]:
    """Which there are."""
    return {"lessons": [{"name": one.name, "title": one.title} for one in LESSONS]}


@cache
def lesson_view(name: str) -> dict[str, Any]:
    """One of them; raises `KeyError` if there is none."""
    title = {one.name: one.title for one in LESSONS}[name]
    cut: Notches = {}
    shown = []
    before: Frame | None = None
    for frame in frames(name):
        cut = _notches(before, frame, cut)
        shown.append(_frame(frame, cut))
        before = frame
    return {"name": name, "title": title, "frames": shown}


def _notches(before: Frame | None, frame: Frame, known: Notches) -> Notches:
    """From where to where a replica was cut, as long as its part of the lesson and the leader epoch
    last. Of one that is down nothing is known."""
    if before is None or (before.part, before.leader_epoch) != (frame.part, frame.leader_epoch):
        known = {}
    if before is None or before.part != frame.part:
        return known
    ends = {lane.broker: lane.log_end for lane in before.lanes}
    new = {
        lane.broker: [ends[lane.broker], lane.log_end]
        for lane in frame.lanes
        if 0 <= lane.log_end < ends.get(lane.broker, 0)
    }
    return {**known, **new}


def _frame(frame: Frame, cut: Notches) -> dict[str, Any]:
    return {
        "part": frame.part,
        "text": frame.text,
        "said": frame.said,
        "leader": frame.leader,
        "leader_epoch": frame.leader_epoch,
        "isr": frame.isr,
        "lanes": [
            {
                "broker": lane.broker,
                "leads": lane.broker == frame.leader,
                "badge": badge_of(lane.broker, frame.isr),
                "stale": lane.role == "down",
                "error": "",
                "log_start": 0,
                "high_watermark": lane.high_watermark,
                "log_end": lane.log_end,
                "synced": -1,
                "epoch": lane.epoch,
                "starts": lane.starts,
                "cut": cut.get(lane.broker, []),
                "values": lane.values,
            }
            for lane in frame.lanes
        ],
    }
