"""Stories in text files: one step a line, told to a world, its answer after the arrow.

    # A comment, kept as it is.
    append    3 epoch=0     -> 0..2 end=3     # why this is so, kept too
    elect 1 2 3             -> 1 leads epoch 1
                             ; 2 follows, and what is said of it goes on in another line
                               that is indented further

An answer that is too long for a line has one for each of its parts. A world is an object whose
methods are the commands (`log-start` is `log_start`): words become positional arguments,
`name=value` keyword arguments, all of them text; a method answers with one line. The first sentence
of an error named in the world's `refusals` is an answer too, and `check_invariants` is called after
every step. `pytest --rewrite` refills the right-hand sides, and you read the diff. Each folder has
a legend.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

WIDTH_MAX = 118
STEP_MAX = 36
"""Arrows stand below each other, but for steps that are longer."""
SCENARIOS = Path(__file__).parents[1] / "scenarios"
_STEP = re.compile(r"^(?P<step>[^#]*?)(?P<arrow>\s+->(?P<answer>[^#]*?))?(?P<comment>\s+#.*)?$")


class StoryWorld(Protocol):
    """What a story is told to; its commands are its other methods."""

    refusals: tuple[type[Exception], ...]

    def check_invariants(self) -> None: ...


class Step(NamedTuple):
    """One step of a story; `step` is empty for a comment or a blank line."""

    number: int
    """Of its first line."""
    line: str
    step: str
    answer: str
    comment: str


def stories(folder: str) -> list[Path]:
    """The stories of a folder of `scenarios`; there must be some."""
    found = sorted((SCENARIOS / folder).glob("*.txt"))
    assert found, f"no story in {SCENARIOS / folder}"
    return found


def play(path: Path, world: StoryWorld, *, rewrite: bool) -> None:
    """Tell the story to the world; fails with a diff, or refills the file."""
    steps = list(parse(path.read_text(encoding="utf-8")))
    told = [
        step._replace(answer=_take(f"{path}:{step.number}", step.step, world))
        if step.step
        else step
        for step in steps
    ]
    if rewrite:
        path.write_text("".join(f"{line}\n" for line in lay_out(told)), "utf-8", newline="\n")
    elif told != steps:
        diff = difflib.unified_diff(
            lay_out(steps), lay_out(told), "expected", "got", n=2, lineterm=""
        )
        pytest.fail("\n".join([f"{path.name} (--rewrite refills it)", *diff]), pytrace=False)


def _take(place: str, step: str, world: StoryWorld) -> str:
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
    sizes = [len(step.step) for step in steps]
    arrow_at = max((size for size in sizes if size <= STEP_MAX), default=0) + 1
    told = [
        _answered(step.step, step.answer, arrow_at) if step.step else [step.line] for step in steps
    ]
    pairs = list(zip(told, steps, strict=True))
    comment_at = max((len(lines[0]) for lines, step in pairs if step.comment), default=0) + 2
    for lines, step in pairs:
        if step.comment:
            at = comment_at if comment_at + len(step.comment) <= WIDTH_MAX else len(lines[0]) + 2
            lines[0] = f"{lines[0].ljust(at)}{step.comment}"
    return [line for lines in told for line in lines]


def _answered(step: str, answer: str, arrow_at: int) -> list[str]:
    """A step with its answer: one line, or one for each part, and more where that is too long."""
    begin = f"{step.ljust(arrow_at - 1)} ->"
    whole = f"{begin} {answer}"
    if len(whole) <= WIDTH_MAX:
        return [whole]
    first, *others = answer.split("; ")
    indent = " " * (arrow_at + 1)
    lines = []
    for text in (f"{begin} {first}", *(f"{indent}; {part}" for part in others)):
        lines += textwrap.wrap(
            text,
            WIDTH_MAX,
            subsequent_indent=f"{indent}    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def parse(text: str) -> Iterator[Step]:
    """The steps of a story, and what stands between them."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line[:1].isspace() and line.strip():
            continue  # it belongs to the line before
        if line.startswith("#") or not line.strip():
            yield Step(number, line, "", "", "")
            continue
        found = _STEP.match(line)
        assert found is not None, f"{line!r} is no step"
        step, answer, comment = (
            (found[name] or "").strip() for name in ("step", "answer", "comment")
        )
        for more in takewhile(lambda each: each[:1].isspace() and each.strip(), lines[number:]):
            answer += more.strip() if more.strip().startswith("; ") else f" {more.strip()}"
        yield Step(number, "", step, answer, comment)
