"""End markers on their way into the participants of this node: the logs of partitions, and the shards of groups.

What transactions end in a partition during one turn of the loop makes one control batch, and the batches of all partitions
are handed to their logs in that turn, so that the disk is asked for all of them at once. Writing an end marker again, or
where the transaction is not open, appends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Final, Protocol

from coordinator.log.errors import LogError
from coordinator.log.partition import PartitionLog
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog
from coordinator.runtime.admission import Admission
from coordinator.runtime.leadership_proof import LeadershipProof
from coordinator.runtime.participants import ParticipantKey

log = get_logger()

WORK_PER_TURN: Final = 2_048
"""Ends of transactions that are handed to partitions in one turn of the loop, some 2 µs each."""

WORK_PER_PARTITION: Final = 32
"""What a partition costs beside its ends, counted in ends."""

End = tuple[int, int, bool]
"""How a transaction ended: producer id, epoch, and whether it committed."""


class MarkerReport(Protocol):
    """Is told what became of end markers in one partition: perhaps ``taken``, then one of the others, once."""

    def taken(self) -> None:
        """They are in the log or not needed there, and may not be on disk yet. What is written next comes after them."""

    def written(self) -> None:
        """They are on disk."""

    def gone(self) -> None:
        """The topic of this id has been deleted."""

    def refused(self, reason: str) -> None:
        """They could not be written."""


class GroupParticipants(Protocol):
    """The shards of groups on this node, by their partition of ``__consumer_offsets``."""

    def end_transactions(self, partition: int, ends: Sequence[End], report: MarkerReport) -> None:
        """Ends transactions in the shard of a partition; ``written`` is reported when that is on disk and applied."""


class _Batch:
    """What ends in one partition in this turn of the loop, and who is told of it."""

    __slots__ = ("ends", "reports")

    def __init__(self) -> None:
        self.ends: list[Sequence[End]] = []
        self.reports: list[MarkerReport] = []


class EndMarkers:
    """Writes end markers; see the module text."""

    def __init__(
        self,
        catalog: Catalog,
        logs: LogManager,
        groups: GroupParticipants,
        admission: Admission,
        wall_ms: Callable[[], int],
        proof: LeadershipProof | None = None,
    ) -> None:
        """``proof`` is that of a node in a cluster."""
        self._proof = proof
        self._catalog = catalog
        self._logs = logs
        self._groups = groups
        self._admission = admission
        self._wall_ms = wall_ms
        self._batches: dict[tuple[ParticipantKey, int], _Batch] = {}
        """By partition and coordinator's epoch."""
        self._loop = asyncio.get_running_loop()

    def write(self, key: ParticipantKey, ends: Sequence[End], coordinator_epoch: int, report: MarkerReport) -> None:
        """Ends transactions in one partition, later in this turn of the loop. ``report`` is not called before that."""
        if not self._batches:
            self._loop.call_soon(self._write_some)
        batch = self._batches.get((key, coordinator_epoch))
        if batch is None:
            batch = self._batches[key, coordinator_epoch] = _Batch()
        batch.ends.append(ends)
        batch.reports.append(report)

    def _write_some(self) -> None:
        left = WORK_PER_TURN
        for key, coordinator_epoch in tuple(islice(self._batches, WORK_PER_TURN // WORK_PER_PARTITION)):
            if left <= 0:
                break
            batch = self._batches.pop((key, coordinator_epoch))
            ends = batch.ends[0] if len(batch.ends) == 1 else list(chain.from_iterable(batch.ends))
            left -= WORK_PER_PARTITION + len(ends)
            report = _Reports(batch.reports)
            try:
                self._write(key, coordinator_epoch, ends, report)
            except Exception as error:  # of ours; it must not keep other partitions from their markers
                log.exception("end_markers_failed", topic=key[0], partition=key[2])
                report.refused(f"the daemon failed unexpectedly ({error!r}); its log has the cause")
        if self._batches:
            self._loop.call_soon(self._write_some)

    def _write(self, key: ParticipantKey, coordinator_epoch: int, ends: Sequence[End], report: _Reports) -> None:
        topic, topic_id, partition = key
        self._admission.marker(key, ends)
        if self._catalog.is_gone(topic, topic_id) or not 0 <= partition < len(self._catalog.topics[topic].partitions):
            self._gone(key, report)
            return
        if topic == OFFSETS_TOPIC:
            self._groups.end_transactions(partition, ends, report)
            return
        opened = self._logs.get(topic, partition)
        if opened is None:
            damage = self._logs.damage(topic, partition)
            report.refused(damage or f"{topic}-{partition} is not open at the moment")
        else:
            self._append(opened, key, coordinator_epoch, ends, report)

    def _gone(self, key: ParticipantKey, report: _Reports) -> None:
        """The topic is no more, or in a cluster: it is not known here yet."""
        if self._proof is None:
            report.gone()
            return

        def caught_up(failure: str) -> None:
            if failure or not self._catalog.is_gone(key[0], key[1]):
                report.refused(failure or f"{key[0]}-{key[2]} was not known here yet")
            else:
                report.gone()

        self._proof.catch_up(caught_up)

    def _append(
        self, opened: PartitionLog, key: ParticipantKey, coordinator_epoch: int, ends: Sequence[End], report: _Reports
    ) -> None:
        try:
            offset = opened.end_transactions(ends, coordinator_epoch, self._wall_ms())
        except LogError as error:
            report.refused(str(error))
            return

        def told(error: Exception | str | None) -> None:
            if not error:
                report.written()
            elif self._catalog.is_gone(key[0], key[1]):
                report.gone()
            else:
                report.refused(str(error))

        report.taken()
        if self._proof is not None and opened.high_watermark >= offset:  # nothing was appended
            self._proof.confirm(key[0], key[2], told)
        else:
            opened.when_committed(offset, told)


class _Reports:
    """Tells all that asked for a part of one batch."""

    __slots__ = ("_reports",)

    def __init__(self, reports: list[MarkerReport]) -> None:
        self._reports = reports

    def taken(self) -> None:
        """See ``MarkerReport``."""
        for report in self._reports:
            report.taken()

    def written(self) -> None:
        """See ``MarkerReport``."""
        for report in self._reports:
            report.written()

    def gone(self) -> None:
        """See ``MarkerReport``."""
        for report in self._reports:
            report.gone()

    def refused(self, reason: str) -> None:
        """See ``MarkerReport``."""
        for report in self._reports:
            report.refused(reason)
