"""Lines to a slow reader: all of them, counted as a whole, and never in the way of an interruption."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.cli.writing import LineWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            assert end == ends[0]  # a test that plays the reader who leaves


async def drain(reader: int, size: int) -> bytes:
    """Reads slowly: a little at a time, with turns of the loop between."""
    content = b""
    while len(content) < size:
        content += await asyncio.to_thread(os.read, reader, 10_000)
    return content


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_slow_reader_gets_everything(pipe: tuple[int, int], blocking: bool) -> None:
    reader, descriptor = pipe
    os.set_blocking(descriptor, blocking)
    lines = [b"%d\n" % number * 3 for number in range(20_000)]
    writer = LineWriter(descriptor)
    content, _ = await asyncio.gather(drain(reader, sum(map(len, lines))), writer.write(lines))
    assert content == b"".join(lines)
    assert writer.written == 20_000


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_cancelled_write_ends_at_once_and_counts_what_the_reader_can_have(
    pipe: tuple[int, int], blocking: bool
) -> None:
    reader, descriptor = pipe
    os.set_blocking(descriptor, blocking)
    writer = LineWriter(descriptor)
    await writer.write([b"before\n"])
    writing = asyncio.create_task(writer.write([b"%07d\n" % number for number in range(100_000)]))
    done, _ = await asyncio.wait({writing}, timeout=0.3)
    assert not done
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(writing, 20)
    counted = writer.written
    assert counted > 1
    lines = (await drain(reader, 7 + 8 * (counted - 1)))[:7].splitlines()
    assert lines == [b"before"]


async def test_what_is_counted_at_a_cancellation_is_in_the_pipe_and_nothing_else(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LineWriter(descriptor)
    writing = asyncio.create_task(writer.write([b"%07d\n" % number for number in range(100_000)]))
    await asyncio.wait({writing}, timeout=0.3)
    writing.cancel()
    await asyncio.wait({writing})
    content = os.read(reader, 65536)
    assert content == b"".join(b"%07d\n" % number for number in range(writer.written))


async def test_a_reader_that_leaves_is_a_broken_pipe(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    os.close(reader)
    writer = LineWriter(descriptor)
    with pytest.raises(BrokenPipeError):
        await writer.write([b"nobody\n"])
    assert writer.written == 0


def test_a_reader_that_leaves_is_noticed_without_a_write(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LineWriter(descriptor)
    writer.require_reader()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        writer.require_reader()


def test_a_full_pipe_has_a_reader(pipe: tuple[int, int]) -> None:
    _, descriptor = pipe
    os.set_blocking(descriptor, False)
    assert os.write(descriptor, b"x" * (1 << 20)) < 1 << 20
    LineWriter(descriptor).require_reader()


async def test_a_file_takes_it_all(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        writer = LineWriter(file.fileno())
        writer.require_reader()
        await writer.write([b"one\n", b"two\n"])
        await writer.write([])
    assert (tmp_path / "out").read_bytes() == b"one\ntwo\n"
    assert writer.written == 2
