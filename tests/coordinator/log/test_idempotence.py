"""No caller can append a batch of an idempotent producer twice or out of its order: the log itself looks."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from coordinator.filesystem.files import FileStorage
from coordinator.log.config import LogConfig
from coordinator.log.errors import (
    InvalidProducerEpochError,
    LogWriteError,
    OutOfOrderSequenceError,
    ProducerStateError,
    UnknownProducerIdError,
)
from coordinator.log.producers import AppendResult
from protocol.record_batch import BatchHeader, encode_batch, read_header
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import opened, outcome, records_in

Batch = tuple[bytes, BatchHeader]


def batch(first: int, count: int = 2, *, producer_id: int = 7, epoch: int = 0) -> Batch:
    content = encode_batch(
        [b"%d" % (first + number) for number in range(count)],
        timestamps_ms=[5] * count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=first,
    )
    return content, read_header(content)


def plain() -> Batch:
    content = encode_batch([b"p"], timestamps_ms=[5])
    return content, read_header(content)


async def test_a_batch_that_comes_again_is_a_duplicate_and_keeps_its_offsets(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        first = log.append(*batch(0))
        assert first == AppendResult(base_offset=0, last_offset=1, duplicate=False, append_time_ms=-1)
        assert log.append(*batch(2)) == (2, 3, False, -1)
        assert log.append(*batch(0)) == first._replace(duplicate=True)
        assert log.end_offset == 4
        assert await outcome(log) is None
        assert len(await records_in(log)) == 4


async def test_a_duplicate_has_the_time_of_its_first_append(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), LogConfig(message_timestamp_type="LogAppendTime")) as log:
        assert [log.append(*batch(0), now_ms=now_ms).append_time_ms for now_ms in (100, 200)] == [100, 100]
        assert log.append(*batch(2), now_ms=300).append_time_ms == 300
        assert await outcome(log) is None
        assert await log.offset_for_timestamp(101) == (2, 300)


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (batch(6), OutOfOrderSequenceError),
        (batch(0, 3), OutOfOrderSequenceError),
        (batch(4, epoch=1), OutOfOrderSequenceError),
        (batch(4, epoch=-1), InvalidProducerEpochError),
        (batch(4, producer_id=8), UnknownProducerIdError),
    ],
)
async def test_what_does_not_come_next_is_refused_and_leaves_the_log_as_it_was(
    tmp_path: Path, refused: Batch, error: type[ProducerStateError]
) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        log.append_all([batch(0), batch(2)])
        with pytest.raises(error):
            log.append(*refused)
        assert log.end_offset == 4
        assert log.append(*batch(4)).base_offset == 4


async def test_batches_of_one_append_are_all_taken_or_none(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        for wrong in (batch(4), batch(2, producer_id=8), batch(2, epoch=1), plain()):
            with pytest.raises(OutOfOrderSequenceError):
                log.append_all([batch(0), wrong])
            assert log.end_offset == 0
        with pytest.raises(ValueError, match="its header says"):
            log.append_all([batch(0), (batch(2)[0] + bytes(8), batch(2)[1])])
        assert (log.end_offset, len(log.producers)) == (0, 0)
        results = log.append_all([plain(), plain()])
        results += log.append_all([batch(0), batch(2)])
        results += log.append_all([batch(2), batch(4)])
        assert [(result.base_offset, result.duplicate) for result in results] == [
            (0, False), (1, False), (2, False), (4, False), (4, True), (6, False),
        ]  # fmt: skip


async def test_what_the_disk_refuses_is_no_duplicate_when_it_comes_again(tmp_path: Path) -> None:
    refusing = [False]

    def hook(operation: str, path: str) -> None:
        if operation == "append" and refusing[0]:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    async with opened(HookedStorage(tmp_path, hook)) as log:
        log.append(*batch(0))
        assert await outcome(log) is None
        refusing[0] = True
        log.append(*batch(2))
        assert isinstance(await outcome(log), LogWriteError)
        refusing[0] = False
        with pytest.raises(OutOfOrderSequenceError):
            log.append(*batch(4))
        assert log.append(*batch(2)) == (2, 3, False, -1)
        assert await outcome(log) is None
        assert len(await records_in(log)) == 4
