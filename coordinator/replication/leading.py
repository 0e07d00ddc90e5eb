"""A partition that this node leads: the decisions of ``Leader`` carried out on the log.

What happens to the log is told to the leader, and its high watermark to the log. Followers' sessions ask here what there is
to send, DeleteRecords whether it is done everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from coordinator.log.compaction import tail_of
from coordinator.log.errors import LogError, NotEnoughInSyncError, NotLeaderError
from coordinator.log.partition import PartitionLog
from coordinator.log_output import get_logger
from coordinator.replication.fetch import FetchAnswer, FetchPartition
from coordinator.replication.leader import Leader, Proposal
from coordinator.replication.partition import Incarnation, LiveNode, PartitionRegistration, ReplicationConfig
from protocol.errors import ProtocolError
from protocol.record_batch import iter_batches, read_header

log = get_logger()

UNHEARD_MS: Final = 5_000
"""A leader that hears no in-sync replica for so long, while the metadata shows them alive, hands over to one of them."""
_LEAST_UNHEARD_MS: Final = 2_000
"""Followers fetch twice a second, and a loop may stall."""
_OVER: Final = "this node does not lead the partition any more"
_UNREADABLE_S: Final = 1.0
"""How long followers are given nothing of a log that could not be read."""


def unheard_ms(replica_lag_time_max_ms: int) -> int:
    """How long a leader waits to hear of a follower: less than followers may lag, or it would take some of them out of the
    in-sync replicas first, and the next leader would have to wait for this one to lag."""
    return min(UNHEARD_MS, max(replica_lag_time_max_ms // 2, _LEAST_UNHEARD_MS))


class Surroundings(Protocol):
    """What the replicas of a node have in common."""

    @property
    def me(self) -> Incarnation:
        """This node as it is registered."""

    @property
    def live(self) -> Mapping[int, LiveNode]:
        """The nodes that live, as the metadata has it."""

    def now_ms(self) -> int:
        """The loop's clock."""

    def wall_ms(self) -> int:
        """The wall clock."""

    def propose(self, leading: Leading) -> None:
        """The in-sync replicas of a partition may have to change."""

    async def note_high_watermarks(self) -> None:
        """Writes down what is known to be committed: one of the replicas knows less now than was noted, perhaps."""


class Leading:
    """Leads from the moment on when the log has begun the epoch of ``registration``. ``end`` it before anything else."""

    def __init__(
        self,
        topic_id: str,
        index: int,
        opened: PartitionLog,
        registration: PartitionRegistration,
        partition_epoch: int,
        config: ReplicationConfig,
        surroundings: Surroundings,
        on_news: Callable[[], None],
    ) -> None:
        self.topic_id = topic_id
        self.index = index
        self.core = Leader(
            surroundings.me,
            registration,
            partition_epoch,
            opened,
            config,
            surroundings.now_ms(),
            high_watermark=opened.high_watermark,
        )
        self.registration = registration
        self.partition_epoch = partition_epoch
        self.log = opened
        self._surroundings = surroundings
        self._on_news = on_news
        self._unreadable_until = 0.0
        self._ended = False
        self._deletions: list[tuple[int, asyncio.Future[None]]] = []
        self.began_ms = surroundings.now_ms()
        self._unheard_ms = unheard_ms(config.replica_lag_time_max_ms)
        self._stops = [opened.flushed.on_advance(self._advance), opened.on_advance(on_news)]
        self._listen()
        opened.leadership = self
        opened.commit_to(self.core.high_watermark)
        surroundings.propose(self)

    def observe(self, registration: PartitionRegistration, partition_epoch: int) -> None:
        """The metadata says something else about the partition, in this epoch."""
        self.registration, self.partition_epoch = registration, partition_epoch
        self.core.observe(registration, partition_epoch)
        self._listen()
        self._advance()
        self._settle_deletions()
        self._surroundings.propose(self)

    def end(self) -> None:
        """Another leads, or none: nothing is taken from this leader any more."""
        self._ended = True
        for stop in self._stops:
            stop()
        self.log.when_written(None)
        self.log.leadership = None
        deletions, self._deletions = self._deletions, []
        for _, future in deletions:
            if not future.done():
                future.set_exception(NotLeaderError(_OVER))

    def _listen(self) -> None:
        followed = len(self.registration.replicas) + len(self.registration.adding) > 1
        self.log.when_written(self._on_news if followed else None, self._before_append if followed else None)

    def _before_append(self) -> None:
        self.core.appended(self.log.written_offset, self._surroundings.now_ms())

    def _advance(self) -> None:
        if not self._ended:
            self.core.advance()
            self.log.commit_to(self.core.high_watermark)

    # Followers

    def acknowledged(self, request: FetchPartition) -> FetchAnswer | None:
        """See ``Leader.acknowledged``. What a follower acknowledges thereby is committed when this returns."""
        surroundings = self._surroundings
        refusal = self.core.acknowledged(request, surroundings.live, surroundings.now_ms())
        self.log.commit_to(self.core.high_watermark)
        node, broker_epoch = request.follower
        if self.core.isr.get(node) != broker_epoch:
            surroundings.propose(self)
        if self._deletions:
            self._settle_deletions()
        return refusal

    def has_news(self, request: FetchPartition, told: FetchAnswer | None) -> bool:
        """Whether there is something that the follower has not been told."""
        if asyncio.get_running_loop().time() < self._unreadable_until:
            return False
        if told is None or request.fetch_offset < max(self.core.readable_end, self.log.start_offset):
            return True
        return (
            (self.core.knows_high_watermark and self.core.high_watermark > told.high_watermark)
            or self.log.start_offset > told.log_start_offset
            or self.log.clean_until > told.clean_until
        )

    def readable_bytes(self, offset: int, max_bytes: int) -> int:
        """How many bytes an answer from ``offset`` on would have, about, within a bound."""
        if asyncio.get_running_loop().time() < self._unreadable_until:
            return 0
        return min(self.log.bytes_from(offset, end_offset=self.core.readable_end)[0], max_bytes)

    def just_written(self, offset: int, max_bytes: int) -> tuple[bytes, tuple[tuple[int, int], ...]]:
        """As ``read``, of what is at hand because it is being synced; nothing when it has to be read from the disk."""
        data = b"" if self._ended else self.log.just_written(offset, max_bytes)
        return (data, self.log.epochs.within(offset, self.log.written_offset)) if data else (b"", ())

    async def read(
        self, offset: int, max_bytes: int, *, checks_bodies: bool = False
    ) -> tuple[bytes, tuple[tuple[int, int], ...]]:
        """Whole batches that begin at exactly ``offset``, and the epochs of these offsets; nothing when that cannot be.

        With ``checks_bodies`` also nothing when the body of a batch is damaged.
        """
        opened = self.log
        try:
            data = await opened.read(offset, max_bytes, end_offset=self.core.readable_end)
            if checks_bodies:
                await opened.check_bodies(data)
            if data and (first := read_header(data)).base_offset < offset:
                joined = data[: first.length]
                tail = asyncio.get_running_loop().run_in_executor(None, tail_of, joined, offset)  # it is decoded
                data = await tail + data[first.length :]
        except (LogError, OSError, ProtocolError, ModuleNotFoundError) as error:
            if not self._ended:
                log.error("log_not_read_for_follower", directory=opened.directory, offset=offset, error=str(error))
                loop = asyncio.get_running_loop()
                self._unreadable_until = loop.time() + _UNREADABLE_S
                loop.call_later(_UNREADABLE_S, self._on_news)
            return b"", ()
        return (b"", ()) if self._ended or not data else self._with_epochs(offset, data)

    def _with_epochs(self, offset: int, data: bytes) -> tuple[bytes, tuple[tuple[int, int], ...]]:
        *_, (_, last) = iter_batches(data)
        return data, self.log.epochs.within(offset, last.next_offset)

    # In-sync replicas

    def propose(self) -> Proposal | None:
        """See ``Leader.propose``. It is asked whenever who is in sync may have changed."""
        if self._ended:
            return None
        self._give_up_waiting()
        return self.core.propose(self._surroundings.live, self._surroundings.now_ms())

    def _give_up_waiting(self) -> None:
        """Producers that wait are told when too few are in sync: nothing is committed until others come back."""
        committed = self.log.committed
        if not committed.has_waiters or self.has_enough_in_sync():
            return
        registration = self.registration
        committed.give_up(
            NotEnoughInSyncError(
                f"too few of its {len(registration.replicas)} replicas are in sync while the records waited for them; "
                f"acks=all needs {registration.min_isr} (min.insync.replicas). The records are in the leader's log"
            )
        )

    def proposal_ended(self) -> None:
        """See ``Leader.proposal_ended``."""
        self.core.proposal_ended()

    @property
    def knows_high_watermark(self) -> bool:
        """See ``Leader.knows_high_watermark``."""
        return self.core.knows_high_watermark

    def has_enough_in_sync(self) -> bool:
        """See ``Leader.has_enough_in_sync``."""
        return self.core.has_enough_in_sync(self._surroundings.live, self._surroundings.now_ms())

    def is_cut_off(self, unheard: Collection[int]) -> bool:
        """Whether this leader hears of no other replica that is in sync, while the metadata shows all of them alive."""
        me = self._surroundings.me
        others = [node for node in self.core.isr if node != me.node]
        if not others or not all(node in unheard for node in others):
            return False
        return self._surroundings.now_ms() - self.began_ms >= self._unheard_ms

    # Deleted records

    async def wait_deleted(self, offset: int) -> None:
        """Returns once no later leader brings back what lies below ``offset``. Raises ``NotLeaderError``."""
        if self._ended:
            raise NotLeaderError(_OVER)
        if not self.core.is_deleted(offset):
            future = asyncio.get_running_loop().create_future()
            self._deletions.append((offset, future))
            await future

    def _settle_deletions(self) -> None:
        waiting, self._deletions = self._deletions, []
        for offset, future in waiting:
            if future.done():
                continue
            if self.core.is_deleted(offset):
                future.set_result(None)
            else:
                self._deletions.append((offset, future))
