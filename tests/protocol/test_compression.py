"""A body comes out as it went in; a stream that is cut off, followed by something or too large does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.compression import Compression, compressed, decompressed
from protocol.errors import ProtocolError

compressions = st.sampled_from(["gzip", "zstd"])
bodies = st.binary(min_size=1, max_size=300) | st.builds(bytes, st.integers(1, 300_000))


@given(bodies, compressions)
def test_a_body_comes_out_as_it_went_in(body: bytes, compression: Compression) -> None:
    stored = compressed(body, compression)
    assert len(stored) % 8 == 0
    assert decompressed(memoryview(stored), compression, len(body)) == body
    assert decompressed(memoryview(stored), compression, len(body) + 9) == body  # the caller compares the lengths


@given(bodies, compressions, st.integers(1, 40))
def test_no_part_of_a_stream_is_taken_for_the_whole(body: bytes, compression: Compression, words: int) -> None:
    stored = compressed(body, compression)[: -8 * words]
    with pytest.raises(ProtocolError, match=r"cut off|does not decompress"):
        decompressed(memoryview(stored), compression, len(body))


@given(bodies, compressions, st.binary(min_size=8, max_size=40))
def test_nothing_follows_a_stream_but_its_padding(body: bytes, compression: Compression, behind: bytes) -> None:
    with pytest.raises(ProtocolError, match="no part of it"):
        decompressed(memoryview(compressed(body, compression) + behind), compression, len(body))


@given(bodies, compressions, st.data())
def test_no_more_comes_out_than_is_allowed(body: bytes, compression: Compression, data: st.DataObject) -> None:
    allowed = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolError, match=f"more than the {allowed} bytes"):
        decompressed(memoryview(compressed(body, compression)), compression, allowed)


@given(bodies, compressions, st.data())
def test_damage_is_an_error_or_goes_unseen_but_never_breaks_the_bound(
    body: bytes, compression: Compression, data: st.DataObject
) -> None:
    stored = bytearray(compressed(body, compression))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert len(decompressed(memoryview(stored), compression, len(body))) <= len(body)
    except ProtocolError:
        return


def test_a_stream_that_needs_a_larger_window_than_all_accept_is_refused() -> None:
    import zstandard

    wide = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    body = stream.compress(b"v" * 1000) + stream.flush()
    with pytest.raises(ProtocolError, match="does not decompress"):
        decompressed(memoryview(body.ljust(-(-len(body) // 8) * 8, b"\0")), "zstd", 1000)
