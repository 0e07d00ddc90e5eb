"""No string of a program, nor of another member, costs a client its connection: what is too long is named, and not sent."""

from __future__ import annotations

import asyncio

import msgpack
import pytest

from client import (
    Admin,
    CohortError,
    CommitFailedError,
    Consumer,
    InvalidRequestError,
    Member,
    OffsetAndMetadata,
    OffsetMetadataTooLargeError,
    TopicPartition,
)
from coordinator import Coordinator
from protocol.codec import MAX_STRING_BYTES
from tests.integration.consuming import QUICK, create, fill, take, until

LONG = "x" * (MAX_STRING_BYTES + 1)


@pytest.mark.parametrize("subscribes", [True, False])
async def test_metadata_of_a_commit(subscribes: bool) -> None:
    tp, other = TopicPartition("t", 0), TopicPartition("t", 1)
    async with Coordinator() as c:
        await create(c.address, t=2)
        async with Consumer(bootstrap_servers=c.address, group_id="g", **QUICK) as consumer:
            if subscribes:
                consumer.subscribe(["t"])
                await until(lambda: consumer.state == "stable")
            else:
                consumer.assign([tp, other])
            with pytest.raises(CommitFailedError, match=f"t-0 is longer than {MAX_STRING_BYTES} bytes; send less") as e:
                await consumer.commit({tp: OffsetAndMetadata(3, LONG), other: OffsetAndMetadata(4)})
            assert isinstance(e.value.partitions[tp], OffsetMetadataTooLargeError)
            assert "not sent" in str(e.value.partitions[other])
            assert await consumer.committed(tp, other) == {tp: None, other: None}
            with pytest.raises(CommitFailedError, match="takes 4097 bytes of at most 4096"):
                await consumer.commit({tp: OffsetAndMetadata(3, "x" * 4097), other: OffsetAndMetadata(4)})
            assert await consumer.committed(tp, other) == {tp: None, other: OffsetAndMetadata(4)}


async def test_a_reason_is_cut() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        async with Consumer("t", bootstrap_servers=c.address, group_id="g", **QUICK) as consumer:
            await until(lambda: consumer.state == "stable")
            await asyncio.wait_for(consumer.enforce_rebalance(LONG), 20)
            async with Admin(c.address) as admin:
                described = (await admin.describe_groups("g"))["g"]
            assert "xxxx" in described.last_rebalance_reason


@pytest.mark.parametrize("setting", ["group_id", "group_instance_id", "client_id"])
async def test_an_id_is_refused_at_once(setting: str) -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        settings = {**QUICK, "group_id": "g", setting: LONG}
        with pytest.raises(InvalidRequestError, match="cannot be sent"):
            async with Consumer("t", bootstrap_servers=c.address, **settings) as consumer:
                await asyncio.wait_for(consumer.getone(), 20)


async def test_a_member_that_subscribes_to_a_topic_no_daemon_reads_the_name_of_stops_no_group() -> None:
    """The leader asks a daemon about all topics that members name, over the connection of its own heartbeats."""
    blob = msgpack.packb([0, ["t", LONG], b""])
    protocols = [("range", blob), ("cooperative-sticky", blob)]
    async with Coordinator() as c:
        await create(c.address, t=2)
        async with Consumer("t", bootstrap_servers=c.address, group_id="g", **QUICK) as consumer:
            await until(lambda: consumer.state == "stable")
            async with Member(
                "g", bootstrap_servers=c.address, protocol_type="consumer", protocols=protocols
            ) as stranger:
                async with asyncio.timeout(30):
                    assert (await anext(stranger)).generation == 2
                await until(lambda: consumer.state == "stable" and len(consumer.assignment()) == 2)
                await fill(c.address, "t", range(4))
                assert sorted(await take(consumer, 4)) == [0, 1, 2, 3]


async def test_an_administrator_learns_it_too() -> None:
    async with Coordinator() as c, Admin(c.address) as admin:
        with pytest.raises(CohortError, match="cannot be sent"):
            await asyncio.wait_for(admin.describe_topics(LONG), 20)
        assert await admin.list_topics() == []
