"""Stories in text files: one step a line, told to a world, its answer after the arrow.

    # A comment, kept as it is.
    append    3 epoch=0     -> 0..2 end=3     # why this is so, kept too

A world is an object whose methods are the commands (`log-start` is `log_start`): words become
positional arguments, `name=value` keyword arguments, all of them text; a method answers with one
line. The first sentence of an error named in the world's `refusals` is an answer too, and
`check_invariants` is called after every step. `pytest --rewrite` refills the right-hand sides, and
you read the diff.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

SCENARIOS = Path(__file__).parents[1] / "scenarios"
_STEP = re.compile(r"^(?P<step>[^#]*?)(?P<arrow>\s+->(?P<answer>[^#]*?))?(?P<comment>\s+#.*)?$")


class World(Protocol):
    """What a story is told to; its commands are its other methods."""

    refusals: tuple[type[Exception], ...]

    def check_invariants(self) -> None: ...


class Step(NamedTuple):
    """One line of a story; `step` is empty for a comment or a blank line."""

    line: str
    step: str
    answer: str
    comment: str


def stories(folder: str) -> list[Path]:
    """The stories of a folder of `scenarios`; there must be some."""
    found = sorted((SCENARIOS / folder).glob("*.txt"))
    assert found, f"no story in {SCENARIOS / folder}"
    return found


def play(path: Path, world: World, *, rewrite: bool) -> None:
    """Tell the story to the world; fails with a diff, or refills the file."""
    steps = [parse(line) for line in path.read_text(encoding="utf-8").splitlines()]
    told = [
        step._replace(answer=_take(f"{path}:{number}", step.step, world)) if step.step else step
        for number, step in enumerate(steps, 1)
    ]
    if rewrite:
        path.write_text("".join(f"{line}\n" for line in lay_out(told)), "utf-8", newline="\n")
    elif told != steps:
        diff = difflib.unified_diff(
            lay_out(steps), lay_out(told), "expected", "got", n=2, lineterm=""
        )
        pytest.fail("\n".join([f"{path.name} (--rewrite refills it)", *diff]), pytrace=False)


def _take(place: str, step: str, world: World) -> str:
    command, *words = step.split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    try:
        method = getattr(world, command.replace("-", "_"))
        answer = str(method(*(word for word in words if "=" not in word), **options))
    except world.refusals as refusal:
        answer = f"{type(refusal).__name__}: {refusal}".partition(". ")[0]
    except Exception as error:
        error.add_note(f"{place}: {step}")
        raise
    assert not {"\n", "#"} & {*answer}, f"{place}: {step} has an answer of more than one line"
    world.check_invariants()
    return answer


def lay_out(steps: list[Step]) -> list[str]:
    """The lines, with arrows and comments below each other."""
    arrow_at = max((len(step.step) for step in steps), default=0) + 1
    lines = [
        f"{step.step.ljust(arrow_at)}-> {step.answer}" if step.step else step.line for step in steps
    ]
    pairs = list(zip(lines, steps, strict=True))
    comment_at = max((len(line) for line, step in pairs if step.comment), default=0) + 2
    return [
        f"{line.ljust(comment_at)}{step.comment}" if step.comment else line for line, step in pairs
    ]


def parse(line: str) -> Step:
    """The parts of a line; the answer is empty if there is none yet."""
    if line.startswith("#") or not line.strip():
        return Step(line, "", "", "")
    found = _STEP.match(line)
    assert found is not None, f"{line!r} is no step"
    parts = [(found[name] or "").strip() for name in ("step", "answer", "comment")]
    return Step("", *parts)
