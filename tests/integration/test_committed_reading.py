"""Groups that read what transactions have written: what they see, how far behind they are, what the command line prints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from client import Admin, Consumer, Producer, TopicPartition
from coordinator import Coordinator
from tests.integration.cohort_command import cohort
from tests.integration.consuming import QUICK, create, take, until

T0 = TopicPartition("t", 0)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """A daemon with 0 to 4 committed, then 5 to 9 aborted, then 10 to 14 committed, in one partition."""
    async with Coordinator() as c:
        await create(c.address, t=1)
        async with Producer(c.address, transactional_id="p") as producer:
            for first in (0, 5, 10):
                await producer.begin_transaction()
                await producer.send_many("t", [b"%d" % number for number in range(first, first + 5)])
                await (producer.abort_transaction() if first == 5 else producer.commit_transaction())
        yield c.address


async def until_no_lag(address: str) -> None:
    """Waits until the group has committed the end of the log."""
    async with asyncio.timeout(30), Admin(address) as admin:
        while [row.lag for row in await admin.group_lag("g")] != [0]:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["poll", "process"])
async def test_a_group_that_has_read_all_is_not_behind_although_markers_end_the_log(address: str, how: str) -> None:
    seen: list[int] = []
    settings = {**QUICK, "auto_commit_interval_ms": 20}
    async with Consumer("t", bootstrap_servers=address, group_id="g", **settings) as consumer:
        if how == "poll":
            seen += await take(consumer, 10)
            polling = asyncio.create_task(consumer.getone())
        else:
            polling = asyncio.create_task(consumer.process(lambda record: seen.append(int(record.value))))  # type: ignore[arg-type]
        await until(lambda: len(seen) == 10)
        await until_no_lag(address)
        assert await consumer.end_offsets([T0]) == {T0: 18}
        assert await consumer.lag() == {T0: 0}
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    assert seen == [*range(5), *range(10, 15)]


async def test_one_that_stops_after_the_last_record_commits_the_end_too(address: str) -> None:
    async with Consumer("t", bootstrap_servers=address, group_id="g", enable_auto_commit=False, **QUICK) as consumer:
        assert len(await take(consumer, 10)) == 10
        await until(lambda: consumer._assignment.state(T0).position == 18)  # without another poll
        await consumer.commit()
        await until_no_lag(address)


async def test_the_command_line_prints_what_is_committed_or_everything(address: str) -> None:
    arguments = ("-b", address, "consume", "t", "--from-beginning", "--timeout", "1")
    printed = await asyncio.to_thread(cohort, *arguments)
    assert list(map(int, printed.stdout.split())) == [*range(5), *range(10, 15)]
    printed = await asyncio.to_thread(cohort, *arguments, "--isolation-level", "read_uncommitted")
    assert list(map(int, printed.stdout.split())) == list(range(15))
