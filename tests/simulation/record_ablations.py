"""Safeguards of records in particular: numbers of producers, what logs keep and delete. See ``ablations``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import coordinator.log.log_start_offset
import coordinator.log.producer_snapshots
import coordinator.log.recovery
import coordinator.log.retention
from client.consumer import Consumer
from client.producer.partition_queue import PartitionQueue
from client.producer.producer import Producer
from coordinator.filesystem.reserve import Reserve
from coordinator.log.checkpoints import write_checkpoint
from coordinator.log.clean_end import CleanEnd
from coordinator.log.compaction import BatchRewriter, OffsetMap
from coordinator.log.errors import (
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    ProducerStateError,
    UnknownProducerIdError,
)
from coordinator.log.group_commit import Appender
from coordinator.log.log_start_offset import LogStartOffset
from coordinator.log.partition import PartitionLog
from coordinator.log.producer_snapshots import encode_snapshot
from coordinator.log.producers import Producers
from coordinator.log.segment import LOG_SUFFIX, SWAP_SUFFIX, Segment
from tests.simulation.disk import SimStorage
from tests.simulation.record_facts import KEPT
from tests.simulation.safeguards import safeguard

_BURSTS: Final = ("producing_in_bursts",)
_ASTRAY: Final = ("requests_go_astray", "connections_reset")


@safeguard("the daemon looks for repetitions", "numbered_records_are_there_once", workloads=_BURSTS, faults=_ASTRAY)
def dedupe() -> Iterator[None]:
    original = Producers.find

    def forgetful(producers: Producers, header: Any) -> Any:
        original(producers, header)

    with patch.object(Producers, "find", forgetful):
        yield


def _lenient(refusal: type[ProducerStateError]) -> Any:
    """``Producers.find`` without one of its refusals."""
    original = Producers.find

    def find(producers: Producers, header: Any) -> Any:
        try:
            return original(producers, header)
        except refusal:
            return None

    return patch.object(Producers, "find", find)


@safeguard(
    "the daemon takes a producer's records in the order of their numbers only",
    "records_keep_their_order",
    "numbered_records_are_there_once",
    workloads=_BURSTS,
    faults=_ASTRAY,
)
def sequence_check() -> Iterator[None]:
    with _lenient(OutOfOrderSequenceError):
        yield


@safeguard(
    "records of an epoch that has been replaced are refused",
    "records_keep_their_order",
    "numbered_records_are_there_once",
    workloads=_BURSTS,
    faults=_ASTRAY,
)
def epoch_fence() -> Iterator[None]:
    with _lenient(InvalidProducerEpochError):
        yield


@safeguard(
    "a producer that is not known begins with 0",
    "records_keep_their_order",
    workloads=_BURSTS,
    faults=(*_ASTRAY, "client_is_killed"),
    fault_pause_s=0.3,
    producers=2,
    partitions=3,
)
def unknown_producers_begin_with_zero() -> Iterator[None]:
    with _lenient(UnknownProducerIdError):
        yield


@safeguard(
    "a producer sends no more than the daemon remembers",
    "numbered_records_fail_by_time_only",
    workloads=_BURSTS,
    faults=_ASTRAY,
)
def window_of_numbered_batches() -> Iterator[None]:
    with patch.object(PartitionQueue, "_fits_window", lambda *_: True):
        yield


@safeguard(
    "numbers of a write that failed are forgotten",
    "acknowledged_records_survive",
    workloads=_BURSTS,
    faults=("write_errors", "full_disk"),
)
def undo_of_refused_writes() -> Iterator[None]:
    with patch.object(Producers, "undo", lambda producers: producers.unsettled.clear()):
        yield


@safeguard(
    "what deletes has a reserve on a full disk",
    "full_disks_are_relieved",
    workloads=("keeping_little",),
    faults=("full_disk",),
)
def reserve_for_deletion() -> Iterator[None]:
    with patch.object(Reserve, "release_for", lambda *_: False):
        yield


@safeguard(
    "all batches that may come again are remembered through a restart",
    "numbered_records_fail_by_time_only",
    workloads=_BURSTS,
    faults=("requests_go_astray", "daemon_is_killed"),
)
def all_batches_in_snapshots() -> Iterator[None]:
    original = encode_snapshot

    def last_only(snapshot: Any) -> bytes:
        return original([(name, state._replace(batches=state.batches[-1:])) for name, state in snapshot])

    with patch.object(coordinator.log.producer_snapshots, "encode_snapshot", last_only):
        yield


# Logs that lose records by right


@contextmanager
def swap_by_removing_first() -> Iterator[None]:
    """A compacted segment takes its place after the old ones are gone, durably."""
    original = SimStorage.rename

    def removing_first(storage: SimStorage, source: str, target: str) -> None:
        if target.endswith(SWAP_SUFFIX):
            directory, _, name = target.rpartition("/")
            low, high = name.removesuffix(SWAP_SUFFIX).split("-")
            for known in storage.list(directory):
                if known.endswith(LOG_SUFFIX) and low <= known.removesuffix(LOG_SUFFIX) < high:
                    storage.remove(f"{directory}/{known}")
            storage.sync_directory(directory)
        original(storage, source, target)

    with patch.object(SimStorage, "rename", removing_first):
        yield


@safeguard(
    "a compacted log changes from the old to the new at once",
    "only_damaged_partitions_are_refused",
    "logs_have_no_gaps",
    "compaction_keeps_the_last_value_of_each_key",
    "acknowledged_records_stay_until_they_may_go",
    workloads=("keeping_the_last",),
    faults=("daemon_ends_while_it_compacts",),
)
def compaction_swap() -> Iterator[None]:
    with swap_by_removing_first():
        yield


@safeguard(
    "the last record of a key is not superseded",
    "compaction_keeps_the_last_value_of_each_key",
    workloads=("keeping_the_last",),
    faults=("daemon_is_killed",),
)
def last_records_of_keys() -> Iterator[None]:
    def superseded(offsets: OffsetMap, key: bytes, offset: int) -> bool:
        return offsets._last_offsets.get(key, -1) >= offset

    with patch.object(OffsetMap, "superseded", superseded):
        yield


@safeguard(
    "a compacted segment covers the offsets it covered",
    "logs_have_no_gaps",
    "fetches_are_answered_with_what_was_asked",
    workloads=("keeping_the_last",),
    faults=("daemon_is_killed",),
)
def compaction_leaves_no_gaps() -> Iterator[None]:
    with patch.object(BatchRewriter, "_cover", lambda rewriter, offset: iter(())):
        yield


@safeguard(
    "a segment is as old as its newest record",
    "retention_deletes_by_the_settings_only",
    workloads=("keeping_little",),
    faults=("daemon_is_killed",),
)
def age_of_the_newest_record() -> Iterator[None]:
    def oldest_ms(segment: Segment, now_ms: int) -> int:
        return now_ms if segment.first_ms < 0 else segment.first_ms

    with patch.object(coordinator.log.retention, "newest_ms", oldest_ms):
        yield


@safeguard(
    "a segment remembers the latest time of an append, not the last",
    "retention_deletes_by_the_settings_only",
    workloads=("keeping_little",),
    faults=("wall_clock_steps",),
)
def latest_append() -> Iterator[None]:
    original = Appender._written

    def last(appender: Appender, chunk: Any, segment: Segment) -> None:
        original(appender, chunk, segment)
        segment.last_ms = chunk.last_ms

    with patch.object(Appender, "_written", last):
        yield


@contextmanager
def _beginnings_in_memory() -> Iterator[None]:
    """The start of the log that is kept small moves for the life of a daemon only."""
    original = write_checkpoint

    def lazy(storage: Any, directory: str, checkpoint: Any) -> None:
        if not directory.startswith(KEPT):
            original(storage, directory, checkpoint)

    with patch.object(coordinator.log.log_start_offset, "write_checkpoint", lazy):
        yield


@safeguard(
    "the beginning of a log is on disk before anybody relies on it",
    "logs_never_begin_earlier",
    workloads=("keeping_little",),
    faults=("daemon_is_killed", "daemon_loses_power"),
)
def durable_beginning() -> Iterator[None]:
    async def later(start: LogStartOffset) -> None:
        """A log whose first segment is gone would be refused, and begin nowhere; see the next ablation."""

    with _beginnings_in_memory(), patch.object(LogStartOffset, "give_back", later):
        yield


@safeguard(
    "the beginning of a log is on disk before segments below it go",
    "only_damaged_partitions_are_refused",
    workloads=("keeping_little",),
    faults=("daemon_is_killed", "daemon_loses_power"),
)
def beginning_before_removal() -> Iterator[None]:
    with _beginnings_in_memory():
        yield


@safeguard(
    "what a clean stop has noted holds only for the log as it was then",
    "clean_ends_tell_what_a_scan_finds",
    "acknowledged_records_survive",
    workloads=("producing",),
    faults=("daemon_is_restarted", "daemon_is_killed", "daemon_loses_power"),
)
def clean_end_of_the_log_as_it_is() -> Iterator[None]:
    def believed(clean: CleanEnd, file: Any, base_offset: int, checkpoint: Any) -> bool:
        return clean.segment.base_offset == base_offset

    with patch.object(coordinator.log.recovery, "holds", believed):
        yield


@safeguard(
    "who reads below the beginning is told so",
    "fetches_are_answered_with_what_was_asked",
    workloads=("keeping_little",),
    faults=("daemon_is_killed",),
)
def reads_within_the_log() -> Iterator[None]:
    original = PartitionLog.read

    async def read(opened: PartitionLog, offset: int, max_bytes: int, committed: bool = False) -> bytes:
        return await original(opened, max(offset, opened.start_offset), max_bytes, committed)

    with patch.object(PartitionLog, "read", read):
        yield


# Cancelled calls


def _awaiting_afterwards(owner: type, name: str) -> Any:
    """A call with an await behind what it did, where it can be cancelled."""
    original = getattr(owner, name)

    async def call(*args: Any, **options: Any) -> Any:
        result = await original(*args, **options)
        await asyncio.sleep(0.001)
        return result

    return patch.object(owner, name, call)


@safeguard(
    "a send waits for nothing once its record is queued",
    "cancelled_sends_queue_nothing",
    workloads=("cancelling_producers",),
    faults=("connections_reset",),
)
def sends_queue_last() -> Iterator[None]:
    with _awaiting_afterwards(Producer, "send"):
        yield


@safeguard(
    "a poll waits for nothing once it has taken records",
    "consumers_skip_nothing",
    "every_acknowledged_record_is_read",
    workloads=("producing", "cancelling_consumers"),
    faults=("connections_reset",),
)
def polls_take_last() -> Iterator[None]:
    with _awaiting_afterwards(Consumer, "getmany"):
        yield
