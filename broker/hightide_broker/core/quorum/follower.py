"""A follower's (and an observer's) side of metadata replication: which fetch comes next. Pure.

One request is under way at a time, and none leaves while anything of the log is not synced: the
offset it carries is the acknowledgement of everything below. An answer counts only if its request
is still the one under way; a change of role or epoch forgets that request, and with it the half of
a snapshot that had arrived. Sources: KIP-595, KIP-630.
"""

from __future__ import annotations

from collections.abc import Sequence

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.core.quorum.divergence import last_common
from hightide_broker.core.quorum.leader import METADATA_TOPIC
from hightide_broker.core.quorum.membership import Membership
from hightide_broker.core.quorum.ready import (
    NOBODY,
    Answered,
    LogView,
    Ready,
    Sending,
    SnapshotId,
    SnapshotPiece,
)
from hightide_broker.core.quorum.roles import QuorumConfig

_NEVER = float("inf")
RETRY_MAX_S = 1.0


class QuorumFollower:
    """What is being fetched, and from whom."""

    def __init__(self, config: QuorumConfig, log: LogView, membership: Membership) -> None:
        self._config = config
        self._log = log
        self._membership = membership
        self._probes = 0
        self.leader_gone = False
        """Whether nobody listens any more where the leader was."""
        self.end()

    def end(self) -> None:
        """Ask nobody any more: there is no leader that is known, or it is another one."""
        self._source = NOBODY
        self._searching = False
        self._under_way: m.Message | None = None
        self._due = _NEVER
        self._failures = 0
        self._snapshot: SnapshotId | None = None
        self._position = 0
        self._has_fetched = False
        self.leader_gone = False
        self.leader_watermark = -1

    def begin(self, leader: int, now: float) -> None:
        """Follow a leader."""
        assert leader not in (NOBODY, self._config.node), f"no node can follow {leader} here"
        self.end()
        self._source, self._due = leader, now

    def search(self, now: float) -> None:
        """Ask one voter after the other who leads."""
        assert not self._membership.is_voter, "a voter is told who leads: it need not look around"
        self.end()
        self._searching, self._due = True, now

    @property
    def leader_is_well(self) -> bool:
        """Whether this leader has answered, and its process is not known to be dead."""
        return self._has_fetched and not self.leader_gone

    @property
    def wake_at(self) -> float:
        """When the next request is due."""
        is_waiting = self._under_way is not None or self._log.synced_end < self._log.log_end
        return _NEVER if is_waiting else self._due

    def begin_again(self, time: float) -> None:
        """What came could not be used: forget it, and ask nothing before `time`."""
        assert time < _NEVER, f"nothing more would be asked of {self._source}"
        self._snapshot, self._under_way = None, None
        self._due = max(self._due, time)

    def next_request(self, ready: Ready, epoch: int, high_watermark: int, now: float) -> None:
        """Send the next fetch, if it is time and the log is durable as it is."""
        is_changing = ready.append or ready.truncate_to is not None or ready.piece or ready.install
        if is_changing or now < self.wake_at:
            return
        assert self._under_way is None, f"{self._under_way} is not answered yet"
        assert self._log.synced_end == self._log.log_end, "what is asked for acknowledges all below"
        if self._searching:
            others = self._membership.sources
            if not others:
                self._due = _NEVER
                return
            self._source = others[self._probes % len(others)]
            self._probes += 1
        if self._snapshot is not None:
            request = self._snapshot_request(epoch)
        else:
            request = self._fetch_request(epoch, high_watermark)
        self._under_way = request
        ready.send.append(Sending(self._source, request))

    def _fetch_request(self, epoch: int, high_watermark: int) -> m.Message:
        return m.FetchRequest(
            max_wait_ms=self._config.fetch_wait_ms,
            max_bytes=self._config.fetch_bytes_max,
            replica_id=self._config.node,
            cluster_id=self._config.cluster_id,
            replica_directory=self._membership.directory,
            partitions=[
                m.FetchPartition(
                    topic=METADATA_TOPIC,
                    partition=0,
                    fetch_offset=self._log.log_end,
                    current_leader_epoch=epoch,
                    last_fetched_epoch=self._log.last_epoch,
                    max_bytes=self._config.fetch_bytes_max,
                    high_watermark=high_watermark,
                )
            ],
        )

    def _snapshot_request(self, epoch: int) -> m.Message:
        assert self._snapshot is not None
        return c.FetchSnapshotRequest(
            cluster_id=self._config.cluster_id,
            replica_id=self._config.node,
            replica_directory=self._membership.directory,
            current_leader_epoch=epoch,
            snapshot=m.EpochEnd(epoch=self._snapshot.epoch, end_offset=self._snapshot.end_offset),
            position=self._position,
            max_bytes=self._config.fetch_bytes_max,
        )

    # -- answers ---------------------------------------------------------------------------------

    def take(self, event: Answered) -> bool:
        """Whether this answers the request under way, which is over then."""
        if event.request is not self._under_way:
            return False
        assert event.peer == self._source, f"{event.peer} answers what {self._source} was asked"
        self._under_way = None
        return True

    def failed(self, now: float, *, gone: bool) -> None:
        """No answer, or no useful one: again, later and later."""
        assert self._under_way is None, f"{self._under_way} may yet be answered"
        pause = min(self._config.retry_backoff_s * 2**self._failures, RETRY_MAX_S)
        self._failures = min(self._failures + 1, 10)
        self._due = now + pause
        self.leader_gone = self.leader_gone or gone

    def verdict(self, response: m.Message) -> tuple[int, int, str | None]:
        """(leader, epoch, error) of an answer; a snapshot that is not there is dropped here."""
        if isinstance(response, c.FetchSnapshotResponse):
            if response.error in ("SNAPSHOT_NOT_FOUND", "POSITION_OUT_OF_RANGE"):
                self._snapshot = None
            return response.leader, response.epoch, response.error
        assert isinstance(response, m.FetchResponse), f"{response} to a fetch"
        if len(response.partitions) != 1 or response.partitions[0].current_leader is None:
            return NOBODY, -1, "no word of the leader"
        hint = response.partitions[0].current_leader
        return hint.leader, hint.leader_epoch, response.partitions[0].error

    def succeeded(self, event: Answered, ready: Ready, now: float, *, high_watermark: int) -> None:
        """Turn the leader's answer into duties."""
        self._failures, self._due = 0, now
        self._has_fetched, self.leader_gone = True, False
        if isinstance(event.response, c.FetchSnapshotResponse):
            if not self._take_piece(event.response, event.attachments, ready):
                self._snapshot, self._due = None, now + self._config.retry_backoff_s
            return
        assert isinstance(event.response, m.FetchResponse)
        result = event.response.partitions[0]
        if result.diverging_epoch is not None:
            ready.truncate_to = self._cut(result.diverging_epoch)
            assert ready.truncate_to >= high_watermark, (
                f"the leader would have {ready.truncate_to} cut, {high_watermark} is committed"
            )
        elif result.snapshot is not None:
            snapshot = SnapshotId(result.snapshot.end_offset, result.snapshot.epoch)
            assert snapshot.end_offset >= high_watermark, (
                f"snapshot {snapshot} of the leader ends below the watermark {high_watermark}"
            )
            self._snapshot, self._position = snapshot, 0
        else:
            # Only now this log is known to be a prefix of the leader's.
            self.leader_watermark = max(self.leader_watermark, result.high_watermark)
            if 0 <= result.records < len(event.attachments):
                ready.append = [event.attachments[result.records]]

    def _cut(self, diverging: m.EpochEnd) -> int:
        """Where this log and the leader's may still be the same."""
        found, end = self._log.end_offset_for(diverging.epoch)
        return max(last_common(diverging, found, end, self._log.log_end), self._log.log_start)

    def _take_piece(
        self, response: c.FetchSnapshotResponse, attachments: Sequence[memoryview], ready: Ready
    ) -> bool:
        """Keep the next piece; False if it is not that."""
        snapshot = self._snapshot
        if snapshot is None or response.position != self._position:
            return False
        if not 0 <= response.data < len(attachments) or not len(attachments[response.data]):
            return False
        data = attachments[response.data]
        if self._position + len(data) > response.size:
            return False
        ready.piece = SnapshotPiece(snapshot, self._position, data)
        self._position += len(data)
        if self._position >= response.size:
            ready.install, self._snapshot = snapshot, None
        return True
