"""The work of one compaction pass on bytes: segments go in, piece by piece, and the compacted ones come out. No I/O.

It is what takes the time of a pass and holds Python's interpreter lock while it does, so it can be done in a process of its
own (``compaction_process``): a call takes and returns only numbers and bytes. In one pass, ``map`` gets the dirty segments;
then for each output ``begin``, ``rewrite`` for the segments that it covers, ``finish`` and ``index``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from coordinator.log.compaction import OffsetMap
from coordinator.log.index import SparseIndex
from coordinator.log.rewriting import BatchRewriter
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, BatchHeader, read_header


class Mapped(NamedTuple):
    """What ``map`` did with a piece."""

    consumed: int
    needed: int
    next_offset: int
    end_offset: int
    """Up to where the map knows the keys."""
    complete: bool
    """Whether no more may be mapped: the map is full, or a batch came that cannot be judged."""


class Rewritten(NamedTuple):
    """What ``rewrite`` did with a piece, and what is to be written for it."""

    consumed: int
    needed: int
    next_offset: int
    pending_bytes: int
    """About how much is held back for a batch that is not full yet."""
    output: bytes


class Counts(NamedTuple):
    """What all rewriting of the pass has seen."""

    records_in: int
    records_out: int
    keyless_dropped: int
    unreadable_kept: int


class CompactionWork(Protocol):
    """One pass. Every method may take long and raises ``ProtocolError`` for a damaged batch.

    A piece is what a segment's file holds from some batch on, whole batches and perhaps the beginning of another. Its first
    batch has to be of ``offset``. ``consumed`` is the length of the whole ones and ``next_offset`` the offset behind them.
    When there is none, ``needed`` is the length of the first one.
    """

    def map(self, piece: bytes, offset: int) -> Mapped:
        """Takes the keys of a piece into the map."""
        ...

    def begin(
        self, base_offset: int, now_ms: int, horizon_ms: int, remembered: Sequence[int], index_interval_bytes: int
    ) -> None:
        """Begins an output; see ``BatchRewriter`` for what the numbers mean."""
        ...

    def rewrite(self, piece: bytes, offset: int) -> Rewritten:
        """Takes a piece into the output."""
        ...

    def finish(self, next_offset: int) -> bytes:
        """The rest of the output, which covers everything up to ``next_offset``."""
        ...

    def index(self, next_offset: int, last_ms: int) -> tuple[int, bytes]:
        """The largest timestamp of the finished output, and the file of its index."""
        ...

    def counts(self) -> Counts:
        """What the pass has seen until now."""
        ...

    def abort(self) -> None:
        """Makes a call that is under way fail soon, if it can; to be called from any thread."""
        ...

    def close(self) -> None:
        """Gives back what the work holds, when no call is under way."""
        ...


class LocalWork:
    """The work, done by the thread that calls."""

    def __init__(self, start_offset: int) -> None:
        self._offsets = OffsetMap(start_offset)
        self._rewriters: list[BatchRewriter] = []
        self._base_offset = 0
        self._size = 0
        self._index = SparseIndex(1)

    def map(self, piece: bytes, offset: int) -> Mapped:
        """See ``CompactionWork``."""
        view, consumed, offsets = memoryview(piece), 0, self._offsets
        for position, header in _whole_batches(piece, offset):
            if header.base_offset >= offsets.end_offset:  # the first dirty segment may be clean in part
                offsets.add(header, view[position : position + header.length])
            consumed, offset = position + header.length, header.next_offset
        return Mapped(consumed, _needed(piece, consumed), offset, offsets.end_offset, offsets.complete)

    def begin(
        self, base_offset: int, now_ms: int, horizon_ms: int, remembered: Sequence[int], index_interval_bytes: int
    ) -> None:
        """See ``CompactionWork``."""
        self._rewriters.append(BatchRewriter(base_offset, self._offsets, frozenset(remembered), now_ms, horizon_ms))
        self._base_offset, self._size = base_offset, 0
        self._index = SparseIndex(index_interval_bytes)

    def rewrite(self, piece: bytes, offset: int) -> Rewritten:
        """See ``CompactionWork``."""
        view, consumed, output, rewriter = memoryview(piece), 0, list[bytes](), self._rewriters[-1]
        for position, header in _whole_batches(piece, offset):
            output += self._written(rewriter.feed(header, view[position : position + header.length]))
            consumed, offset = position + header.length, header.next_offset
        return Rewritten(consumed, _needed(piece, consumed), offset, rewriter.pending_bytes, b"".join(output))

    def finish(self, next_offset: int) -> bytes:
        """See ``CompactionWork``."""
        return b"".join(self._written(self._rewriters[-1].finish(next_offset)))

    def index(self, next_offset: int, last_ms: int) -> tuple[int, bytes]:
        """See ``CompactionWork``."""
        encoded = self._index.encode(self._base_offset, next_offset, self._size, last_ms)
        return self._index.max_timestamp, encoded

    def counts(self) -> Counts:
        """See ``CompactionWork``."""
        made = self._rewriters
        return Counts(
            sum(rewriter.records_in for rewriter in made),
            sum(rewriter.records_out for rewriter in made),
            sum(rewriter.keyless_dropped for rewriter in made),
            sum(rewriter.unreadable_kept for rewriter in made),
        )

    def abort(self) -> None:
        """See ``CompactionWork``: calls are short."""

    def close(self) -> None:
        """See ``CompactionWork``: nothing is held."""

    def _written(self, batches: Iterable[tuple[BatchHeader, bytes]]) -> Iterator[bytes]:
        for header, body in batches:
            self._index.add(header.base_offset, self._size, header.max_timestamp)
            self._size += header.length
            yield header.pack()
            yield body


def _whole_batches(piece: bytes, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch, the first of ``offset``. Raises ``ProtocolError`` where another comes."""
    position = 0
    while len(piece) - position >= HEADER_BYTES:
        header = read_header(piece, position)
        if header.base_offset != offset:
            raise ProtocolError(f"a batch of offset {header.base_offset} is where offset {offset} belongs")
        if position + header.length > len(piece):
            return
        yield position, header
        position, offset = position + header.length, header.next_offset


def _needed(piece: bytes, consumed: int) -> int:
    if consumed:
        return 0
    if len(piece) < HEADER_BYTES:
        raise ProtocolError(f"a batch is cut off after {len(piece)} bytes")
    return read_header(piece).length


def local_work(start_offset: int, size: int) -> CompactionWork:
    """A pass in the threads of this process, over ``size`` bytes of segments."""
    return LocalWork(start_offset)
