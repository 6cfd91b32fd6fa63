"""What tells a command to stop, noticed where the command looks, not where it strikes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def told_to_stop(*kinds: signal.Signals) -> Iterator[threading.Event]:
    """Set by any of these signals, which end nothing by themselves in this block."""
    event = threading.Event()
    before = {kind: signal.signal(kind, lambda *_: event.set()) for kind in kinds}
    try:
        yield event
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
