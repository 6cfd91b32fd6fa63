"""Where things lie: all of it in the checkout, none of it kept by git but the page and its plot."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".compare"
"""What Maven fetched, and what runs leave."""
DATA = CACHE / "data"
"""A cluster's, while it runs: on the disk of the checkout, for /tmp may lie in memory."""
LOCK = CACHE / "lock"
LOGS = CACHE / "logs"
RESULTS = CACHE / "results.json"
PAGE_NAME, PLOT_NAME = "COMPARISON.md", "comparison.svg"


def page_directory(scale: int) -> Path:
    """Only what was measured at full size is for everybody."""
    return ROOT / "deploy" if scale >= 100 else CACHE
