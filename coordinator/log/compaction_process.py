"""The work of one compaction pass on bytes, and a process of its own that does it.

Segments go in, piece by piece, and the compacted ones come out: no I/O. That takes the time of a pass and holds Python's
interpreter lock while it does, which the event loop must not wait for; so a pass of some size is done by another process. A
call takes and returns only numbers and bytes.

The process is started for one pass, as a new program and not as a copy of this one with its threads, and does nothing but
``LocalWork`` on what it is sent: it opens no file, and it has the lowest claim on the processor. The two talk over a
socket, each call one message there and one back: the length in four bytes, then msgpack. When either end is gone, the other
one ends: the pass fails, leaves the log as it was, and is tried again later. Where no process can be had, the work is done
by this one.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgpack

from coordinator.log.aborted import NONE_ABORTED, NOTHING_ABORTED, AbortedBatches, aborted_from
from coordinator.log.compaction import BatchRewriter, OffsetMap
from coordinator.log.index import SparseIndex
from coordinator.log_output import get_logger
from protocol.control_batch import decode_control_batch
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, Attributes, BatchHeader, read_header

log = get_logger()

LEAST_BYTES: Final = 1024 * 1024
"""A pass over less is done by this process: it would be over before another one has started."""
_CALL_TIMEOUT_S: Final = 120.0
_START_TIMEOUT_S: Final = 60.0
_PROGRAM: Final = (
    "import json, os, sys; sys.path[:] = json.loads(sys.argv[1]); os.nice(19); "
    "from coordinator.log.compaction_process import serve; serve()"
)
_READY: Final = b"ready"


class Mapped(NamedTuple):
    """What ``map`` did with a piece."""

    consumed: int
    needed: int
    next_offset: int
    end_offset: int
    """Up to where the map knows the keys."""
    complete: bool
    """Whether no more may be mapped: the map is full."""


class Rewritten(NamedTuple):
    """What ``rewrite`` did with a piece, and what is to be written for it."""

    consumed: int
    needed: int
    next_offset: int
    pending_bytes: int
    """About how much is held back for a batch that is not full yet."""
    output: bytes


class Indexed(NamedTuple):
    """The index of a finished output."""

    max_timestamp: int
    lowest_aborted: int
    """The lowest first offset of the aborted transactions whose markers were left in it."""
    encoded: bytes


class Counts(NamedTuple):
    """What all rewriting of the pass has seen."""

    records_in: int
    records_out: int
    keyless_dropped: int
    unreadable_kept: int


class CompactionWork(Protocol):
    """One pass: ``map`` of the dirty segments, then for each output ``begin``, ``rewrite`` of the segments that it covers,
    ``finish`` and ``index``; before each segment, ``know_aborted``. Every method may take long and raises ``ProtocolError``
    for a damaged batch.

    A piece is what a segment's file holds from some batch on, whole batches and perhaps the beginning of another. Its first
    batch has to be of ``offset``. ``consumed`` is the length of the whole ones and ``next_offset`` the offset behind them.
    When there is none, ``needed`` is the length of the first one.
    """

    def know_aborted(self, entries: bytes) -> None:
        """Which aborted transactions overlap the next segment: ``AbortedTransactions.integers``, as bytes."""
        ...

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

    def index(self, next_offset: int, last_ms: int) -> Indexed:
        """What is to be known of the finished output, and the file of its index."""
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
        self._aborted = NOTHING_ABORTED

    def know_aborted(self, entries: bytes) -> None:
        """See ``CompactionWork``."""
        values = array("q")
        values.frombytes(entries)
        self._aborted = AbortedBatches([aborted_from(values)], 0, NONE_ABORTED)

    def map(self, piece: bytes, offset: int) -> Mapped:
        """See ``CompactionWork``."""
        view, consumed, offsets = memoryview(piece), 0, self._offsets
        for position, header in _whole_batches(piece, offset):
            if header.base_offset >= offsets.end_offset:  # the first dirty segment may be clean in part
                offsets.add(header, view[position : position + header.length], self._aborted)
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
        rewriter.aborted = self._aborted
        for position, header in _whole_batches(piece, offset):
            output += self._written(rewriter.feed(header, view[position : position + header.length]))
            consumed, offset = position + header.length, header.next_offset
        return Rewritten(consumed, _needed(piece, consumed), offset, rewriter.pending_bytes, b"".join(output))

    def finish(self, next_offset: int) -> bytes:
        """See ``CompactionWork``."""
        return b"".join(self._written(self._rewriters[-1].finish(next_offset)))

    def index(self, next_offset: int, last_ms: int) -> Indexed:
        """See ``CompactionWork``."""
        encoded = self._index.encode(self._base_offset, next_offset, self._size, last_ms)
        return Indexed(self._index.max_timestamp, self._index.aborted.lowest_first, encoded)

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
            packed = header.pack()
            if header.attributes & Attributes.CONTROL:  # behind the end of the map
                self._index.aborted.note_ends(header.base_offset, decode_control_batch(packed + body, 0, header))
            yield packed
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


class CompactionProcessError(OSError):
    """The process of a pass could not be started, ended early or does not answer. The pass may be tried again."""


class ProcessWork:
    """``CompactionWork`` by a process. Raises ``CompactionProcessError`` when that is gone, and what the work raises."""

    def __init__(self, start_offset: int) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        except BaseException:
            ours.close()
            raise
        try:
            ours.settimeout(_START_TIMEOUT_S)
            if self._call("start", start_offset) != _READY:
                raise CompactionProcessError("the process of compaction said something else than that it is ready")
            ours.settimeout(_CALL_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def know_aborted(self, entries: bytes) -> None:
        """See ``CompactionWork``."""
        self._call("know_aborted", entries)

    def map(self, piece: bytes, offset: int) -> Mapped:
        """See ``CompactionWork``."""
        return Mapped(*self._call("map", piece, offset))

    def begin(
        self, base_offset: int, now_ms: int, horizon_ms: int, remembered: Sequence[int], index_interval_bytes: int
    ) -> None:
        """See ``CompactionWork``."""
        self._call("begin", base_offset, now_ms, horizon_ms, list(remembered), index_interval_bytes)

    def rewrite(self, piece: bytes, offset: int) -> Rewritten:
        """See ``CompactionWork``."""
        return Rewritten(*self._call("rewrite", piece, offset))

    def finish(self, next_offset: int) -> bytes:
        """See ``CompactionWork``."""
        output: bytes = self._call("finish", next_offset)
        return output

    def index(self, next_offset: int, last_ms: int) -> Indexed:
        """See ``CompactionWork``."""
        return Indexed(*self._call("index", next_offset, last_ms))

    def counts(self) -> Counts:
        """See ``CompactionWork``."""
        return Counts(*self._call("counts"))

    def abort(self) -> None:
        """See ``CompactionWork``: kills the process."""
        self._process.kill()

    def close(self) -> None:
        """See ``CompactionWork``: kills the process and waits for its end."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _call(self, method: str, *args: Any) -> Any:
        try:
            _send(self._socket, (method, args))
            kind, result = _receive(self._socket)
        except (OSError, EOFError) as error:
            raise CompactionProcessError(
                f"the process of compaction is gone or does not answer: {error}. The log is as it was"
            ) from error
        if kind == "damaged":
            raise ProtocolError(result)
        if kind == "missing":
            raise ModuleNotFoundError(result)
        if kind == "failed":
            raise CompactionProcessError(f"the process of compaction failed: {result}. The log is as it was")
        return result


class ProcessPasses:
    """Begins passes in processes where those can be had; to be called in a thread, as it waits for the start.

    One that cannot be started, perhaps because memory is short for the moment, is tried again with the next pass; the log
    has the first of such failures in a row.
    """

    def __init__(self) -> None:
        self._failing = False

    def __call__(self, start_offset: int, size: int) -> CompactionWork:
        """A pass over ``size`` bytes of segments whose map begins at ``start_offset``."""
        if size >= LEAST_BYTES and sys.executable:
            try:
                work = ProcessWork(start_offset)
            except (OSError, ValueError) as error:
                if not self._failing:
                    log.warning("compaction_process_not_started", error=str(error))
                self._failing = True
            else:
                self._failing = False
                return work
        return LocalWork(start_offset)


def serve() -> None:
    """What the process does: carries out calls from the socket that is its standard input, until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is for the daemon, which ends this one
    connection = socket.socket(fileno=0)
    work: LocalWork | None = None
    while True:
        try:
            method, args = _receive(connection)
        except (OSError, EOFError):
            return
        try:
            if work is None:
                work = LocalWork(*args)
                answer: tuple[str, Any] = ("done", _READY)
            else:
                answer = ("done", getattr(work, method)(*args))
        except ProtocolError as error:
            answer = ("damaged", str(error))
        except ModuleNotFoundError as error:
            answer = ("missing", str(error))
        except Exception as error:
            answer = ("failed", repr(error))
        _send(connection, answer)


def _send(connection: socket.socket, message: object) -> None:
    content = msgpack.packb(message)
    connection.sendall(len(content).to_bytes(4, "little") + content)


def _receive(connection: socket.socket) -> Any:
    length = int.from_bytes(_exactly(connection, 4), "little")
    return msgpack.unpackb(_exactly(connection, length))


def _exactly(connection: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view, filled = memoryview(content), 0
    while filled < length:
        count = connection.recv_into(view[filled:])
        if not count:
            raise EOFError("the other end has closed the connection")
        filled += count
    return content
