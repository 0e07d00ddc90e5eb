"""Groups and transactions of a cluster go on when the node that coordinates them is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from client import Admin, Consumer, ConsumerRecord, Output, Producer, TopicPartition
from client.errors import ProducerFencedError
from coordinator.cluster import Cluster
from coordinator.metadata.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from protocol.hashing import partition_for_group, partition_for_transactional_id

PARTITIONS = 3
ID, GROUP = "billing", "bills"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(nodes=3, log_level="error") as running:
        async with Admin(running.address) as admin:
            await admin.create_topics({"orders": PARTITIONS, "bills": PARTITIONS})
        yield running


async def leader(cluster: Cluster, topic: str, partition: int) -> int:
    async with Admin(cluster.address) as admin:
        return (await admin.describe_topics(topic))[topic].partitions[partition].leader


async def coordinator_of_transactions(cluster: Cluster) -> int:
    return await leader(cluster, TRANSACTIONS_TOPIC, partition_for_transactional_id(ID))


async def coordinator_of_groups(cluster: Cluster) -> int:
    return await leader(cluster, OFFSETS_TOPIC, partition_for_group(GROUP))


async def committed(cluster: Cluster, topic: str, count: int) -> dict[int, list[bytes]]:
    """The values of a topic that a reader with read_committed sees, by partition: so many, and none behind them."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    async with Consumer(topic, bootstrap_servers=cluster.address, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(30):
            while sum(map(len, found.values())) < count:
                for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                    found[tp.partition] += [record.value or b"" for record in records]
        assert not await consumer.getmany(timeout_ms=100)
    return found


@pytest.mark.parametrize("victim", ["the coordinator", "the leader of a partition"])
async def test_each_transaction_is_whole_when_a_node_dies_in_the_middle_of_them(cluster: Cluster, victim: str) -> None:
    expected = []
    async with Producer(cluster.address, transactional_id=ID) as producer:
        for number in range(30):
            if number == 10:
                coordinates = victim == "the coordinator"
                await cluster.kill(
                    await (coordinator_of_transactions(cluster) if coordinates else leader(cluster, "orders", 0))
                )
            commits = number % 5 != 4
            await producer.begin_transaction()
            for partition in range(PARTITIONS):
                await producer.send("orders", b"%d" % number, partition=partition)
            if commits:
                await producer.commit_transaction()
                expected.append(b"%d" % number)
            else:
                await producer.abort_transaction()
    found = await committed(cluster, "orders", PARTITIONS * len(expected))
    assert found == dict.fromkeys(range(PARTITIONS), expected)


async def test_a_group_that_transforms_exactly_once_goes_on_without_a_rebalance(cluster: Cluster) -> None:
    generations: set[int] = set()

    async def transform() -> None:
        async with (
            Consumer(
                "orders", bootstrap_servers=cluster.address, group_id=GROUP, auto_offset_reset="earliest"
            ) as consumer,
            Producer(cluster.address, transactional_id=ID) as producer,
        ):

            async def bill(record: ConsumerRecord) -> Output:
                generations.add(consumer.group_metadata().generation)
                return Output("bills", record.value)

            await consumer.process(bill, producer=producer)

    transforming = asyncio.create_task(transform())
    async with Producer(cluster.address) as producer:
        for number in range(120):
            if number in (40, 80):
                killed = await (coordinator_of_groups if number == 40 else coordinator_of_transactions)(cluster)
                await cluster.kill(killed)
                await asyncio.sleep(0.5)
                await cluster.start(killed)
            await producer.send_and_wait("orders", b"%d" % number, partition=number % PARTITIONS)
    found = await committed(cluster, "bills", 120)
    assert sorted(int(value) for values in found.values() for value in values) == list(range(120))
    assert not transforming.done()
    assert len(generations) == 1, "members keep their sessions"
    transforming.cancel()
    await asyncio.gather(transforming, return_exceptions=True)


async def test_a_transaction_whose_producer_is_gone_is_aborted_by_the_next_coordinator(cluster: Cluster) -> None:
    producer = Producer(cluster.address, transactional_id=ID, transaction_timeout_ms=2_000)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait("orders", b"undecided", partition=0)
    await cluster.kill(await coordinator_of_transactions(cluster))
    async with Producer(cluster.address) as plain:
        await plain.send_and_wait("orders", b"behind it", partition=0)
    found = await committed(cluster, "orders", 1)
    assert found[0] == [b"behind it"]
    async with Admin(cluster.address) as admin:
        (described,) = (await admin.describe_transactions(ID)).values()
        assert described.state == "CompleteAbort"
    await producer.stop()


async def test_a_producer_that_was_replaced_is_fenced_at_the_next_coordinator(cluster: Cluster) -> None:
    async with Producer(cluster.address, transactional_id=ID) as first:
        async with first.transaction() as tx:
            await tx.send("orders", b"one", partition=0)
        await cluster.kill(await coordinator_of_transactions(cluster))
        async with Producer(cluster.address, transactional_id=ID) as second, second.transaction() as tx:
            await tx.send("orders", b"two", partition=0)
        with pytest.raises(ProducerFencedError):
            async with first.transaction() as tx:
                await tx.send("orders", b"three", partition=0)
    assert (await committed(cluster, "orders", 2))[0] == [b"one", b"two"]


async def test_offsets_that_were_committed_are_there_at_the_next_coordinator(cluster: Cluster) -> None:
    tp = TopicPartition("orders", 0)
    async with Producer(cluster.address) as producer:
        for _ in range(50):
            await producer.send_and_wait("orders", b"x", partition=0)
    async with Consumer(bootstrap_servers=cluster.address, group_id=GROUP) as consumer:
        consumer.assign([tp])
        for offset in range(1, 41):
            if offset == 20:
                await cluster.kill(await coordinator_of_groups(cluster))
            await consumer.commit({tp: offset})
            found = (await consumer.committed(tp))[tp]
            assert found is not None
            assert found.offset == offset


async def test_a_coordinator_that_cannot_read_its_log_leaves_it_to_another_replica() -> None:
    async with Cluster(nodes=3, log_level="error") as cluster, asyncio.timeout(60):
        async with Admin(cluster.address) as admin:
            await admin.create_topics({"t": 1})
            await admin.alter_offsets(GROUP, {TopicPartition("t", 0): 7})
            partition = partition_for_group(GROUP)
            state = (await admin.describe_topics(OFFSETS_TOPIC))[OFFSETS_TOPIC].partitions[partition]
            while len(state.in_sync_replicas) < 3:
                state = (await admin.describe_topics(OFFSETS_TOPIC))[OFFSETS_TOPIC].partitions[partition]
        following = next(node for node in state.replicas if node != state.leader)
        (path,) = (cluster._nodes[following]._directory / f"{OFFSETS_TOPIC}-{partition}").glob("*.log")
        with path.open("r+b") as file:
            file.seek(-1, 2)
            last = file.read(1)
            file.seek(-1, 2)
            file.write(bytes((last[0] ^ 1,)))
        await cluster.kill(state.leader)
        async with Admin(cluster.address) as admin:
            offsets = await admin.list_offsets(GROUP, timeout_ms=20_000)
            assert [found.offset for found in offsets.values()] == [7]
            leader = (await admin.describe_topics(OFFSETS_TOPIC))[OFFSETS_TOPIC].partitions[partition].leader
        assert leader not in (state.leader, following)


async def test_a_rebalance_in_which_the_coordinator_dies_completes_at_the_next_one(cluster: Cluster) -> None:
    generations: list[int] = []

    def consumer() -> Consumer:
        return Consumer("orders", bootstrap_servers=cluster.address, group_id=GROUP, session_timeout_ms=10_000)

    async def shared_out(members: list[Consumer]) -> None:
        async with asyncio.timeout(20):
            while sorted(tp.partition for one in members for tp in one.assignment()) != list(
                range(PARTITIONS)
            ) or not all(one.assignment() for one in members):
                await asyncio.gather(*(one.getmany(timeout_ms=20) for one in members))
        generations.append(max(one.group_metadata().generation for one in members))

    async with consumer() as first:
        await shared_out([first])
        second = consumer()
        joining = asyncio.create_task(second.start())
        await asyncio.sleep(0.01)
        await cluster.kill(await coordinator_of_groups(cluster))
        await joining
        await shared_out([first, second])
        await second.stop()
        await shared_out([first])
    assert generations == sorted(set(generations)), "none is handed out twice"
