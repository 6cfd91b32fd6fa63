"""Threads that change the same file wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class OneAtATime:
    """A lock for each path that somebody replaces now: all use one temporary name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def of(self, path: str) -> Iterator[None]:
        """Be alone with a path for the block."""
        with self._lock:
            lock, users = self._paths.get(path, (threading.Lock(), 0))
            self._paths[path] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                _, users = self._paths.pop(path)
                if users > 1:
                    self._paths[path] = (lock, users - 1)
