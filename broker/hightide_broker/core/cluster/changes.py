"""The replicated facts: what a record of `__cluster_metadata` says. Pure.

A change is a frozen Struct, tagged with its type on the wire and in the log, one msgpack map a
record. Handlers of the controller return changes; only `ClusterImage.replay` applies them. A field
may be added with a default; nothing is ever renamed or removed, because logs keep what was written.
Source: Kafka's metadata records (RegisterBrokerRecord and its kin).
"""

from __future__ import annotations

import msgspec

from hightide_broker.core.quorum.roles import Voter


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The root of all changes."""


class RegisterBroker(Change, tag="register_broker", frozen=True, kw_only=True):
    """A broker process came up; it is fenced. Its epoch is the offset of this record."""

    broker: int
    incarnation: str
    host: str
    port: int
    rack: str = ""
    roles: tuple[str, ...] = ()
    clean: bool = True
    """Whether its last stop was orderly (KIP-966)."""
    directory: str = ""
    """The id of its data directory: another one means another disk."""
    broker_epoch: int = -1
    """-1: the offset of this record. Set in a snapshot, whose records have no offsets, and so are
    the next."""
    fenced: bool = True
    stopping: bool = False
    served: bool = False
    """Whether this process was ever unfenced."""
    keeps_runs: bool = False
    """Whether its directory says which processes served from it."""
    internal: tuple[str, int] | None = None
    """Where other nodes reach it, if not where clients do."""
    features: dict[str, int] = {}
    """Up to which level it knows each feature (KIP-584)."""


class FenceBroker(Change, tag="fence_broker", frozen=True, kw_only=True):
    broker: int
    broker_epoch: int


class UnfenceBroker(Change, tag="unfence_broker", frozen=True, kw_only=True):
    broker: int
    broker_epoch: int


class StopBroker(Change, tag="stop_broker", frozen=True, kw_only=True):
    """A broker is in its controlled shutdown: it may not lead or join an ISR any more (KIP-841)."""

    broker: int
    broker_epoch: int


class CreateTopic(Change, tag="topic", frozen=True, kw_only=True):
    topic: str
    topic_id: str
    synced_since: int = -1
    """Set in a snapshot: where `flush` became `synced` for a topic that was not; see the image."""


class RemoveTopic(Change, tag="remove_topic", frozen=True, kw_only=True):
    topic_id: str


class CreatePartition(Change, tag="partition", frozen=True, kw_only=True):
    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    last_leader: int = -1
    last_known_elr: tuple[int, ...] = ()


class ChangePartition(Change, tag="partition_change", frozen=True, kw_only=True):
    """Any of: a new ISR, a new leader. The partition epoch rises by one each time."""

    topic_id: str
    partition: int
    isr: tuple[int, ...] | None = None
    leader: int | None = None
    """Set: the leader epoch rises by one."""
    elr: tuple[int, ...] | None = None
    """Eligible leader replicas: not in the ISR, and yet they have all that is committed
    (KIP-966)."""
    last_leader: int | None = None
    """Who led when the ISR became empty; -1: it is not empty."""
    last_known_elr: tuple[int, ...] | None = None
    """Who was eligible until an unclean stop (KIP-966)."""


class SetVoters(Change, tag="voters", frozen=True, kw_only=True):
    """Who votes from here on: in force once it is written, not only once it is committed."""

    voters: tuple[Voter, ...]


class SetConfig(Change, tag="config", frozen=True, kw_only=True):
    """One key of one resource; value None takes it back to its default."""

    kind: str
    """`topic`; or `cluster`, whose name is empty: what holds for topics that do not say."""
    name: str
    key: str
    value: str | None


class CreateAcl(Change, tag="acl", frozen=True, kw_only=True):
    """A rule about who may do what; the words are those of `acls.py`."""

    id: str
    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str


class RemoveAcl(Change, tag="remove_acl", frozen=True, kw_only=True):
    id: str


class SetUsersSecret(Change, tag="users_secret", frozen=True, kw_only=True):
    """What answers about users that there are not rest on."""

    secret: bytes

    def __repr__(self) -> str:
        return "SetUsersSecret(…)"


class SetScramCredential(Change, tag="user_scram", frozen=True, kw_only=True):
    """What is kept of a user's password (KIP-554)."""

    user: str
    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"SetScramCredential({self.user!r}, {self.mechanism}, …)"


class RemoveScramCredential(Change, tag="remove_user_scram", frozen=True, kw_only=True):
    user: str
    mechanism: str


class SetQuota(Change, tag="quota", frozen=True, kw_only=True):
    """How much a user, a client, a client of a user or an address may do; value None: as much as it
    likes."""

    key: str
    user: str | None
    client_id: str | None
    value: int | float | None
    ip: str | None = None


class AllocateProducerIds(Change, tag="producer_ids", frozen=True, kw_only=True):
    """Every producer id below `next_id` has been handed out."""

    next_id: int


AnyChange = (
    RegisterBroker
    | FenceBroker
    | UnfenceBroker
    | StopBroker
    | CreateTopic
    | RemoveTopic
    | CreatePartition
    | ChangePartition
    | SetConfig
    | SetVoters
    | AllocateProducerIds
    | SetQuota
    | SetUsersSecret
    | SetScramCredential
    | RemoveScramCredential
    | CreateAcl
    | RemoveAcl
)

_decoder = msgspec.msgpack.Decoder(AnyChange)


def encode_change(change: Change) -> bytes:
    """The record value of a change."""
    return msgspec.msgpack.encode(change)


def decode_change(value: bytes) -> AnyChange:
    """The change in a record value; raises `msgspec.MsgspecError` if it is none."""
    try:
        change: AnyChange = _decoder.decode(value)
    except UnicodeDecodeError as error:  # msgspec lets it through
        raise msgspec.ValidationError(str(error)) from error
    return change
