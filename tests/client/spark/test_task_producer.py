"""The batches of a task, and the clock by which their time runs out."""

from __future__ import annotations

from time import sleep

import pyarrow
from hypothesis import given, settings
from hypothesis import strategies as st

from client.producer.sequences import BatchSequence
from client.spark.tasks.arrow import Column, Rows
from client.spark.tasks.producer import TaskBatch, _Clock
from protocol.record_batch import decode_columns, read_header
from protocol.subscription import TopicPartition

TP = TopicPartition("t", 1)


def batch_of(values: list[bytes | None]) -> TaskBatch:
    return TaskBatch(TP, Rows(Column.of(pyarrow.array(values, pyarrow.binary())), None, None), 7, None)


def values_of(batch: TaskBatch) -> list[bytes | None]:
    content = b"".join(batch.encode())
    return decode_columns(content, 0, read_header(content)).values()


@given(st.lists(st.none() | st.binary(max_size=5), min_size=2, max_size=20))
@settings(deadline=None)
def test_halves_of_a_batch_hold_its_rows_in_its_place(values: list[bytes | None]) -> None:
    batch = batch_of(values)
    batch.place, batch.created_at = (3,), 5.0
    first, second = batch.split()
    assert values_of(first) + values_of(second) == values
    assert (first.count, first.count + second.count) == (len(values) // 2, len(values))
    assert (first.place, second.place) == ((3, 0), (3, 1))
    assert all(half.alone and half.created_at == 5.0 and half.sequence is None for half in (first, second))


def test_a_batch_carries_its_sequence_and_is_as_large_as_it_says() -> None:
    batch = batch_of([b"one", b"two"])
    assert len(b"".join(batch.encode())) == batch.size
    batch.sequence = BatchSequence(7, 2, 30)
    header = read_header(b"".join(batch.encode()))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 30)


def test_what_a_task_does_between_two_calls_uses_up_no_time() -> None:
    clock = _Clock()
    with clock.running():
        sleep(0.02)
        before = clock.now()
    sleep(0.5)
    with clock.running():
        after = clock.now()
    assert before >= 0.02
    assert after - before < 0.4
