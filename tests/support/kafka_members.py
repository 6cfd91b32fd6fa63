"""What members of groups say in two Kafka clients, as judges of what is said here."""

import warnings

from aiokafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyAssignorUserDataV1 as AioSticky,
)
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment as AioAssignment
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata as AioSubscription

with warnings.catch_warnings():
    # kafka-python reads its schemas, when it is imported, in a way that Python no longer likes.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData as Sticky
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as Assignment
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as Subscription

__all__ = [
    "AioAssignment",
    "AioSticky",
    "AioSubscription",
    "Assignment",
    "Sticky",
    "Subscription",
]
