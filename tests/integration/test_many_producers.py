"""A flood of producer ids that no daemon gave out: taken as others are, but bounded, told of, at its partition's cost."""

from __future__ import annotations

from unittest.mock import patch

from structlog.testing import capture_logs

from client.admin import Admin
from client.producer.producer import Producer
from client.transport.cluster import Cluster
from coordinator import Coordinator
from coordinator.logs.producer_limit import ProducerLimit
from protocol.errors import ErrorCode
from protocol.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.record_batch import encode_batch
from tests.integration.fetched import values

LIMIT = 300
LOOK_EVERY = 50


def of_producer(producer_id: int, sequence: int, value: bytes) -> bytes:
    return encode_batch([value], timestamps_ms=[1], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


async def produce(cluster: Cluster, topic: str, *batches: bytes) -> list[tuple[int, int]]:
    """Error and base offset of each batch; each is an entry of its own of one request."""
    data = TopicProduceData(topic, tuple(PartitionProduceData(0, batch) for batch in batches))
    response = await cluster.call(ProduceRequest(None, -1, 10_000, (data,)), ProduceResponse)
    return [(answer.error_code, answer.base_offset) for answer in response.responses[0].partition_responses]


async def test_a_flood_of_ids_is_bounded_and_costs_the_other_partitions_nothing() -> None:
    limits: list[ProducerLimit] = []

    def small(logs: object) -> ProducerLimit:
        limits.append(ProducerLimit(logs, LIMIT, LOOK_EVERY))  # type: ignore[arg-type]
        return limits[-1]

    with patch("coordinator.logs.log_manager.ProducerLimit", small), capture_logs() as lines:
        async with Coordinator() as coordinator, Admin(coordinator.address) as admin:
            await admin.create_topics({"flooded": 1, "quiet": 1})
            cluster = Cluster(coordinator.address, client_id="flood")
            await cluster.start()
            async with Producer(coordinator.address) as producer:
                await producer.send_and_wait("flooded", b"before")
                first = of_producer(10**12, 0, b"once")
                assert await produce(cluster, "quiet", first) == [(ErrorCode.NONE, 0)]
                for start in range(0, 2000, 100):
                    flood = [of_producer(number, 0, b"%d" % number) for number in range(start, start + 100)]
                    assert {code for code, _ in await produce(cluster, "flooded", *flood)} == {ErrorCode.NONE}
                    total = sum(len(opened.producers) for _, _, opened in limits[0]._logs())
                    assert total <= LIMIT + LOOK_EVERY
                assert await produce(cluster, "quiet", first) == [(ErrorCode.NONE, 0)], "it is known where that is"
                assert (await producer.send_and_wait("flooded", b"after")).offset == 2001, "who was forgotten goes on"
            await cluster.close()
            found = await values(coordinator.address, "flooded")
            assert [found[0][0], found[0][-1], len(found[0])] == [b"before", b"after", 2002]
            assert await values(coordinator.address, "quiet") == {0: [b"once"]}
    told = [line for line in lines if line["event"] == "producers_forgotten"]
    assert told
    assert {line["most"].split(" of ")[1] for line in told} == {"flooded-0"}
    assert sum(line["producers"] for line in told) >= 2000 - LIMIT - LOOK_EVERY
