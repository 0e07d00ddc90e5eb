"""The checkpoint files beside the segments of a log, each replaced atomically, and what they are made of: integers with a
checksum.

``checkpoint``
    start offset, base offset of the active segment, its size and the end offset, all durable when it was written. It is
    written on a clean close, after a recovery, when a segment is closed, and while a log grows: with the first look of
    log maintenance after ``checkpoint_interval_ms`` (a minute), and after 16 MiB. It is read as a *lower bound*: the log
    never has less than it says. So a stale one never lies and need not be removed before the next append; without it a log
    that lost its end would look like a log with a torn tail.
``leader-epochs``
    pairs of leader epoch and first offset.
``cleaner-point``
    the offset below which the log is compacted. Derivable, so a damaged one only makes compaction start over.

A file is four bytes of name, the crc32 of what follows, then int64 values, all little-endian. As it is replaced atomically,
a checksum that does not match means that the disk lost something.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coordinator.filesystem.storage import Storage
from coordinator.log.errors import LogDamagedError
from coordinator.log_output import get_logger

log = get_logger()

_HEAD_BYTES: Final = 8
CHECKPOINT: Final = "checkpoint"
LEADER_EPOCHS: Final = "leader-epochs"
CLEANER_POINT: Final = "cleaner-point"
_CHECKPOINT_MAGIC: Final = b"CHK1"
_EPOCHS_MAGIC: Final = b"CHE1"
_CLEANER_MAGIC: Final = b"CHC1"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was durable once, and therefore still has to be there."""

    start_offset: int
    active_base_offset: int
    active_size: int
    end_offset: int


NOTHING: Final = Checkpoint(0, 0, 0, 0)
"""What a log that has no checkpoint was made with: there is nothing it could lose."""


class ChecksumError(Exception):
    """The content is not what was written."""


def encode_integers(magic: bytes, values: Iterable[int]) -> bytes:
    """The bytes of a file named by four bytes of ``magic`` that holds ``values``."""
    column = array("q", values)
    if sys.byteorder == "big":
        column.byteswap()
    body = column.tobytes()
    return magic + zlib.crc32(body, zlib.crc32(magic)).to_bytes(4, "little") + body


def decode_integers(magic: bytes, data: bytes) -> array[int]:
    """The integers in ``data``. Raises ``ChecksumError`` when it is another file, cut off or damaged."""
    if data[:4] != magic:
        raise ChecksumError(f"it begins with {data[:4]!r} instead of {magic!r}")
    body = data[_HEAD_BYTES:]
    if len(body) % 8 or int.from_bytes(data[4:_HEAD_BYTES], "little") != zlib.crc32(body, zlib.crc32(magic)):
        raise ChecksumError("its checksum does not match")
    column = array("q")
    column.frombytes(body)
    if sys.byteorder == "big":
        column.byteswap()
    return column


def write_checkpoint(storage: Storage, directory: str, checkpoint: Checkpoint) -> None:
    """Replaces the checkpoint. Everything it names must be durable already."""
    numbers = (
        checkpoint.start_offset,
        checkpoint.active_base_offset,
        checkpoint.active_size,
        checkpoint.end_offset,
    )
    storage.write_file(f"{directory}/{CHECKPOINT}", encode_integers(_CHECKPOINT_MAGIC, numbers))


def write_leader_epochs(storage: Storage, directory: str, epochs: list[tuple[int, int]]) -> None:
    """Replaces the list of leader epochs and their first offsets."""
    data = encode_integers(_EPOCHS_MAGIC, [number for pair in epochs for number in pair])
    storage.write_file(f"{directory}/{LEADER_EPOCHS}", data)


def write_cleaner_point(storage: Storage, directory: str, clean_until: int) -> None:
    """Notes that the log is compacted below ``clean_until``."""
    storage.write_file(f"{directory}/{CLEANER_POINT}", encode_integers(_CLEANER_MAGIC, [clean_until]))


def decode_checkpoint(data: bytes) -> Checkpoint:
    """The checkpoint in ``data``. Raises ``ChecksumError`` when it is not whole."""
    return Checkpoint(*_numbers(_CHECKPOINT_MAGIC, data, 4))


def decode_leader_epochs(data: bytes) -> list[tuple[int, int]]:
    """The leader epochs in ``data``, each with its first offset. Raises ``ChecksumError`` when they are not whole."""
    values = _numbers(_EPOCHS_MAGIC, data)
    if len(values) % 2:
        raise ChecksumError(f"it holds {len(values)} numbers, not pairs")
    return list(zip(values[::2], values[1::2], strict=True))


def decode_cleaner_point(data: bytes) -> int:
    """The cleaner point in ``data``. Raises ``ChecksumError`` when it is not whole."""
    return _numbers(_CLEANER_MAGIC, data, 1)[0]


def _numbers(magic: bytes, data: bytes, count: int | None = None) -> list[int]:
    values = decode_integers(magic, data)
    if count is not None and len(values) != count:
        raise ChecksumError(f"it holds {len(values)} numbers instead of {count}")
    return list(values)


def read_checkpoint(storage: Storage, directory: str) -> Checkpoint:
    """What ``write_checkpoint`` wrote. Raises ``LogDamagedError`` when it is not whole: nothing else tells that."""
    try:
        return decode_checkpoint(storage.read_file(f"{directory}/{CHECKPOINT}"))
    except ChecksumError as error:
        raise LogDamagedError(directory, CHECKPOINT, str(error)) from error


def read_leader_epochs(storage: Storage, directory: str) -> list[tuple[int, int]]:
    """What ``write_leader_epochs`` wrote. Raises ``LogDamagedError`` when it is not whole: nothing else tells that."""
    try:
        return decode_leader_epochs(storage.read_file(f"{directory}/{LEADER_EPOCHS}"))
    except ChecksumError as error:
        raise LogDamagedError(directory, LEADER_EPOCHS, str(error)) from error


def read_cleaner_point(storage: Storage, directory: str) -> int:
    """What ``write_cleaner_point`` wrote; 0, with a line in the daemon's log, when it is not whole."""
    try:
        return decode_cleaner_point(storage.read_file(f"{directory}/{CLEANER_POINT}"))
    except ChecksumError as error:
        log.warning("cleaner_point_ignored", directory=directory, reason=str(error))
        return 0
