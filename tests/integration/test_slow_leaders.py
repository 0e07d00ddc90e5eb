"""Records without keys, two leaders, one of them slow: it gets what it can take, and little while it takes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest

from client.admin import Admin
from client.producer.acknowledgements import RecordFuture
from client.producer.producer import Producer
from coordinator import Coordinator
from protocol.subscription import TopicPartition
from tests.integration.two_leaders import TwoLeaders

PARTITIONS = 4
SLOW = (2, 3)
VALUE = b"x" * 200


@pytest.fixture
async def leaders() -> AsyncIterator[TwoLeaders]:
    """A daemon behind two doors; the slow one leads the second half of topic "t"."""
    async with Coordinator() as coordinator:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        async with TwoLeaders(int(coordinator.address.rpartition(":")[2]), SLOW[0]) as doors:
            yield doors


async def sent(producer: Producer, turns: int) -> list[RecordFuture]:
    """Sends 20 records, waits a moment, and so on. Turns, not seconds: a busy machine makes fewer batches in a second."""
    futures: list[RecordFuture] = []
    for _ in range(turns):
        for _ in range(20):
            futures.append(await producer.send("t", VALUE))
        await asyncio.sleep(0.001)
    return futures


async def where(futures: list[RecordFuture]) -> Counter[int]:
    """How many records each partition got, once all are stored."""
    return Counter([entry.partition for entry in await asyncio.gather(*futures)])


def share_of_slow(went: Counter[int]) -> float:
    return sum(went[partition] for partition in SLOW) / went.total()


def is_slow(producer: Producer) -> bool:
    """Whether the producer has noticed that the slow leader takes nothing."""
    return all(producer._sender.is_slow(TopicPartition("t", index)) for index in SLOW)  # type: ignore[union-attr]


@pytest.mark.parametrize(("adaptive", "idempotent"), [(True, True), (True, False), (False, True)])
async def test_a_leader_that_is_slow_gets_fewer_records(leaders: TwoLeaders, adaptive: bool, idempotent: bool) -> None:
    leaders.pause_s = 0.5  # far longer than the quick one takes on a busy machine
    async with Producer(
        leaders.address, batch_size=2000, partitioner_adaptive=adaptive, enable_idempotence=idempotent, random=Random(4)
    ) as producer:
        futures = await sent(producer, 500)
        leaders.pause_s = 0
        share = share_of_slow(await where(futures))
    assert all(leaders.produced)
    assert (share < 0.3) if adaptive else (share > 0.4), share


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_leader_that_takes_nothing_gets_little_until_it_does_again(
    leaders: TwoLeaders, idempotent: bool
) -> None:
    async with Producer(
        leaders.address, batch_size=2000, partitioner_availability_timeout_ms=100, enable_idempotence=idempotent,
        random=Random(4),
    ) as producer:  # fmt: skip
        before = await sent(producer, 200)
        leaders.shut()
        noticing = await sent(producer, 1)
        while not is_slow(producer):
            noticing += await sent(producer, 50)
        meanwhile = await sent(producer, 700)
        leaders.open()
        during = await where(meanwhile)
        await where(noticing)
        while is_slow(producer):
            await where(await sent(producer, 10))
        after = await where(await sent(producer, 400))
    assert 0.3 < share_of_slow(await where(before)) < 0.7
    # A batch that was begun before it was noticed still goes, and then the leader has its 100 ms once more.
    assert share_of_slow(during) < 0.25
    assert share_of_slow(after) > 0.3
