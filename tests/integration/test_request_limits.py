"""A daemon tells how large requests may be: a producer that may send more does not, and refuses at once what never fits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client import Admin, MessageTooLargeError, Producer, RecordTooLargeError
from coordinator import Coordinator
from tests.integration.fetched import values

LIMITS: dict[str, Any] = {"max_frame_bytes": 200_000, "max_message_bytes": 150_000}
LARGE: dict[str, Any] = {"max_request_bytes": 2**20, "batch_size": 2**20, "delivery_timeout_ms": 600_000}


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with Coordinator(**LIMITS) as coordinator:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 8})
        yield coordinator.address


async def test_a_record_above_what_the_daemon_takes_is_refused_at_once(address: str) -> None:
    async with Producer(address, **LARGE) as producer, asyncio.timeout(60):
        text = (
            r"a record of 200017 bytes for topic 't' is above the 199\d\d\d that the daemon takes: raise its max_frame"
        )
        with pytest.raises(RecordTooLargeError, match=text):
            await producer.send("t", b"x" * 200_000)
        with pytest.raises(MessageTooLargeError, match="that the daemon takes"):
            await producer.send_many("t", [b"small", b"x" * 200_000])
        with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
            await producer.send_and_wait("t", b"x" * 160_000)
        assert (await producer.send_and_wait("t", b"x" * 149_000, partition=0)).offset == 0


async def test_requests_are_made_as_large_as_the_daemon_takes(address: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Producer(address, **LARGE) as producer, asyncio.timeout(60):
        sent = await producer.send_many(
            "t", [b"%0900d" % number for number in range(3000)], [b"%d" % n for n in range(3000)]
        )
        single = [await producer.send("t", b"x" * 120_000, partition=number % 8) for number in range(40)]
        await asyncio.gather(*single)
    assert len(sent) == 3000
    assert sum(map(len, (await values(address, "t")).values())) == 3040
    assert not [record for record in caplog.records if "malformed" in record.getMessage()]


async def test_what_was_queued_for_a_daemon_that_takes_less_now_is_broken_up_or_refused(tmp_path: Path) -> None:
    async with Coordinator(data_dir=str(tmp_path), max_message_bytes=400_000) as coordinator:
        port = int(coordinator.address.rpartition(":")[2])
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 2})
        producer = Producer(coordinator.address, **LARGE, linger_ms=60_000)
        await producer.start()
        small = [await producer.send("t", b"%0900d" % number, partition=0) for number in range(700)]
        large = await producer.send("t", b"x" * 300_000, partition=1)
    async with Coordinator(data_dir=str(tmp_path), port=port, **LIMITS), asyncio.timeout(120):
        await producer.flush()
        assert [future.result().offset for future in small] == list(range(700))
        assert isinstance(large.exception(), RecordTooLargeError)
        await producer.stop()
