"""How many partitions somebody may create and delete: the quota on changes of the metadata. Pure.

What is over it is refused, topic by topic, and told when it may be asked again: a change that is
decided cannot be slowed down afterwards. Source: KIP-599, in its strict form.
"""

from __future__ import annotations

from collections.abc import Callable

from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.quota_messages import CONTROLLER_MUTATION_RATE
from hightide.protocol.words import counted
from hightide_broker.core.cluster.quotas import Quotas, quota_for
from hightide_broker.core.cluster.rates import Rates, in_ms

Take = Callable[[int], None]
"""So many partitions more; raises `Refused` for who is over its quota."""


def unlimited(_count: int) -> None:
    """For who has no quota, and where nothing is changed."""


class MutationQuotas:
    """Of an active controller; the next one begins without debts."""

    def __init__(self) -> None:
        self._rates = Rates()

    def of(self, quotas: Quotas, user: str, client_id: str, now: float) -> Take:
        """What a request of theirs may take from, now."""
        quota = quota_for(quotas, user, client_id, CONTROLLER_MUTATION_RATE)
        if quota is None:
            return unlimited

        def take(count: int) -> None:
            delay_s = self._rates.delay_s(quota.holder, quota.value, now)
            if delay_s > 0:
                raise Refused(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"{CONTROLLER_MUTATION_RATE} is {counted(quota.value, 'partition')} a second "
                    f"here, and more were created and deleted: ask again in {delay_s:.1f} s",
                    throttle_time_ms=in_ms(delay_s),
                )
            self._rates.record(quota.holder, count, quota.value, now)

        return take
