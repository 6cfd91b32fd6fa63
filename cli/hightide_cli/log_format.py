"""How a node's log is written: for people, or as JSON for who collects it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

FOR_PEOPLE = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonLines(logging.Formatter):
    """A line of JSON a record: `event` names the place in the house that tells it, or what it says
    by `extra` where a place tells of several things; it stays the same whatever the message says.
    """

    def __init__(self, node: int) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        told = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "event": getattr(record, "event", f"{record.module}.{record.funcName.lstrip('_')}"),
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def set_up_logging(*, verbose: bool, form: str = "text", node: int = -1) -> None:
    """One event a line, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(node) if form == "json" else logging.Formatter(FOR_PEOPLE))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
