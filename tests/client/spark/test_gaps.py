"""Ranges of a log in which compaction has left gaps: every record is read by one task, whatever the cut."""

from __future__ import annotations

from itertools import pairwise

import pyarrow
from hypothesis import given, settings
from hypothesis import strategies as st

from client.spark.options import source_options
from client.spark.planning import Range, split
from client.spark.tasks.blocking_connection import Until
from client.spark.tasks.reader import RangeReader
from protocol.columns import encode_column_pieces
from protocol.errors import ErrorCode
from protocol.messages.records import FetchedPartition
from protocol.record_batch import batch_of, read_header

OPTIONS = source_options({"subscribe": "t"}, streaming=False)
ARROW = pyarrow.schema([("offset", pyarrow.int64()), ("value", pyarrow.binary())])


class Stored(RangeReader):
    """Reads from bytes, as a daemon gives them: whole batches, the first of which has the offset asked for."""

    log: list[bytes]
    most: int

    def _find(self) -> bool:
        return True

    def _check_topic(self) -> None:
        return

    def _ask(self, offset: int, until: Until) -> None:
        return

    def _answer(self, until: Until) -> FetchedPartition:
        found = [batch for batch in self.log if read_header(batch).next_offset > self._position]
        end = read_header(self.log[-1]).next_offset
        return FetchedPartition(0, ErrorCode.NONE, end, end, 0, b"".join(found[: self.most]))


def batch(base: int, span: int, offsets: list[int]) -> bytes:
    """A batch of ``span`` offsets, of which compaction has left these."""
    values = [b"%d" % offset for offset in offsets]
    flags, body = encode_column_pieces(values, None, [5] * len(values), None, [offset - base for offset in offsets])
    made = batch_of(flags, body, len(values), (5, 5), base_offset=base, last_delta=span - 1)
    return b"".join(made.pieces())


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    borders = sorted({0, *draw(st.sets(st.integers(1, 60), min_size=1, max_size=8))})
    log, left = [], []
    for start, stop in pairwise(borders):
        kept = sorted(draw(st.sets(st.integers(start, stop - 1), min_size=1)))
        log.append(batch(start, stop - start, kept))
        left += kept
    return log, left


@given(logs(), st.integers(1, 12), st.integers(1, 3))
@settings(deadline=None)
def test_every_record_is_read_by_one_task(stored: tuple[list[bytes], list[int]], least: int, most: int) -> None:
    log, left = stored
    end = read_header(log[-1]).next_offset
    found: list[int] = []
    for part in split([Range("t", 0, 0, end)], least):
        reader = Stored(OPTIONS, part, ARROW)
        reader.log, reader.most = log, most
        for one in reader.batches():
            assert one.num_rows > 0
            assert [b"%d" % offset for offset in one.column("offset").to_pylist()] == one.column("value").to_pylist()
            assert all(part.start <= offset < part.end for offset in one.column("offset").to_pylist())
            found += one.column("offset").to_pylist()
    assert found == left
