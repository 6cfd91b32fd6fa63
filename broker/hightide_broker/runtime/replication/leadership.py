"""One leader epoch of a partition on this broker: who decides in it, and who waits for it.

It is made when the epoch begins and ended once, by the next epoch or by a failing disk: all that
wait then hear why. What waits for the high watermark is not here: a watermark outlives epochs, as
long as the log is not cut.
"""

from __future__ import annotations

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.image import NO_LEADER, PartitionState
from hightide_broker.core.replication.leader import Leader
from hightide_broker.runtime.base.watermark import Watermark

_LOOK_AGAIN = Refused(ErrorCode.OFFSET_NOT_AVAILABLE, "what followers are told has changed")
"""Told to nobody: who is woken by it looks again."""


class Leadership:
    """A leader, and the offsets that others wait for while it leads."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.appended = Watermark(leader.log_end)
        """The log end, for the followers that wait for it."""
        self.deleted = Watermark()
        """The low watermark, for those who wait until records are gone from every live replica."""

    def look_again(self) -> None:
        """Wake the followers that wait, though no record came: what they are told has changed."""
        self.appended = self.appended.followed_by(self.appended.value, _LOOK_AGAIN)

    def advance_deleted(self, log_start: int) -> None:
        """The low watermark may have risen; no work unless it is behind."""
        if self.deleted.value < log_start:
            self.deleted.advance(max(self.deleted.value, self.leader.low_watermark(log_start)))

    def end(self, why: Refused) -> None:
        """The epoch is over here, if it was not yet."""
        if self.deleted.closed is None:
            self.appended.close(why)
            self.deleted.close(why)

    async def wait_ended(self) -> Refused:
        """Until it is over; why it is."""
        # Not `appended`: that one is closed, too, whenever followers are to look again.
        return await self.deleted.wait_closed()


def moved(name: str, state: PartitionState) -> Refused:
    """What those hear who waited for an offset of an older leader epoch."""
    who = f"broker {state.leader} leads" if state.leader != NO_LEADER else "nobody leads"
    return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{who} {name} in epoch {state.leader_epoch}")
