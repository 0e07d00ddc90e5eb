"""What is inside a compressed batch is looked at before the batch is taken, and never costs more than it says."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import cast

import pytest

from coordinator.config import Settings
from coordinator.log.config import LogConfig
from coordinator.metadata.catalog import TopicError
from coordinator.server.handlers.produced_batches import (
    MAX_INFLATED_BYTES,
    MAX_REQUEST_INFLATED_BYTES,
    Inflation,
    checked_batches,
)
from protocol.compression import Compression
from protocol.errors import ErrorCode
from protocol.record_batch import HEADER_BYTES, BatchHeader, encode_batch, read_header
from tests.hostile_batches import MIB, batch_of, bomb, good, hostile

CONFIG = LogConfig(max_message_bytes=Settings().max_message_bytes)
COMPRESSIONS: tuple[Compression, ...] = ("gzip", "zstd")
each_compression = pytest.mark.parametrize("compression", COMPRESSIONS)


def checked(config: LogConfig, records: bytes, inflation: Inflation | None = None) -> list[tuple[bytes, BatchHeader]]:
    """All steps of a check, at once."""

    def at_once(check: Callable[[], None]) -> asyncio.Future[None]:
        future: Future[None] = Future()
        try:
            check()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return cast("asyncio.Future[None]", future)

    steps = checked_batches("t", config, records, inflation or Inflation(), at_once)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("list[tuple[bytes, BatchHeader]]", end.value)


def refusal(records: bytes, inflation: Inflation | None = None, config: LogConfig = CONFIG) -> TopicError:
    with pytest.raises(TopicError) as refused:
        checked(config, records, inflation)
    return refused.value


@each_compression
@pytest.mark.parametrize("kind", hostile("gzip"))
def test_a_hostile_batch_is_refused_by_name_alone_and_behind_a_good_one(compression: Compression, kind: str) -> None:
    batch, code, says = hostile(compression)[kind]
    for records in (batch, good(compression) + batch):
        error = refusal(records)
        assert error.code == code
        assert "topic 't'" in str(error)
        assert says in str(error)


@each_compression
def test_what_a_producer_makes_is_taken(compression: Compression) -> None:
    dense = encode_batch([b""] * 10_000, timestamps_ms=[0] * 10_000, compression=compression)
    batches = checked(CONFIG, good(compression) + dense)
    assert [header.record_count for _, header in batches] == [2, 10_000]


@pytest.mark.parametrize("times", [(5, 5, 5), (5, 7, 6), (7, 5, 6), (-(2**63), 0, 2**63 - 1)])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_header_that_says_other_times_than_its_records_is_refused(
    times: tuple[int, ...], compression: Compression | None
) -> None:
    batch = encode_batch([b"v"] * 3, timestamps_ms=times, compression=compression)
    header = read_header(batch)
    assert checked(CONFIG, batch) == [(batch, header)]
    for lie in (replace(header, max_timestamp=6000), replace(header, base_timestamp=1)):
        records = lie.pack() + batch[HEADER_BYTES:]
        error = refusal(batch + records)
        assert error.code == ErrorCode.INVALID_RECORD
        assert f"its records have {min(times)} to {max(times)}" in str(error)
        config = replace(CONFIG, message_timestamp_type="LogAppendTime")  # their times do not count then
        assert checked(config, records) == [(records, lie)]


@each_compression
def test_a_bomb_is_never_held_whole(compression: Compression) -> None:
    for body_length in (1000, 4 * MIB):
        batch = bomb(compression, 64 * MIB, body_length)
        tracemalloc.start()
        try:
            assert refusal(batch).code == ErrorCode.CORRUPT_MESSAGE
            assert tracemalloc.get_traced_memory()[1] < 2 * body_length + 2 * MIB
        finally:
            tracemalloc.stop()


def test_a_batch_that_says_too_much_is_refused_before_it_is_inflated() -> None:
    rubbish = batch_of(b"no stream at all", "gzip", body_length=MAX_INFLATED_BYTES + 1)
    assert refusal(rubbish).code == ErrorCode.MESSAGE_TOO_LARGE
    just = batch_of(b"no stream at all", "gzip", body_length=MAX_INFLATED_BYTES)
    assert refusal(just).code == ErrorCode.CORRUPT_MESSAGE


def test_a_topic_with_larger_batches_takes_as_large_ones_compressed() -> None:
    config = replace(CONFIG, max_message_bytes=40 * MIB)
    batch = encode_batch([bytes(20 * MIB)], timestamps_ms=[0], compression="gzip")
    assert refusal(batch).code == ErrorCode.MESSAGE_TOO_LARGE
    assert len(checked(config, batch)) == 1
    assert f"at most {40 * MIB} are taken" in str(refusal(bomb("gzip", 8, 40 * MIB + 1), config=config))


@each_compression
def test_the_batches_of_a_request_share_one_bound(compression: Compression) -> None:
    batch = encode_batch([bytes(15 * MIB)], timestamps_ms=[0], compression=compression)
    holds = read_header(batch).body_length
    inflation = Inflation()
    for _ in range(2):  # two partitions
        checked(CONFIG, batch + batch, inflation)
    error = refusal(batch, inflation)
    assert error.code == ErrorCode.MESSAGE_TOO_LARGE
    left = MAX_REQUEST_INFLATED_BYTES - 4 * holds
    assert f"of the {MAX_REQUEST_INFLATED_BYTES} that all batches of a request may hold {left} are left" in str(error)
    checked(CONFIG, good(compression), inflation)  # what still fits is taken
    checked(CONFIG, batch)  # and the next request has all of it


def test_a_daemon_without_zstd_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = good("zstd")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    error = refusal(batch)
    assert error.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert "aiocohort[zstd]" in str(error)
    assert checked(CONFIG, good("gzip"))
