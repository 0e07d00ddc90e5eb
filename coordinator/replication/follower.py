"""The follower's side of a partition in one leader epoch: what to ask, and what to do with an answer.

Between two calls the shell carries out what was ordered. One order is under way at a time, and none of a former epoch.
"""

from __future__ import annotations

from coordinator.log.leader_epochs import NO_EPOCH
from coordinator.replication.fetch import FetchAnswer, FetchError, FetchPartition
from coordinator.replication.log import AppendAsFollower, DeleteBefore, Log, Order, ResetTo, TruncateTo
from coordinator.replication.partition import Incarnation, ReplicationConfig


class Follower:
    """Follows the leader of one epoch. ``caught_up_ms`` is when, in wall time, it last had everything committed."""

    def __init__(
        self,
        me: Incarnation,
        leader_epoch: int,
        log: Log,
        config: ReplicationConfig,
        *,
        high_watermark: int = 0,
        caught_up_ms: int | None = None,
    ) -> None:
        self.leader_epoch = leader_epoch
        self.high_watermark = min(high_watermark, log.end_offset)
        self.caught_up_ms = caught_up_ms
        self._me = me
        self._log = log
        self._config = config
        self._clean_at_start = -1
        """Up to where the leader's log was compacted when this one had nothing and began to copy it; -1: it did not."""
        self._asked: tuple[int, int, int] | None = None
        """Offset and last epoch that were asked with, and when for the first time: an answer may be to any of the same."""

    def fetch(self, now_ms: int) -> FetchPartition | None:
        """What to ask the leader; None while something that the log has is not on disk.

        Also None when the log has an epoch above this one: then the metadata is behind, and so is who leads by it.
        """
        log = self._log
        acknowledged = self._acknowledged()
        if acknowledged != log.end_offset or log.epochs.latest > self.leader_epoch:
            return None
        last_epoch = self._last_epoch()
        if self._asked is None or self._asked[:2] != (acknowledged, last_epoch):
            self._asked = (acknowledged, last_epoch, now_ms)
        return FetchPartition(self._me, self.leader_epoch, acknowledged, last_epoch, log.start_offset)

    def _acknowledged(self) -> int:
        return self._log.flushed_offset

    def _last_epoch(self) -> int:
        """The epoch of the last record. One that a leader began and never wrote in does not count."""
        log = self._log
        return log.epochs.at(log.end_offset - 1) if log.end_offset > log.start_offset else NO_EPOCH

    def is_current(self, answer: FetchAnswer) -> bool:
        """Whether an answer is about the log as it is now.

        The offset alone does not tell: a second copy of an answer that said the logs differ, applied when the log has come
        back to that length with other records, would cut what was acknowledged meanwhile.
        """
        return (
            answer.leader_epoch == self.leader_epoch
            and answer.broker_epoch == self._me.broker_epoch
            and answer.fetch_offset == self._log.end_offset
            and answer.last_epoch == self._last_epoch()
        )

    def answered(self, answer: FetchAnswer, now_ms: int) -> Order | None:
        """What the log has to do; None if nothing. ``now_ms`` is wall time. ``done`` is to be called when it is done."""
        log = self._log
        if not self.is_current(answer) or log.flushed_offset != log.end_offset:
            return None
        if answer.error_code == FetchError.OFFSET_OUT_OF_RANGE:
            return self._reset(answer, now_ms)
        if answer.error_code != FetchError.NONE:
            return None  # the metadata of one of the two is behind, and a delta will tell
        if answer.diverging_end >= 0:
            return self._truncate(answer, now_ms)
        if log.start_offset == log.end_offset:
            self.caught_up_ms = now_ms if self._asked is None else self._asked[2]  # what holds nothing misses nothing
            self._clean_at_start = answer.clean_until
        elif self._misses_tombstones(answer, now_ms):
            return self._reset(answer, now_ms)
        return AppendAsFollower(answer.records, answer.epochs) if answer.records else None

    def done(self, answer: FetchAnswer) -> DeleteBefore | None:
        """What an answer told beside its records, once those are written; also for one without. The log may begin later.

        Until the logs are known to agree the leader's high watermark says nothing about this one.
        """
        log = self._log
        if answer.error_code is not FetchError.NONE or answer.diverging_end >= 0:
            return None
        self.high_watermark = max(self.high_watermark, min(answer.high_watermark, log.end_offset))
        if 0 <= answer.high_watermark <= answer.fetch_offset and self._asked is not None:
            self.caught_up_ms = self._asked[2]  # the answer was made later
        start = min(answer.log_start_offset, log.end_offset)
        return DeleteBefore(start) if start > log.start_offset else None

    def _truncate(self, answer: FetchAnswer, now_ms: int) -> Order:
        own = self._log.epochs.end_of(answer.diverging_epoch, self._log.end_offset)
        offset = self._truncation_offset(answer.diverging_end, own.end)
        if offset < self._log.start_offset:
            return self._reset(answer, now_ms)
        self.high_watermark = min(self.high_watermark, offset)
        return TruncateTo(offset)

    def _truncation_offset(self, diverging_end: int, own_end: int) -> int:
        """No further than both logs may agree; the next fetch asks again with the epoch that is last then."""
        return min(diverging_end, own_end)

    def _reset(self, answer: FetchAnswer, now_ms: int) -> ResetTo:
        """Copies the leader's log from its start. From now on it misses no tombstone."""
        self.high_watermark = answer.log_start_offset
        self.caught_up_ms = now_ms
        self._clean_at_start = answer.clean_until
        return ResetTo(answer.log_start_offset, answer.producers)

    def _misses_tombstones(self, answer: FetchAnswer, now_ms: int) -> bool:
        """Whether records may have been deleted and their tombstones removed since this replica had everything.

        A pass that removes something moves ``clean_until``. While that stays where it was when the copy began, nothing has
        gone meanwhile, however long copying takes and however short ``delete.retention.ms`` is.
        """
        if answer.fetch_offset >= answer.clean_until or answer.clean_until == self._clean_at_start:
            return False
        return self.caught_up_ms is None or now_ms - self.caught_up_ms >= self._config.delete_retention_ms
