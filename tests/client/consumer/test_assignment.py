"""The buffers between fetching and handing out: order, limits, positions, what counts as done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.consumer.assignment import Assignment
from client.consumer.decoding import BatchDecoder
from client.consumer.partition import FetchedBatch, PartitionState
from client.errors import CorruptMessageError, IllegalStateError, RecordDeserializationError
from client.types.records import ConsumerRecord
from protocol.control_batch import TransactionEnd, encode_control_batch
from protocol.record_batch import encode_batch, iter_batches
from protocol.subscription import TopicPartition

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


def batch(offsets: list[int], *, ends_at: int | None = None) -> FetchedBatch:
    """A batch as the log holds it: values say their offsets; compaction may have left holes."""
    stored = encode_batch([b"%d" % offset for offset in offsets], timestamps_ms=offsets, offsets=offsets)
    (_, header), *_ = iter_batches(stored)
    header = replace(header, base_offset=offsets[0], leader_epoch=3)
    assert ends_at is None or ends_at == header.next_offset
    return FetchedBatch(header.pack() + stored[80:], 0, header)


def assignment(**partitions: list[list[int]]) -> Assignment:
    made = Assignment(BatchDecoder(None, None))
    for name, batches in partitions.items():
        (state,) = made.add([TopicPartition("t", int(name[1:]))], "reset")
        state.move_to(batches[0][0] if batches else 0)
        for offsets in batches:
            state.add(batch(offsets))
    return made


def offsets_of(taken: dict[TopicPartition, list]) -> dict[int, list[int]]:  # type: ignore[type-arg]
    return {tp.partition: [record.offset for record in records] for tp, records in taken.items()}


def test_records_carry_everything() -> None:
    made = assignment(p0=[[5, 6]])
    record = made.take(10, ())[T0][1]
    assert record == ConsumerRecord(topic="t", partition=0, offset=6, timestamp_ms=6, key=None, value=b"6", headers=())


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(["one", "many", "columns"]), st.integers(1, 5)), min_size=1, max_size=30),
)
def test_whatever_the_limits_every_record_comes_once_and_in_order(
    gaps: list[list[int]], takes: list[tuple[str, int]]
) -> None:
    expected: list[int] = []
    batches: list[list[int]] = []
    offset = 0
    for steps in gaps:
        offsets = []
        for step in steps:
            offsets.append(offset)
            offset += step
        batches.append(offsets)
        expected += offsets
    made = assignment(p0=batches)
    got: list[int] = []
    for how, limit in [*takes, *[("columns", 7)] * len(expected)]:
        if how == "one":
            record = made.take_one(())
            fresh = [record.offset] if record else []
        elif how == "many":
            fresh = offsets_of(made.take(limit, ())).get(0, [])
        else:
            columns = made.take_columns(limit, ()).get(T0, [])
            fresh = [offset for part in columns for offset in part.offsets]
            assert [record.offset for part in columns for record in part.records()] == fresh
        assert len(fresh) <= limit
        got += fresh
        assert not got or made.state(T0).position > got[-1]
    assert got == expected
    assert made.state(T0).buffered_bytes == 0


def test_a_batch_that_begins_below_the_position_is_skipped_up_to_it() -> None:
    made = assignment(p0=[])
    state = made.state(T0)
    state.move_to(12)
    state.add(batch([10, 11, 12, 13]))
    assert offsets_of(made.take(10, ())) == {0: [12, 13]}
    assert state.position == 14


def test_columns_begin_and_end_within_a_batch_and_count_as_handed_out() -> None:
    made = assignment(p0=[])
    state = made.state(T0)
    state.move_to(12)
    state.add(batch([10, 11, 12, 13, 17]))
    (columns,) = made.take_columns(2, ())[T0]
    assert (list(columns.offsets), columns.values(), state.position) == ([12, 13], [b"12", b"13"], 17)
    assert (state.done, made.in_hand_of(made.states)) == (12, True)
    made.begin_poll()
    assert state.done == 17
    assert [list(part.offsets) for part in made.take_columns(9, ())[T0]] == [[17]]
    assert (state.position, state.buffered_bytes) == (18, 0)


def test_a_damaged_batch_is_told_when_columns_are_taken_too() -> None:
    made = assignment(p0=[[0, 1]])
    state = made.state(T0)
    buffer, position, header = batch([2, 3])
    state.add(FetchedBatch(buffer[:-1] + b"!", position, header))
    assert [len(part) for part in made.take_columns(9, ())[T0]] == [2]
    with pytest.raises(CorruptMessageError, match=r"the batch at offset 2 of t-0 is damaged: .*seek\(tp, 4\)"):
        made.raise_error()
    state.move_to(4)
    assert made.take_columns(9, ()) == {}


@pytest.mark.parametrize("how", ["one", "many", "columns"])
def test_batches_without_records_from_the_position_on_make_room_as_others_do(how: str) -> None:
    made = assignment(p0=[])
    stored, position, header = batch([0, 1])
    made.state(T0).move_to(2)  # compaction has removed the record there
    made.state(T0).add(FetchedBatch(stored, position, replace(header, last_offset_delta=2)))
    takes: dict[str, Callable[[], object]] = {
        "one": lambda: made.take_one(()),
        "many": lambda: made.take(9, ()),
        "columns": lambda: made.take_columns(9, ()),
    }
    assert not takes[how]()
    assert (made.state(T0).position, made.state(T0).done, made.state(T0).buffered_bytes) == (3, 3, 0)
    assert made.freed, "or a fetcher that waits for room would never be told"


def marker(offset: int) -> FetchedBatch:
    """The end of a transaction, as the log holds it."""
    encoded = encode_control_batch([TransactionEnd(0, 7, 0, committed=True, first_offset=0)], 5)
    header = replace(encoded.header, base_offset=offset)
    return FetchedBatch(header.pack() + b"".join(encoded.body), 0, header)


def emptied(first: int, end: int) -> FetchedBatch:
    """What the daemon sends in the place of a batch of an aborted transaction."""
    stored, position, header = batch([first])
    return FetchedBatch(
        stored[:80], position, replace(header, record_count=0, last_offset_delta=end - first - 1, length=80)
    )


@pytest.mark.parametrize("how", ["one", "many", "columns"])
def test_markers_and_aborted_batches_are_passed_without_a_poll(how: str) -> None:
    made = assignment(p0=[])
    state = made.state(T0)
    state.add(marker(0))
    state.add(emptied(1, 4))
    assert (state.position, state.done, state.fetch_offset, state.buffered_bytes) == (4, 4, 4, 0)
    state.add(batch([4, 5]))
    state.add(marker(6))
    assert (state.position, state.done) == (4, 4)
    takes: dict[str, Callable[[], object]] = {
        "one": lambda: [made.take_one(()), made.take_one(())],
        "many": lambda: made.take(2, ()),
        "columns": lambda: made.take_columns(2, ()),
    }
    assert takes[how]()
    assert (state.position, state.done, state.buffered_bytes) == (7, 4, 0), "passed with the last record before it"
    state.add(marker(7))
    assert (state.position, state.done) == (8, 4), "the program has the records before it in hand"
    made.begin_poll()
    assert (state.position, state.done) == (8, 8)
    state.add(marker(8))
    assert (state.position, state.done) == (9, 9)


def test_a_marker_behind_the_record_of_a_handler_is_done_with_it() -> None:
    made = assignment(p0=[[0]])
    state = made.state(T0)
    record = made.take_for_work(state)
    assert record is not None
    state.add(marker(1))
    assert (state.position, state.done) == (2, 0)
    state.finish(record.offset, state.epoch)
    assert state.done == 2
    state.add(batch([2]))
    state.add(marker(3))
    record = made.take_for_work(state)
    assert record is not None
    state.give_back(state.epoch)
    assert (state.position, state.done, state.fetch_offset) == (2, 2, 2), "it comes again, and what lies behind it"


def test_partitions_take_turns() -> None:
    made = assignment(p0=[[0, 1, 2, 3]], p1=[[0, 1, 2, 3]], p2=[[0, 1, 2, 3]])
    assert [offsets_of(made.take(2, ())) for _ in range(3)] == [{0: [0, 1]}, {1: [0, 1]}, {2: [0, 1]}]


def test_one_by_one_turns_to_the_next_partition_at_the_end_of_a_batch() -> None:
    made = assignment(p0=[[0, 1], [2]], p1=[[0]])
    seen = [made.take_one(()) for _ in range(4)]
    assert [(record.partition, record.offset) for record in seen if record] == [(0, 0), (0, 1), (1, 0), (0, 2)]


def test_only_wanted_readable_partitions_are_served() -> None:
    made = assignment(p0=[[0]], p1=[[0]], p2=[[0]])
    made.state(T0).paused = True
    made.freeze([T1])
    assert offsets_of(made.take(10, (T0, T1))) == {}
    assert offsets_of(made.take(10, ())) == {2: [0]}
    made.freeze([T1], frozen=False)
    assert made.take_one((T1,)) is not None


def test_a_pause_can_be_seen_and_ended_while_its_partition_is_given_up() -> None:
    made = assignment(p0=[[0]], p1=[[0]], p2=[[0]])
    made.state(T0).paused = made.state(T1).paused = True
    made.remember_pauses([T0, T1, T2])
    made.remove([T0, T1, T2])
    assert sorted(made.paused) == [T0, T1]
    with pytest.raises(IllegalStateError, match="t-2 is not assigned"):
        made.resume([T0, T2])
    assert sorted(made.paused) == [T0, T1], "a call that raises has changed nothing"
    made.resume([T1])
    made.add([T0, T1, T2], "committed")
    assert made.paused == [T0]
    made.resume([T0])
    assert made.paused == []


def test_a_pause_of_a_partition_that_went_elsewhere_is_forgotten() -> None:
    made = assignment(p0=[[0]], p1=[[0]])
    made.state(T0).paused = made.state(T1).paused = True
    made.remember_pauses([T0, T1])
    made.remove([T0, T1])
    made.forget_pauses(but=[T1])
    assert made.paused == [T1]
    made.add([T0, T1], "committed")
    assert made.paused == [T1], "it is paused once, not in the memory and in the state"
    made.remove([T1])
    made.forget_pauses()
    assert made.paused == []


def test_nothing_is_handed_out_once_ownership_is_gone() -> None:
    made = assignment(p0=[[0]])
    made.owned = lambda: False
    assert made.take(10, ()) == {}
    assert made.take_one(()) is None


def test_records_of_the_latest_poll_are_not_done_until_the_next() -> None:
    made = assignment(p0=[[0, 1, 2, 3]])
    state = made.state(T0)
    seen = []
    for _ in range(2):
        made.begin_poll()
        seen.append((state.position, state.done, made.in_hand_of(made.states)))
        made.take(2, ())
    assert seen == [(0, 0, False), (2, 2, False)]
    assert made.in_hand_of(made.states)


def test_a_commit_of_everything_handed_out_settles_it() -> None:
    made = assignment(p0=[[0, 1]])
    made.take(2, ())
    held = []
    for offset in (1, 2):
        made.settle(T0, offset)
        held.append(made.in_hand_of(made.states))
    assert held == [True, False]
    assert made.state(T0).done == 2


def test_a_seek_voids_what_was_buffered() -> None:
    made = assignment(p0=[[0, 1, 2]])
    state = made.state(T0)
    made.take_one(())
    state.move_to(1)
    assert (state.position, state.fetch_offset, state.buffered_bytes) == (1, 1, 0)
    state.add(batch([0]))  # an answer that lies below
    assert state.buffered_bytes == 0


def damaged(offsets: list[int]) -> FetchedBatch:
    whole = batch(offsets)
    return whole._replace(buffer=whole.buffer[:-1] + bytes([whole.buffer[-1] ^ 1]))


def test_a_damaged_batch_names_its_place_and_takes_nothing_else_with_it() -> None:
    made = assignment(p0=[[0, 1]], p1=[[0]])
    made.state(T0).add(damaged([2, 3]))
    assert offsets_of(made.take(10, ())) == {0: [0, 1], 1: [0]}
    for _ in range(2):  # it stays in the way until the program seeks past it
        made.take(10, ())
        with pytest.raises(CorruptMessageError, match=r"offset 2 of t-0.*seek\(tp, 4\)"):
            made.raise_error()
    made.state(T0).move_to(4)
    made.raise_error()


def only_digits(item: bytes) -> int:
    if not item.isdigit():
        raise ValueError(f"{item!r} is no number")
    return int(item)


def poisoned(keys: list[bytes] | None = None) -> Assignment:
    """Records 0 to 4 in one batch; the value of 2 is no number."""
    made = Assignment(BatchDecoder(only_digits, only_digits))
    (state,) = made.add([T0], "reset")
    state.move_to(0)
    stored = encode_batch([b"0", None, b"x", b"3", b"4"], timestamps_ms=[0] * 5, keys=keys)
    ((position, header),) = iter_batches(stored)
    state.add(FetchedBatch(stored, position, header))
    return made


def test_a_record_that_a_deserializer_does_not_take_lets_those_before_it_pass() -> None:
    made = poisoned()
    assert offsets_of(made.take(10, ())) == {0: [0, 1]}
    assert made.state(T0).position == 2
    for _ in range(2):  # it stays in the way until the program seeks past it
        assert made.take_one(()) is None
        with pytest.raises(RecordDeserializationError, match=r"value_deserializer failed at offset 2 of t-0") as caught:
            made.raise_error()
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 2)
        assert isinstance(caught.value.__cause__, ValueError)


@given(st.lists(st.integers(0, 4), max_size=12), st.booleans())
def test_deserializers_see_the_records_that_are_handed_out_and_no_others(limits: list[int], keyed: bool) -> None:
    seen: list[bytes] = []

    def note(item: bytes) -> str:
        seen.append(item)
        return item.decode()

    made = Assignment(BatchDecoder(note if keyed else None, note))
    (state,) = made.add([T0], "reset")
    state.move_to(0)
    values = [b"%d" % number for number in range(20)]
    stored = encode_batch(values, timestamps_ms=list(range(20)), keys=[b"k"] * 20)
    ((position, header),) = iter_batches(stored)
    state.add(FetchedBatch(stored, position, header))
    taken: list[ConsumerRecord] = []
    for limit in limits:
        one = made.take_one(()) if limit == 0 else None
        taken += [one] if one is not None else made.take(limit, ()).get(T0, [])
        assert [item for item in seen if item != b"k"] == values[: len(taken)]
        assert seen.count(b"k") == len(taken) * keyed
        assert state.position == len(taken)
    assert [record.value for record in taken] == [value.decode() for value in values[: len(taken)]]
    assert [record.timestamp_ms for record in taken] == list(range(len(taken)))
    assert {record.key for record in taken} <= {"k" if keyed else b"k"}


def test_records_below_the_position_are_not_deserialized() -> None:
    made = poisoned()
    (batch,) = made.state(T0)._batches
    made.state(T0).move_to(3)
    made.state(T0).add(batch)
    assert offsets_of(made.take(10, ())) == {0: [3, 4]}


@pytest.mark.parametrize(("bad_key", "handed"), [(0, []), (1, [0]), (2, [0, 1]), (4, [0, 1])])
def test_the_first_of_key_and_value_that_fails_counts(bad_key: int, handed: list[int]) -> None:
    made = poisoned([b"k" if index == bad_key else b"1" for index in range(5)])
    assert offsets_of(made.take(10, ())).get(0, []) == handed
    made.take(10, ())
    with pytest.raises(RecordDeserializationError, match=f"at offset {len(handed)} of"):
        made.raise_error()


def test_what_is_not_assigned_is_named_beside_what_is() -> None:
    with pytest.raises(IllegalStateError, match="t-2 is not assigned to this consumer; assigned are: t-0, t-1"):
        assignment(p0=[[0]], p1=[[0]]).state(T2)


def test_a_partition_given_up_hands_out_nothing_even_to_those_who_hold_its_state() -> None:
    made = assignment(p0=[[0]])
    state: PartitionState = made.state(T0)
    made.remove([T0])
    assert not state.readable
    assert made.take(10, ()) == {}


@given(st.lists(st.tuples(st.sampled_from(["fail", "clear", "pause", "raise", "remove", "move"]), st.integers(0, 2))))
def test_the_error_of_a_readable_partition_is_raised_once_whatever_happens_to_the_others(
    steps: list[tuple[str, int]],
) -> None:
    made = assignment(p0=[[0]], p1=[[0]], p2=[[0]])
    failing: dict[int, Exception] = {}
    for step, number in steps:
        state = made.states.get(TopicPartition("t", number))
        if step == "raise":
            readable = [failing[each.tp.partition] for each in made.rotation() if each.readable and each.error]
            told = None
            try:
                made.raise_error()
            except ValueError as error:
                told = error
            assert told is (readable[0] if readable else None)
            failing = {number: error for number, error in failing.items() if error is not told}
        elif state is not None:
            if step == "fail":
                state.error = failing[number] = ValueError(number)
            elif step == "pause":
                state.paused = not state.paused
            else:
                failing.pop(number, None)
                if step == "clear":
                    state.error = None
                elif step == "move":
                    state.move_to(0)
                else:
                    made.remove([state.tp])


def test_the_leader_epoch_before_an_offset_is_that_of_the_record_there() -> None:
    (state,) = Assignment(BatchDecoder(None, None)).add([T0], "reset")
    state.move_to(3, leader_epoch=4)
    assert [state.leader_epoch_before(offset) for offset in (3, 9)] == [4, 4]
    for base, epoch in ((3, 4), (5, 4), (7, 6), (9, 7)):
        stored = batch([base, base + 1])
        state.add(stored._replace(header=replace(stored.header, leader_epoch=epoch)))
    assert [state.leader_epoch_before(offset) for offset in (3, 4, 7, 8, 9, 10, 11)] == [4, 4, 4, 6, 6, 7, 7]
    state.fetch_anew(5)
    assert (state.fetch_offset, state.buffered_bytes, state.leader_epoch_before(3)) == (3, 0, 4)
    state.move_to(3)
    assert state.leader_epoch_before(3) == -1, "where a program seeks, no record before it is known"


def test_leader_epochs_that_nothing_left_to_commit_is_of_are_forgotten() -> None:
    made = Assignment(BatchDecoder(None, None))
    (state,) = made.add([T0], "reset")
    state.move_to(0)
    for offset in range(100):
        stored = batch([offset])
        state.add(stored._replace(header=replace(stored.header, leader_epoch=offset)))
        made.take(10, ())
        made.begin_poll()
    assert state.leader_epoch_before(100) == 99
    assert len(state._leader_epochs) < 5
