"""Fuzz the targets, one after the other, each in a process of its own: `deploy/fuzz.sh`.

libFuzzer drives each by way of atheris, which tells it what lines of this house an input reaches.
What it learns is kept in `.evidence/fuzz`, where a second run goes on; so is an input that a target
did not end well with. The end is one table.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / room) for room in ("support", "kafka", "storage")]
PLACE = TESTS.parent / ".evidence" / "fuzz"
RUNS = 10_000_000
"""Executions of all targets together."""
RSS_MB, MALLOC_MB, ADDRESSES_MB = 1024, 256, 2048
"""A process may be so large, one piece of memory in it (as far as a sanitizer is there to see), and
everything that it asked for, whether it was ever written to or not."""
SECONDS_EACH_MAX = 30
"""An input that takes longer is a finding."""
CONCERNED = ["hightide", "hightide_broker", "scramp"]


def main():
    """What the command line says."""
    asking = argparse.ArgumentParser(prog="deploy/fuzz.sh", description="Fuzz what strangers send.")
    asking.add_argument("targets", nargs="*", help="some of them by name; none: all")
    asking.add_argument("--runs", type=int, default=RUNS, help="executions, of all (%(default)s)")
    asking.add_argument("--one", help=argparse.SUPPRESS)
    asked = asking.parse_args()
    if asked.one:
        fuzz(asked.one, asked.runs)
    elif any(line["verdict"] != "held" for line in every(asked.targets, asked.runs)):
        sys.exit(1)


def fuzz(name, runs):
    """Be the process of one target; libFuzzer ends it."""
    import atheris

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES_MB << 20, ADDRESSES_MB << 20))
    corpus = PLACE / name
    corpus.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(include=CONCERNED):
        from targets import TARGETS

        target = TARGETS[name]
        for number, seed in enumerate(target.seeds()):
            (corpus / f"seed-{number:03}").write_bytes(seed)
            target.run(seed)  # some modules are imported when they are first needed
    limits = {
        "runs": runs,
        "max_len": target.bytes_max,
        "rss_limit_mb": RSS_MB,
        "malloc_limit_mb": MALLOC_MB,
        "timeout": SECONDS_EACH_MAX,
        "artifact_prefix": f"{PLACE}/{name}-",
        "keep_seed": 1,  # of what C libraries do with one it sees nothing
        "print_final_stats": 1,
    }
    words = [f"-{word}={value}" for word, value in limits.items()]
    atheris.Setup([sys.argv[0], *words, str(corpus)], target.run)
    atheris.Fuzz()


def every(names, runs):
    """Fuzz those, and print the table; its lines."""
    from targets import TARGETS

    unknown = set(names) - TARGETS.keys()
    if unknown:
        sys.exit(f"{', '.join(sorted(unknown))}: no target, expected some of {', '.join(TARGETS)}")
    chosen = {name: target.share for name, target in TARGETS.items() if name in names or not names}
    total = sum(chosen.values())
    lines = [line_of(name, max(runs * share // total, 1)) for name, share in chosen.items()]
    columns = list(lines[0])
    for line in (dict(zip(columns, columns, strict=True)), *lines):
        print("  ".join(f"{line[column]!s:>14}" for column in columns))
    return lines


def line_of(name, runs):
    """Fuzz a target; its line of the table."""
    PLACE.mkdir(parents=True, exist_ok=True)
    print(f"{name}: {runs} executions, see {PLACE / name}.log", flush=True)
    command = [sys.executable, str(Path(__file__).parent), "--one", name, "--runs", str(runs)]
    began = time.monotonic()
    with (PLACE / f"{name}.log").open("wb") as log:
        status = subprocess.run(command, stdout=log, stderr=log, env=os.environ).returncode
    seconds = time.monotonic() - began
    said = (PLACE / f"{name}.log").read_text(errors="replace")
    done = last(r"stat::number_of_executed_units:\s*(\d+)", said)
    return {
        "target": name,
        "executions": done,
        "a second": round(done / max(seconds, 0.1)),
        "coverage": last(r"\bcov: (\d+)", said),
        "inputs kept": last(r"\bcorp: (\d+)", said),
        "peak MiB": last(r"stat::peak_rss_mb:\s*(\d+)", said),
        "verdict": "held" if status == 0 and done >= runs else "FOUND",
    }


def last(pattern, text):
    """The last number that was said like this; 0: none was."""
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


if __name__ == "__main__":
    main()
