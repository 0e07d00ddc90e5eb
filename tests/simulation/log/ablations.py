"""Each safeguard of a log's transactions, switched off from the test side: then a named invariant has to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from coordinator.log import (
    clean_end,
    cleaner,
    compaction,
    group_commit,
    partition,
    producer_snapshots,
    scan,
    truncation,
)
from coordinator.log.aborted import AbortedBatches
from coordinator.log.checkpoints import write_checkpoint, write_leader_epochs
from coordinator.log.compaction import OffsetMap
from coordinator.log.group_commit import Appender, GroupCommit
from coordinator.log.partition import PartitionLog
from coordinator.log.producers import Producers
from coordinator.log.segment import INDEX_SUFFIX
from coordinator.log.transactions import OpenTransactions
from protocol.kafka import conversion
from protocol.record_batch import Attributes, BatchHeader
from tests.simulation.log.history import LogHistory

SEEDS: Final = 300

Replace = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Ablation:
    """A safeguard that can be switched off, and which invariants see it."""

    safeguard: str
    where: Any
    attribute: str
    replace: Replace
    caught_by: tuple[str, ...]


def _stable_without_watermark(original: Any) -> Any:
    def last_stable_offset(transactions: OpenTransactions, high_watermark: int) -> int:
        return min([high_watermark, *(known.first_offset for known in transactions.open())])

    return last_stable_offset


def _forget_all(original: Any) -> Any:
    def forget(producers: Producers, count: int) -> None:
        original(producers, count)
        for state in producers._open.values():
            assert state.transaction is not None
            producers.transactions.end(state.transaction, state.transaction.first_offset)
        producers._open.clear()

    return forget


def _without_transactions(original: Any) -> Any:
    def snapshot_integers(snapshot: Any) -> Any:
        return original([(producer_id, state._replace(transaction=None)) for producer_id, state in snapshot])

    return snapshot_integers


def _without_kept_epochs(original: Any) -> Any:
    def encode_snapshot(snapshot: Any) -> Any:
        return original([(producer_id, state._replace(kept_epoch=-1)) for producer_id, state in snapshot])

    return encode_snapshot


def _forget_at_the_end(original: Any) -> Any:
    def end(producers: Producers, producer_id: int, epoch: int, offset: int) -> Any:
        ended = original(producers, producer_id, epoch, offset)
        if ended:
            producers._states.pop(producer_id, None)
        return ended

    return end


def _any_sequence(original: Any) -> Any:
    def find(producers: Producers, header: BatchHeader) -> Any:
        at_rest = header.producer_id in producers._states
        return None if header.kept_epoch >= 0 and at_rest else original(producers, header)

    return find


def _keep_unsettled(original: Any) -> Any:
    return lambda transactions: transactions._unsettled.clear()


def _keep_states(original: Any) -> Any:
    def undo(producers: Producers) -> None:
        producers.unsettled.clear()
        producers.transactions.undo()

    return undo


def _any_epoch(original: Any) -> Any:
    def end(producers: Producers, producer_id: int, epoch: int, offset: int) -> bool:
        return True  # what a marker ends is left as it is

    return end


def _high_watermark(original: Any) -> Any:
    def start_after_retention(
        segments: Any, config: Any, start_offset: int, last_stable_offset: int, now_ms: Any
    ) -> Any:
        return original(segments, config, start_offset, segments[-1].next_offset, now_ms)

    return start_after_retention


def _no_ends(original: Any) -> Any:
    return lambda batch, header: ()


def _unmarked(original: Any) -> Any:
    def append_ends(appender: Appender, ends: Any, now_ms: int) -> None:
        original(appender, ends, now_ms)
        appender.queue.chunks[-1].ends.clear()

    return append_ends


def _every_end(original: Any) -> Any:
    return lambda log, ends, epoch, now_ms: original(
        log, [(producer_id, known.epoch, committed) for producer_id, _, committed in ends
              if (known := log.open_transaction(producer_id))], epoch, now_ms,
    )  # fmt: skip


def _nothing(original: Any) -> Any:
    return lambda header: b""


def _as_it_lies(original: Any) -> Any:
    return lambda view, position, header: [view[position : position + header.length]]


def _first_offset_only(original: Any) -> Any:
    return lambda records, base_timestamp: original(_Dense(records), base_timestamp)


class _Dense:
    """Columns that do not tell of gaps between offsets."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._columns, name)

    def offset_deltas(self) -> Any:
        return range(self._columns.count)


def _forgiving(original: Any) -> Any:
    return lambda header, aborted: bool(header.attributes & Attributes.CONTROL)


def _superseding(original: Any) -> Any:
    def add(offsets: OffsetMap, header: Any, batch: Any, aborted: Any) -> None:
        original(offsets, header, batch)

    return add


def _shown(original: Any) -> Any:
    return lambda batches, attributes, producer_id, base_offset: False


def _checkpoint_last(original: Any) -> Any:
    def cut(storage: Any, directory: str, bases: Any, kept: Any, file: Any) -> None:
        with patch.object(truncation, "write_checkpoint", lambda *_: None):
            original(storage, directory, bases, kept, file)
        write_checkpoint(storage, directory, kept)

    return cut


def _producers_kept(original: Any) -> Any:
    def take_over(log: PartitionLog, recovered: Any) -> None:
        recovered.producers = getattr(log, "producers", recovered.producers)
        original(log, recovered)

    return take_over


def _epochs_last(original: Any) -> Any:
    def write(commit: GroupCommit) -> Any:
        segment = original(replace(commit, leader_epochs=None))
        if commit.leader_epochs is not None:
            write_leader_epochs(commit.storage, commit.directory, commit.leader_epochs)
        return segment

    return write


def _indexes_kept(original: Any) -> Any:
    return lambda storage, path: None if path.endswith(INDEX_SUFFIX) else original(storage, path)


def _whatever_is_closed(original: Any) -> Any:
    return lambda closed, config, last_stable_offset, now_ms: original(closed, config, 2**62, now_ms)


ABLATIONS: Final[dict[str, Ablation]] = {
    "stable_end_waits_for_the_disk": Ablation(
        "the last stable offset ignores markers above the high watermark",
        OpenTransactions, "last_stable_offset", _stable_without_watermark,
        ("the_stable_end_never_falls", "the_stable_end_is_that_of_the_list"),
    ),
    "open_producers_are_kept": Ablation(
        "producers with an open transaction are never forgotten",
        Producers, "forget", _forget_all,
        ("undecided_records_are_never_read", "the_stable_end_never_falls"),
    ),
    "snapshots_have_transactions": Ablation(
        "snapshots have the open transactions",
        producer_snapshots, "snapshot_integers", _without_transactions,
        ("recovered_logs_know_the_same_transactions",),
    ),
    "clean_ends_have_transactions": Ablation(
        "clean ends have the open transactions",
        clean_end, "snapshot_integers", _without_transactions,
        ("recovered_logs_know_the_same_transactions",),
    ),
    "who_numbers_on_is_remembered": Ablation(
        "a producer that keeps its epoch is remembered past its end marker",
        Producers, "end", _forget_at_the_end,
        ("who_keeps_an_epoch_numbers_on",),
    ),
    "snapshots_have_kept_epochs": Ablation(
        "snapshots have the epochs that producers keep",
        producer_snapshots, "encode_snapshot", _without_kept_epochs,
        ("who_keeps_an_epoch_numbers_on",),
    ),
    "the_next_transaction_follows_the_last_one": Ablation(
        "the first batch of a transaction follows the last one of a producer that keeps its epoch",
        Producers, "find", _any_sequence,
        ("who_keeps_an_epoch_numbers_on",),
    ),
    "undo_of_openings_and_ends": Ablation(
        "a refused write takes back openings and ends",
        OpenTransactions, "undo", _keep_unsettled,
        ("the_stable_end_is_that_of_the_list", "logs_know_their_open_transactions"),
    ),
    "undo_of_states": Ablation(
        "a refused write brings back the producers whose markers it had",
        Producers, "undo", _keep_states,
        ("logs_know_their_open_transactions", "nothing_fails_unexpectedly", "no_transaction_hangs"),
    ),
    "markers_end": Ablation(
        "a marker ends the transaction",
        Producers, "end", _any_epoch,
        ("logs_know_their_open_transactions",),
    ),
    "ends_are_of_their_epoch": Ablation(
        "a marker ends the transaction of its own epoch only",
        PartitionLog, "end_transactions", _every_end,
        ("markers_are_written_for_what_is_open",),
    ),
    "retention_stops_at_the_stable_end": Ablation(
        "retention stops at the last stable offset",
        partition, "start_after_retention", _high_watermark,
        ("offsets_keep_their_order", "transactions_are_whole"),
    ),
    "recovery_reads_markers": Ablation(
        "recovery decodes control batches",
        scan, "ends_in", _no_ends,
        ("recovered_logs_know_the_same_transactions",),
    ),
    "aborts_are_noted": Ablation(
        "what a control batch aborts is noted once it is written",
        Appender, "append_ends", _unmarked,
        ("aborted_records_are_never_read",),
    ),
    "compaction_removes_what_is_aborted": Ablation(
        "compaction removes aborted records with their markers",
        compaction, "goes", _forgiving,
        ("aborted_records_are_never_read", "transactions_are_whole"),
    ),
    "aborts_supersede_nothing": Ablation(
        "the map of keys ignores aborted batches",
        OffsetMap, "add", _superseding,
        ("aborts_supersede_nothing",),
    ),
    "reads_hide_what_is_aborted": Ablation(
        "reads of what is committed leave out aborted batches",
        AbortedBatches, "has", _shown,
        ("aborted_records_are_never_read",),
    ),
    "checkpoints_are_lowered_first": Ablation(
        "a truncation lowers the checkpoint before it cuts",
        truncation, "_cut", _checkpoint_last,
        ("the_log_is_never_damaged",),
    ),
    "indexes_of_what_is_cut_go_first": Ablation(
        "a truncation removes the index of the segment that becomes active",
        truncation, "_remove", _indexes_kept,
        ("the_log_is_never_damaged", "nothing_fails_unexpectedly"),
    ),
    "producers_are_made_anew": Ablation(
        "a truncation makes anew what is remembered of producers",
        PartitionLog, "_take_over", _producers_kept,
        ("recovered_logs_know_the_same_transactions", "logs_know_their_open_transactions"),
    ),
    "epochs_come_before_their_records": Ablation(
        "an epoch is on disk before its first record",
        group_commit, "write", _epochs_last,
        ("epochs_are_those_of_the_records",),
    ),
    "empty_batches_go_out": Ablation(
        "Kafka's clients get batches without records for offsets of which nothing is left",
        conversion, "_empty", _nothing,
        ("kafka_clients_are_told_all_offsets",),
    ),
    "offsets_keep_their_gaps": Ablation(
        "columns become Kafka batches with the gaps between their offsets",
        conversion, "records_of", _first_offset_only,
        ("all_readers_are_told_the_same",),
    ),
    "older_clients_get_columns": Ablation(
        "who does not say that it reads Kafka batches gets columns",
        conversion, "_columns", _as_it_lies,
        ("older_clients_get_columns",),
    ),
    "compaction_stops_at_the_stable_end": Ablation(
        "compaction cleans below the last stable offset only",
        cleaner, "cleanable", _whatever_is_closed,
        ("transactions_are_whole", "recovered_logs_know_the_same_transactions", "undecided_records_are_never_read"),
    ),
}  # fmt: skip


@contextmanager
def off(ablation: Ablation) -> Iterator[None]:
    """Without the safeguard."""
    replaced = ablation.replace(getattr(ablation.where, ablation.attribute))
    with patch.object(ablation.where, ablation.attribute, replaced):
        yield


def caught(name: str) -> tuple[int, LogHistory] | None:
    """The first seed, and its history, in which an invariant fails that watches the safeguard."""
    ablation = ABLATIONS[name]
    with off(ablation):
        for seed in range(SEEDS):
            history = LogHistory(seed)
            try:
                history.run()
            except AssertionError as error:
                history.broken.setdefault("nothing_fails_unexpectedly", []).append(repr(error))
            if set(history.broken) & set(ablation.caught_by):
                return seed, history
    return None
