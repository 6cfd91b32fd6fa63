"""`comparison.svg`: how many times better hightide is in each line, or Kafka.

The file is the same for the same figures, byte for byte, so that git shows when they change.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compare.lines import GROUPS, Line, ratio
from compare.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, THEIRS = "#1f77b4", "#d95f02"
TIMES = "\N{MULTIPLICATION SIGN}"
BAR_INCHES = 0.27
WIDTH_INCHES = 9.5
ROOM = 1.8
"""How much further the scale goes than the longest bar: its words stand there."""


def draw(results: Results, path: Path) -> None:
    """Write the picture; lines that only one system has are not in it."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "hightide", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    bars = [
        (f"{group}: {line.label} ({line.unit})".replace("`", ""), share)
        for group, lines in GROUPS.items()
        for line in lines
        if (share := advantage(results, line)) is not None
    ]
    figure, axes = pyplot.subplots(figsize=(WIDTH_INCHES, 1.3 + BAR_INCHES * max(len(bars), 1)))
    _draw_bars(axes, bars)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    # Git and editors do not like what matplotlib leaves at the ends of lines.
    lines = [line.rstrip() for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")


def advantage(results: Results, line: Line) -> float | None:
    """Over 1: hightide is so many times better; below it: Kafka is."""
    found = ratio(results, line)
    return found if found is None or line.more_is_better else 1 / found


def _draw_bars(axes: Axes, bars: list[tuple[str, float]]) -> None:
    """From 1 to the right where hightide is better, to the left where Kafka is."""
    places = range(len(bars))
    shares = [share for _, share in bars]
    colours = [OURS if share >= 1 else THEIRS for share in shares]
    axes.barh(places, [share - 1 for share in shares], left=1, color=colours, height=0.7)
    axes.set_xscale("log")
    furthest = max([2.0, *(max(share, 1 / share) for share in shares)]) * ROOM
    axes.set_xlim(1 / furthest, furthest)
    axes.set_yticks(places, [label for label, _ in bars])
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    for place, share in zip(places, shares, strict=True):
        text, side = (
            (f"{share:.2g}{TIMES}", "left") if share >= 1 else (f"{1 / share:.2g}{TIMES}", "right")
        )
        axes.annotate(
            text,
            (share, place),
            xytext=(3 if share >= 1 else -3, 0),
            textcoords="offset points",
            va="center",
            ha=side,
            fontsize=8,
        )
    axes.set_xticks([], minor=True)
    axes.set_xticks([])
    axes.set_xlabel("so many times better:   ← Kafka   |   hightide →")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
