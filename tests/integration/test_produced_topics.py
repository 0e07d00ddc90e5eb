"""A producer learns of its topics at a cost that goes with their number, and of those that do not exist at none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from client.admin import Admin
from client.errors import UnknownTopicOrPartitionError
from client.producer.producer import Producer
from coordinator import Coordinator
from tests.integration.answering_proxy import AnsweringProxy

TOPICS = 150


@pytest.fixture
async def proxy() -> AsyncIterator[AnsweringProxy]:
    """A daemon with many topics; clients reach it through the proxy only."""
    async with (
        AnsweringProxy() as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port, flush="os") as coordinator,
    ):
        proxy.upstream_port = int(coordinator.address.rpartition(":")[2])
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({f"t{number}": 1 for number in range(TOPICS)})
        yield proxy


@pytest.mark.parametrize("at_once", [True, False])
async def test_the_first_records_for_many_topics_ask_for_each_of_them_once(
    proxy: AnsweringProxy, at_once: bool
) -> None:
    async with Producer(f"127.0.0.1:{proxy.port}") as producer:
        proxy.topics_described = 0
        names = [f"t{number}" for number in range(TOPICS)]
        if at_once:
            await asyncio.gather(*(producer.send_and_wait(name, b"v") for name in names))
        else:
            for name in names:
                await producer.send_and_wait(name, b"v")
        async with asyncio.timeout(20):  # the watch takes note of all of them
            while not producer._cluster._knows_all_tracked():
                await asyncio.sleep(0.01)
        assert proxy.topics_described <= 5 * TOPICS


async def test_topics_that_do_not_exist_leave_nothing_behind(proxy: AnsweringProxy) -> None:
    async with Producer(f"127.0.0.1:{proxy.port}") as producer:
        proxy.topics_described = 0
        for number in range(100):
            with pytest.raises(
                UnknownTopicOrPartitionError, match=rf"topic 'nix{number}' does not exist; create it with"
            ):
                await producer.send(f"nix{number}", b"v")
        assert proxy.topics_described == 100
        assert not producer._cluster._tracked
        assert not producer._lookups


async def test_a_topic_that_is_made_after_it_was_asked_for_is_found(proxy: AnsweringProxy) -> None:
    address = f"127.0.0.1:{proxy.port}"
    async with Producer(address) as producer, Admin(address) as admin:
        for number in range(5):
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.send("new", b"v")
            await admin.create_topics({"new": 1})
            assert (await producer.send_and_wait("new", b"%d" % number)).offset == 0
            await admin.delete_topics("new")
            async with asyncio.timeout(20):
                while "new" in producer._topics:
                    await asyncio.sleep(0.005)


async def test_changes_of_topics_are_seen_while_others_are_asked_for(proxy: AnsweringProxy) -> None:
    """Each answer about one topic leaves what is known of the others as it is, and the watch on them goes on."""
    address = f"127.0.0.1:{proxy.port}"
    async with Producer(address) as producer, Admin(address) as admin:
        await producer.send_and_wait("t0", b"v")

        async def ask() -> None:
            for number in range(1, TOPICS):
                await producer.partitions_for(f"t{number}")
                await asyncio.sleep(0.003)

        asking = asyncio.create_task(ask())
        for partitions in range(2, 8):
            await admin.create_partitions({"t0": partitions, f"t{partitions}": partitions})
            async with asyncio.timeout(20):
                while len(await producer.partitions_for("t0")) < partitions:
                    await asyncio.sleep(0.001)
        await asking
        async with asyncio.timeout(20):
            while [len(await producer.partitions_for(f"t{number}")) for number in range(2, 8)] != list(range(2, 8)):
                await asyncio.sleep(0.005)
