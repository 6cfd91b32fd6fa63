"""Python runs this first in every process that a driver of the Spark adversary starts.

The directory that HIGHTIDE_ADVERSARY names may hold a plan: at which request of any process, and
where in it, who is killed. It comes true once.
"""

import json
import os
import signal
from pathlib import Path

PLACE = os.environ.get("HIGHTIDE_ADVERSARY")


def strike(request, when):
    """Kill the one that is to be killed here, if this is the place."""
    try:
        plan = json.loads(Path(PLACE, "plan").read_text())
    except FileNotFoundError:
        return
    if (plan["request"], plan["when"]) != (request, when):
        return
    with Path(PLACE, plan["name"]).open("ab", buffering=0) as met:
        met.write(b".")
        count = met.tell()  # behind what this process wrote, anybody else who does so
    if count != plan["nth"]:
        return
    Path(PLACE, f"{plan['name']}-struck").touch()
    if plan["whom"] == "broker":
        os.kill(plan["pid"], signal.SIGKILL)
        return
    if plan["whom"] == "driver":
        os.killpg(plan["pid"], signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def watch():
    """Look at every request of the sink and the source."""
    from hightide.spark.connection import BlockingConnection

    ask, answer = BlockingConnection.ask, BlockingConnection.answer

    def asked(self, request, **how):
        name = type(request).__name__.removesuffix("Request")
        strike(name, "before")
        found = ask(self, request, **how)
        strike(name, "sent")
        return found

    def answered(self, asked, **how):
        found = answer(self, asked, **how)
        strike(type(found[0]).__name__.removesuffix("Response"), "answered")
        return found

    BlockingConnection.ask, BlockingConnection.answer = asked, answered


if PLACE:
    watch()
