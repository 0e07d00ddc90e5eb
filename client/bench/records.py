"""What the benchmarks of records share: sizes, topics, and floors that move the same bytes without Cohort."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable
from itertools import repeat
from time import perf_counter
from typing import Any, Final

from client.types.records import ConsumerRecord
from protocol.checksum import crc32

VALUE_SIZES: Final = (100, 1024)
TOPIC: Final = "records"
PARTITIONS: Final = 4
PIECE_BYTES: Final = 1024 * 1024
_SOCKET_TIMEOUT_S: Final = 60.0
_NEW: Final[Callable[[type[ConsumerRecord], Iterable[Any]], ConsumerRecord]] = tuple.__new__


def values(count: int, size: int) -> list[bytes]:
    """Different values of one size."""
    return [b"%0*d" % (size, number) for number in range(count)]


def pieces(content: list[bytes], size: int) -> list[list[bytes]]:
    """The values in lists of about a mebibyte each."""
    step = max(1, PIECE_BYTES // size)
    return [content[start : start + step] for start in range(0, len(content), step)]


async def future_seconds(count: int) -> float:
    """Seconds to make, settle and await one future for each record: what a promise a record costs at least."""
    loop = asyncio.get_running_loop()
    step = 1000
    began = perf_counter()
    for _ in range(0, count, step):
        futures = [loop.create_future() for _ in range(step)]
        for future in futures:
            future.set_result(None)
        for future in futures:
            await future
    return perf_counter() - began


def slice_seconds(content: list[bytes], size: int) -> float:
    """Seconds to cut the same bytes in memory into ``ConsumerRecord`` objects and put them into lists, straight from C."""
    joined = [b"".join(piece) for piece in pieces(content, size)]
    began = perf_counter()
    offset = 0
    for piece in joined:
        cut = [piece[start : start + size] for start in range(0, len(piece), size)]
        offsets = range(offset, offset + len(cut))
        rows: Iterable[tuple[Any, ...]] = zip(
            repeat(TOPIC), repeat(0), offsets, repeat(0), repeat(None), cut, repeat(()), strict=False
        )
        offset += len(list(map(_NEW, repeat(ConsumerRecord), rows)))
    return perf_counter() - began


def checksum_seconds(content: list[bytes], size: int) -> float:
    """Seconds to pass over the same bytes with the checksum of batches, as every reader must."""
    joined = [b"".join(piece) for piece in pieces(content, size)]
    began = perf_counter()
    for piece in joined:
        crc32(piece)
    return perf_counter() - began


def socket_seconds(total: int) -> float:
    """Seconds to send so many bytes over TCP on the loopback and receive them, a thread at each end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname(), timeout=_SOCKET_TIMEOUT_S)
        right, _ = listener.accept()
    right.settimeout(_SOCKET_TIMEOUT_S)
    piece = bytes(PIECE_BYTES)

    def send() -> None:
        for _ in range(0, total, PIECE_BYTES):
            left.sendall(piece)

    sender = threading.Thread(target=send, daemon=True)
    with left, right:
        began = perf_counter()
        sender.start()
        missing = (total + PIECE_BYTES - 1) // PIECE_BYTES * PIECE_BYTES
        while missing:
            missing -= len(right.recv(PIECE_BYTES))
        sender.join(_SOCKET_TIMEOUT_S)
        return perf_counter() - began
