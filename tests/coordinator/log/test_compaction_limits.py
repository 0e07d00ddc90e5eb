"""When compaction may begin and what it must not choke on: lags, compressed batches, batches that do not decode."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog
from coordinator.log.compaction import cleanable, is_worth_cleaning
from coordinator.log.config import UNLIMITED
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.segment import Segment
from protocol.columns import encode_columns
from protocol.compression import Compression
from protocol.record_batch import HEADER_BYTES, Attributes, decode_columns, encode_batch, read_header
from tests.coordinator.log.logs import DIRECTORY, append, batches_in, opened, outcome, records_in

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, min_cleanable_dirty_ratio=0.0, compact=True)


def segment(base: int, end: int, newest: int, size: int = 100) -> Segment:
    made = Segment(f"{base}.log", base)
    made.next_offset, made.size, made.max_timestamp, made.last_ms = end, size, newest, newest
    return made


SEGMENTS = [segment(0, 10, 100), segment(10, 20, 300), segment(20, 30, 200)]


@pytest.mark.parametrize(
    ("lag_ms", "now_ms", "count"),
    [(0, 0, 3), (50, 149, 0), (50, 150, 1), (50, 250, 1), (50, 350, 3), (2**63 - 1, 10**15, 0)],
)
def test_segments_from_the_first_young_one_on_stay_as_they_are(lag_ms: int, now_ms: int, count: int) -> None:
    config = LogConfig(min_compaction_lag_ms=lag_ms)
    assert cleanable(SEGMENTS, config, 30, now_ms) == SEGMENTS[:count]


@pytest.mark.parametrize(("stable", "count"), [(0, 0), (9, 0), (10, 1), (19, 1), (29, 2), (30, 3), (99, 3)])
def test_segments_from_the_first_with_something_undecided_on_stay_as_they_are(stable: int, count: int) -> None:
    assert cleanable(SEGMENTS, LogConfig(), stable, 10**6) == SEGMENTS[:count]


@pytest.mark.parametrize(
    ("clean_until", "ratio", "lag_ms", "now_ms", "worth"),
    [
        (30, 0.0, 2, 10**9, False),  # all is clean
        (10, 0.5, UNLIMITED, 0, True),
        (20, 0.5, UNLIMITED, 0, False),
        (20, 0.3, UNLIMITED, 0, True),
        (20, 0.5, 1000, 699, False),
        (20, 0.5, 1000, 700, True),  # half of the lag: the other half has passed before it was closed
        (10, 1.0, 1000, 799, False),  # the oldest dirty one is of 300
        (10, 1.0, 1000, 800, True),
        (20, 0.5, 2**63 - 1, 10**15, False),
    ],
)
def test_a_pass_is_worth_it_when_enough_is_dirty_or_has_waited(
    clean_until: int, ratio: float, lag_ms: int, now_ms: int, worth: bool
) -> None:
    config = LogConfig(min_cleanable_dirty_ratio=ratio, max_compaction_lag_ms=lag_ms)
    assert is_worth_cleaning(SEGMENTS, clean_until, config, now_ms) is worth


def test_a_timestamp_that_has_come_true_does_not_make_compaction_wait_longer() -> None:
    waiting = segment(0, 10, newest=900)
    waiting.last_ms = 100
    config = LogConfig(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    assert not is_worth_cleaning([waiting], 0, config, 599)
    assert is_worth_cleaning([waiting], 0, config, 600)
    assert is_worth_cleaning([waiting], 0, config, 901)


async def fill(log: PartitionLog, count: int, at_ms: int) -> None:
    for _ in range(count):
        batch = encode_batch([b"v" * 20], [b"k"], timestamps_ms=[at_ms])
        log.append(batch, read_header(batch), at_ms)
    assert await outcome(log) is None


async def test_records_are_left_alone_while_they_are_young(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), replace(CONFIG, min_compaction_lag_ms=1000)) as log:
        await fill(log, 20, 5000)
        assert await log.compact(5999) is None
        assert len(await records_in(log)) == 20
        assert await log.compact(6000) is not None
        assert len(await records_in(log)) < 20


async def test_what_is_compacted_with_records_of_unknown_age_is_of_unknown_age(tmp_path: Path) -> None:
    """They were in the active segment when the daemon was killed, so they are the latest; retention counts from its look."""
    async with opened(FileStorage(tmp_path), replace(CONFIG, retention_ms=10_000)) as log:
        await fill(log, 20, 5000)
        for closed in log._segments.closed[1:]:
            closed.last_ms = NO_TIMESTAMP
        result = await log.compact(5500)
        assert result is not None
        assert result.segments_after < result.segments_before
        assert log._segments.closed[0].last_ms == NO_TIMESTAMP
        await log.retain(6500)
        assert log._segments.closed[0].last_ms == 6500


async def test_an_idle_log_is_compacted_before_the_longest_lag_is_over(tmp_path: Path) -> None:
    config = replace(CONFIG, segment_bytes=10**6, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    async with opened(FileStorage(tmp_path), config) as log:
        await fill(log, 20, 5000)
        for now_ms in range(5000, 6001, 250):
            await log.retain(now_ms)
            await log.compact(now_ms)
        assert len(await records_in(log)) == 1


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_compressed_batches_of_producers_are_thinned_and_compressed_again(
    tmp_path: Path, compression: Compression
) -> None:
    pytest.importorskip("zstandard")
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        for number in range(12):
            batch = encode_batch(
                [b"x" * 300, b"y%d" % number], [b"same", b"own%d" % number], timestamps_ms=[number, number],
                compression=compression, producer_id=number, producer_epoch=0, base_sequence=0,
            )  # fmt: skip
            log.append(batch, read_header(batch))
        assert await outcome(log) is None
        before = await records_in(log)
        assert await log.compact(0) is not None
        thinned = [
            (header, batch)
            for header, batch in await batches_in(log)
            if header.producer_id >= 0 and header.record_count == 1
        ]
        assert thinned
        assert {header.compression for header, _ in thinned} == {compression}
        after = await records_in(log)
        assert all(before[offset] == record for offset, record in after.items())
        assert {record[0] for record in after.values()} == {record[0] for record in before.values()}


def rubbish(kind: str) -> bytes:
    """A batch that is what its producer wrote, checksums and all, and does not decode."""
    batch = encode_batch([b"v" * 50], [b"k1"], timestamps_ms=[5000], compression="gzip")
    header = read_header(batch)
    if kind == "no gzip":
        body = b"\0" * (header.length - HEADER_BYTES)
    elif kind == "a bomb":  # holds a megabyte more than it says
        body = zlib.compress(b"\0" * 2**20, wbits=31)
        body = body.ljust((len(body) + 7) & ~7, b"\0")
    elif kind == "columns that fall":
        _, columns = encode_columns([b"v", b"w"], [b"k1", b"k2"], [5000, 5000])
        columns = columns[:4] + b"\xff\0\0\0" + columns[8:]
        header = replace(header, body_length=len(columns), record_count=2, last_offset_delta=1)
        body = zlib.compress(columns, wbits=31)
        body = body.ljust((len(body) + 7) & ~7, b"\0")
    else:
        _, columns = encode_columns([b"v"], [b"k1"], [5000], [(("name", b"value"),)])
        columns = columns.replace(b"\x92\xa4name", b"\xc1\xa4name")
        header = replace(header, body_length=len(columns), attributes=header.attributes | Attributes.HEADERS)
        body = zlib.compress(columns, wbits=31)
        body = body.ljust((len(body) + 7) & ~7, b"\0")
    header = replace(header, length=HEADER_BYTES + len(body), body_crc=zlib.crc32(body))
    return header.pack() + body


@pytest.mark.parametrize("kind", ["no gzip", "a bomb", "columns that fall", "headers that do not parse"])
async def test_a_batch_that_does_not_decode_stays_and_the_rest_is_compacted(tmp_path: Path, kind: str) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        for _ in range(6):
            append(log, (b"k", b"v" * 30, 0))
        bad = rubbish(kind)
        bad_offset = log.append(bad, read_header(bad)).base_offset
        for _ in range(12):
            append(log, (b"k", b"v" * 30, 0))
        assert await outcome(log) is None
        with structlog.testing.capture_logs() as lines:
            result = await log.compact(0)
        assert result is not None
        assert result.unreadable_kept == 1
        assert [line["event"] for line in lines] == ["unreadable_batches_kept", "compacted"]
        assert result.records_after < result.records_before
        found = [(header, batch) for header, batch in await batches_in(log) if header.base_offset == bad_offset]
        assert [batch[HEADER_BYTES:] for _, batch in found] == [bad[HEADER_BYTES:]]
        assert await log.offset_for_timestamp(4000) == (bad_offset, 5000)  # nobody begins too late
        end = log.end_offset
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        assert log.end_offset == end


async def test_a_log_that_cannot_be_compacted_says_why_until_it_can(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        await fill(log, 20, 0)
        path = tmp_path / DIRECTORY / f"{0:020}.log"
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        with pytest.raises(Exception, match="damaged"):
            await log.compact(0)
        assert log.fault.startswith("compaction failed: ")
        path.write_bytes(whole)
        assert await log.compact(0) is not None
        assert log.fault == ""
        await fill(log, 1, 0)
        assert decode_columns((await batches_in(log))[-1][1], 0, (await batches_in(log))[-1][0]).count == 1
