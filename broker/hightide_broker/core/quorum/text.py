"""Where a node of the quorum stands, and what nodes say to each other, in a few words. Pure.

For logs, and for the stories in `tests/scenarios/quorum`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.core.quorum.ready import NOBODY
from hightide_broker.core.quorum.roles import Role, Voter

ADDRESSED = c.VoteRequest | c.BeginQuorumEpochRequest | c.EndQuorumEpochRequest


class Standing(Protocol):
    """What `show_role` needs to know of a node."""

    @property
    def role(self) -> Role: ...

    @property
    def epoch(self) -> int: ...

    @property
    def leader(self) -> int: ...

    @property
    def voted(self) -> int: ...


def show_role(node: Standing) -> str:
    """A node's standing; a leader or a vote that is not known is not mentioned."""
    known = (("leader", node.leader), ("voted", node.voted))
    words = [f"{name}={other}" for name, other in known if other != NOBODY]
    return " ".join([node.role.value, f"epoch={node.epoch}", *words])


def kind(request: m.Message) -> str:
    """What such a request is called."""
    match request:
        case c.VoteRequest():
            return "pre-vote" if request.pre_vote else "vote"
        case c.BeginQuorumEpochRequest():
            return "begin"
        case c.EndQuorumEpochRequest():
            return "end"
        case c.FetchSnapshotRequest():
            return "piece"
        case m.FetchRequest():
            return "fetch"
        case _:
            raise AssertionError(f"{request} is not said in a quorum")


def show_request(request: m.Message) -> str:
    """A log that ends at 5 with a record of epoch 2 is 5@2, and so is a snapshot. `to` and `as` are
    directories."""
    match request:
        case c.VoteRequest():
            words = f"{request.log_end}@{request.last_epoch} epoch={request.epoch}"
        case c.BeginQuorumEpochRequest():
            words = f"epoch={request.epoch}"
        case c.EndQuorumEpochRequest():
            successors = ",".join(map(str, request.successors)) or "-"
            words = f"epoch={request.epoch} successors={successors}"
        case c.FetchSnapshotRequest(snapshot=wanted):
            words = f"{wanted.end_offset}@{wanted.epoch} from={request.position}"
        case m.FetchRequest(partitions=[part]):
            end = f"{part.fetch_offset}@{part.last_fetched_epoch}"
            words = f"{end} epoch={part.current_leader_epoch}"
        case _:
            words = ""
    if isinstance(request, m.FetchRequest) and request.replica_directory:
        words += f" as={request.replica_directory}"
    if isinstance(request, ADDRESSED) and request.voter_directory:
        words += f" to={request.voter_directory}"
    return f"{kind(request)} {words}"


def show_voters(voters: Iterable[Voter]) -> str:
    """Voters with their directories."""
    return str([(voter.id, voter.directory) for voter in voters])


def show_response(response: m.Message) -> str:
    """The news of an answer, and who leads as far as its sender knows."""
    if isinstance(response, m.FetchResponse):
        return _show_fetched(response.partitions[0])
    assert isinstance(response, c.QuorumResponse)
    news = response.error or "ok"
    if isinstance(response, c.VoteResponse) and not response.error:
        news = "yes" if response.granted else "no"
    if isinstance(response, c.FetchSnapshotResponse) and not response.error:
        news = f"bytes from {response.position} of {response.size}"
    return f"{news} {_who(response.leader, response.epoch)}"


def _show_fetched(result: m.FetchResult) -> str:
    news = result.error or ""
    for name, place in (("diverging", result.diverging_epoch), ("snapshot", result.snapshot)):
        if place is not None:
            news = f"{name} {place.end_offset}@{place.epoch}"
    hint = result.current_leader
    assert hint is not None, f"{result} does not say who leads"
    return f"{news} {_who(hint.leader, hint.leader_epoch)}"


def _who(leader: int, epoch: int) -> str:
    return f"({leader if leader >= 0 else '-'} leads {epoch})"
