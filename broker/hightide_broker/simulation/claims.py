"""What can be said in a node's name, each as that node would say it, as far as anybody can see.

Who is believed has a vote, an acknowledgement, a lease, a place in an ISR that is not his: each of
these breaks a promise of the cluster, sooner or later.
"""

from __future__ import annotations

import msgspec

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_REQUEST
from hightide_broker.core.cluster.image import BrokerState, ClusterImage
from hightide_broker.core.quorum.leader import METADATA_TOPIC
from hightide_broker.runtime.quorum.driver import QuorumDriver
from hightide_broker.simulation.world import CLUSTER_ID, PORT


def about_the_quorum(heard_by: QuorumDriver, name: int) -> list[m.Message]:
    """What a voter says to another one: that it stands, leads, leads no more, or has everything."""
    core, log = heard_by.core, heard_by.metadata
    voter, directory = heard_by.node, core.config.directory
    return [
        c.VoteRequest(
            cluster_id=CLUSTER_ID,
            voter=voter,
            voter_directory=directory,
            candidate=name,
            epoch=core.epoch + 1,
            last_epoch=log.last_epoch,
            log_end=log.log_end,
        ),
        c.BeginQuorumEpochRequest(
            cluster_id=CLUSTER_ID,
            voter=voter,
            voter_directory=directory,
            leader=name,
            epoch=core.epoch + 1,
        ),
        c.EndQuorumEpochRequest(
            cluster_id=CLUSTER_ID,
            voter=voter,
            voter_directory=directory,
            leader=name,
            epoch=core.epoch,
            successors=[voter],
        ),
        _acknowledgement(heard_by, name),
    ]


def _acknowledgement(heard_by: QuorumDriver, name: int) -> m.FetchRequest:
    """A fetch of what comes behind everything: who asks for that has the rest."""
    core, log = heard_by.core, heard_by.metadata
    part = m.FetchPartition(
        topic=METADATA_TOPIC,
        partition=0,
        current_leader_epoch=core.epoch,
        last_fetched_epoch=log.last_epoch,
        fetch_offset=log.log_end,
    )
    return m.FetchRequest(
        max_wait_ms=0,
        partitions=[part],
        replica_id=name,
        cluster_id=CLUSTER_ID,
        replica_directory=core.membership.directory_of(name),
    )


def to_the_controller(image: ClusterImage, name: int) -> list[m.Message]:
    """What a broker asks the active controller for, as other nodes pass it on; nothing in the name
    of one that is none."""
    known = image.brokers.get(name)
    if known is None:
        return []
    epoch, seen = known.epoch, image.offset
    asked: list[m.Message] = [
        _registration(known),
        c.BrokerHeartbeatRequest(broker=name, broker_epoch=epoch, metadata_offset=seen),
        c.BrokerHeartbeatRequest(
            broker=name, broker_epoch=epoch, metadata_offset=seen, want_fence=True
        ),
        c.AlterPartitionRequest(
            broker=name, broker_epoch=epoch, partitions=_all_in_sync(image, name)
        ),
        c.AllocateProducerIdsRequest(broker=name, broker_epoch=epoch),
    ]
    return [_passed_on(request) for request in asked]


def _registration(known: BrokerState) -> c.RegisterBrokerRequest:
    """As another process on the same disk."""
    return c.RegisterBrokerRequest(
        broker=known.broker,
        incarnation=f"not-{known.incarnation}",
        cluster_id=CLUSTER_ID,
        host=known.host,
        port=PORT,
        directory=known.directory,
        previous_broker_epoch=known.epoch,
        features=dict(known.features),
    )


def _all_in_sync(image: ClusterImage, leader: int) -> list[c.AlterPartition]:
    """Of each partition that it leads, all replicas, however much of it they have."""
    return [
        c.AlterPartition(
            topic_id=topic.topic_id,
            partition=number,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            isr=list(state.replicas),
        )
        for topic in image.topics.values()
        for number, state in enumerate(topic.partitions)
        if state.leader == leader
    ]


def _passed_on(request: m.Message) -> c.EnvelopeRequest:
    """As a node passes a request of its own on to the controller."""
    body = msgspec.Raw(msgspec.msgpack.encode(request))
    return c.EnvelopeRequest(api=API_BY_REQUEST[type(request)].name, body=body)
