"""What a partition remembers of idempotent producers: the rules of KIP-98 one by one, then histories against a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as changed

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.log.checkpoints import ChecksumError, encode_integers
from coordinator.log.errors import (
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    ProducerStateError,
    UnknownProducerIdError,
)
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.producer_snapshots import decode_snapshot, encode_snapshot
from coordinator.log.producers import (
    MAX_EXPIRED,
    REMEMBERED_BATCHES,
    Producers,
    ProducerState,
    WrittenBatch,
)
from protocol.record_batch import MAX_SEQUENCE, Attributes, BatchHeader, encode_batch, read_header, sequence_after


def batch(first: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    header = read_header(
        encode_batch(
            [b"v"] * count,
            timestamps_ms=[0] * count,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
        )
    )
    return changed(header, base_sequence=first)


@dataclass
class Log:
    """A partition's side of it: appends what is new, answers repetitions."""

    producers: Producers = field(default_factory=Producers)
    end: int = 0

    def take(self, header: BatchHeader, now_ms: int = 0) -> int:
        """The offset the client is told."""
        repeated = self.producers.find(header)
        if repeated is not None:
            return repeated.base_offset
        base, self.end = self.end, self.end + header.record_count
        self.producers.note(header, base, now_ms)
        return base

    def refusal(self, header: BatchHeader) -> type[ProducerStateError]:
        with pytest.raises(ProducerStateError) as refused:
            self.take(header)
        return refused.type


def test_batches_that_follow_one_another_are_taken() -> None:
    log = Log()
    assert [log.take(batch(first, 3)) for first in (0, 3, 6)] == [0, 3, 6]


def test_a_repetition_is_answered_with_the_offset_it_got_then() -> None:
    log = Log()
    log.take(batch(0, 3))
    log.take(batch(3, 2))
    assert log.take(batch(0, 3)) == 0
    assert log.take(batch(3, 2)) == 3
    assert log.end == 5


def test_the_last_five_batches_are_remembered_and_no_older_one() -> None:
    log = Log()
    for first in range(REMEMBERED_BATCHES + 1):
        log.take(batch(first))
    assert [log.take(batch(first)) for first in range(1, 6)] == [1, 2, 3, 4, 5]
    assert log.refusal(batch(0)) is OutOfOrderSequenceError


@pytest.mark.parametrize(("first", "count"), [(4, 1), (2, 2), (0, 2), (1, 2), (0, 4)])
def test_a_gap_and_a_batch_cut_otherwise_are_refused(first: int, count: int) -> None:
    log = Log()
    log.take(batch(0, 3))
    assert log.refusal(batch(first, count)) is OutOfOrderSequenceError
    assert log.take(batch(3)) == 3, "a refusal changes nothing"


def test_zero_follows_the_greatest_sequence_also_within_a_batch() -> None:
    log = Log()
    log.producers.note(batch(MAX_SEQUENCE - 2), 0)
    log.end = 1
    log.take(batch(MAX_SEQUENCE - 1, 4))
    assert log.producers.find(batch(MAX_SEQUENCE - 1, 4)) is not None
    assert log.take(batch(2)) == 5
    assert sequence_after(MAX_SEQUENCE, 1) == 0


def test_a_new_epoch_begins_with_zero_and_forgets_the_batches_of_the_old_one() -> None:
    log = Log()
    log.take(batch(0, 3))
    assert log.refusal(batch(3, epoch=1)) is OutOfOrderSequenceError
    assert log.take(batch(0, 3, epoch=1)) == 3


def test_an_epoch_that_was_replaced_is_fenced() -> None:
    log = Log()
    log.take(batch(0, epoch=1))
    assert log.refusal(batch(1, epoch=0)) is InvalidProducerEpochError
    assert log.refusal(batch(0, epoch=0)) is InvalidProducerEpochError


def test_a_producer_that_is_not_known_begins_with_zero() -> None:
    log = Log()
    assert log.refusal(batch(5)) is UnknownProducerIdError, "perhaps what comes before it is still on its way"
    assert log.take(batch(0, 5)) == 0
    assert log.take(batch(5)) == 5


def test_producers_do_not_disturb_one_another() -> None:
    log = Log()
    assert [log.take(batch(0, producer_id=producer)) for producer in (1, 2, 1, 3)] == [0, 1, 0, 2]


def test_what_was_not_written_is_taken_back() -> None:
    log = Log()
    log.take(batch(0))
    log.producers.settle(1)
    log.take(batch(1))
    log.take(batch(0, producer_id=8))
    log.producers.undo()
    log.end = 1
    assert log.producers.get(8) is None
    assert log.take(batch(1)) == 1, "it comes again and is new"


def test_a_producer_is_forgotten_a_retention_after_it_was_heard_of() -> None:
    log = Log()
    log.take(batch(0), now_ms=1_000)
    assert log.producers.expire(1_099, 100) == 0
    assert log.producers.expire(1_100, 100) == 1
    assert log.producers.get(7) is None


def test_after_a_restart_the_retention_counts_from_the_first_look() -> None:
    producers = Producers()
    producers.note(batch(0), 0)
    assert producers.expire(10**12, 100) == 0
    assert producers.expire(10**12 + 100, 100) == 1


def test_a_look_for_expired_producers_is_bounded_and_the_next_one_goes_on() -> None:
    state = ProducerState(0, (WrittenBatch(0, 0, 0, 1),))
    producers = Producers((number, state) for number in range(MAX_EXPIRED + 5))
    assert producers.expire(0, 100) == 0
    producers.note(batch(0), 0, now_ms=50)
    assert producers.expire(100, 100) == MAX_EXPIRED
    assert producers.expire(100, 100) == 4, "the one that was heard of since then stays"
    assert [producer_id for producer_id, _ in producers] == [7]
    assert producers.expire(150, 100) == 1


def test_a_snapshot_has_producers_in_the_order_of_their_last_batches_after_a_refused_append_too() -> None:
    log = Log()
    log.take(batch(0))
    log.take(batch(0, producer_id=8))
    log.producers.settle(log.end)
    log.take(batch(1))
    log.producers.undo()
    assert [producer_id for producer_id, _ in decode_snapshot(encode_snapshot(list(log.producers)))] == [7, 8]


def kept(first: int, count: int = 1, *, epoch: int, kept_epoch: int = 0) -> BatchHeader:
    """A batch of a producer that keeps its epoch, in the transaction ``epoch``."""
    header = batch(first, count, epoch=epoch)
    return changed(header, attributes=header.attributes | Attributes.TRANSACTIONAL, kept_epoch=kept_epoch)


def test_who_keeps_an_epoch_numbers_on_in_the_next_transaction() -> None:
    log = Log()
    assert log.take(kept(0, 3, epoch=0)) == 0
    assert log.producers.end(7, 0, 3)
    log.end = 4
    assert log.refusal(kept(4, epoch=1)) is OutOfOrderSequenceError
    assert log.refusal(kept(0, 2, epoch=1)) is OutOfOrderSequenceError
    assert log.take(kept(0, 3, epoch=1)) == 0, "a batch of the transaction before comes once more"
    assert log.producers.transaction_of(7) is None
    assert log.take(kept(3, 2, epoch=1)) == 4
    assert log.take(kept(5, epoch=1)) == 6
    opened = log.producers.transaction_of(7)
    assert opened is not None
    assert (opened.epoch, opened.first_offset) == (1, 4)


def test_who_keeps_an_epoch_numbers_on_also_behind_an_end_of_the_same_epoch() -> None:
    """As a failover leaves it: the marker of an epoch is in the log, and its producer has not heard of it and goes on."""
    log = Log()
    assert log.take(kept(0, 3, epoch=1)) == 0
    assert log.producers.end(7, 1, 3)
    log.end = 4
    assert log.refusal(kept(4, epoch=1)) is OutOfOrderSequenceError
    assert log.take(kept(0, 3, epoch=1)) == 0
    assert log.take(kept(3, 2, epoch=1)) == 4


def test_who_gets_another_epoch_to_keep_begins_with_zero() -> None:
    log = Log()
    assert log.take(kept(0, 3, epoch=0)) == 0
    assert log.producers.end(7, 0, 3)
    assert log.refusal(kept(3, epoch=1, kept_epoch=1)) is OutOfOrderSequenceError
    assert log.take(kept(0, epoch=1, kept_epoch=1)) == 3
    assert log.producers.end(7, 1, 4)
    assert log.refusal(batch(1, epoch=2)) is OutOfOrderSequenceError, "it keeps no epoch any more"


def test_who_keeps_an_epoch_and_is_not_known_may_begin_anywhere() -> None:
    assert Log().take(kept(40, epoch=9)) == 0
    assert Log().refusal(batch(40, epoch=9)) is UnknownProducerIdError


def test_an_end_marker_that_was_not_written_is_taken_back_of_who_keeps_an_epoch() -> None:
    log = Log()
    log.take(kept(0, 2, epoch=0))
    log.producers.settle(2)
    before = list(log.producers)
    assert log.producers.end(7, 0, 2)
    log.producers.undo()
    assert list(log.producers) == before


def test_snapshots_have_kept_epochs_where_there_are_some() -> None:
    log = Log()
    log.take(batch(0, producer_id=8))
    assert encode_snapshot(list(log.producers))[:4] == b"CHP3", "which earlier versions read"
    log.take(kept(0, epoch=5, kept_epoch=3))
    log.take(changed(kept(0, epoch=6, kept_epoch=4), producer_id=9))
    assert log.producers.end(9, 6, 3)
    written = encode_snapshot(list(log.producers))
    assert written[:4] == b"CHP4"
    assert {
        producer_id: (state.kept_epoch, state.transaction is None) for producer_id, state in decode_snapshot(written)
    } == {
        7: (3, False),
        8: (-1, True),
        9: (4, True),
    }


def test_a_damaged_snapshot_is_found_out() -> None:
    log = Log()
    log.take(batch(0))
    data = encode_snapshot(list(log.producers))
    for broken in (data[:-8], data[:-1] + b"\x7f", b"", b"CHK1" + data[4:]):
        with pytest.raises(ChecksumError):
            decode_snapshot(broken)


def test_a_repetition_is_answered_with_the_time_it_got_then() -> None:
    log = Log()
    stamped = changed(batch(0), attributes=Attributes.LOG_APPEND_TIME, max_timestamp=123)
    log.take(stamped)
    log.take(batch(1))
    known = Producers(decode_snapshot(encode_snapshot(list(log.producers))))
    for producers in (log.producers, known):
        again = [producers.find(batch(first)) for first in (0, 1)]
        assert [found and (found.base_offset, found.append_time_ms) for found in again] == [(0, 123), (1, NO_TIMESTAMP)]


def test_a_snapshot_of_the_former_format_is_read() -> None:
    former = encode_integers(b"CHP1", [7, 2, 2, 0, 0, 40, 41, 1, 3, 41, 44])
    ((producer_id, state),) = decode_snapshot(former)
    assert (producer_id, state.epoch) == (7, 2)
    assert state.batches == (WrittenBatch(0, 0, 40, 41), WrittenBatch(1, 3, 41, 44))
    later = encode_integers(b"CHP2", [7, 2, 1, 1, 3, 41, 44, 5])
    assert decode_snapshot(later)[0] == (7, ProducerState(2, (WrittenBatch(1, 3, 41, 44, 5),)))
    with pytest.raises(ChecksumError):
        decode_snapshot(encode_integers(b"CHP2", [7, 2, 2, 0, 0, 40, 41, -1, 1, 3, 41, 44]))


@st.composite
def deliveries(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """What arrives: (producer, first, count) of batches that were numbered in order, each perhaps lost, late or doubled."""
    arriving: list[tuple[int, int, int]] = []
    for producer in range(draw(st.integers(1, 3))):
        first = 0
        for count in draw(st.lists(st.integers(1, 4), max_size=8)):
            arriving += [(producer, first, count)] * draw(st.integers(0, 3))
            first = sequence_after(first, count)
    return draw(st.permutations(arriving))


@given(deliveries(), st.data())
def test_whatever_arrives_a_log_holds_each_producers_records_once_and_without_a_gap(
    arriving: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    log = Log()
    written: dict[int, list[int]] = {}
    offsets: dict[tuple[int, int, int], int] = {}
    for producer, first, count in arriving:
        end = log.end
        try:
            offset = log.take(batch(first, count, producer_id=producer))
        except ProducerStateError:
            assert log.end == end
            continue
        assert offsets.setdefault((producer, first, count), offset) == offset
        if log.end > end:
            written.setdefault(producer, []).extend(sequence_after(first, place) for place in range(count))
        if data.draw(st.booleans()):  # a restart: a snapshot keeps everything
            log.producers = Producers(decode_snapshot(encode_snapshot(list(log.producers))))
    for sequences in written.values():
        assert sequences == list(range(len(sequences)))
