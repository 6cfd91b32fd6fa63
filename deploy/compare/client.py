"""One workload in a process of its own: `python -m compare.client JOB` prints its figures as JSON.

It says that it is ready once it has imported what it needs, and begins when it is told to: a client
that waits for a cluster must not be measured while it only starts itself.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

from compare.job import Figures, Job

READY = "ready"


def main() -> None:
    """Read a job from the command line, do it, and print what came out."""
    job = Job.from_json(sys.argv[1])
    room = "spark" if job.work == "spark" else job.system
    work = import_module(f"compare.{room}_client").WORK[job.work]
    print(READY, flush=True)
    sys.stdin.readline()
    figures: Figures = work(job)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
