"""Large requests to produce: checked in steps and in threads, taken in the order in which they were sent."""

from __future__ import annotations

import asyncio

from client import Admin
from client.transport.connection import Connection
from coordinator import Coordinator
from protocol.errors import ErrorCode
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.record_batch import encode_batch, read_header

MIB = 1024 * 1024
LARGE = encode_batch([bytes(8 * MIB)], timestamps_ms=[1], compression="gzip")
SMALL = encode_batch([b"small"] * 3, timestamps_ms=[1] * 3)


async def connected(coordinator: Coordinator) -> Connection:
    host, _, port = coordinator.address.rpartition(":")
    return await Connection.open(host, int(port), client_id="raw", timeout_s=30)


def produce(connection: Connection, *records: bytes) -> asyncio.Task[ProduceResponse]:
    """Sends a request at the next turn of the loop, with one entry for partition 0 for each of ``records``."""
    data = tuple(PartitionProduceData(0, batches) for batches in records)
    request = ProduceRequest(None, -1, 60_000, (TopicProduceData("t", data),))
    return asyncio.create_task(connection.request(request, ProduceResponse, timeout_s=60))


def offsets(response: ProduceResponse) -> list[tuple[int, int]]:
    return [(entry.error_code, entry.base_offset) for entry in response.responses[0].partition_responses]


async def test_requests_take_effect_in_their_order_while_large_ones_are_checked_in_threads() -> None:
    async with Coordinator() as coordinator, Admin(coordinator.address) as admin:
        await admin.create_topics({"t": 1})
        connection = await connected(coordinator)
        answers = [produce(connection, records) for records in (LARGE, SMALL, LARGE, SMALL, SMALL)]
        done = [offsets(answer) for answer in await asyncio.gather(*answers)]
        assert done == [[(ErrorCode.NONE, offset)] for offset in (0, 1, 4, 5, 8)]
        (mixed,) = await asyncio.gather(produce(connection, SMALL * 10_000, LARGE, SMALL))
        count = 3 * 10_000
        assert offsets(mixed) == [(ErrorCode.NONE, 11), (ErrorCode.NONE, 11 + count), (ErrorCode.NONE, 12 + count)]
        connection.close()


async def test_a_large_batch_that_is_damaged_is_refused_alone() -> None:
    damaged = bytearray(LARGE)
    damaged[-20] ^= 1
    async with Coordinator() as coordinator, Admin(coordinator.address) as admin:
        await admin.create_topics({"t": 1})
        connection = await connected(coordinator)
        answers = await asyncio.gather(produce(connection, SMALL, bytes(damaged), LARGE), produce(connection, SMALL))
        assert offsets(answers[0]) == [(ErrorCode.NONE, 0), (ErrorCode.CORRUPT_MESSAGE, -1), (ErrorCode.NONE, 3)]
        assert offsets(answers[1]) == [(ErrorCode.NONE, 4)]
        connection.close()


async def test_a_topic_that_is_deleted_while_its_batch_is_checked_takes_nothing() -> None:
    """And one whose client has gone is finished without it."""
    async with Coordinator() as coordinator, Admin(coordinator.address) as admin:
        for _ in range(5):
            await admin.create_topics({"t": 1})
            leaving, staying = await connected(coordinator), await connected(coordinator)
            abandoned = produce(leaving, LARGE)
            waiting = produce(staying, *[LARGE] * 4)
            await asyncio.sleep(0.01)
            leaving.close()
            await admin.delete_topics("t")
            for code, offset in offsets(await waiting):
                taken = code == ErrorCode.NONE and offset >= 0
                assert taken or code in (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    ErrorCode.KAFKA_STORAGE_ERROR,
                )
            await asyncio.gather(abandoned, return_exceptions=True)
            versions = await staying.request(ApiVersionsRequest(), ApiVersionsResponse, timeout_s=30)
            assert versions.error_code == ErrorCode.NONE
            staying.close()


def test_the_large_batch_is_large() -> None:
    assert read_header(LARGE).body_length > 8 * MIB
