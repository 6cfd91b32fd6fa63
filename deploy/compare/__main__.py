"""`deploy/compare.sh`: the rounds, the figures as they come, and the page."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import click

from compare.lines import GROUPS, NONE, figures, ratio, ratio_told, told
from compare.machine import machine, versions
from compare.maven import KAFKA_VERSIONS, kafka_jars
from compare.page import write_page
from compare.places import CACHE, LOCK, LOGS, RESULTS
from compare.processes import Failed, end_in_order
from compare.results import Results, RoundOf
from compare.rounds import SIZES, SYSTEMS, Setting, clear, play
from compare.spark_place import SparkPlace, spark_place
from compare.touched import touch_free_memory


@click.command()
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=5, show_default=True, help="Of each system."
)
@click.option(
    "--scale",
    type=click.IntRange(1, 100),
    default=100,
    show_default=True,
    help="Percent of the full sizes; with less than 100 the page goes to .compare/.",
)
@click.option("--no-spark", is_flag=True, help="Leave Spark out.")
@click.option("--page", is_flag=True, help="Only write the page again, from .compare/results.json.")
def main(rounds: int, scale: int, no_spark: bool, page: bool) -> None:
    """Compare Apache Kafka and hightide on this machine, in turns, and write a page of it."""
    if page:
        _write_page(_load())
        return
    end_in_order()
    CACHE.mkdir(exist_ok=True)
    with alone():
        _run(rounds, scale, no_spark)


@contextmanager
def alone() -> Iterator[None]:
    """Two runs at once would measure each other."""
    with LOCK.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise click.ClickException("another run is at work in this checkout") from error
        yield


def _run(rounds: int, scale: int, no_spark: bool) -> None:
    clear()
    shutil.rmtree(LOGS, ignore_errors=True)
    click.echo("fetching what is missing …")
    kafka = kafka_jars()
    if kafka is None:
        click.echo(f"skipped: Maven has no Apache Kafka {' or '.join(KAFKA_VERSIONS)}")
        return
    version, jars = kafka
    spark = SparkPlace(note="Spark was left out of this run.") if no_spark else spark_place()
    if spark.note:
        click.echo(spark.note)
    setting = Setting(
        scale=scale, kafka_jars=jars, spark_python=spark.python, spark_jars=spark.jars
    )
    results = Results(
        scale=scale,
        sizes={name: setting.records(name) for name in SIZES},
        machine=machine(),
        versions=versions(version, spark.version),
        spark_note=spark.note,
    )
    click.echo("using all free memory once, a minute or two …")
    touch_free_memory()
    _play(results, setting, rounds)
    _tell_table(results)
    _write_page(results)


def _play(results: Results, setting: Setting, rounds: int) -> None:
    """All rounds; each is kept as soon as it is over."""
    for number in range(1, rounds + 1):
        for system in SYSTEMS if number % 2 else reversed(SYSTEMS):

            def tell(name: str, figure: float, who: str = f"{number} {system}") -> None:
                click.echo(f"{who:<11} {name:<26} {told(figure):>11}")

            try:
                found = play(setting, system, number, tell)
            except Failed as failure:
                raise click.ClickException(str(failure)) from failure
            results.rounds.append(RoundOf(number, system, found))
            results.is_complete = number == rounds and len(results.rounds) == 2 * rounds
            results.save(RESULTS)


def _tell_table(results: Results) -> None:
    """The medians, as the page has them."""
    click.echo(f"\n{'':<48} {'':<9} {'Kafka':>10} {'hightide':>10} {'ratio':>7}")
    for group, lines in GROUPS.items():
        click.echo(group)
        for line in lines:
            both = [figures(results, line, system) for system in SYSTEMS]
            kafka, hightide = (told(median(each)) if each else NONE for each in both)
            share = ratio_told(ratio(results, line))
            click.echo(f"  {line.label:<46} {line.unit:<9} {kafka:>10} {hightide:>10} {share:>7}")


def _load() -> Results:
    try:
        return Results.load(RESULTS)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"there is nothing to write a page of: {error}") from error


def _write_page(results: Results) -> None:
    click.echo(f"\nwrote {write_page(results)}")


if __name__ == "__main__":
    main(prog_name="deploy/compare.sh")
