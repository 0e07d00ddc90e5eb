"""Batches and queues: records stay in order, nothing is lost or doubled, bounds hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from client.errors import CohortError
from client.producer.accumulator import Accumulator
from client.producer.acknowledgements import BulkDelivery, Piece, Waiter, deliver, fail
from client.producer.batch import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, ProducerBatch
from client.producer.partition_queue import NUMBERED_WINDOW, Parcel, PartitionQueue
from client.producer.sequences import BatchNumber, Numbering, ProducerIdentity
from client.types.records import RecordMetadata
from protocol.columns import Headers
from protocol.record_batch import LAST_PRODUCER_EPOCH, decode_columns, read_header
from protocol.subscription import TopicPartition

TP = TopicPartition("t", 3)
BATCH_BYTES = BATCH_OVERHEAD_BYTES + 100


def future() -> asyncio.Future[RecordMetadata]:
    return asyncio.get_running_loop().create_future()


def add(accumulator: Accumulator, value: bytes, now: float = 0.0, key: bytes | None = None) -> Waiter:
    """Queues one record."""
    size = RECORD_OVERHEAD_BYTES + len(value) + len(key or b"")
    queue = accumulator.queue(TP)
    waiter = future()
    accumulator.open_batch(queue, size, now).append(key, value, 1700, (), size, waiter)
    return waiter


def values(batches: Sequence[ProducerBatch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.values]


def take(accumulator: Accumulator, queue: PartitionQueue, room: int, now: float) -> Parcel:
    parcel = accumulator.take(queue, room, now)
    assert parcel is not None
    return parcel


def encoded_values(batch: ProducerBatch) -> list[bytes | None]:
    data = b"".join(batch.encode(None))
    return decode_columns(data, 0, read_header(data)).values()


async def test_a_record_alone_is_ready_at_once_without_linger() -> None:
    accumulator = Accumulator(BATCH_BYTES, 0.0)
    add(accumulator, b"one", now=5.0)
    (queue,) = accumulator.waiting()
    assert accumulator.is_ready(queue, 5.0)
    assert values(take(accumulator, queue, 10_000, 5.0).batches) == [b"one"]


async def test_a_batch_lingers_until_it_is_old_or_full_or_all_must_go() -> None:
    accumulator = Accumulator(BATCH_BYTES, 0.5)
    add(accumulator, b"one", now=1.0)
    queue = accumulator.queue(TP)
    assert not accumulator.is_ready(queue, 1.4)
    assert accumulator.is_ready(queue, 1.5)
    with accumulator.hurry():
        assert accumulator.is_ready(queue, 1.0)
    for _ in range(6):
        add(accumulator, b"more", now=1.0)
    assert accumulator.is_ready(queue, 1.0)


async def test_only_what_is_full_leaves_before_its_linger_is_over() -> None:
    accumulator = Accumulator(BATCH_BYTES, 0.5)
    for number in range(7):
        add(accumulator, b"%d" % number)
    queue = accumulator.queue(TP)
    parcel = take(accumulator, queue, 10_000, 0.1)
    assert values(parcel.batches) == [b"0", b"1", b"2", b"3", b"4"]
    accumulator.settle(parcel)
    assert not accumulator.is_ready(queue, 0.1)


async def test_a_partition_with_a_request_under_way_does_not_wait_for_another() -> None:
    accumulator = Accumulator(BATCH_BYTES, 0.0)
    add(accumulator, b"one")
    queue = accumulator.queue(TP)
    parcel = take(accumulator, queue, 10_000, 0.0)
    add(accumulator, b"two")
    assert accumulator.waiting() == []
    accumulator.settle(parcel)
    assert accumulator.waiting() == [queue]
    assert accumulator.records() == 1


async def test_what_is_sent_again_comes_before_what_came_later() -> None:
    accumulator = Accumulator(BATCH_BYTES, 0.0)
    for number in range(12):
        add(accumulator, b"%d" % number)
    queue = accumulator.queue(TP)
    parcel = take(accumulator, queue, 2 * BATCH_BYTES, 0.0)
    assert len(parcel.batches) == 2
    add(accumulator, b"last")
    accumulator.settle(parcel, parcel.batches)
    assert values(take(accumulator, queue, 10_000, 0.0).batches) == [*(b"%d" % number for number in range(12)), b"last"]


async def test_a_request_takes_no_more_than_it_has_room_for() -> None:
    accumulator = Accumulator(BATCH_BYTES, 0.0)
    for number in range(20):
        add(accumulator, b"%d" % number)
    queue = accumulator.queue(TP)
    assert accumulator.take(queue, BATCH_OVERHEAD_BYTES, 0.0) is None
    assert queue.idle
    parcel = take(accumulator, queue, 2 * BATCH_BYTES, 0.0)
    assert sum(batch.size for batch in parcel.batches) <= 2 * BATCH_BYTES


async def test_a_batch_that_goes_alone_shares_its_request_with_no_other() -> None:
    accumulator = Accumulator(BATCH_BYTES, 0.0)
    for number in range(12):
        add(accumulator, b"%d" % number)
    queue = accumulator.queue(TP)
    queue.batches[1].alone = True
    for expected in (5, 5, 2):
        parcel = take(accumulator, queue, 10_000, 0.0)
        assert [batch.count for batch in parcel.batches] == [expected]
        accumulator.settle(parcel)


async def test_old_batches_are_dropped_and_young_ones_stay() -> None:
    accumulator = Accumulator(BATCH_OVERHEAD_BYTES + 20, 0.0)
    for number in range(4):
        add(accumulator, b"%d" % number, now=float(number))
    queue = accumulator.queue(TP)
    assert values(accumulator.drop_older_than(queue, 1.0)) == [b"0", b"1"]
    assert accumulator.records() == 2
    accumulator.drop_older_than(queue, 9.0)
    assert queue.open is None
    assert accumulator.waiting() == []
    add(accumulator, b"fresh", now=10.0)
    assert accumulator.waiting() == [queue]


async def test_a_record_above_the_batch_size_gets_a_batch_of_its_own() -> None:
    accumulator = Accumulator(BATCH_BYTES, 0.0)
    for value in (b"a", b"b" * 500, b"c"):
        add(accumulator, value)
    assert [batch.values for batch in accumulator.queue(TP).batches] == [[b"a"], [b"b" * 500], [b"c"]]


records = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=8),
        st.none() | st.binary(max_size=40),
        st.sampled_from([(), (("h", b"1"),), (("h", None), ("i", b""))]),
    ),
    min_size=1,
    max_size=30,
)


@given(records, st.data())
def test_a_batch_holds_what_was_put_in_however_it_was_and_however_it_is_split(
    content: list[tuple[bytes | None, bytes | None, Headers]], data: st.DataObject
) -> None:
    async def run() -> None:
        batch = ProducerBatch(TP, 0.0)
        position = 0
        while position < len(content):
            if data.draw(st.booleans()):
                key, value, headers = content[position]
                size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") + 20 * len(headers) + 16
                batch.append(key, value, position, headers, size, future())
                position += 1
            else:
                end = data.draw(st.integers(position + 1, len(content)))
                part = [(key, value, ()) for key, value, _ in content[position:end]]
                content[position:end] = part
                keys = [key for key, _, _ in part]
                bulk = BulkDelivery(len(part), asyncio.get_running_loop().create_future())
                size = sum(RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") for key, value, _ in part)
                piece = Piece(bulk, range(len(part)), position)
                batch.extend(
                    keys if any(key is not None for key in keys) else None,
                    [part[1] for part in part],
                    position,
                    size,
                    piece,
                )
                position = end
        pieces = [batch]
        if batch.count > 1 and data.draw(st.booleans()):
            pieces = list(batch.split())
            assert pieces[1].settled is batch.settled
        found: list[tuple[bytes | None, bytes | None, Headers]] = []
        for piece_of_it in pieces:
            encoded = b"".join(piece_of_it.encode(None))
            assert len(encoded) <= piece_of_it.size + (batch.size if len(pieces) > 1 else 0)
            columns = decode_columns(encoded, 0, read_header(encoded))
            found += zip(columns.keys(), columns.values(), columns.headers(), strict=True)
        assert found == content
        assert sum(piece_of_it.reserved for piece_of_it in pieces) == batch.reserved

    asyncio.run(run())


@given(st.lists(st.integers(1, 5), min_size=1, max_size=10), st.data())
def test_every_waiter_learns_its_own_offset_also_after_splits(counts: list[int], data: st.DataObject) -> None:
    """A count of 1 is a record of ``send``; more are a piece of one ``send_many`` whose indexes run backwards by batches."""

    async def run() -> None:
        batch = ProducerBatch(TP, 0.0)
        total = sum(count for count in counts if count > 1)
        bulk = BulkDelivery(total, asyncio.get_running_loop().create_future())
        futures: list[tuple[int, asyncio.Future[RecordMetadata]]] = []
        expected: dict[int, int] = {}
        position, used = 0, 0
        for count in counts:
            if count == 1:
                futures.append((position, future()))
                batch.append(None, b"v", 1000 + position, (), 20, futures[-1][1])
            else:
                indexes = range(used, used + count) if data.draw(st.booleans()) else list(range(used, used + count))
                batch.extend(None, [b"v"] * count, 7, 20 * count, Piece(bulk, indexes, 7))
                expected.update((used + step, position + step) for step in range(count))
                used += count
            position += count
        parts = [batch]
        while data.draw(st.booleans()) and any(part.count > 1 for part in parts):
            parts = [half for part in parts for half in (part.split() if part.count > 1 else (part,))]
        offset = 500
        for part in parts:
            deliver(part.waiters, part.timestamps_ms, TP, offset, -1)
            offset += part.count
        for at, waiting in futures:
            assert waiting.result() == RecordMetadata("t", 3, 500 + at, 1000 + at)
        if total:
            await bulk.future
            assert await bulk.metadata() == [RecordMetadata("t", 3, 500 + expected[index], 7) for index in range(total)]

    asyncio.run(run())


async def test_the_time_of_the_log_replaces_the_records_own() -> None:
    single = future()
    bulk = BulkDelivery(2, asyncio.get_running_loop().create_future())
    deliver([single, Piece(bulk, range(2), 5)], [5, 5, 5], TP, 10, 99)
    assert single.result() == RecordMetadata("t", 3, 10, 99)
    assert await bulk.metadata() == [RecordMetadata("t", 3, 11, 99), RecordMetadata("t", 3, 12, 99)]


async def test_without_acknowledgement_every_offset_is_minus_one() -> None:
    single = future()
    bulk = BulkDelivery(2, asyncio.get_running_loop().create_future())
    deliver([single, Piece(bulk, [1, 0], 5)], [5, 5, 5], TP, -1, -1)
    assert single.result().offset == -1
    assert [entry.offset for entry in await bulk.metadata()] == [-1, -1]


async def test_failures_reach_everybody_each_with_an_error_of_his_own() -> None:
    loop = asyncio.get_running_loop()
    futures = [future(), future()]
    bulk = BulkDelivery(5, loop.create_future())
    fail([*futures, Piece(bulk, range(3), 5)], lambda: CohortError("why"))
    assert futures[0].exception() is not futures[1].exception()
    assert not bulk.future.done()  # the others are still under way
    deliver([Piece(bulk, range(3, 5), 5)], [5, 5], TP, 0, -1)
    error = bulk.future.exception()
    assert str(error) == "why"
    assert error is not None
    assert error.__notes__ == ["3 of the 5 records of this send_many were not acknowledged"]


async def test_whoever_gave_up_waiting_is_passed_over() -> None:
    single = future()
    bulk = BulkDelivery(1, asyncio.get_running_loop().create_future())
    single.cancel()
    bulk.future.cancel()
    deliver([single, Piece(bulk, range(1), 5)], [5, 5], TP, 0, -1)
    fail([single, Piece(bulk, range(1), 5)], lambda: CohortError("why"))


def test_queues_are_told_apart_by_partition() -> None:
    accumulator = Accumulator(BATCH_BYTES, 0.0)
    assert accumulator.queue(TP) is accumulator.queue(TopicPartition("t", 3))
    assert accumulator.queue(TP) is not accumulator.queue(TopicPartition("t", 4))
    assert [queue.partition for queue in accumulator.queues] == [TP, TopicPartition("t", 4)]
    assert isinstance(accumulator.queue(TP), PartitionQueue)


def numbered_accumulator(producer_id: int | None = 7) -> Accumulator:
    return Accumulator(BATCH_BYTES, 0.0, ProducerIdentity(producer_id))


def numbers(parcel: Parcel) -> list[tuple[int, int]]:
    """Epoch and first sequence of each batch."""
    return [(batch.number.epoch, batch.number.first_sequence) for batch in parcel.batches if batch.number is not None]


async def test_without_an_id_an_idempotent_producer_sends_nothing() -> None:
    accumulator = numbered_accumulator(None)
    add(accumulator, b"one")
    assert accumulator.waiting() == []


async def test_batches_are_numbered_when_they_are_sent_first_and_keep_their_number() -> None:
    accumulator = numbered_accumulator()
    for number in range(12):
        add(accumulator, b"%d" % number)
    queue = accumulator.queue(TP)
    parcel = take(accumulator, queue, BATCH_BYTES, 0.0)
    assert numbers(parcel) == [(0, 0)]
    accumulator.settle(parcel, parcel.batches)
    again = take(accumulator, queue, 10_000, 0.0)
    assert numbers(again) == [(0, 0), (0, 5), (0, 10)]
    header = read_header(b"".join(again.batches[1].encode(None)))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 5)


async def test_full_batches_follow_while_others_are_under_way_but_no_more_than_the_daemon_remembers() -> None:
    accumulator = numbered_accumulator()
    for number in range(5 * (NUMBERED_WINDOW + 2) + 1):
        add(accumulator, b"%02d" % (number % 100))
    queue = accumulator.queue(TP)
    parcels = [take(accumulator, queue, BATCH_BYTES, 0.0) for _ in range(NUMBERED_WINDOW)]
    assert accumulator.waiting() == []
    for later in parcels[1:]:
        accumulator.settle(later)
    assert accumulator.waiting() == [], "the oldest may still come again, and five have been sent since"
    accumulator.settle(parcels[0], parcels[0].batches)
    assert numbers(take(accumulator, queue, 10_000, 0.0)) == [(0, 0)]
    accumulator.settle(parcels[0].queue.parcels[0])
    assert len(take(accumulator, queue, 10_000, 0.0).batches) == 3


async def test_a_batch_that_is_not_full_waits_while_another_is_under_way() -> None:
    accumulator = numbered_accumulator()
    add(accumulator, b"one")
    queue = accumulator.queue(TP)
    parcel = take(accumulator, queue, 10_000, 0.0)
    add(accumulator, b"two")
    assert not accumulator.is_ready(queue, 9.0)
    accumulator.settle(parcel)
    assert accumulator.is_ready(queue, 9.0)


async def test_parcels_that_fail_in_any_order_go_back_to_their_places() -> None:
    accumulator = numbered_accumulator()
    for number in range(20):
        add(accumulator, b"%02d" % number)
    queue = accumulator.queue(TP)
    parcels = [take(accumulator, queue, BATCH_BYTES, 0.0) for _ in range(3)]
    for position in (1, 2, 0):
        accumulator.settle(parcels[position], parcels[position].batches)
    assert values(list(queue.batches)) == [b"%02d" % number for number in range(20)]
    assert queue.all_batches() == list(queue.batches)


async def test_new_numbers_are_given_once_nothing_is_under_way() -> None:
    accumulator = numbered_accumulator()
    for number in range(20):
        add(accumulator, b"%02d" % number)
    queue = accumulator.queue(TP)
    first, second = (take(accumulator, queue, BATCH_BYTES, 0.0) for _ in range(2))
    assert first.first
    assert not second.first
    queue.renumber_from(first.batches[0].place, sure=True)
    accumulator.settle(first, first.batches)
    assert queue.begin_anew_if_asked() == []
    assert not queue.may_send(), "the second still has a number of the old epoch"
    accumulator.settle(second, second.batches)
    assert queue.begin_anew_if_asked() == []
    fresh = take(accumulator, queue, 10_000, 0.0)
    assert numbers(fresh)[0] == (1, 0)
    assert values(fresh.batches)[0] == b"00"


async def test_what_comes_before_keeps_its_numbers_and_is_settled_first() -> None:
    accumulator = numbered_accumulator()
    for number in range(15):
        add(accumulator, b"%02d" % number)
    queue = accumulator.queue(TP)
    before, refused = (take(accumulator, queue, BATCH_BYTES, 0.0) for _ in range(2))
    queue.renumber_from(refused.batches[0].place, sure=True)
    for parcel in (refused, before):
        accumulator.settle(parcel, parcel.batches)
        assert queue.begin_anew_if_asked() == []
    again = take(accumulator, queue, 10_000, 0.0)
    assert numbers(again) == [(0, 0)], "it may be in the log: with another number it would be there twice"
    accumulator.settle(again)
    assert queue.begin_anew_if_asked() == []
    assert numbers(take(accumulator, queue, 10_000, 0.0)) == [(1, 0), (1, 5)]


async def test_what_may_be_in_the_log_gets_no_new_number_unless_it_cannot_be_there() -> None:
    for sure in (True, False):
        accumulator = numbered_accumulator()
        for number in range(10):
            add(accumulator, b"%02d" % number)
        queue = accumulator.queue(TP)
        queue.open = None
        first, second = (take(accumulator, queue, BATCH_BYTES, 0.0) for _ in range(2))
        second.batches[0].unanswered = 1
        accumulator.settle(first)
        queue.renumber_from(second.batches[0].place, sure=sure)
        accumulator.settle(second, second.batches)
        assert accumulator.begin_anew_if_asked(queue) == ([] if sure else second.batches)
        assert len(queue.batches) == sure
        assert accumulator.waiting() == ([queue] if sure else [])


async def test_numbers_with_a_gap_do_not_share_a_parcel() -> None:
    """A daemon takes a parcel as a whole or not at all: the first batch would be refused for the gap behind it."""
    accumulator = numbered_accumulator()
    for number in range(16):
        add(accumulator, b"%02d" % number)
    queue = accumulator.queue(TP)
    parcels = [take(accumulator, queue, BATCH_BYTES, 0.0) for _ in range(3)]
    accumulator.settle(parcels[0], parcels[0].batches)
    accumulator.settle(parcels[2], parcels[2].batches)
    assert numbers(take(accumulator, queue, 10_000, 0.0)) == [(0, 0)]
    assert numbers(take(accumulator, queue, 10_000, 0.0)) == [(0, 10)]


async def test_batches_of_two_ids_are_never_under_way_together() -> None:
    accumulator = numbered_accumulator(7)
    identity = accumulator._identity
    assert identity is not None
    for number in range(10):
        add(accumulator, b"%d" % number)
    queue = accumulator.queue(TP)
    old = take(accumulator, queue, BATCH_BYTES, 0.0)
    accumulator.settle(old, old.batches)
    identity.producer_id = 8
    old = take(accumulator, queue, 10_000, 0.0)
    assert numbers(old) == [(0, 0)]
    assert not queue.may_send(), "the other batch would be taken whether or not this one is"
    accumulator.settle(old)
    new = take(accumulator, queue, 10_000, 0.0)
    assert new.batches[0].number == BatchNumber(8, 0, 0)


async def test_halves_of_a_batch_take_its_place_and_get_numbers_of_their_own() -> None:
    accumulator = numbered_accumulator()
    for number in range(9):
        add(accumulator, b"%d" % number)
    queue = accumulator.queue(TP)
    parcel = take(accumulator, queue, BATCH_BYTES, 0.0)
    queue.renumber_from(parcel.batches[0].place, sure=True)
    accumulator.settle(parcel, parcel.batches[0].split())
    assert queue.begin_anew_if_asked() == []
    first = take(accumulator, queue, 10_000, 0.0)
    second = take(accumulator, queue, 10_000, 0.0)
    assert numbers(first) + numbers(second) == [(1, 0), (1, 2)]
    accumulator.settle(first, first.batches)
    accumulator.settle(second, second.batches)
    assert values(list(queue.batches)) == [b"%d" % number for number in range(9)]


async def test_partitions_take_turns() -> None:
    """A partition that always has more to send goes behind those that wait."""
    accumulator = Accumulator(BATCH_BYTES, 0.0)
    busy, quiet = accumulator.queue(TopicPartition("t", 0)), accumulator.queue(TopicPartition("t", 1))
    for queue, count in ((busy, 5), (quiet, 1)):
        for _ in range(count):
            accumulator.open_batch(queue, BATCH_BYTES, 0.0).append(None, b"v", 0, (), BATCH_BYTES, future())
    parcel = take(accumulator, busy, 2 * BATCH_BYTES, 0.0)
    accumulator.settle(parcel)
    assert accumulator.waiting() == [quiet, busy]


def test_after_the_last_epoch_or_a_lost_identity_a_new_id_is_needed() -> None:
    identity = ProducerIdentity(7)
    numbering = Numbering(identity)
    numbering.take(3)
    for _ in range(LAST_PRODUCER_EPOCH):
        numbering.begin_anew()
    assert numbering.take(1) == BatchNumber(7, LAST_PRODUCER_EPOCH, 0)
    numbering.begin_anew()
    assert identity.producer_id is None
    identity.producer_id = 8
    assert numbering.upcoming == BatchNumber(8, 0, 0)
    assert numbering.take(2) == BatchNumber(8, 0, 0)
    assert BatchNumber(8, 0, 2**31 - 1).after(3).first_sequence == 2
