"""The lessons of `hightide lab`, step by step: real replicas, moved by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

from hightide_broker.simulation.lab_scenarios import LESSONS, Frame, frames
from hightide_broker.trace.lanes import badge_of


def lessons_view(_: str = "") -> dict[str, Any]:
    """Which there are."""
    return {"lessons": [{"name": one.name, "title": one.title} for one in LESSONS]}


@cache
def lesson_view(name: str) -> dict[str, Any]:
    """One of them; raises `KeyError` if there is none."""
    title = {one.name: one.title for one in LESSONS}[name]
    return {"name": name, "title": title, "frames": [_frame(frame) for frame in frames(name)]}


def _frame(frame: Frame) -> dict[str, Any]:
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
                "values": lane.values,
            }
            for lane in frame.lanes
        ],
    }
