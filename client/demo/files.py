"""The files of the demonstration: which they are, their lines as records, and a plain count of them."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client.cli.failure import CommandError

READ_BYTES: Final = 4 * 1024 * 1024
"""Lines of about so many bytes are in memory at once."""
BATCH_LINES: Final = 20_000
"""At most so many lines are produced by one call."""

_SKIPPED_DIRECTORIES: Final = frozenset({"site-packages", "__pycache__"})
_PROBE_BYTES: Final = 8192


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file; ``name`` is the key of its lines."""

    name: str
    path: Path


@dataclass(slots=True)
class FileCount:
    """Lines and words of one file. A last line without a line feed counts; words are separated by white space."""

    lines: int = 0
    words: int = 0


class Lines:
    """The lines of some files in order, counted in passing.

    ``counts`` is the plain count that the group's work is compared with. It is taken from the very bytes that are
    produced, by another method (whole blocks, not lines), so a file that changes meanwhile does no harm.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.counts: dict[str, FileCount] = {}
        self.bytes = 0
        self._files = files

    def batches(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Keys and values of up to ``BATCH_LINES`` records at a time. Raises ``CommandError`` for an unreadable file."""
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        for file in self._files:
            key = os.fsencode(file.name)
            for lines in self._blocks(file):
                for start in range(0, len(lines), BATCH_LINES):
                    part = lines[start : start + BATCH_LINES]
                    values += [line[:-1] if line.endswith(b"\n") else line for line in part]
                    keys += [key] * len(part)
                    size += sum(map(len, part))
                    if len(values) >= BATCH_LINES or size >= READ_BYTES:
                        yield keys, values
                        keys, values, size = [], [], 0
        if values:
            yield keys, values

    def _blocks(self, file: SourceFile) -> Iterator[list[bytes]]:
        count = self.counts[file.name] = FileCount()
        try:
            with file.path.open("rb") as opened:
                while lines := opened.readlines(READ_BYTES):
                    block = b"".join(lines)
                    count.lines += block.count(b"\n") + (not block.endswith(b"\n"))
                    count.words += len(block.split())
                    self.bytes += len(block)
                    yield lines
        except OSError as error:
            raise CommandError(f"cannot read {file.path}: {error.strerror}") from error


def find_files(paths: Sequence[Path]) -> list[SourceFile]:
    """The files meant by ``paths``, sorted and each once; without paths every ``*.py`` of the standard library.

    A directory stands for the text files in it and below; hidden directories, ``site-packages`` and ``__pycache__`` are
    left out. Raises ``CommandError`` for a path that does not exist, and when there is no file at all.
    """
    if not paths:
        root = Path(sysconfig.get_paths()["stdlib"])
        found = [SourceFile(str(path.relative_to(root)), path) for path in _walk(root) if path.suffix == ".py"]
    else:
        found = []
        for path in paths:
            if path.is_dir():
                found += [SourceFile(str(each), each) for each in _walk(path) if _is_text(each)]
            elif path.exists():
                found.append(SourceFile(str(path), path))
            else:
                raise CommandError(f"there is no file or directory {path}")
    files = sorted({file.path.resolve(): file for file in found}.values(), key=lambda file: file.name)
    if not files:
        raise CommandError(f"there are no text files in {', '.join(map(str, paths)) or 'the standard library'}")
    return files


def _walk(root: Path) -> Iterator[Path]:
    for directory, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name not in _SKIPPED_DIRECTORIES and not name.startswith("."))
        for name in sorted(names):
            path = Path(directory, name)
            if path.is_file():
                yield path


def _is_text(path: Path) -> bool:
    """Whether a file looks like text: its first bytes hold no NUL."""
    try:
        with path.open("rb") as opened:
            return b"\0" not in opened.read(_PROBE_BYTES)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
