"""``process(handler, producer=...)``: each record counts once, whatever its handler, the group or a transaction meets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from client import (
    Consumer,
    HandlerError,
    IllegalStateError,
    Output,
    Producer,
)
from coordinator import Coordinator
from tests.integration.consuming import create, fill
from tests.integration.transforming import (
    SOURCE,
    TARGET,
    answers,
    member,
    producer,
    seen,
)

NUMBERS = range(400)
ALL = {0: 100, 1: 100, 2: 100, 3: 100}


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """A daemon with the numbers from 0 to 399 in four partitions, and a topic of two partitions for what is made of them."""
    async with Coordinator() as c:
        await create(c.address, **{SOURCE: 4, TARGET: 2, "dead": 1})
        await fill(c.address, SOURCE, NUMBERS)
        yield c.address


@pytest.mark.parametrize("returned", [b"bytes", 7, [Output(TARGET, "text")], [Output(TARGET, b"x", partition=9)]])
async def test_what_cannot_be_sent_is_an_error_of_the_handler(address: str, returned: object) -> None:
    async with member(address) as consumer, producer(address, "p") as sending:
        with pytest.raises(HandlerError, match="offset 0 of numbers-"):
            await consumer.process(lambda _: returned, producer=sending)
    assert not await seen(address)


async def test_what_process_with_a_producer_needs(address: str) -> None:
    async with (
        Consumer(SOURCE, bootstrap_servers=address) as alone,
        member(address) as consumer,
        Producer(address) as plain,
        producer(address, "p") as sending,
    ):
        with pytest.raises(ValueError, match="give the producer a transactional_id"):
            await consumer.process(answers, producer=plain)
        with pytest.raises(TypeError, match="must be a Producer"):
            await consumer.process(answers, producer="p")  # type: ignore[arg-type]
        with pytest.raises(IllegalStateError, match="pass group_id"):
            await alone.process(answers, producer=sending)
        with pytest.raises(ValueError, match="above 0"):
            await consumer.process(answers, producer=sending, commit_interval_ms=0)
        with pytest.raises(ValueError, match="commit more often"):
            await consumer.process(answers, producer=sending, commit_interval_ms=3_000)
        async with sending.transaction():
            with pytest.raises(IllegalStateError, match="is open"):
                await consumer.process(answers, producer=sending)
