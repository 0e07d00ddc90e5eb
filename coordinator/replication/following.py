"""A partition that another node leads: the decisions of ``Follower`` carried out on the log, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator.log.checkpoints import ChecksumError
from coordinator.log.errors import LogError
from coordinator.log.following import ReplicatedBatch, replicated_batches
from coordinator.log.leader_epochs import NotAContinuationError
from coordinator.log.partition import PartitionLog
from coordinator.log.producer_snapshots import decode_snapshot
from coordinator.log.producers import Snapshot
from coordinator.log_output import get_logger
from coordinator.replication.fetch import FetchAnswer, FetchPartition
from coordinator.replication.follower import Follower
from coordinator.replication.leading import Surroundings
from coordinator.replication.log import AppendAsFollower, ResetTo, TruncateTo
from coordinator.replication.partition import ReplicationConfig
from protocol.errors import ProtocolError

log = get_logger()

_IN_THREAD_BYTES: Final = 256 * 1024
"""Records of an answer that are checked in a thread and not on the loop."""
_PAUSE_S: Final = 1.0
"""Before a leader is asked again whose answer could not be carried out."""


class Following:
    """Follows the leader of one epoch, from ``begin`` to ``end``."""

    def __init__(
        self,
        leader_epoch: int,
        opened: PartitionLog,
        config: ReplicationConfig,
        surroundings: Surroundings,
        on_asking: Callable[[], None],
        on_broken: Callable[[], None],
        *,
        caught_up_ms: int | None,
    ) -> None:
        """``on_asking`` is called when ``ask`` has something again, ``on_broken`` when the log has to be opened anew."""
        self.core = Follower(
            surroundings.me,
            leader_epoch,
            opened,
            config,
            high_watermark=opened.high_watermark,
            caught_up_ms=caught_up_ms,
        )
        self.me = surroundings.me
        self._log = opened
        self._surroundings = surroundings
        self._on_asking = on_asking
        self._on_broken = on_broken
        self._ended = False
        self._paused = False
        self._taking: asyncio.Future[None] | None = None

    def end(self) -> None:
        """The leader is followed no more; an order that is being carried out comes to its end (``wait_idle``)."""
        self._ended = True

    async def wait_idle(self) -> None:
        """Returns once no order is being carried out."""
        while self._taking is not None:
            await asyncio.wait((self._taking,))

    def ask(self) -> FetchPartition | None:
        """What to ask the leader; None while an order is being carried out, or something has to be waited for."""
        if self._ended or self._paused or self._taking is not None:
            return None
        return self.core.fetch(self._surroundings.wall_ms())

    async def take(self, answer: FetchAnswer) -> None:
        """Carries out what an answer orders; returns once ``ask`` has something again, or will not for a while."""
        if self._ended or self._paused or self._taking is not None:
            return
        self._taking = asyncio.get_running_loop().create_future()
        try:
            await self._carry_out(answer)
        except (NotAContinuationError, ProtocolError, LogError, OSError) as error:
            if not self._ended:
                log.error("answer_of_leader_not_applied", directory=self._log.directory, error=str(error))
                self._pause()
                if self._log.refusal is not None:
                    self._on_broken()
        except Exception:
            log.exception("answer_of_leader_not_applied", directory=self._log.directory)
            self._pause()
        finally:
            taking, self._taking = self._taking, None
            taking.set_result(None)

    def _pause(self) -> None:
        self._paused = True
        asyncio.get_running_loop().call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._paused = False
        if not self._ended:
            self._on_asking()

    async def _carry_out(self, answer: FetchAnswer) -> None:
        core, opened = self.core, self._log
        batches: list[ReplicatedBatch] = []
        if answer.records:
            if len(answer.records) > _IN_THREAD_BYTES:
                batches = await asyncio.get_running_loop().run_in_executor(None, replicated_batches, answer.records)
            else:
                batches = replicated_batches(answer.records)
        if self._ended:
            return
        current = core.is_current(answer)
        order = core.answered(answer, self._surroundings.wall_ms())
        if isinstance(order, AppendAsFollower):
            opened.append_as_follower(batches, order.epochs, self._surroundings.wall_ms())
            await self._flushed()
        elif order is not None:
            await self._give_up(order)
            return
        if not current or self._ended:
            return
        deletion = core.done(answer)
        opened.commit_to(core.high_watermark)
        if deletion is not None:
            await opened.begin_at(deletion.offset)

    async def _give_up(self, order: TruncateTo | ResetTo) -> None:
        """Other records come to these offsets: what was noted to be committed must not be believed of them."""
        before = self._log.high_watermark
        if isinstance(order, TruncateTo):
            await self._log.truncate_to(order.offset)
        else:
            await self._log.reset_to(order.offset, self._producers(order))
        if self._log.high_watermark < before or isinstance(order, ResetTo):
            await self._surroundings.note_high_watermarks()

    def _producers(self, order: ResetTo) -> Snapshot:
        try:
            return decode_snapshot(order.producers) if order.producers else ()
        except ChecksumError as error:  # of a newer node, perhaps
            log.warning("producers_of_leader_not_known", directory=self._log.directory, reason=str(error))
            return ()

    async def _flushed(self) -> None:
        """Until all that was appended is on disk, as far as the log's ``flush`` asks."""
        future: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._log.when_durable(self._log.end_offset, lambda error: None if future.done() else future.set_result(error))
        error = await future
        if error is not None:
            raise error
