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
