"""Producers, consumers and groups of a cluster of three real nodes, one of which is killed and comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from client import Admin, CohortError, Consumer, Producer, TopicPartition, TransactionAbortedError
from coordinator.cluster import Cluster
from tests.integration.consuming import Journal, Reader, until

PARTITIONS = 6
TPS = [TopicPartition("t", index) for index in range(PARTITIONS)]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(nodes=3, log_level="error") as running:
        async with Admin(running.address) as admin:
            await admin.create_topics({"t": PARTITIONS}, replication_factor=3)
        yield running


async def leaders(cluster: Cluster) -> Counter[int]:
    """How many partitions of the topic each node leads."""
    async with Admin(cluster.address) as admin:
        described = await admin.describe_topics("t")
    return Counter(each.leader for each in described["t"].partitions)


async def settled(cluster: Cluster) -> None:
    """Waits until every partition has all its replicas in sync."""

    async def whole() -> bool:
        async with Admin(cluster.address) as admin:
            names = await admin.list_topics(include_internal=True)
            described = await admin.describe_topics(*names)
        return all(len(each.in_sync_replicas) == 3 for topic in described.values() for each in topic.partitions)

    await eventually(whole)


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.1)


def node_at(cluster: Cluster, address: str) -> int:
    return list(cluster.addresses).index(address)


async def read_all(cluster: Cluster, isolation: str = "read_uncommitted") -> list[list[int]]:
    """The numbers in each partition, up to its end."""
    found: list[list[int]] = [[] for _ in TPS]
    async with Consumer(bootstrap_servers=cluster.address, isolation_level=isolation) as consumer:  # type: ignore[arg-type]
        consumer.assign(TPS)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(TPS)
        async with asyncio.timeout(60):
            while any([await consumer.position(tp) < ends[tp] for tp in TPS]):
                for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                    found[tp.partition] += [int(record.value) for record in records]
    return found


class Load:
    """Sends numbers to all partitions in turn, until it is stopped; ``failed`` has those that were not acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._task = asyncio.create_task(self._send())
        self._stopping = False
        self.sent = 0
        self.acknowledged: list[int] = []
        self.failed: dict[int, BaseException] = {}

    async def _send(self) -> None:
        while not self._stopping:
            for _ in range(20):
                number, self.sent = self.sent, self.sent + 1
                future = await self._producer.send("t", b"%d" % number, partition=number % PARTITIONS)
                future.add_done_callback(lambda done, number=number: self._settled(number, done))  # type: ignore[misc]
            await asyncio.sleep(0.01)

    def _settled(self, number: int, done: asyncio.Future[object]) -> None:
        error = done.exception()
        if error is None:
            self.acknowledged.append(number)
        else:
            self.failed[number] = error

    async def more(self, count: int = 200) -> None:
        """Waits until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted or self._task.done(), 60)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        self._stopping = True
        await self._task
        await self._producer.flush()
        await until(lambda: len(self.acknowledged) + len(self.failed) == self.sent)


async def test_no_record_of_an_idempotent_producer_is_lost_or_doubled_or_out_of_order_when_leaders_die(
    cluster: Cluster,
) -> None:
    async with Producer(cluster.address, linger_ms=5) as producer:
        load = Load(producer)
        await load.more()
        for _ in range(2):
            ((victim, _),) = (await leaders(cluster)).most_common(1)
            await cluster.kill(victim)
            await load.more()
            await cluster.start(victim)
            await load.more()
            await settled(cluster)
        await load.stop()
    assert load.failed == {}
    assert await read_all(cluster) == [[*range(index, load.sent, PARTITIONS)] for index in range(PARTITIONS)]


async def test_a_producer_without_idempotence_and_with_one_acknowledgement_goes_on(cluster: Cluster) -> None:
    async with Producer(cluster.address, acks=1, enable_idempotence=False) as producer:
        load = Load(producer)
        await load.more()
        ((victim, _),) = (await leaders(cluster)).most_common(1)
        await cluster.kill(victim)
        await load.more(400)
        await cluster.start(victim)
        await load.more()
        await load.stop()
    assert load.failed == {}
    await settled(cluster)
    for index, numbers in enumerate(await read_all(cluster)):
        assert {number % PARTITIONS for number in numbers} == {index}
        first_seen = list(dict.fromkeys(numbers))
        assert first_seen == sorted(first_seen), "what came twice came in order"


async def test_a_controlled_stop_fails_no_record(cluster: Cluster) -> None:
    async with Producer(cluster.address) as producer:
        load = Load(producer)
        await load.more()
        for node in range(3):
            await cluster.stop(node)
            await load.more()
            await cluster.start(node)
            await settled(cluster)
        await load.stop()
    assert load.failed == {}
    assert await read_all(cluster) == [[*range(index, load.sent, PARTITIONS)] for index in range(PARTITIONS)]


async def test_a_group_goes_on_at_another_coordinator_without_a_rebalance(cluster: Cluster) -> None:
    journal = Journal()
    settings = {"group_id": "g", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 100}
    async with (
        Admin(cluster.address) as admin,
        Producer(cluster.address) as producer,
        Consumer(bootstrap_servers=cluster.address, **settings) as consumer,  # type: ignore[arg-type]
    ):
        consumer.subscribe(topics=["t"], listener=journal)
        reader = Reader(consumer)
        load = Load(producer)
        await until(lambda: len(reader.records) > 200)
        before = (await admin.describe_groups("g"))["g"]
        victim = node_at(cluster, before.coordinator)
        await cluster.kill(victim)
        await load.more(400)
        committed = {tp: stored.offset for tp, stored in (await admin.list_offsets("g")).items()}
        await load.more(400)
        await load.stop()
        await until(lambda: len(reader.records) >= load.sent, 60)
        after = (await admin.describe_groups("g"))["g"]
        assert after.coordinator != before.coordinator
        assert (after.state, after.generation) == ("Stable", before.generation)
        assert [event for event, _ in journal.events] == ["assigned"]
        later = await admin.list_offsets("g")
        assert all(later[tp].offset >= offset for tp, offset in committed.items())
        await cluster.start(victim)
        reader.task.cancel()
    assert sorted(reader.numbers) == [*range(load.sent)]


async def test_transactions_are_committed_once_each_through_the_death_of_coordinator_and_leaders(
    cluster: Cluster,
) -> None:
    async with (
        Admin(cluster.address) as admin,
        Producer(cluster.address, transactional_id="tx", transaction_timeout_ms=60_000) as producer,
    ):
        done = asyncio.Event()
        committed = 0

        async def transact() -> None:
            nonlocal committed
            while not done.is_set():
                try:
                    async with producer.transaction():
                        for index in range(PARTITIONS):
                            await producer.send("t", b"%d" % committed, partition=index)
                except TransactionAbortedError:
                    continue
                committed += 1

        async def more(count: int) -> None:
            wanted = committed + count
            await until(lambda: committed >= wanted or work.done(), 60)
            if work.done():
                work.result()

        work = asyncio.create_task(transact())
        await more(20)
        for _ in range(2):
            described = (await admin.describe_transactions("tx"))["tx"]
            victim = node_at(cluster, described.coordinator)
            await cluster.kill(victim)
            await more(20)
            await cluster.start(victim)
            await settled(cluster)
            ((victim, _),) = (await leaders(cluster)).most_common(1)
            await cluster.kill(victim)
            await more(20)
            await cluster.start(victim)
            await settled(cluster)
        done.set()
        await work
    assert await read_all(cluster, "read_committed") == [[*range(committed)]] * PARTITIONS


async def test_a_client_starts_while_a_node_is_dead_and_the_admin_says_which_did_not_answer(cluster: Cluster) -> None:
    await cluster.kill(0)
    async with Producer(cluster.address) as producer:
        sent = [await producer.send("t", b"%d" % number, partition=number % PARTITIONS) for number in range(60)]
        await asyncio.gather(*sent)
    async with Admin(cluster.address) as admin:
        logs = await admin.describe_logs("t")
        assert sum(log.end for log in logs.values()) == 60
        assert await admin.list_groups() == []
        assert await admin.delete_records(dict.fromkeys(TPS, -1)) == dict.fromkeys(TPS, 10)
        with pytest.raises(CohortError):
            await admin.describe_topics("missing")


async def test_what_is_committed_has_the_epoch_of_the_last_record_read_not_that_of_the_leader(cluster: Cluster) -> None:
    """librdkafka takes an offset of an earlier epoch for one further back, and would not commit what it reads next."""
    tp = TPS[0]
    async with Producer(cluster.address) as producer:
        await producer.send_and_wait("t", b"first", partition=0)

    async def committed_by(group: str) -> int:
        async with Consumer(
            bootstrap_servers=cluster.address, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            consumer.assign([tp])
            await consumer.getone()
            await consumer.commit()
        async with Admin(cluster.address) as admin:
            return (await admin.list_offsets(group))[tp].leader_epoch

    before = await committed_by("before")
    async with Admin(cluster.address) as admin:
        leader = (await admin.describe_topics("t"))["t"].partitions[0].leader
    await cluster.stop(leader)
    await cluster.start(leader)
    await settled(cluster)
    async with Producer(cluster.address) as producer:
        await producer.send_and_wait("t", b"second", partition=0)
    assert await committed_by("after") == before
