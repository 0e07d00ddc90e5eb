"""Writes to a file descriptor without holding up the event loop, and knows how much of it is out."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import stat
import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

_PIPE_PIECE: Final = select.PIPE_BUF
"""A pipe takes so many bytes as a whole or not yet: what is counted is exactly what its reader can have."""
_PIECE: Final = 256 * 1024


class LineWriter:
    """Writes lines to ``descriptor``, which may be slow, blocked or in non-blocking mode.

    The writing is done by a daemon thread for each call: a thread of the loop's executor that waits for a reader would
    keep the program from ending.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._piece = _PIPE_PIECE if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else _PIECE
        self.written = 0
        """Lines that are out as a whole."""

    def require_reader(self) -> None:
        """Raises ``BrokenPipeError`` when the reader of the pipe is gone: known without a write, which may be far off."""
        poll = select.poll()
        poll.register(self._descriptor, 0)  # errors are reported without being asked for
        if any(events & select.POLLERR for _, events in poll.poll(0)):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    async def write(self, lines: Sequence[bytes]) -> None:
        """Writes all lines, each with its own ending.

        Raises ``OSError`` when the descriptor cannot be written, ``BrokenPipeError`` when its reader is gone. After an error
        or a cancellation, which ends it at once, ``written`` has grown by the lines that were out by then.
        """
        writing = _Writing(self._descriptor, b"".join(lines), self._piece, asyncio.get_running_loop())
        threading.Thread(target=writing.run, name="cohort-stdout", daemon=True).start()
        try:
            await writing.end
        finally:
            writing.abandoned = True
            self.written += bisect_right(list(accumulate(map(len, lines))), writing.written)


class _Writing:
    """One piece of output on its way. The thread only adds to ``written``, the loop only sets ``abandoned``."""

    def __init__(self, descriptor: int, content: bytes, piece: int, loop: asyncio.AbstractEventLoop) -> None:
        self.end: asyncio.Future[None] = loop.create_future()
        self.written = 0
        self.abandoned = False
        self._descriptor = descriptor
        self._content = memoryview(content)
        self._piece = piece
        self._loop = loop

    def run(self) -> None:
        """In the thread: writes until all is out, nothing waits for it any more, or it fails."""
        failure: OSError | None = None
        try:
            while self.written < len(self._content) and not self.abandoned:
                self._write_piece()
        except OSError as error:
            failure = error
        if self.abandoned:
            return
        try:
            self._loop.call_soon_threadsafe(self._settle, failure)
        except RuntimeError:
            return  # the loop was closed in this very moment: nothing waits any more

    def _write_piece(self) -> None:
        try:
            self.written += os.write(self._descriptor, self._content[self.written : self.written + self._piece])
        except BlockingIOError:  # another program that shares this pipe or terminal has put it into non-blocking mode
            ready = select.poll()
            ready.register(self._descriptor, select.POLLOUT)
            ready.poll()

    def _settle(self, failure: OSError | None) -> None:
        if self.end.done():
            return
        if failure is None:
            self.end.set_result(None)
        else:
            self.end.set_exception(failure)
