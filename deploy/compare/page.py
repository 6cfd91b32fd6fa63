"""`deploy/COMPARISON.md`: the figures of a run, what they are of, and how fair they are.

Every figure of a system comes from the results, the words around them from `about.md`: no result is
written by hand.
"""

from __future__ import annotations

from pathlib import Path

from compare.job import BATCH_BYTES, DISTINCT, POLL_RECORDS
from compare.kafka_nodes import HEAP, JVM
from compare.lines import GROUPS, Line, figures, ratio, ratio_told, summary
from compare.places import PAGE_NAME, PLOT_NAME, ROOT, page_directory
from compare.plot import advantage, draw
from compare.processes import TICKS
from compare.results import Results
from compare.rounds import IDLE_S, SYSTEMS
from compare.spark_client import MASTER, TASKS

ABOUT = Path(__file__).with_name("about.md")


def write_page(results: Results) -> str:
    """Write the page and its plot; says where, from the top of the checkout."""
    directory = page_directory(results.scale)
    draw(results, directory / PLOT_NAME)
    path: Path = directory / PAGE_NAME
    parts = [*_head(results), *_tables(results), _about(results)]
    path.write_text("\n\n".join(parts), encoding="utf-8")
    return str(path.relative_to(ROOT))


def _head(results: Results) -> list[str]:
    parts = [
        "# Apache Kafka and hightide, side by side",
        "Three brokers of each on one machine, in turns, never both at once; one partition with\n"
        "three replicas, `acks=all`, the same record bytes. `deploy/compare.sh` measured all of\n"
        "it and wrote this page; `deploy/compare.sh --page` writes it again from\n"
        "`.compare/results.json`.",
    ]
    if results.scale < 100:
        parts.append(
            f"**This was a trial of the program, at {results.scale} % of the full sizes: what it\n"
            f"says of the systems is not to be quoted.**"
        )
    if not results.is_complete:
        parts.append("**The run was interrupted: rounds that it should have had are missing.**")
    rounds = len({each.number for each in results.rounds})
    of_what = f"the median of {rounds} rounds, in parentheses the least and the most"
    if rounds == 1:
        of_what = "that of the only round"
    parts.append(
        f"Each figure is {of_what}. The ratio is hightide's\n"
        f"figure to Kafka's, in bold where hightide is better."
    )
    return [*parts, f"![How many times better each system is, line by line]({PLOT_NAME})"]


def _tables(results: Results) -> list[str]:
    parts = []
    for name, lines in GROUPS.items():
        rows = [_row(results, line) for line in lines]
        head = f"| {name} | unit | Kafka | hightide | hightide / Kafka |"
        parts.append("\n".join([head, "|:--|:--|--:|--:|--:|", *rows]))
        if name == "Spark, batch" and results.spark_note:
            parts.append(results.spark_note)
    return parts


def _row(results: Results, line: Line) -> str:
    kafka, hightide = (summary(figures(results, line, system)) for system in SYSTEMS)
    share = ratio_told(ratio(results, line))
    if (advantage(results, line) or 0) > 1:
        share = f"**{share}**"
    return f"| {line.label} | {line.unit} | {kafka} | {hightide} | {share} |"


def _about(results: Results) -> str:
    sizes = {name: f"{size:,}" for name, size in results.sizes.items()}
    return ABOUT.read_text(encoding="utf-8").format(
        **sizes,
        master=MASTER,
        tasks=TASKS,
        idle_s=IDLE_S,
        tick_ms=1000 / TICKS,
        machine=_listed(results.machine),
        versions=_listed(results.versions),
        jvm=" ".join((*HEAP, *JVM)),
        batch=f"{BATCH_BYTES:,}",
        poll=f"{POLL_RECORDS:,}",
        distinct=f"{DISTINCT:,}",
    )


def _listed(facts: dict[str, str]) -> str:
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())
