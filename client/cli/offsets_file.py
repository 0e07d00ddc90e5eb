"""Offsets of a group as a file: what ``export-offsets`` prints and ``reset-offsets --from-file`` takes.

Lines of ``topic,partition,offset`` as ``kafka-consumer-groups --export`` writes them for one group: its files are taken as
they are.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from client.cli.failure import CommandError
from client.types.records import OffsetAndMetadata, TopicPartition

MAX_BYTES: Final = 64 * 1024 * 1024
"""A longer file is refused: it is read as a whole, and no group has so many partitions."""


def as_lines(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> str:
    """The lines of a file, sorted, without the last line feed."""
    text = io.StringIO()
    rows = ((tp.topic, tp.partition, offset.offset) for tp, offset in sorted(offsets.items()))
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().removesuffix("\n")


def read(path: str) -> dict[TopicPartition, int]:
    """The offsets in a file. Raises ``CommandError`` naming the line that is none, or whose partition came before."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise CommandError(f"{path} has more than {MAX_BYTES:,} bytes: it is no file of offsets")
        return _parsed(content.decode().splitlines(), path)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{path} is no file of offsets: {error}") from error


def _parsed(lines: Iterable[str], path: str) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(lines, strict=True), 1):
        if not row:
            continue
        if len(row) != 3 or not row[0] or not (_is_number(row[1]) and _is_number(row[2])):
            raise CommandError(f"{path}, line {number}: {','.join(row)!r} is not of the form topic,partition,offset")
        tp = TopicPartition(row[0], int(row[1]))
        if tp in offsets:
            raise CommandError(f"{path}, line {number}: {tp.topic}-{tp.partition} comes a second time")
        offsets[tp] = int(row[2])
    if not offsets:
        raise CommandError(f"{path} has no offsets; a line has the form topic,partition,offset")
    return offsets


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20
