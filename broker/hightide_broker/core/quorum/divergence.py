"""Where two logs part, by the leader epochs of their records (KIP-101, KIP-279, KIP-595). Pure.

The rule of every log here, the metadata's and the partitions': who fetches says which epoch its
last record has. The logs agree up to its fetch offset if this log has that epoch, and has it at
least as far. If not, what it has to do is told in the same words.
"""

from __future__ import annotations

from hightide.protocol.messages import EpochEnd


def divergence(epoch: int, offset: int, found: int, end: int) -> EpochEnd | None:
    """What is told to a log that ends at `offset` with `epoch`, where here the newest epoch not
    above that is `found`, which ends at `end`; None if it is a prefix of the log here."""
    if found == epoch and offset <= end:
        return None
    return EpochEnd(epoch=found, end_offset=end)


def last_common(told: EpochEnd, found: int, end: int, log_end: int) -> int:
    """Where a log that reaches to `log_end` is cut when it is told so: nothing above can agree.
    Its own newest epoch not above that is `found`, -1 without one, and ends at `end`."""
    if told.end_offset < 0:
        return log_end
    if told.epoch < 0 or found < 0:
        return min(told.end_offset, log_end)
    # Without that epoch here, what follows the last older one is of epochs that the other has not.
    if found != told.epoch:
        return min(end, log_end)
    return min(end, told.end_offset, log_end)
