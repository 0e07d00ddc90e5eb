"""The comparison at the end of the demonstration must find what is wrong, or its "lost 0" is worth nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.demo.counting import Contribution, compare, contribution, decode, encode
from client.demo.files import FileCount, Lines, SourceFile, find_files
from client.types.records import ConsumerRecord

PLAIN = {"a.py": FileCount(lines=3, words=6), "b.py": FileCount(lines=2, words=0)}
ENDS = {0: 3, 1: 2}
WORK = [
    Contribution(0, 0, (("a.py", (1, 2)),)),
    Contribution(0, 2, (("a.py", (3,)),)),
    Contribution(1, 0, (("b.py", (0, 0)),)),
]


def records(partition: int, first: int, *content: tuple[str, str]) -> list[ConsumerRecord]:
    return [
        ConsumerRecord("lines", partition, first + number, 0, name.encode(), value.encode())
        for number, (name, value) in enumerate(content)
    ]


def test_complete_work_passes() -> None:
    outcome = compare(WORK, ENDS, PLAIN)
    assert outcome.passed
    assert (outcome.produced, outcome.delivered, outcome.lost, outcome.redelivered) == (5, 5, 0, 0)
    assert outcome.counts == PLAIN


@pytest.mark.parametrize("missing", range(len(WORK)))
def test_a_batch_that_no_member_wrote_down_is_lost(missing: int) -> None:
    outcome = compare([each for number, each in enumerate(WORK) if number != missing], ENDS, PLAIN)
    assert not outcome.passed
    assert outcome.lost == WORK[missing].records
    assert outcome.unlike == [WORK[missing].runs[0][0]]


def test_a_single_record_missing_in_the_middle_is_lost() -> None:
    cut = [replace(WORK[0], runs=(("a.py", (1,)),)), *WORK[1:]]
    outcome = compare(cut, ENDS, PLAIN)
    assert (outcome.lost, outcome.passed) == (1, False)


def test_a_batch_delivered_twice_counts_once_and_is_reported() -> None:
    outcome = compare([*WORK, WORK[0]], ENDS, PLAIN)
    assert outcome.passed
    assert (outcome.delivered, outcome.deliveries, outcome.redelivered) == (5, 7, 2)
    assert outcome.counts == PLAIN


def test_overlapping_batches_count_each_record_once() -> None:
    outcome = compare([WORK[0], Contribution(0, 1, (("a.py", (2, 3)),)), WORK[2]], ENDS, PLAIN)
    assert outcome.passed
    assert outcome.redelivered == 1


def test_a_redelivery_with_other_content_is_found() -> None:
    outcome = compare([*WORK, Contribution(0, 0, (("a.py", (9,)),))], ENDS, PLAIN)
    assert (outcome.contradictions, outcome.lost, outcome.passed) == (1, 0, False)


def test_a_redelivery_of_another_file_is_found() -> None:
    outcome = compare([*WORK, Contribution(0, 0, (("b.py", (1,)),))], ENDS, PLAIN)
    assert (outcome.contradictions, outcome.passed) == (1, False)


def test_records_that_were_never_acknowledged_are_found() -> None:
    for offset, partition in ((3, 0), (0, 7)):
        outcome = compare([*WORK, Contribution(partition, offset, (("a.py", (1,)),))], ENDS, PLAIN)
        assert (outcome.unexpected, outcome.redelivered, outcome.lost, outcome.passed) == (1, 0, 0, False)


def test_wrong_counts_are_found_although_every_record_came() -> None:
    outcome = compare([replace(WORK[0], runs=(("a.py", (1, 3)),)), *WORK[1:]], ENDS, PLAIN)
    assert (outcome.lost, outcome.unlike, outcome.passed) == (0, ["a.py"], False)


def test_a_batch_is_counted_by_runs_of_a_file() -> None:
    batch = records(4, 10, ("a", "one two"), ("a", ""), ("b", " x\ty "), ("a", "z"))
    counted = contribution(batch)
    assert counted == Contribution(4, 10, (("a", (2, 0)), ("b", (2,)), ("a", (1,))))
    assert (counted.records, counted.next_offset) == (4, 14)


def test_a_gap_between_offsets_is_an_error() -> None:
    with pytest.raises(ValueError, match="not consecutive"):
        contribution([*records(0, 0, ("a", "")), *records(0, 2, ("a", ""))])


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 2**40), st.lists(st.integers(0, 99), min_size=1))))
def test_results_are_read_as_they_were_written_but_for_a_torn_last_line(
    entries: list[tuple[int, int, list[int]]],
) -> None:
    written = [Contribution(partition, offset, (("f", tuple(words)),)) for partition, offset, words in entries]
    content = encode(written)
    assert list(decode(content)) == written
    assert list(decode(content[:-1])) == written[:-1]


def test_lines_and_plain_count_agree_on_any_file(tmp_path: Path) -> None:
    contents = {"empty": b"", "blank": b"\n\n", "open": b"a b\nc", "odd": b"\x0c form\x0bfeed\r\n\xff\xfe\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    lines = Lines([SourceFile(name, tmp_path / name) for name in contents])
    produced = [entry for keys, values in lines.batches() for entry in zip(keys, values, strict=True)]
    assert len(produced) == sum(count.lines for count in lines.counts.values()) == 2 + 2 + 2
    assert {name: count.words for name, count in lines.counts.items()} == {
        name.decode(): sum(len(value.split()) for key, value in produced if key == name)
        for name in (each.encode() for each in contents)
    }


def test_directories_give_their_text_files_once_and_nothing_hidden(tmp_path: Path) -> None:
    for name in ("a.txt", "below/b.py", ".hidden/c.py", "__pycache__/d.py", "site-packages/e.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x\n", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\0")
    found = find_files([tmp_path, tmp_path / "a.txt"])
    assert [file.path.relative_to(tmp_path).as_posix() for file in found] == ["a.txt", "below/b.py"]


def test_without_paths_it_is_the_standard_library() -> None:
    names = {file.name for file in find_files([])}
    assert {"asyncio/events.py", "this.py"} <= names
    assert not any("site-packages" in name for name in names)
