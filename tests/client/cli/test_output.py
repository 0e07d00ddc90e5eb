"""Tables, ranges and the progress bar, as people see them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.cli.output import Output, counted, number_ranges, table
from client.cli.progress import BesideProgress, Progress


def test_a_table_puts_numbers_to_the_right_and_text_to_the_left() -> None:
    assert table(("topic", "lag"), [("a", 1), ("longer", None), ("b", 1000)]).splitlines() == [
        "TOPIC    LAG",
        "a          1",
        "longer     -",
        "b       1000",
    ]


def test_rows_are_a_table_an_array_or_a_sentence_when_there_are_none() -> None:
    def printed(rows: list[dict[str, object]], *, as_json: bool) -> str:
        stream = io.StringIO()
        Output(as_json=as_json, stream=stream).rows(("name",), rows, empty="nothing here")
        return stream.getvalue()

    assert printed([{"name": "x", "more": 1}], as_json=False) == "NAME\nx\n"
    assert json.loads(printed([{"name": "x", "more": 1}], as_json=True)) == [{"name": "x", "more": 1}]
    assert printed([], as_json=False) == "nothing here\n"
    assert printed([], as_json=True) == "[]\n"


def test_names_that_a_terminal_would_obey_are_spelled_out() -> None:
    stream = io.StringIO()
    output = Output(as_json=False, stream=stream)
    output.rows(("name", "next"), [{"name": "a\nb\x1b[2J", "next": "é"}], empty="")
    output.line("right \u202e to left")
    assert stream.getvalue().splitlines() == ["NAME         NEXT", r"a\nb\x1b[2J  é", r"right \u202e to left"]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], "-"), ([4], "4"), ([3, 1, 2, 7], "1-3 7"), ([0, 1], "0-1"), ([9, 7, 5], "5 7 9")]
)
def test_numbers_are_shown_as_ranges(numbers: list[int], text: str) -> None:
    assert number_ranges(numbers) == text


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranges_keep_every_number(numbers: set[int]) -> None:
    def read(text: str) -> Iterable[int]:
        for part in text.split():
            low, _, high = part.partition("-")
            yield from range(int(low), int(high or low) + 1)

    assert set(read(number_ranges(numbers))) == numbers


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_at_most_ten_times_a_second_and_goes_away() -> None:
    now_s = 0.0
    stream = Terminal()
    with Progress("reading", 1000, clock=lambda: now_s, stream=stream) as progress:
        for done in range(100):
            now_s = done / 64
            progress.update(done * 10, f"{done} records")
    drawn = stream.getvalue().split("\r\033[K")
    assert len(drawn) == 1 + 15 + 1  # every seventh update is 0.109 s after the last one drawn
    assert drawn[8] == "reading [==============                ]  49% 49 records"
    assert drawn[-1] == ""


def test_progress_is_silent_without_a_terminal() -> None:
    stream = io.StringIO()
    with Progress("reading", None, clock=lambda: 0.0, stream=stream) as progress:
        progress.update(1)
    assert stream.getvalue() == ""


def test_a_log_line_takes_the_progress_line_away_and_the_next_update_brings_it_back() -> None:
    stream = Terminal()
    log = BesideProgress(stream)
    with Progress("reading", None, clock=lambda: 0.0, stream=stream) as progress:
        progress.update(1)
        print("a warning", file=log)
        progress.update(2)
    print("after it", file=log)
    assert stream.getvalue() == "\r\033[Kreading 1\r\033[Ka warning\n\r\033[Kreading 2\r\033[Kafter it\n"


def test_a_number_has_its_noun() -> None:
    assert [counted(number, "record") for number in (0, 1, 2, 1200)] == [
        "0 records",
        "1 record",
        "2 records",
        "1,200 records",
    ]
