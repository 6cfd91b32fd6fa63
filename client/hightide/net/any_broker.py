"""Whom to ask next for what any broker can answer. Pure; both kinds of client go by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hightide.protocol import messages as m
from hightide.protocol.errors import (
    ApiError,
    AuthenticationFailed,
    ErrorCode,
    HightideError,
    NobodyListens,
)

Address = tuple[str, int]
"""Host and port."""

_ASK_ANOTHER = (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""It is starting or stopping; or it is a controller, and a broker is wanted."""
HESITATION_S = 2.0
"""Who says nothing for so long when it is met is passed over while there are others to ask: a
process that is frozen takes connections, and would cost the whole time of a request."""


class AnyBroker:
    """What one client remembers of those it asked."""

    def __init__(self, bootstrap: Sequence[Address]) -> None:
        self.asking: Address | None = None
        """The one that was asked last."""
        self.hesitates = False
        """Whether it is met now and there are others: it is given HESITATION_S."""
        self._bootstrap = bootstrap
        self._unhelpful: list[Address] = []
        """Who did not answer in time, or with something old; whoever did so last comes last."""

    def in_turn(
        self, brokers: Iterable[m.BrokerInfo], is_open: Callable[[Address], bool]
    ) -> Iterator[Address]:
        """Brokers that are known, then the bootstrap addresses; who is taken is being asked.

        Open connections first: a dead broker costs a connect timeout. But one that answers and
        cannot help, because it is cut off from the controller, comes last, and so does one that is
        frozen.
        """
        known = [(broker.host, broker.port) for broker in brokers]
        addresses = dict.fromkeys([*known, *self._bootstrap])
        self._unhelpful = [address for address in self._unhelpful if address in addresses]
        late = {address: place for place, address in enumerate(self._unhelpful)}
        turn = sorted(addresses, key=lambda a: (late.get(a, -1), not is_open(a)))
        for address in turn:
            self.asking = address
            self.hesitates = address != turn[-1] and not is_open(address)
            yield address

    @staticmethod
    def worse(known: HightideError | None, failure: HightideError) -> HightideError:
        """Which failure is told if nobody answers: that somebody turned this client away, before
        anything else; what somebody said, or did not say, before that others are not there."""
        if known is None:
            return failure
        keeps = isinstance(known, AuthenticationFailed) or isinstance(failure, NobodyListens)
        return known if keeps else failure

    def was_unhelpful(self, address: Address | None = None) -> None:
        """Who is at that address, or who was asked last, did not answer in time, or with something
        old."""
        if (found := address or self.asking) is not None:
            self._unhelpful = [*(a for a in self._unhelpful if a != found), found]

    def leads_on(self, refusal: ApiError) -> bool:
        """Whether the next one is asked after this refusal. If not, and it may be different later,
        who refused is asked last from now on."""
        if refusal.code in _ASK_ANOTHER:
            return True
        if refusal.retriable:
            self.was_unhelpful()
        return False
