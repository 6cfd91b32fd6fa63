"""The active controller: runs decisions one after the other, and answers once they are committed.

A decision reads the image as of everything appended so far, its changes go to the metadata log and
into that image in the same stretch, and its reply is parked until they are committed: nobody
is ever told what might still be lost.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial

import trio

from hightide import controller_messages as c
from hightide import messages as m
from hightide.errors import ErrorCode, Refused
from hightide.ports import Random
from hightide_broker.config import BrokerConfig
from hightide_broker.core.changes import RegisterBroker
from hightide_broker.core.controller import Controller, Decision
from hightide_broker.core.image import ClusterImage
from hightide_broker.runtime.quorum import MetadataLog
from hightide_broker.runtime.syncer import Syncer


def random_id(random: Random) -> str:
    """A 16-byte id in base64url, 22 characters, that does not begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(random.randbytes(16)).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


class ControllerShell:
    """The controller of this node."""

    def __init__(
        self,
        log: MetadataLog,
        syncer: Syncer,
        *,
        cluster_id: str,
        config: BrokerConfig,
        random: Random,
    ) -> None:
        self._log = log
        self._syncer = syncer
        self._random = random
        self._timeout_s = config.seconds("request.timeout.ms")
        self._image = ClusterImage()
        for offset, change in log.changes(0):
            self._image.replay(change, offset)
        self._core = Controller(
            self._image,
            cluster_id=cluster_id,
            default_partitions=config.number("num.partitions"),
            default_replication=config.number("default.replication.factor"),
        )

    async def submit(self, request: m.Message) -> tuple[m.Message, int]:
        """Decide, append, wait for commit; the reply and the metadata offset it holds at.

        Raises `Refused`, also REQUEST_TIMED_OUT when the changes do not commit in time.
        """
        decision = self._decide(request)
        reply = decision.reply
        if decision.changes:
            first = self._log.append(decision.changes)
            for number, change in enumerate(decision.changes):
                self._image.replay(change, first + number)
                if isinstance(change, RegisterBroker):
                    reply = c.RegisterBrokerResponse(broker_epoch=first + number)
            self._syncer.mark(self._log)
        end = self._log.log_end
        with trio.move_on_after(self._timeout_s):
            await self._log.committed.wait_for(end)
            return reply, end
        raise Refused(
            ErrorCode.REQUEST_TIMED_OUT,
            f"the change did not commit within request.timeout.ms={self._timeout_s * 1000:.0f}; "
            f"it may still take effect",
        )

    def _decide(self, request: m.Message) -> Decision:
        core = self._core
        new_id: Callable[[], str] = partial(random_id, self._random)
        match request:
            case c.RegisterBrokerRequest():
                return core.register_broker(request)
            case c.BrokerHeartbeatRequest():
                return core.broker_heartbeat(request)
            case m.CreateTopicsRequest():
                return core.create_topics(request, new_id=new_id, shift=self._random.randrange)
            case m.DeleteTopicsRequest():
                return core.delete_topics(request)
            case m.CreatePartitionsRequest():
                return core.create_partitions(request, shift=self._random.randrange)
            case m.AlterConfigsRequest():
                return core.alter_configs(request)
            case c.AllocateProducerIdsRequest():
                return core.allocate_producer_ids(request)
        name = type(request).__name__
        raise Refused(ErrorCode.INVALID_REQUEST, f"{name} is no request to a controller")
