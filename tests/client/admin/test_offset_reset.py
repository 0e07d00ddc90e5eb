"""What a reset makes of one partition, whatever its log and its committed offset are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.admin import OffsetResetPlan, PartitionReset
from client.admin.offset_reset import PartitionLog, Reset, epoch_ms
from client.types.records import OffsetAndMetadata, TopicPartition

LOG = PartitionLog(first=10, end=50)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)

DECISIONS: list[tuple[str, Reset, int | None, PartitionLog, int | None, str]] = [
    ("the beginning", Reset("earliest", None), 30, LOG, 10, ""),
    ("the end", Reset("latest", None), 30, LOG, 50, ""),
    ("an offset", Reset(20, None), 30, LOG, 20, ""),
    ("the end by its number", Reset(50, None), 30, LOG, 50, ""),
    ("an offset too low", Reset(9, None), 30, LOG, 10, "9 is before the log, which begins here"),
    ("an offset too high", Reset(51, None), 30, LOG, 50, "51 is after the log, which ends here"),
    ("back", Reset(None, -5), 30, LOG, 25, ""),
    ("on", Reset(None, 5), 30, LOG, 35, ""),
    ("back too far", Reset(None, -25), 30, LOG, 10, "5 is before the log, which begins here"),
    ("back below zero", Reset(None, -31), 30, LOG, 10, "-1 is before the log, which begins here"),
    ("on too far", Reset(None, 21), 30, LOG, 50, "51 is after the log, which ends here"),
    ("a shift of what is gone", Reset(None, 1), 3, LOG, 10, "4 is before the log, which begins here"),
    ("a shift of nothing", Reset(None, 1), None, LOG, None, "left out: there is no committed offset to shift"),
    ("nothing committed yet", Reset("earliest", None), None, LOG, 10, ""),
    ("a time", Reset(NOON, None), 30, PartitionLog(10, 50, at_time=44), 44, ""),
    ("a time after all", Reset(NOON, None), 30, LOG, 50, "no record is that new: the end of the log"),
    ("an empty log", Reset(7, None), None, PartitionLog(0, 0), 0, "7 is after the log, which ends here"),
]


@pytest.mark.parametrize(
    ("reset", "current", "log", "new", "note"), [case[1:] for case in DECISIONS], ids=[case[0] for case in DECISIONS]
)
def test_decisions(reset: Reset, current: int | None, log: PartitionLog, new: int | None, note: str) -> None:
    assert reset.decide(TopicPartition("t", 0), current, log) == (new, note)


@given(
    first=st.integers(0, 1000),
    length=st.integers(0, 1000),
    current=st.none() | st.integers(0, 3000),
    reset=st.builds(Reset, st.sampled_from(["earliest", "latest"]) | st.integers(0, 3000), st.none())
    | st.builds(Reset, st.none(), st.integers(-3000, 3000)),
)
def test_a_new_offset_lies_in_the_log_and_a_note_tells_when_it_is_not_what_was_asked_for(
    first: int, length: int, current: int | None, reset: Reset
) -> None:
    new, note = reset.decide(TopicPartition("t", 0), current, PartitionLog(first, first + length))
    if new is None:
        assert current is None
        assert note
        return
    assert first <= new <= first + length
    asked = reset.to if isinstance(reset.to, int) else None
    if reset.shift_by is not None and current is not None:
        asked = current + reset.shift_by
    if asked is not None:
        assert bool(note) == (new != asked)


WRONG: list[tuple[Any, Any, type[Exception], str]] = [
    (None, None, ValueError, "either to= or shift_by="),
    (5, 5, ValueError, "either to= or shift_by="),
    ("first", None, ValueError, 'must be "earliest", "latest", an offset or a datetime, not \'first\''),
    (-1, None, ValueError, "offset -1 must be from 0"),
    (2**63, None, ValueError, "below 2\\*\\*63"),
    (True, None, TypeError, "not True"),
    (1.5, None, TypeError, "not 1.5"),
    (None, 1.5, TypeError, "shift_by must be a whole number, not 1.5"),
    (None, False, TypeError, "shift_by must be a whole number, not False"),
]


@pytest.mark.parametrize(("to", "shift_by", "error", "text"), WRONG)
def test_what_makes_no_sense_is_refused_at_once(to: Any, shift_by: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Reset.checked(to, shift_by)


def test_a_time_is_a_whole_millisecond_rounded_up_so_that_no_record_before_it_is_found() -> None:
    point = datetime(2026, 11, 21, 12, 0, 0, 123_000, tzinfo=UTC)
    assert epoch_ms(point) == 1_795_262_400_123
    assert epoch_ms(point + timedelta(microseconds=1)) == 1_795_262_400_124
    assert epoch_ms(point.astimezone(timezone(timedelta(hours=5, minutes=45)))) == 1_795_262_400_123
    assert epoch_ms(datetime(1950, 1, 1, tzinfo=UTC)) == 0


def test_a_time_without_a_zone_is_local() -> None:
    naive = datetime(2026, 7, 1, 8, 30)
    assert epoch_ms(naive) == epoch_ms(naive.astimezone()) == int(naive.timestamp() * 1000)


def test_the_edge_of_the_calendar_is_told() -> None:
    with pytest.raises(ValueError, match="outside the calendar"):
        epoch_ms(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))))


def test_a_plan_tells_differences_and_what_is_committed() -> None:
    rows = (
        PartitionReset("t", 0, 30, 10),
        PartitionReset("t", 1, None, 5),
        PartitionReset("t", 2, None, None, "left out"),
    )
    assert [row.difference for row in rows] == [-20, None, None]
    assert OffsetResetPlan("g", "Empty", rows).offsets == {
        TopicPartition("t", 0): OffsetAndMetadata(10),
        TopicPartition("t", 1): OffsetAndMetadata(5),
    }
