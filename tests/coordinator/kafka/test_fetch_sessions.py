"""Fetch sessions: what is left out of incremental answers is what their reader knows, and a cache that has bounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.kafka.codes import KafkaCode
from coordinator.kafka.fetch_sessions import (
    BEGINS,
    EVICTION_MS,
    FIRST_EPOCH,
    IN_NONE,
    NO_SESSION,
    FetchContext,
    FetchSessions,
    Key,
    SessionAnswer,
    next_epoch,
)
from protocol.messages.records import FetchedPartition, FetchPartition

EARLY, LATE = 0, EVICTION_MS + 1


def sessions(max_sessions: int = 3, max_partitions: int = 100, max_bytes: int = 10**6) -> FetchSessions:
    numbers = count(1)
    return FetchSessions(
        lambda: next(numbers), max_sessions=max_sessions, max_partitions=max_partitions, max_bytes=max_bytes
    )


def asking(*keys: Key, offset: int = 0) -> dict[Key, FetchPartition]:
    return {key: FetchPartition(key[1], offset, 1000) for key in keys}


def told(context: FetchContext | KafkaCode, now_ms: int = EARLY, **changes: Any) -> SessionAnswer:
    """The answer when nothing is there to read."""
    assert isinstance(context, FetchContext), context
    data = {key: replace(FetchedPartition(key[1], 0, 0, 0, 0), **changes) for key in context.partitions}
    return context.answer(data, now_ms)


def begun(cache: FetchSessions, size: int, now_ms: int = EARLY, first: int = 0) -> int:
    """The number of a new session, 0 when there is none."""
    keys = [("t", index) for index in range(first, first + size)]
    return told(cache.open(NO_SESSION, BEGINS, False, asking(*keys), (), now_ms), now_ms).session_id


def touched(cache: FetchSessions, number: int, epoch: int, now_ms: int) -> SessionAnswer | KafkaCode:
    context = cache.open(number, epoch, False, {}, (), now_ms)
    return context if isinstance(context, KafkaCode) else told(context, now_ms)


def test_an_incremental_answer_has_what_is_new() -> None:
    cache = sessions()
    number = begun(cache, 2)
    assert touched(cache, number, 1, EARLY) == SessionAnswer(0, number, {})
    added = told(cache.open(number, 2, False, asking(("t", 7)), (), EARLY))
    assert list(added.partitions) == [("t", 7)]
    forgetting = cache.open(number, 3, False, {}, [("t", 0), ("u", 5)], EARLY)
    assert isinstance(forgetting, FetchContext)
    assert list(forgetting.partitions) == [("t", 1), ("t", 7)]


@pytest.mark.parametrize("field", ["high_watermark", "last_stable_offset", "log_start_offset"])
def test_what_moved_is_told_once(field: str) -> None:
    cache = sessions()
    number = begun(cache, 1)
    moved = told(cache.open(number, 1, False, {}, (), EARLY), **{field: 5})
    assert len(moved.partitions) == 1
    assert not told(cache.open(number, 2, False, {}, (), EARLY), **{field: 5}).partitions


def test_an_error_is_told_each_time_and_its_end_once() -> None:
    cache = sessions()
    number = begun(cache, 1)
    for epoch in (1, 2):
        assert told(cache.open(number, epoch, False, {}, (), EARLY), error_code=1).partitions
    assert told(cache.open(number, 3, False, {}, (), EARLY)).partitions
    assert not told(cache.open(number, 4, False, {}, (), EARLY)).partitions


def test_where_logs_part_is_told_each_time() -> None:
    cache = sessions()
    number = begun(cache, 1)
    for epoch in (1, 2):
        context = cache.open(number, epoch, False, {}, (), EARLY)
        assert isinstance(context, FetchContext)
        data = FetchedPartition(0, 0, 0, 0, 0, diverging_epoch=1, diverging_end=2)
        assert context.answer({("t", 0): data}, EARLY).partitions
    assert told(cache.open(number, 3, False, {}, (), EARLY)).partitions


def test_who_had_records_is_read_last_in_the_next_request() -> None:
    cache = sessions()
    number = begun(cache, 3)
    context = cache.open(number, 1, False, {}, (), EARLY)
    assert isinstance(context, FetchContext)
    data: dict[Key, FetchedPartition]
    data = {
        ("t", index): FetchedPartition(index, 0, 0, 0, 0, records=b"r" if index == 0 else b"") for index in range(3)
    }
    assert list(context.answer(data, EARLY).partitions) == [("t", 0)]
    after = cache.open(number, 2, False, {}, (), EARLY)
    assert isinstance(after, FetchContext)
    assert [index for _, index in after.partitions] == [1, 2, 0]


def test_epochs_follow_one_another() -> None:
    cache = sessions()
    number = begun(cache, 1)
    assert touched(cache, number, 2, EARLY) == KafkaCode.INVALID_FETCH_SESSION_EPOCH
    assert not isinstance(touched(cache, number, 1, EARLY), KafkaCode)
    assert touched(cache, number, 1, EARLY) == KafkaCode.INVALID_FETCH_SESSION_EPOCH
    assert touched(cache, number + 1, 1, EARLY) == KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    assert next_epoch(2**31 - 1) == FIRST_EPOCH


def test_a_request_that_was_overtaken_is_told_so() -> None:
    cache = sessions()
    number = begun(cache, 1)
    slow = cache.open(number, 1, False, {}, (), EARLY)
    quick = cache.open(number, 2, False, {}, (), EARLY)
    assert told(quick, high_watermark=9).partitions
    assert told(slow, high_watermark=3) == SessionAnswer(KafkaCode.INVALID_FETCH_SESSION_EPOCH, NO_SESSION, {})
    assert not told(cache.open(number, 3, False, {}, (), EARLY), high_watermark=9).partitions


def test_ids_and_names_do_not_go_together() -> None:
    cache = sessions()
    number = begun(cache, 1)
    assert cache.open(number, 1, True, {}, (), EARLY) == KafkaCode.FETCH_SESSION_TOPIC_ID_ERROR


@pytest.mark.parametrize("epoch", [BEGINS, IN_NONE])
def test_a_full_request_gives_up_the_session_that_it_names(epoch: int) -> None:
    cache = sessions()
    number = begun(cache, 1)
    answer = told(cache.open(number, epoch, False, asking(("t", 0)), (), EARLY))
    assert (answer.session_id == NO_SESSION) == (epoch == IN_NONE)
    assert touched(cache, number, 1, EARLY) == KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.count == (epoch == BEGINS)


def test_a_session_of_nothing_is_none() -> None:
    cache = sessions()
    assert begun(cache, 0) == NO_SESSION
    number = begun(cache, 1)
    assert told(cache.open(number, 1, False, {}, [("t", 0)], EARLY)) == SessionAnswer(0, NO_SESSION, {})
    assert (cache.count, cache.memory) == (0, 0)


def test_a_full_cache_takes_nobody_while_all_are_new() -> None:
    cache = sessions(max_sessions=2)
    first, second = begun(cache, 1), begun(cache, 1)
    assert first != second
    assert begun(cache, 50) == NO_SESSION
    for number in (first, second):
        assert not isinstance(touched(cache, number, 1, EARLY), KafkaCode)


def test_who_was_not_heard_of_for_long_goes_first() -> None:
    cache = sessions(max_sessions=2)
    first, second = begun(cache, 9), begun(cache, 1)
    touched(cache, second, 1, LATE)
    third = begun(cache, 1, LATE)
    assert third != NO_SESSION
    assert touched(cache, first, 1, LATE) == KafkaCode.FETCH_SESSION_ID_NOT_FOUND


def test_of_old_ones_in_use_the_smallest_goes_for_a_larger_one_only() -> None:
    cache = sessions(max_sessions=2)
    first, second = begun(cache, 5), begun(cache, 3)
    for number in (first, second):
        touched(cache, number, 1, LATE)
    assert begun(cache, 3, LATE) == NO_SESSION
    assert begun(cache, 4, LATE) != NO_SESSION
    assert touched(cache, second, 2, LATE) == KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    assert not isinstance(touched(cache, first, 2, LATE), KafkaCode)
    assert begun(cache, 50, LATE) != NO_SESSION
    assert touched(cache, first, 3, LATE) == KafkaCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_that_would_outgrow_the_bounds_is_given_up() -> None:
    cache = sessions(max_partitions=10)
    assert begun(cache, 11) == NO_SESSION
    number = begun(cache, 10)
    more = cache.open(number, 1, False, asking(("t", 99)), (), EARLY)
    assert more == KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    assert (cache.count, cache.memory) == (0, 0)


def test_the_memory_of_all_sessions_has_a_bound() -> None:
    cache = sessions(max_sessions=1000, max_bytes=20_000)
    numbers = [begun(cache, 10) for _ in range(20)]
    assert 0 < cache.count < 20
    assert numbers.count(NO_SESSION) == 20 - cache.count
    assert cache.memory <= 20_000
    large = cache.open(NO_SESSION, BEGINS, False, asking(("x" * 20_000, 0)), (), EARLY)
    assert told(large).session_id == NO_SESSION
    growing = cache.open(numbers[0], 1, False, asking(*(("t", index) for index in range(10, 90))), (), EARLY)
    assert growing == KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.memory <= 20_000


PARTITIONS: Final[list[Key]] = [("t", 0), ("t", 1), ("u", 0), ("v", 0)]


@dataclass
class Log:
    """A partition: ends and error; a record is its offset."""

    start: int = 0
    stable: int = 0
    end: int = 0
    error: int = 0

    def read(self, offset: int) -> FetchedPartition:
        if self.error:
            return FetchedPartition(0, self.error, self.end, self.stable, self.start)
        at_most_two = min(self.stable, offset + 2)
        records = bytes(each % 256 for each in range(max(offset, self.start), at_most_two))
        return FetchedPartition(0, 0, self.end, self.stable, self.start, records=records)


@dataclass
class Reader:
    """A client with a session, as Java's: what it wants, what it knows of its partitions, and where it reads."""

    cache: FetchSessions
    offsets: dict[Key, int] = field(default_factory=dict)
    number: int = NO_SESSION
    epoch: int = BEGINS
    in_session: dict[Key, int] = field(default_factory=dict)
    known: dict[Key, tuple[int, ...]] = field(default_factory=dict)

    def fetch(self, logs: dict[Key, Log], now_ms: int) -> None:
        full = self.epoch == BEGINS
        asked = {
            k: FetchPartition(k[1], at, 1) for k, at in self.offsets.items() if full or self.in_session.get(k) != at
        }
        forgotten = [] if full else [key for key in self.in_session if key not in self.offsets]
        context = self.cache.open(self.number, self.epoch, False, asked, forgotten, now_ms)
        if isinstance(context, KafkaCode):
            self.number, self.epoch = NO_SESSION, BEGINS
            return
        assert {key: ask.fetch_offset for key, ask in context.partitions.items()} == self.offsets
        data = {key: logs[key].read(ask.fetch_offset) for key, ask in context.partitions.items()}
        answer = context.answer(data, now_ms)
        assert answer.error_code == 0
        self.in_session = dict(self.offsets)
        for key in set(self.known) - set(self.offsets):
            del self.known[key]
        for key, each in answer.partitions.items():
            state = each.error_code, each.high_watermark, each.last_stable_offset, each.log_start_offset
            self.known[key] = (each.error_code,) if each.error_code else state
            self.offsets[key] += len(each.records or b"")
        self.number = answer.session_id
        self.epoch = BEGINS if self.number == NO_SESSION else next_epoch(self.epoch)


FETCH: Final = st.tuples(st.just("fetch"), st.integers(0, 2))
ACTIONS: Final = st.one_of(
    *(FETCH, FETCH, FETCH, FETCH),
    st.tuples(st.just("want"), st.integers(0, 2), st.sampled_from(PARTITIONS)),
    st.tuples(st.just("forget"), st.integers(0, 2), st.sampled_from(PARTITIONS)),
    st.tuples(st.just("append"), st.sampled_from(PARTITIONS), st.integers(1, 3)),
    st.tuples(st.just("decide"), st.sampled_from(PARTITIONS)),
    st.tuples(st.just("delete"), st.sampled_from(PARTITIONS)),
    st.tuples(st.just("fail"), st.sampled_from(PARTITIONS), st.sampled_from([0, 0, 1, 6])),
    st.tuples(st.just("wait"), st.sampled_from([1, EVICTION_MS + 1])),
)


@given(st.lists(ACTIONS, min_size=20, max_size=60), st.integers(1, 3), st.sampled_from([3_000, 10**6]))
@settings(max_examples=300, deadline=None)
def test_an_incremental_reader_knows_what_full_answers_say(
    actions: list[tuple[object, ...]], slots: int, max_bytes: int
) -> None:
    """Whatever happens to logs, sessions and what is wanted: after each answer a reader knows what a full one would say."""
    cache = sessions(slots, 4, max_bytes)
    logs = {key: Log() for key in PARTITIONS}
    readers = [Reader(cache, dict.fromkeys(PARTITIONS[:2], 0)) for _ in range(3)]
    now = 0
    for action in actions:
        match action:
            case ("fetch", int(who)):
                reader, before = readers[who], dict(readers[who].offsets)
                reader.fetch(logs, now)
                if reader.in_session.keys() == reader.offsets.keys() and reader.epoch != BEGINS:
                    full = {key: logs[key].read(before[key]) for key in before}
                    for key, each in full.items():
                        state = 0, each.high_watermark, each.last_stable_offset, each.log_start_offset
                        assert reader.known[key] == ((each.error_code,) if each.error_code else state)
                        assert reader.offsets[key] == before[key] + len(each.records or b"")
            case ("want", int(who), key):
                readers[who].offsets.setdefault(key, logs[key].start)
            case ("forget", int(who), key):
                readers[who].offsets.pop(key, None)
            case ("append", key, int(size)):
                logs[key].end += size
            case ("decide", key):
                logs[key].stable = logs[key].end
            case ("delete", key):
                logs[key].start = logs[key].stable
            case ("fail", key, int(error)):
                logs[key].error = error
            case ("wait", int(by)):
                now += by
        assert cache.count <= slots
        assert 0 <= cache.memory <= max_bytes
        assert (cache.count == 0) == (cache.memory == 0)
