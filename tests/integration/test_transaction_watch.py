"""A consumer that waits for an open transaction says for which, and since when."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from client import Consumer, Producer
from client.consumer import transaction_watch
from coordinator import Coordinator
from tests.integration.consuming import QUICK, create, take, until


async def test_the_transaction_that_is_waited_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_watch, "FIRST_TOLD_S", 0.2)
    async with Coordinator() as c:
        await create(c.address, t=1)
        async with (
            Producer(c.address, transactional_id="slow") as producer,
            Producer(c.address, transactional_id="quick") as other,
            Consumer("t", bootstrap_servers=c.address, group_id="g", fetch_max_wait_ms=50, **QUICK) as consumer,
        ):
            async with other.transaction() as transaction:
                await transaction.send("t", b"1")
            with structlog.testing.capture_logs() as logs:

                def told() -> list[dict[str, object]]:
                    return [dict(line) for line in logs if line["event"] == "open_transaction_awaited"]

                async with producer.transaction() as transaction:
                    await (await transaction.send("t", b"2"))
                    async with other.transaction() as second:
                        await second.send("t", b"3")
                    assert await take(consumer, 1) == [1]
                    await until(lambda: bool(told()))
                    assert await consumer.lag() == dict.fromkeys(consumer.assignment(), 0), (
                        "up to the last stable offset"
                    )
                    await asyncio.sleep(0.5)
                assert await take(consumer, 2) == [2, 3]
                await asyncio.sleep(0.5)
            (line,) = told()  # and not again soon, nor when it is decided
        fields = {name: line[name] for name in ("group", "topic", "partition", "offset", "transactional_id")}
        assert fields == {"group": "g", "topic": "t", "partition": 0, "offset": 2, "transactional_id": "slow"}
        assert isinstance(line["open_since_ms"], int)
        assert line["open_since_ms"] > 1_700_000_000_000


async def test_who_reads_what_is_not_committed_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_watch, "FIRST_TOLD_S", 0.1)
    async with Coordinator() as c:
        await create(c.address, t=1)
        async with (
            Producer(c.address, transactional_id="slow") as producer,
            Consumer(
                "t", bootstrap_servers=c.address, isolation_level="read_uncommitted", fetch_max_wait_ms=50,
                auto_offset_reset="earliest",
            ) as consumer,
        ):  # fmt: skip
            with structlog.testing.capture_logs() as logs:
                async with producer.transaction() as transaction:
                    await (await transaction.send("t", b"2"))
                    assert await take(consumer, 1) == [2]
                    await asyncio.sleep(0.4)
            assert not [line for line in logs if line["event"] == "open_transaction_awaited"]
