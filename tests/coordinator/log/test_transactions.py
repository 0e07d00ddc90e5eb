"""The open transactions of a partition: what opens and ends them, what they refuse, and the last stable offset."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.filesystem.files import FileStorage
from coordinator.log.aborted import AbortedTransaction
from coordinator.log.config import LogConfig
from coordinator.log.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    LogClosedError,
    LogWriteError,
    OffsetNotInLogError,
    OutOfOrderSequenceError,
    ProducerStateError,
    UnknownProducerIdError,
)
from coordinator.log.partition import PartitionLog
from coordinator.log.producer_snapshots import decode_snapshot, encode_snapshot
from coordinator.log.producers import MAX_PRODUCERS, Producers
from coordinator.log.transactions import OpenTransaction, OpenTransactions
from coordinator.logs.producer_limit import forget_above
from protocol.control_batch import TransactionEnd, decode_control_batch
from protocol.record_batch import Attributes, BatchHeader, encode_batch, read_header
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import batches_in, opened, outcome

Batch = tuple[bytes, BatchHeader]

A, B = 7, 8


def batch(
    producer_id: int = A, first: int = 0, *, epoch: int = 0, count: int = 1, transactional: bool = True, ms: int = 5
) -> Batch:
    content = encode_batch(
        [b"v"] * count, timestamps_ms=[ms] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=first
    )
    header = read_header(content)
    if transactional:
        header = replace(header, attributes=header.attributes | Attributes.TRANSACTIONAL)
    return header.pack() + content[80:], header


def plain(count: int = 1) -> Batch:
    content = encode_batch([b"p"] * count, timestamps_ms=[5] * count)
    return content, read_header(content)


def commit(log: PartitionLog, producer_id: int = A, epoch: int = 0) -> int:
    return log.end_transactions([(producer_id, epoch, True)], 3, 100)


# The pure parts

events = st.lists(
    st.tuples(st.sampled_from(["open", "end", "settle", "acknowledge", "undo", "plain"]), st.integers(0, 5)),
    max_size=60,
)


@given(events)
def test_whatever_happens_open_transactions_are_those_of_a_plain_list(steps: list[tuple[str, int]]) -> None:
    """Against a list of events of which the settled ones count for good."""
    transactions = OpenTransactions()
    settled: list[tuple[str, int, int]] = []  # what, offset, first offset
    pending: list[tuple[str, int, int]] = []
    offset = written = watermark = lowest = 0

    def still_open(done: list[tuple[str, int, int]]) -> list[int]:
        ended = {first for what, _, first in done if what == "end"}
        return [first for what, _, first in done if what == "open" and first not in ended]

    for step, number in steps:
        now_open = still_open(settled + pending)
        if step == "open":
            transactions.note(OpenTransaction(offset, 0, offset, 0))
            pending.append(("open", offset, offset))
            offset += 1
        elif step == "end" and now_open:
            first = now_open[number % len(now_open)]
            transactions.end(OpenTransaction(first, 0, first, 0), offset)
            pending.append(("end", offset, first))
            offset += 1
        elif step == "plain":
            offset += 1 + number
        elif step == "settle":
            written = min(offset, written + 1 + number)
            transactions.settle(written)
            settled += [event for event in pending if event[1] < written]
            pending = [event for event in pending if event[1] >= written]
        elif step == "acknowledge":
            watermark = min(written, watermark + 1 + number)
            transactions.acknowledge(watermark)
        elif step == "undo":
            transactions.undo()
            pending, offset = [], written
        assert [transaction.first_offset for transaction in transactions.open()] == still_open(settled + pending)
        assert len(transactions) == len(transactions.open())
        stable = transactions.last_stable_offset(watermark)
        assert stable == min([watermark, *still_open([event for event in settled if event[1] < watermark])])
        assert stable >= lowest
        lowest = stable


def test_one_that_stays_open_does_not_make_the_order_grow() -> None:
    transactions = OpenTransactions([OpenTransaction(1, 0, 0, 0)])
    for offset in range(1, 20_001, 2):
        transaction = OpenTransaction(2, offset, offset, 0)
        transactions.note(transaction)
        transactions.end(transaction, offset + 1)
        transactions.settle(offset + 2)
        assert transactions.unacknowledged
        transactions.acknowledge(offset + 2)
    assert (transactions.last_stable_offset(10**6), len(transactions)) == (0, 1)
    assert len(transactions._order) < 100


def test_producers_with_a_transaction_are_never_forgotten() -> None:
    producers = Producers()
    producers.note(batch(A)[1], 0, 1_000)
    producers.note(batch(B, transactional=False)[1], 1, 1_000)
    assert producers.expire(10**12, 1) == 1
    producers.forget(10)
    assert [producer_id for producer_id, _ in producers] == [A]
    state = producers.get(A)
    assert state is not None
    for number in range(MAX_PRODUCERS + 10):
        producers._states[100 + number] = state._replace(transaction=None)
    producers.note(batch(B, transactional=False)[1], 2, 2_000)
    assert producers.transaction_of(A) == OpenTransaction(A, 0, 0, 1_000)
    assert MAX_PRODUCERS - 1_100 < len(producers) <= MAX_PRODUCERS


def test_the_limit_of_a_node_lets_others_make_room_for_transactions() -> None:
    partitions = []
    for transactional, count in ((True, 60), (False, 30), (False, 50)):
        producers = Producers()
        for number in range(count):
            producers.note(batch(number, transactional=transactional)[1], number, 0)
        partitions.append(producers)
    forget_above(100, partitions)
    assert [len(producers) for producers in partitions] == [60, 17, 17]
    forget_above(20, partitions)
    assert [len(producers) for producers in partitions] == [60, 0, 0]


def test_a_snapshot_has_the_open_transactions() -> None:
    producers = Producers()
    for offset, (_, header) in enumerate((batch(A), batch(B, transactional=False), batch(9, epoch=4), batch(A, 1))):
        producers.note(header, offset, 1_000 + offset)
    known = Producers(decode_snapshot(encode_snapshot(list(producers))))
    assert known.transactions.open() == [OpenTransaction(A, 0, 0, 1_000), OpenTransaction(9, 4, 2, 1_002)]
    assert known.transactions.last_stable_offset(4) == 0
    assert known.end(A, 0, 4)
    known.settle(5)
    assert known.transactions.last_stable_offset(4) == 0
    known.transactions.acknowledge(5)
    assert known.transactions.last_stable_offset(5) == 2
    assert sorted(producer_id for producer_id, _ in known) == [B, 9]


# In a log


async def test_a_transaction_is_open_from_its_first_batch_to_its_end_marker(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        log.append(*plain(2))
        log.append_all([batch(count=3), batch(first=3)], 1_000)
        assert log.open_transaction(A) == OpenTransaction(A, 0, 2, 1_000)
        log.append(*plain())
        assert await outcome(log) is None
        assert (log.last_stable_offset, log.high_watermark) == (2, 7)
        assert commit(log) == log.end_offset == 8
        assert log.open_transaction(A) is None
        assert (log.open_transactions(), log.last_stable_offset) == ([], 2), "the marker is not on disk yet"
        heard: list[int] = []
        log.on_advance(lambda: heard.append(log.last_stable_offset))
        assert await outcome(log) is None
        assert (log.last_stable_offset, heard) == (8, [8])
        header, marker = (await batches_in(log))[-1]
        assert decode_control_batch(marker, 0, header) == [TransactionEnd(3, A, 0, True, 2)]
        assert (header.base_offset, header.producer_id, header.max_timestamp) == (7, -1, 100)


async def test_ends_of_several_share_a_control_batch_and_others_get_none(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        for producer_id in (A, B, 9):
            log.append(*batch(producer_id, epoch=producer_id))
        ends = [(B, B, False), (A, A, True), (A, A, False), (9, 8, True), (9, 10, True), (1, 0, True)]
        assert log.end_transactions(ends, 5, 1) == 5
        assert log.open_transactions() == [OpenTransaction(9, 9, 2, 5)]
        assert log.end_transactions(ends, 5, 1) == 5, "nothing is appended, and what is under way is waited for"
        assert await outcome(log) is None
        header, marker = (await batches_in(log))[-1]
        assert decode_control_batch(marker, 0, header) == [
            TransactionEnd(5, B, B, False, 1), TransactionEnd(5, A, A, True, 0),
        ]  # fmt: skip
        assert log.last_stable_offset == 2


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (batch(A, 2, epoch=4, transactional=False), InvalidTransactionStateError),
        (batch(A, 0, epoch=5, transactional=False), InvalidTransactionStateError),
        (batch(A, 0, epoch=3, transactional=False), InvalidTransactionStateError),
        (batch(A, 2, epoch=3), InvalidProducerEpochError),
        (batch(A, 0, epoch=5), ConcurrentTransactionsError),
        (batch(A, 3, epoch=4), OutOfOrderSequenceError),
        (batch(B, 1, epoch=4), UnknownProducerIdError),
        (batch(9, 1, epoch=1), OutOfOrderSequenceError),
        (batch(9, 0, epoch=0), InvalidProducerEpochError),
    ],
)
async def test_what_is_not_of_the_open_transaction_is_refused(
    tmp_path: Path, refused: Batch, error: type[ProducerStateError]
) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        log.append(*batch(A, 0, epoch=4, count=2))
        log.append(*batch(9, 0, epoch=1, transactional=False))
        before = list(log.producers)
        with pytest.raises(error):
            log.append(*refused)
        assert (log.end_offset, list(log.producers)) == (3, before)
        assert log.append(*batch(A, 2, epoch=4)).base_offset == 3
        assert log.append(*batch(A, 2, epoch=4)).duplicate


async def test_batches_of_one_append_are_all_transactional_or_none(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        for pair in ([batch(A), batch(A, 1, transactional=False)], [batch(A, transactional=False), batch(A, 1)]):
            with pytest.raises(InvalidTransactionStateError):
                log.append_all(pair)
        assert (log.end_offset, len(log.producers)) == (0, 0)


async def test_sequences_begin_anew_in_each_transaction(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        for epoch in (0, 1, 2):
            assert not log.append(*batch(A, 0, epoch=epoch, count=2)).duplicate
            log.append(*batch(A, 2, epoch=epoch))
            commit(log, A, epoch)
            assert log.producers.get(A) is None
        assert await outcome(log) is None
        assert log.last_stable_offset == 12


async def test_one_that_wrote_without_transactions_before_begins_with_zero(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        log.append(*batch(A, 0, transactional=False))
        assert log.open_transaction(A) is None
        assert log.append(*batch(A, 0)) == (1, 1, False, -1), "it is no duplicate of what belongs to no transaction"
        state = log.producers.get(A)
        assert state is not None
        assert (state.transaction, len(state.batches)) == (OpenTransaction(A, 0, 1, 5), 1)


async def test_a_refused_write_takes_back_openings_and_ends(tmp_path: Path) -> None:
    refusing = [False]

    def hook(operation: str, path: str) -> None:
        if operation == "append" and refusing[0]:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    async with opened(HookedStorage(tmp_path, hook)) as log:
        log.append(*batch(A, 0, count=2))
        assert await outcome(log) is None
        before = list(log.producers)
        refusing[0] = True
        commit(log)
        log.append(*batch(A, 0, epoch=1))
        log.append(*batch(B))
        commit(log, A, 1)
        assert log.open_transactions() == [OpenTransaction(B, 0, 4, 5)]
        assert isinstance(await outcome(log), LogWriteError)
        assert (list(log.producers), log.last_stable_offset, log.end_offset) == (before, 0, 2)
        assert log.open_transactions() == [OpenTransaction(A, 0, 0, 5)]
        refusing[0] = False
        assert commit(log) == 3
        assert await outcome(log) is None
        assert log.last_stable_offset == 3


async def test_a_closed_log_ends_nothing(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        log.append(*batch(A))
        await log.close()
        for producer_id in (A, B):
            with pytest.raises(LogClosedError):
                commit(log, producer_id)


@pytest.mark.parametrize("close", [True, False])
async def test_aborted_transactions_are_in_the_index_of_their_markers_segment_once_these_are_written(
    tmp_path: Path, close: bool
) -> None:
    def aborted(log: PartitionLog) -> list[AbortedTransaction]:
        assert log._segments.active.index is not None
        return list(log._segments.active.index.aborted)

    async with opened(FileStorage(tmp_path), close=close) as log:
        for producer_id in (A, B, 9):
            log.append(*batch(producer_id))
        log.end_transactions([(A, 0, True), (9, 0, False), (B, 0, False)], 0, 1)
        assert aborted(log) == []
        assert await outcome(log) is None
        assert aborted(log) == [(9, 2, 4), (B, 1, 5)]
    async with opened(FileStorage(tmp_path)) as log:
        assert aborted(log) == [(9, 2, 4), (B, 1, 5)]


@pytest.mark.parametrize("close", [True, False])
async def test_a_log_that_is_opened_again_knows_its_open_transactions(tmp_path: Path, close: bool) -> None:
    """Through segments, snapshots, clean ends, crashes, and a snapshot that is lost."""
    config = LogConfig(segment_bytes=400)
    async with opened(FileStorage(tmp_path), config, close=close) as log:
        log.append(*plain())
        log.append(*batch(A), 1_000)
        for number in range(8):
            log.append(*batch(B, epoch=number, count=2))
            commit(log, B, number)
        log.append(*batch(B, epoch=8), 2_000)
        assert await outcome(log) is None
        assert log.segment_count > 3
        expected = [(known.producer_id, known.epoch, known.first_offset) for known in log.open_transactions()]
        assert expected == [(A, 0, 1), (B, 8, log.end_offset - 1)]
    for look in range(3):
        async with opened(FileStorage(tmp_path), config, close=close) as log:
            known = [(known.producer_id, known.epoch, known.first_offset) for known in log.open_transactions()]
            assert (known, log.last_stable_offset) == (expected, 1)
            if look == 1:
                for snapshot in (tmp_path / "orders-0").glob("*.producers"):
                    snapshot.unlink()
        if look == 1:
            (tmp_path / "orders-0" / "clean-end").unlink(missing_ok=True)
    async with opened(FileStorage(tmp_path), config) as log:
        assert log.open_transactions()[0].started_ms in (1_000, 5)
        commit(log)
        assert await outcome(log) is None
        assert log.last_stable_offset == log.end_offset - 2


async def test_retention_and_deletion_stop_where_a_transaction_is_open(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300, retention_ms=100)
    async with opened(FileStorage(tmp_path), config) as log:
        for _ in range(6):
            log.append(*plain(), 10)
        log.append(*batch(A), 10)
        for _ in range(6):
            log.append(*plain(), 10)
        assert await outcome(log) is None
        assert 0 < await log.retain(10_000) <= 6
        assert log.start_offset <= log.last_stable_offset == 6
        with pytest.raises(OffsetNotInLogError, match=r"holds \d to 6$"):
            await log.delete_before(7)
        assert await log.delete_before(6) == 6
        commit(log)
        assert await outcome(log) is None
        assert await log.retain(20_000) > 0
        assert await log.delete_before(log.last_stable_offset) == 14
