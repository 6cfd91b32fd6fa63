"""Starting streaming queries one after the other, also on a machine that is busy.

Each streaming source is a Python process. Spark waits 10 seconds from its start until it connects,
and has no setting for that (`PythonWorkerFactory.createSimpleWorker`); a busy machine may need
longer. Nothing of the query has happened by then, so it is safe to start it again. Sources that
start share a map in Spark's JVM that no lock guards, so a program that starts several queries waits
for each.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STARTS_MAX = 20
_POLL_S = 0.02
_LOG = logging.getLogger("hightide.spark.starts")
_INITIALIZING = "Initializing"
"""How it begins what Spark says of a query whose sources are not up: first "StreamExecution", while
its thread is on its way to them, then "sources"."""
_SAID = "Python worker failed to connect back"
TOO_LATE = (
    f"{_SAID}: it took more than 10 s to start, every time. Spark has no setting for these 10 s: "
    "this needs a machine that is less busy, or fewer threads of its own (--master local[1])"
)
"""What is said after the last start."""


def started(writer: DataStreamWriter, *, starts_max: int = STARTS_MAX) -> StreamingQuery:
    """What `writer.start()` gives, once the query's sources are up.

    A query whose source took more than Spark's 10 seconds is started again, so many times at the
    most. Whatever else ended a query is left to who asks for it.
    """
    for _ in range(starts_max):
        query = writer.start()
        _wait_until_planned(query)
        if not came_too_late(query):
            break
        _LOG.warning("the source took more than the 10 s that Spark gives it: starting it again")
    return query


def came_too_late(query: StreamingQuery) -> bool:
    """Whether a query ended because a source of it took longer to start than Spark waits."""
    return (error := query.exception()) is not None and _SAID in str(error)


def _wait_until_planned(query: StreamingQuery) -> None:
    """Until its sources are up, or it has ended."""
    while query.isActive and query.status["message"].startswith(_INITIALIZING):
        time.sleep(_POLL_S)
