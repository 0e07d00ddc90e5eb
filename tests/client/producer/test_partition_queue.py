"""Batches and queues of partitions: records stay in order, nothing is lost or doubled, bounds hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from client.errors import CohortError
from client.producer.acknowledgements import BatchSlice, BulkAcknowledgement, Waiter, deliver, fail
from client.producer.batch import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, ProducerBatch
from client.producer.partition_queue import SEQUENCED_WINDOW, PartitionQueue, PartitionQueues, PartitionRequest
from client.producer.sequences import BatchSequence, ProducerIdentity, Sequences
from client.types.records import RecordMetadata
from protocol.columns import Headers
from protocol.record_batch import LAST_PRODUCER_EPOCH, decode_columns, read_header
from protocol.subscription import TopicPartition

TP = TopicPartition("t", 3)
BATCH_BYTES = BATCH_OVERHEAD_BYTES + 100


def future() -> asyncio.Future[RecordMetadata]:
    return asyncio.get_running_loop().create_future()


def open_batch(
    queues: PartitionQueues[ProducerBatch], queue: PartitionQueue[ProducerBatch], size: int, now: float
) -> ProducerBatch:
    """The batch that takes the next ``size`` bytes: the open one if they fit, or else a new one."""
    batch = queue.open
    if batch is None or batch.size + size > queues.batch_size:
        batch = ProducerBatch(queue.partition, now)
        queues.add(queue, batch, is_open=True)
    return batch


def add(queues: PartitionQueues[ProducerBatch], value: bytes, now: float = 0.0, key: bytes | None = None) -> Waiter:
    """Queues one record."""
    size = RECORD_OVERHEAD_BYTES + len(value) + len(key or b"")
    queue = queues.queue(TP)
    waiter = future()
    open_batch(queues, queue, size, now).append(key, value, 1700, (), size, waiter)
    return waiter


def values(batches: Sequence[ProducerBatch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.values]


def take(
    queues: PartitionQueues[ProducerBatch], queue: PartitionQueue[ProducerBatch], room: int, now: float
) -> PartitionRequest[ProducerBatch]:
    request = queues.take(queue, room, now)
    assert request is not None
    return request


def encoded_values(batch: ProducerBatch) -> list[bytes | None]:
    data = b"".join(batch.encode())
    return decode_columns(data, 0, read_header(data)).values()


async def test_a_record_alone_is_ready_at_once_without_linger() -> None:
    queues = PartitionQueues[ProducerBatch](BATCH_BYTES, 0.0)
    add(queues, b"one", now=5.0)
    (queue,) = queues.waiting()
    assert queues.is_ready(queue, 5.0)
    assert values(take(queues, queue, 10_000, 5.0).batches) == [b"one"]


async def test_a_batch_lingers_until_it_is_old_or_full_or_all_must_go() -> None:
    queues = PartitionQueues[ProducerBatch](BATCH_BYTES, 0.5)
    add(queues, b"one", now=1.0)
    queue = queues.queue(TP)
    assert not queues.is_ready(queue, 1.4)
    assert queues.is_ready(queue, 1.5)
    with queues.no_linger():
        assert queues.is_ready(queue, 1.0)
    for _ in range(6):
        add(queues, b"more", now=1.0)
    assert queues.is_ready(queue, 1.0)


async def test_only_what_is_full_leaves_before_its_linger_is_over() -> None:
    queues = PartitionQueues[ProducerBatch](BATCH_BYTES, 0.5)
    for number in range(7):
        add(queues, b"%d" % number)
    queue = queues.queue(TP)
    request = take(queues, queue, 10_000, 0.1)
    assert values(request.batches) == [b"0", b"1", b"2", b"3", b"4"]
    queues.settle(request)
    assert not queues.is_ready(queue, 0.1)


async def test_a_partition_with_a_request_under_way_does_not_wait_for_another() -> None:
    queues = PartitionQueues[ProducerBatch](BATCH_BYTES, 0.0)
    add(queues, b"one")
    queue = queues.queue(TP)
    request = take(queues, queue, 10_000, 0.0)
    add(queues, b"two")
    assert queues.waiting() == []
    queues.settle(request)
    assert queues.waiting() == [queue]
    assert queues.records() == 1


async def test_what_is_sent_again_comes_before_what_came_later() -> None:
    queues = PartitionQueues[ProducerBatch](BATCH_BYTES, 0.0)
    for number in range(12):
        add(queues, b"%d" % number)
    queue = queues.queue(TP)
    request = take(queues, queue, 2 * BATCH_BYTES, 0.0)
    assert len(request.batches) == 2
    add(queues, b"last")
    queues.settle(request, request.batches)
    assert values(take(queues, queue, 10_000, 0.0).batches) == [*(b"%d" % number for number in range(12)), b"last"]


async def test_a_request_takes_no_more_than_it_has_room_for() -> None:
    queues = PartitionQueues[ProducerBatch](BATCH_BYTES, 0.0)
    for number in range(20):
        add(queues, b"%d" % number)
    queue = queues.queue(TP)
    assert queues.take(queue, BATCH_OVERHEAD_BYTES, 0.0) is None
    assert queue.idle
    request = take(queues, queue, 2 * BATCH_BYTES, 0.0)
    assert sum(batch.size for batch in request.batches) <= 2 * BATCH_BYTES


async def test_a_batch_that_goes_alone_shares_its_request_with_no_other() -> None:
    queues = PartitionQueues[ProducerBatch](BATCH_BYTES, 0.0)
    for number in range(12):
        add(queues, b"%d" % number)
    queue = queues.queue(TP)
    queue.batches[1].alone = True
    for expected in (5, 5, 2):
        request = take(queues, queue, 10_000, 0.0)
        assert [batch.count for batch in request.batches] == [expected]
        queues.settle(request)


async def test_old_batches_are_dropped_and_young_ones_stay() -> None:
    queues = PartitionQueues[ProducerBatch](BATCH_OVERHEAD_BYTES + 20, 0.0)
    for number in range(4):
        add(queues, b"%d" % number, now=float(number))
    queue = queues.queue(TP)
    assert values(queues.drop_older_than(queue, 1.0)) == [b"0", b"1"]
    assert queues.records() == 2
    queues.drop_older_than(queue, 9.0)
    assert queue.open is None
    assert queues.waiting() == []
    add(queues, b"fresh", now=10.0)
    assert queues.waiting() == [queue]


async def test_a_record_above_the_batch_size_gets_a_batch_of_its_own() -> None:
    queues = PartitionQueues[ProducerBatch](BATCH_BYTES, 0.0)
    for value in (b"a", b"b" * 500, b"c"):
        add(queues, value)
    assert [batch.values for batch in queues.queue(TP).batches] == [[b"a"], [b"b" * 500], [b"c"]]


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
                bulk = BulkAcknowledgement(len(part), asyncio.get_running_loop().create_future())
                size = sum(RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") for key, value, _ in part)
                piece = BatchSlice(bulk, range(len(part)), position)
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
            encoded = b"".join(piece_of_it.encode())
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
        bulk = BulkAcknowledgement(total, asyncio.get_running_loop().create_future())
        futures: list[tuple[int, asyncio.Future[RecordMetadata]]] = []
        expected: dict[int, int] = {}
        position, used = 0, 0
        for count in counts:
            if count == 1:
                futures.append((position, future()))
                batch.append(None, b"v", 1000 + position, (), 20, futures[-1][1])
            else:
                indexes = range(used, used + count) if data.draw(st.booleans()) else list(range(used, used + count))
                batch.extend(None, [b"v"] * count, 7, 20 * count, BatchSlice(bulk, indexes, 7))
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
    bulk = BulkAcknowledgement(2, asyncio.get_running_loop().create_future())
    deliver([single, BatchSlice(bulk, range(2), 5)], [5, 5, 5], TP, 10, 99)
    assert single.result() == RecordMetadata("t", 3, 10, 99)
    assert await bulk.metadata() == [RecordMetadata("t", 3, 11, 99), RecordMetadata("t", 3, 12, 99)]


async def test_without_acknowledgement_every_offset_is_minus_one() -> None:
    single = future()
    bulk = BulkAcknowledgement(2, asyncio.get_running_loop().create_future())
    deliver([single, BatchSlice(bulk, [1, 0], 5)], [5, 5, 5], TP, -1, -1)
    assert single.result().offset == -1
    assert [entry.offset for entry in await bulk.metadata()] == [-1, -1]


async def test_failures_reach_everybody_each_with_an_error_of_his_own() -> None:
    loop = asyncio.get_running_loop()
    futures = [future(), future()]
    bulk = BulkAcknowledgement(5, loop.create_future())
    fail([*futures, BatchSlice(bulk, range(3), 5)], lambda: CohortError("why"))
    assert futures[0].exception() is not futures[1].exception()
    assert not bulk.future.done()  # the others are still under way
    deliver([BatchSlice(bulk, range(3, 5), 5)], [5, 5], TP, 0, -1)
    error = bulk.future.exception()
    assert str(error) == "why"
    assert error is not None
    assert error.__notes__ == ["3 of the 5 records of this send_many were not acknowledged"]


async def test_a_waiter_that_was_cancelled_is_passed_over() -> None:
    single = future()
    bulk = BulkAcknowledgement(1, asyncio.get_running_loop().create_future())
    single.cancel()
    bulk.future.cancel()
    deliver([single, BatchSlice(bulk, range(1), 5)], [5, 5], TP, 0, -1)
    fail([single, BatchSlice(bulk, range(1), 5)], lambda: CohortError("why"))


def test_queues_are_told_apart_by_partition() -> None:
    queues = PartitionQueues[ProducerBatch](BATCH_BYTES, 0.0)
    assert queues.queue(TP) is queues.queue(TopicPartition("t", 3))
    assert queues.queue(TP) is not queues.queue(TopicPartition("t", 4))
    assert [queue.partition for queue in queues.all] == [TP, TopicPartition("t", 4)]
    assert isinstance(queues.queue(TP), PartitionQueue)


def numbered_queues(producer_id: int | None = 7) -> PartitionQueues[ProducerBatch]:
    return PartitionQueues[ProducerBatch](BATCH_BYTES, 0.0, ProducerIdentity(producer_id))


def numbers(request: PartitionRequest[ProducerBatch]) -> list[tuple[int, int]]:
    """Epoch and first sequence of each batch."""
    return [
        (batch.sequence.epoch, batch.sequence.first_sequence) for batch in request.batches if batch.sequence is not None
    ]


async def test_without_an_id_an_idempotent_producer_sends_nothing() -> None:
    queues = numbered_queues(None)
    add(queues, b"one")
    assert queues.waiting() == []


async def test_batches_are_numbered_when_they_are_sent_first_and_keep_their_number() -> None:
    queues = numbered_queues()
    for number in range(12):
        add(queues, b"%d" % number)
    queue = queues.queue(TP)
    request = take(queues, queue, BATCH_BYTES, 0.0)
    assert numbers(request) == [(0, 0)]
    queues.settle(request, request.batches)
    again = take(queues, queue, 10_000, 0.0)
    assert numbers(again) == [(0, 0), (0, 5), (0, 10)]
    header = read_header(b"".join(again.batches[1].encode()))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 5)


async def test_full_batches_follow_while_others_are_under_way_but_no_more_than_the_daemon_remembers() -> None:
    queues = numbered_queues()
    for number in range(5 * (SEQUENCED_WINDOW + 2) + 1):
        add(queues, b"%02d" % (number % 100))
    queue = queues.queue(TP)
    requests = [take(queues, queue, BATCH_BYTES, 0.0) for _ in range(SEQUENCED_WINDOW)]
    assert queues.waiting() == []
    for later in requests[1:]:
        queues.settle(later)
    assert queues.waiting() == [], "the oldest may still come again, and five have been sent since"
    queues.settle(requests[0], requests[0].batches)
    assert numbers(take(queues, queue, 10_000, 0.0)) == [(0, 0)]
    queues.settle(requests[0].queue.in_flight[0])
    assert len(take(queues, queue, 10_000, 0.0).batches) == 3


async def test_a_batch_that_is_not_full_waits_while_another_is_under_way() -> None:
    queues = numbered_queues()
    add(queues, b"one")
    queue = queues.queue(TP)
    request = take(queues, queue, 10_000, 0.0)
    add(queues, b"two")
    assert not queues.is_ready(queue, 9.0)
    queues.settle(request)
    assert queues.is_ready(queue, 9.0)


async def test_requests_that_fail_in_any_order_go_back_to_their_places() -> None:
    queues = numbered_queues()
    for number in range(20):
        add(queues, b"%02d" % number)
    queue = queues.queue(TP)
    requests = [take(queues, queue, BATCH_BYTES, 0.0) for _ in range(3)]
    for position in (1, 2, 0):
        queues.settle(requests[position], requests[position].batches)
    assert values(list(queue.batches)) == [b"%02d" % number for number in range(20)]
    assert queue.all_batches() == list(queue.batches)


async def test_new_numbers_are_given_once_nothing_is_under_way() -> None:
    queues = numbered_queues()
    for number in range(20):
        add(queues, b"%02d" % number)
    queue = queues.queue(TP)
    first, second = (take(queues, queue, BATCH_BYTES, 0.0) for _ in range(2))
    assert first.first
    assert not second.first
    queue.resequence_from(first.batches[0].place, sure=True)
    queues.settle(first, first.batches)
    assert queue.begin_epoch_if_asked() == []
    assert not queue.may_send(), "the second still has a number of the old epoch"
    queues.settle(second, second.batches)
    assert queue.begin_epoch_if_asked() == []
    fresh = take(queues, queue, 10_000, 0.0)
    assert numbers(fresh)[0] == (1, 0)
    assert values(fresh.batches)[0] == b"00"


async def test_what_comes_before_keeps_its_numbers_and_is_settled_first() -> None:
    queues = numbered_queues()
    for number in range(15):
        add(queues, b"%02d" % number)
    queue = queues.queue(TP)
    before, refused = (take(queues, queue, BATCH_BYTES, 0.0) for _ in range(2))
    queue.resequence_from(refused.batches[0].place, sure=True)
    for request in (refused, before):
        queues.settle(request, request.batches)
        assert queue.begin_epoch_if_asked() == []
    again = take(queues, queue, 10_000, 0.0)
    assert numbers(again) == [(0, 0)], "it may be in the log: with another number it would be there twice"
    queues.settle(again)
    assert queue.begin_epoch_if_asked() == []
    assert numbers(take(queues, queue, 10_000, 0.0)) == [(1, 0), (1, 5)]


async def test_what_may_be_in_the_log_gets_no_new_number_unless_it_cannot_be_there() -> None:
    for sure in (True, False):
        queues = numbered_queues()
        for number in range(10):
            add(queues, b"%02d" % number)
        queue = queues.queue(TP)
        queue.open = None
        first, second = (take(queues, queue, BATCH_BYTES, 0.0) for _ in range(2))
        second.batches[0].unanswered = 1
        queues.settle(first)
        queue.resequence_from(second.batches[0].place, sure=sure)
        queues.settle(second, second.batches)
        assert queues.begin_epoch_if_asked(queue) == ([] if sure else second.batches)
        assert len(queue.batches) == sure
        assert queues.waiting() == ([queue] if sure else [])


async def test_numbers_with_a_gap_do_not_share_a_request() -> None:
    """A daemon takes a request as a whole or not at all: the first batch would be refused for the gap behind it."""
    queues = numbered_queues()
    for number in range(16):
        add(queues, b"%02d" % number)
    queue = queues.queue(TP)
    requests = [take(queues, queue, BATCH_BYTES, 0.0) for _ in range(3)]
    queues.settle(requests[0], requests[0].batches)
    queues.settle(requests[2], requests[2].batches)
    assert numbers(take(queues, queue, 10_000, 0.0)) == [(0, 0)]
    assert numbers(take(queues, queue, 10_000, 0.0)) == [(0, 10)]


async def test_batches_of_two_ids_are_never_under_way_together() -> None:
    queues = numbered_queues(7)
    identity = queues._identity
    assert identity is not None
    for number in range(10):
        add(queues, b"%d" % number)
    queue = queues.queue(TP)
    old = take(queues, queue, BATCH_BYTES, 0.0)
    queues.settle(old, old.batches)
    identity.producer_id = 8
    old = take(queues, queue, 10_000, 0.0)
    assert numbers(old) == [(0, 0)]
    assert not queue.may_send(), "the other batch would be taken whether or not this one is"
    queues.settle(old)
    new = take(queues, queue, 10_000, 0.0)
    assert new.batches[0].sequence == BatchSequence(8, 0, 0)


async def test_halves_of_a_batch_take_its_place_and_get_numbers_of_their_own() -> None:
    queues = numbered_queues()
    for number in range(9):
        add(queues, b"%d" % number)
    queue = queues.queue(TP)
    request = take(queues, queue, BATCH_BYTES, 0.0)
    queue.resequence_from(request.batches[0].place, sure=True)
    queues.settle(request, request.batches[0].split())
    assert queue.begin_epoch_if_asked() == []
    first = take(queues, queue, 10_000, 0.0)
    second = take(queues, queue, 10_000, 0.0)
    assert numbers(first) + numbers(second) == [(1, 0), (1, 2)]
    queues.settle(first, first.batches)
    queues.settle(second, second.batches)
    assert values(list(queue.batches)) == [b"%d" % number for number in range(9)]


async def test_partitions_take_turns() -> None:
    """A partition that always has more to send goes behind those that wait."""
    queues = PartitionQueues[ProducerBatch](BATCH_BYTES, 0.0)
    busy, quiet = queues.queue(TopicPartition("t", 0)), queues.queue(TopicPartition("t", 1))
    for queue, count in ((busy, 5), (quiet, 1)):
        for _ in range(count):
            open_batch(queues, queue, BATCH_BYTES, 0.0).append(None, b"v", 0, (), BATCH_BYTES, future())
    request = take(queues, busy, 2 * BATCH_BYTES, 0.0)
    queues.settle(request)
    assert queues.waiting() == [quiet, busy]


def test_after_the_last_epoch_or_a_lost_identity_a_new_id_is_needed() -> None:
    identity = ProducerIdentity(7)
    sequences = Sequences(identity)
    sequences.take(3)
    for _ in range(LAST_PRODUCER_EPOCH):
        sequences.begin_epoch()
    assert sequences.take(1) == BatchSequence(7, LAST_PRODUCER_EPOCH, 0)
    sequences.begin_epoch()
    assert identity.producer_id is None
    identity.producer_id = 8
    assert sequences.upcoming == BatchSequence(8, 0, 0)
    assert sequences.take(2) == BatchSequence(8, 0, 0)
    assert BatchSequence(8, 0, 2**31 - 1).after(3).first_sequence == 2
