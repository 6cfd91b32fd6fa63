"""`hightide sim`: whole clusters on virtual time, by seed."""

from __future__ import annotations

import json
import logging
import multiprocessing
import signal
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hightide.protocol.words import counted
from hightide_cli.failures import CORRUPT
from hightide_cli.options import output_option
from hightide_cli.output import say, show_one
from hightide_cli.signals import told_to_stop

if TYPE_CHECKING:
    from hightide_broker.simulation.run import Outcome

CHUNK = 5
"""Seeds that a process is given at a time."""
AHEAD = 4
"""How many times it has been given some before it has begun with them."""
LOOK_S = 0.1
_DEAF_TO_CTRL_C = (signal.SIGINT, signal.SIG_IGN)
SEEDS_MAX = 10_000_000
JOBS_MAX = 512
PROGRESS_S = 5.0
world_option = click.option(
    "--world",
    type=click.Choice(["quorum", "replicated", "rows", "unsynced"]),
    default="quorum",
    show_default=True,
    help="The metadata quorum alone, or brokers with producers and consumers, or these and batches "
    "of Kafka's rows, or power that is lost where `flush` is `replicated`.",
)


@click.group()
def sim() -> None:
    """Run simulated clusters by seed, replay one.

    Real nodes on virtual time, a simulated network and disks that lose what was not synced. A seed
    decides everything: first anything may go wrong and nothing may be broken, then everything is
    healed and must work again.
    """


@sim.command(name="run", epilog="Example: hightide sim run --world replicated --seeds 1..500")
@click.option("--seeds", default="1..100", show_default=True, metavar="A..B", help="Which seeds.")
@click.option(
    "--jobs", type=click.IntRange(1, JOBS_MAX), default=2, show_default=True, help="Processes."
)
@world_option
@output_option
def run_(seeds: str, jobs: int, world: str, output: str) -> None:
    """Run seeds; exit 7 and name them if any breaks a promise."""
    numbers = _parse(seeds)
    started = time.monotonic()
    broken = []
    virtual_s, totals = 0.0, Counter[str]()
    for outcome in _told(_outcomes(numbers, world, jobs), len(numbers)):
        virtual_s += outcome.virtual_s
        totals.update(outcome.counts)
        if outcome.violation:
            broken.append(outcome.seed)
            say(f"seed {outcome.seed}: {outcome.violation}")
            say(f"  hightide sim replay {outcome.seed} --world {world}")
    show_one(
        {
            "seeds": len(numbers),
            "world": world,
            "broken": broken,
            "virtual_s": round(virtual_s),
            **totals,
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
    if numbers[-1] - numbers[0] >= SEEDS_MAX:
        raise click.UsageError(f"--seeds {text!r}, expected {SEEDS_MAX} or fewer in one run")
    return numbers


def _outcomes(seeds: range, world: str, jobs: int) -> Iterator[Outcome]:
    if jobs == 1 or len(seeds) == 1:
        yield from map(partial(_run, world), seeds)
        return
    chunks = (seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK))
    pool = ProcessPoolExecutor(jobs, initializer=signal.signal, initargs=_DEAF_TO_CTRL_C)
    is_done = False
    try:
        # Ctrl-C inside of the pool could leave a lock behind that its threads wait for.
        with told_to_stop(signal.SIGINT) as struck:
            running = deque(pool.submit(_run_all, world, c) for c in islice(chunks, AHEAD * jobs))
            while running:
                done = wait([running[0]], timeout=LOOK_S).done
                if struck.is_set():
                    raise KeyboardInterrupt
                if done:
                    running.extend(pool.submit(_run_all, world, c) for c in islice(chunks, 1))
                    yield from running.popleft().result()
        is_done = True
    finally:
        if not is_done:
            for child in multiprocessing.active_children():
                child.terminate()  # it would run what it was given to the end
        pool.shutdown(cancel_futures=True)


def _told(outcomes: Iterator[Outcome], count: int) -> Iterator[Outcome]:
    """The same, and now and then a line for a human who watches."""
    since = said = time.monotonic()
    for number, outcome in enumerate(outcomes, 1):
        yield outcome
        now = time.monotonic()
        if sys.stderr.isatty() and now - said > PROGRESS_S:
            said = now
            say(f"{number} of {counted(count, 'seed')}, {number / (now - since):.1f} a second")


def _run_all(world: str, seeds: range) -> list[Outcome]:
    return [_run(world, seed) for seed in seeds]


def _run(world: str, seed: int, *, keep_story: bool = False) -> Outcome:
    from hightide_broker.simulation import replicated, run

    logging.disable(logging.CRITICAL)
    run_seed = run.run_seed if world == "quorum" else replicated.run_seed
    if world in ("rows", "unsynced"):
        run_seed = partial(run_seed, **{world: True})
    try:
        return run_seed(seed, keep_story=keep_story)
    except ExceptionGroup as crash:
        # As text: what a node raises need not survive the way out of a process.
        why = "".join(traceback.format_exception(crash))
        return run.Outcome(seed, f"a node ended by a bug\n{why}", "", 0.0, {})
    finally:
        logging.disable(logging.NOTSET)


@sim.command(epilog="Example: hightide sim replay 42")
@click.argument("seed", type=click.IntRange(0))
@world_option
@click.option("-J", "--json-lines", is_flag=True, help="Only the outcome, as JSON.")
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what its nodes told to this file, for `hightide trace --file`.",
)
def replay(seed: int, world: str, json_lines: bool, trace_file: Path | None) -> None:
    """Run one seed and print its story; exit 7 if it breaks a promise."""
    outcome = _run(world, seed, keep_story=True)
    if trace_file is not None:
        trace_file.write_bytes(outcome.trace)
    if json_lines:
        fields = {
            "seed": outcome.seed,
            "violation": outcome.violation,
            "fingerprint": outcome.fingerprint,
            "virtual_s": outcome.virtual_s,
            **outcome.counts,
        }
        click.echo(json.dumps(fields))
    else:
        for line in outcome.story:
            click.echo(line)
        verdict = outcome.violation or "every promise was kept"
        click.echo(f"seed {seed}, history {outcome.fingerprint}: {verdict}")
    if outcome.violation:
        raise click.exceptions.Exit(CORRUPT)
