"""Everything that was found, as it is kept in `.compare/results.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from compare.job import Figures

FORMAT = 1


@dataclass(frozen=True)
class RoundOf:
    """The figures of one round of one system."""

    number: int
    system: str
    figures: Figures


@dataclass(kw_only=True)
class Results:
    """Of one run."""

    scale: int
    sizes: dict[str, int]
    """Records of each workload, as they were at this scale."""
    machine: dict[str, str]
    versions: dict[str, str]
    spark_note: str
    """Why Spark is read as it is, or is left out; empty: there is nothing to say."""
    rounds: list[RoundOf] = field(default_factory=list)
    is_complete: bool = False
    """Whether every round that was asked for is there."""

    def save(self, path: Path) -> None:
        """So that what was measured stays, whatever comes next."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n")
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Results:
        """As it was saved; raises `OSError`, and `ValueError` for what is no such file."""
        facts = json.loads(path.read_text())
        if facts.pop("format", None) != FORMAT:
            raise ValueError(f"{path.name} is of another version of this program: run it again")
        rounds = [RoundOf(**each) for each in facts.pop("rounds")]
        return cls(**facts, rounds=rounds)
