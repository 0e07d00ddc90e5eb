"""Lines of files and pipes, in pieces of bounded size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client.cli import lines
from client.cli.failure import CommandError
from client.cli.lines import LineSource


async def read(source: LineSource) -> list[bytes]:
    try:
        return [line async for batch in source.batches() for line in batch]
    finally:
        source.close()


@given(content=st.binary(max_size=200).map(lambda part: part.replace(b"a", b"\n")), chunk=st.integers(1, 50))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
async def test_a_file_gives_the_same_lines_however_it_is_cut(content: bytes, chunk: int, tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK_BYTES", chunk)
        expected = content.split(b"\n")
        assert await read(LineSource.open(str(path))) == (expected if expected[-1] else expected[:-1])


async def test_a_pipe_is_read_as_it_comes() -> None:
    reading, writing = os.pipe()
    source = LineSource(reading, "a pipe")
    batches = source.batches()
    os.write(writing, b"one\ntwo\nthr")
    assert await anext(batches) == [b"one", b"two"]
    os.write(writing, b"ee\n")
    assert await anext(batches) == [b"three"]
    os.write(writing, b"end")
    os.close(writing)
    assert await anext(batches) == [b"end"]
    assert [batch async for batch in batches] == []
    assert source.size is None
    source.close()


async def test_a_device_is_read_too() -> None:
    assert await read(LineSource.open("/dev/null")) == []


async def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(CommandError, match="/dev/zero has a line of more than"):
        await read(LineSource.open("/dev/zero"))
