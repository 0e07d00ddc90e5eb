"""Reads lines from files, pipes and terminals in pieces, so that input of any length needs bounded memory."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from client.cli.failure import CommandError

CHUNK_BYTES: Final = 1024 * 1024
"""At most so many bytes are read at once, and lines are given out as they come."""
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""A longer line is refused: it must be in memory as a whole, and no topic would take it."""


class LineSource:
    """An open input. ``name`` is for people; ``size`` its length in bytes, ``None`` for a pipe or terminal."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.name = name
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._is_file = stat.S_ISREG(status.st_mode)
        self.size = status.st_size if self._is_file else None
        self.read_bytes = 0

    @classmethod
    def open(cls, path: str) -> LineSource:
        """The file at ``path``, or standard input for ``-``. Raises ``CommandError`` when it cannot be read."""
        if path == "-":
            return cls(0, "standard input")
        try:
            if Path(path).is_dir():
                raise CommandError(f"{path} is a directory; name a file, or - for standard input")
            return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from error

    def close(self) -> None:
        """Closes a file that ``open`` opened; standard input stays open."""
        if self._descriptor != 0:
            os.close(self._descriptor)

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """The lines without their line feeds, as many at a time as one read completes.

        A last line without a line feed counts. Raises ``CommandError`` for a line above ``MAX_LINE_BYTES``.
        """
        pieces: list[bytes] = []
        held = 0
        while chunk := await self._read():
            self.read_bytes += len(chunk)
            lines = chunk.split(b"\n")
            pieces.append(lines[0])
            held += len(lines[0])
            if held > MAX_LINE_BYTES:
                raise CommandError(f"{self.name} has a line of more than {MAX_LINE_BYTES:,} bytes")
            if len(lines) == 1:
                continue
            lines[0] = b"".join(pieces)
            pieces = [lines.pop()]
            held = len(pieces[0])
            yield lines
        if held:
            yield [b"".join(pieces)]

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        if self._is_file:
            return await loop.run_in_executor(None, os.read, self._descriptor, CHUNK_BYTES)
        # A thread that waits for a terminal could not be interrupted, so wait for readiness on the loop.
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._descriptor, _settle, ready)
        except OSError:  # a device that cannot be waited for, such as /dev/null, never blocks
            return os.read(self._descriptor, CHUNK_BYTES)
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)
        return os.read(self._descriptor, CHUNK_BYTES)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
