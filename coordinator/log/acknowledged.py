"""What of a log is acknowledged: what is on this disk, and what is committed. With one replica that is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from coordinator.log.errors import LogError
from coordinator.log.group_commit import Appender
from coordinator.log.producers import Producers
from coordinator.log.progress import DurableCallback, Progress


class Leadership(Protocol):
    """What requests ask of the leader of a log that others have copies of."""

    @property
    def knows_high_watermark(self) -> bool:
        """Whether nothing above the high watermark was ever committed."""

    def has_enough_in_sync(self) -> bool:
        """Whether a write that asks for all replicas has a chance."""

    async def wait_deleted(self, offset: int) -> None:
        """Returns once what lies below ``offset`` will not come back with another leader. Raises ``NotLeaderError``."""


class Acknowledged:
    """The part of a ``PartitionLog`` that others wait for.

    Below ``flushed`` everything is on disk, as far as ``config.flush`` asks; below ``committed`` on that of every replica
    that is in sync. What appends and what it knows of producers is replaced whenever the files were changed.
    """

    producers: Producers
    _appender: Appender

    def __init__(self, end_offset: int) -> None:
        self.flushed = Progress(end_offset)
        self.committed = self.flushed
        self.leadership: Leadership | None = None
        """The leader's part where the log is replicated and this node leads; None on a single node."""

    @property
    def refusal(self) -> LogError | None:
        """Why nothing can be appended any more, None while it can."""
        return self._appender.refusal

    @property
    def refused_for_s(self) -> float:
        """For how long the disk has refused every write, seconds: from the first to the last of them; 0 when it took the
        last."""
        refused_s = self._appender.refused_s
        return 0.0 if refused_s is None else refused_s[1] - refused_s[0]

    @property
    def flushed_offset(self) -> int:
        """See ``flushed``."""
        return self.flushed.offset

    @property
    def high_watermark(self) -> int:
        """The offset behind the last committed record. It never falls unless the log is truncated."""
        return self.committed.offset

    @property
    def last_stable_offset(self) -> int:
        """Below it everything is committed and decided. It never falls, and moves with ``high_watermark``."""
        return self.producers.transactions.last_stable_offset(self.committed.offset)

    def readable_end(self, committed: bool) -> int:
        """Where reads end: at the high watermark, or with ``committed`` at the last stable offset."""
        return self.last_stable_offset if committed else self.committed.offset

    def commit_by(self, progress: Progress | None) -> None:
        """From now on ``progress`` is the high watermark, which ``commit_to`` moves; None: what is on disk is committed.

        What waits for a high watermark that was not the disk's goes on waiting for the new one.
        """
        before = self.committed
        self.committed = self._appender.committed = progress or self.flushed
        if before is not self.flushed:
            before.hand_over(self.committed)
        self.producers.transactions.acknowledge(self.committed.offset)

    def commit_to(self, offset: int) -> None:
        """The high watermark rises to ``offset``; one that is there or beyond stays."""
        if offset > self.committed.offset:
            if self.producers.transactions.unacknowledged:
                self.producers.transactions.acknowledge(offset)
            self.committed.advance(offset)

    def when_durable(self, offset: int, callback: DurableCallback) -> None:
        """Calls back on the loop, in order of offsets, once what lies below ``offset`` is on disk; at once if it is.

        The callback's argument is ``None``, or the ``LogError`` that kept it from happening.
        """
        if self._appender.refusal is not None and offset > self._appender.queue.end_offset:
            callback(self._appender.refusal)
        else:
            self.flushed.when_reached(offset, callback)

    def when_committed(self, offset: int, callback: DurableCallback, may_give_up: bool = False) -> None:
        """As ``when_durable``, once ``high_watermark >= offset``.

        With ``may_give_up`` the callback also hears of ``NotEnoughInSyncError``, at once; else it waits for replicas.
        """
        if self._appender.refusal is not None and offset > self._appender.queue.end_offset:
            callback(self._appender.refusal)
        else:
            self.committed.when_reached(offset, callback, may_give_up)

    async def wait_committed(self, offset: int) -> None:
        """Returns once ``high_watermark >= offset``. Raises the ``LogError`` that kept it from coming."""
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: Exception | None) -> None:
            if committed.done():
                return  # who waited was cancelled meanwhile
            if error is None:
                committed.set_result(None)
            else:
                committed.set_exception(error)

        self.when_committed(offset, tell)
        await committed

    def on_advance(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls ``listener`` after each move of the high watermark, with which the last stable offset moves, and of the log
        start offset; returns what removes it again, at any time.
        """
        return self.committed.on_advance(listener)

    def fail_waiters(self, error: Exception) -> None:
        """Tells all that wait for an acknowledgement that it will not come from here. The log itself goes on."""
        self.flushed.fail(error)
        if self.committed is not self.flushed:
            self.committed.fail(error)
