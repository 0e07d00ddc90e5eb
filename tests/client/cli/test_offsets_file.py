"""Offsets of a group as a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.cli.failure import CommandError
from client.cli.offsets_file import as_lines, read
from client.types.records import OffsetAndMetadata, TopicPartition

names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=8)
partitions = st.builds(TopicPartition, names, st.integers(0, 99))


@given(st.dictionaries(partitions, st.integers(0, 2**63 - 1), min_size=1, max_size=5))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, offsets: dict[TopicPartition, int]) -> None:
    file = tmp_path_factory.mktemp("offsets") / "file.csv"
    file.write_text(
        as_lines({tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}) + "\n", encoding="utf-8"
    )
    assert read(str(file)) == offsets


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "has no offsets"),
        (b"\n\n", "has no offsets"),
        (b"t,0\n", "line 1: 't,0' is not of the form topic,partition,offset"),
        (b"t,0,1\nt,x,1\n", "line 2"),
        (b"t,0,-1\n", "line 1"),
        (b",0,1\n", "line 1"),
        (b"t,0,1\nt,0,2\n", "line 2: t-0 comes a second time"),
        (b'"t,0,1\n', "is no file of offsets"),
        (b"\xff,0,1\n", "is no file of offsets"),
    ],
)
def test_what_is_no_file_of_offsets_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_bytes(content)
    with pytest.raises(CommandError) as refused:
        read(str(file))
    assert reason in str(refused.value)


def test_a_file_that_is_not_there_is_said_to(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"cannot read .*No such file"):
        read(str(tmp_path / "missing"))
