"""`hightide sim`: whole clusters on virtual time, by seed."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import click

from hightide_cli.failures import CORRUPT
from hightide_cli.options import output_option, say, show_one

if TYPE_CHECKING:
    from hightide_broker.simulation.run import Outcome

CHUNK = 5


@click.group()
def sim() -> None:
    """Run simulated clusters by seed, replay one.

    Real nodes on virtual time, a simulated network and disks that lose what was not synced. A seed
    decides everything: first anything may go wrong and nothing may be broken, then everything is
    healed and must work again.
    """


@sim.command(name="run", epilog="Example: hightide sim run --seeds 1..500 --jobs 2")
@click.option("--seeds", default="1..100", show_default=True, metavar="A..B", help="Which seeds.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@output_option
def run_(seeds: str, jobs: int, output: str) -> None:
    """Run seeds; exit 7 and name them if any breaks a promise."""
    numbers = _parse(seeds)
    started = time.monotonic()
    broken = []
    totals = dict.fromkeys(("virtual_s", "events", "messages", "elections", "commits"), 0.0)
    totals |= dict.fromkeys(("snapshots_loaded", "asked", "answered"), 0.0)
    for outcome in _outcomes(numbers, jobs):
        for name in totals:
            totals[name] += getattr(outcome, name)
        if outcome.violation:
            broken.append(outcome.seed)
            say(f"seed {outcome.seed}: {outcome.violation}")
            say(f"  hightide sim replay {outcome.seed}")
    show_one(
        {
            "seeds": len(numbers),
            "broken": broken,
            **{name: round(total) for name, total in totals.items()},
            "seconds": round(time.monotonic() - started, 1),
        },
        output,
    )
    if broken:
        raise click.exceptions.Exit(CORRUPT)


def _parse(text: str) -> range:
    first, dots, last = text.partition("..")
    if not (first.isdecimal() and (last.isdecimal() if dots else not last)):
        raise click.UsageError(f"--seeds {text!r}, expected A..B")
    numbers = range(int(first), int(last or first) + 1)
    if not numbers:
        raise click.UsageError(f"--seeds {text!r} is empty")
    return numbers


def _outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs == 1 or len(seeds) == 1:
        yield from map(_run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_run, seeds, chunksize=CHUNK)


def _run(seed: int) -> Outcome:
    from hightide_broker.simulation.run import run_seed

    logging.disable(logging.CRITICAL)
    return run_seed(seed)


@sim.command(epilog="Example: hightide sim replay 42")
@click.argument("seed", type=click.IntRange(0))
@click.option("-J", "--json-lines", is_flag=True, help="Only the outcome, as JSON.")
def replay(seed: int, json_lines: bool) -> None:
    """Run one seed and print its story; exit 7 if it breaks a promise."""
    from hightide_broker.simulation.run import run_seed

    logging.disable(logging.CRITICAL)
    outcome = run_seed(seed, keep_story=True)
    if json_lines:
        fields = {name: getattr(outcome, name) for name in outcome.__slots__ if name != "story"}
        click.echo(json.dumps(fields))
    else:
        for line in outcome.story:
            click.echo(line)
        verdict = outcome.violation or "every promise was kept"
        click.echo(f"seed {seed}, history {outcome.fingerprint}: {verdict}")
    if outcome.violation:
        raise click.exceptions.Exit(CORRUPT)
