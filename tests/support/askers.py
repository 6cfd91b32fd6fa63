"""Who asks for what is parked: implements `call.Asker`, for tests of what is below connections."""

from __future__ import annotations

from collections.abc import Callable

from hightide_broker.runtime.base.agenda import Act
from hightide_broker.runtime.base.call import Reply


class Asker:
    """Hears the answer, once."""

    def __init__(self, hear: Callable[[Reply], None]) -> None:
        self._hear = hear
        self._is_answered = False

    def answer(self, reply: Reply) -> None:
        assert not self._is_answered, "it was answered twice"
        self._is_answered = True
        self._hear(reply)

    def work(self, act: Act) -> None:
        act()
