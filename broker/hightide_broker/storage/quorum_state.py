"""`quorum-state`: who leads the metadata quorum in which epoch, and for whom this node voted.

JSON with Kafka's fields, replaced durably before anything acts on it. It is made when the data
directory is formatted, so a file that is missing later was lost; a lost or damaged one is refused,
never guessed: guessing could vote twice in an epoch. Source: KIP-595.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from hightide.protocol.records import crc32c
from hightide_broker.ports import Disk

QUORUM_STATE = "quorum-state"


class QuorumStateDamaged(Exception):
    """The file is not there, or does not say what it must."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The election state that survives a restart; -1 = nobody."""

    leader_id: int = -1
    leader_epoch: int = 0
    voted_id: int = -1
    voted_directory_id: str = ""

    def format(self) -> bytes:
        """Kafka's JSON, and a checksum of it: a digit that turned would be another vote."""
        fields = {
            "leaderId": self.leader_id,
            "leaderEpoch": self.leader_epoch,
            "votedId": self.voted_id,
            "votedDirectoryId": self.voted_directory_id,
            "data_version": 1,
        }
        return json.dumps(fields | {"checksum": _checksum(fields)}).encode()


def _checksum(fields: dict[str, object]) -> int:
    return crc32c(json.dumps(fields).encode())


def read_quorum_state(disk: Disk, directory: str) -> QuorumState:
    """The state; raises `QuorumStateDamaged`."""
    path = f"{directory}/{QUORUM_STATE}"
    if not disk.exists(path):
        raise QuorumStateDamaged(f"{path} is lost: this node must not vote without it")
    try:
        fields = json.loads(disk.read_file(path))
        if fields["data_version"] != 1:
            raise QuorumStateDamaged(f"{path} has version {fields['data_version']}, expected 1")
        checksum = fields.pop("checksum", None)
        if checksum not in (None, _checksum(fields)):
            raise QuorumStateDamaged(f"{path} is damaged: its checksum is {checksum}")
        state = QuorumState(
            int(fields["leaderId"]),
            int(fields["leaderEpoch"]),
            int(fields["votedId"]),
            str(fields.get("votedDirectoryId", "")),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise QuorumStateDamaged(f"{path} is damaged: {error}") from error
    if state.leader_epoch < 0:
        raise QuorumStateDamaged(f"{path} has epoch {state.leader_epoch}")
    return state


def write_quorum_state(disk: Disk, directory: str, state: QuorumState) -> None:
    """Keep the state, durably, before anything acts on it."""
    disk.replace(f"{directory}/{QUORUM_STATE}", state.format())
