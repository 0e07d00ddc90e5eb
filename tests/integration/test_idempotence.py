"""A daemon and the batches of idempotent producers, over the wire: once, in order, also after SIGKILL and a full segment."""

from __future__ import annotations

import shutil
from pathlib import Path

from client import Producer
from client.transport.cluster import Cluster
from protocol.errors import ErrorCode
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse, TopicConfig
from protocol.record_batch import encode_batch
from tests.daemon_process import DaemonProcess
from tests.integration.fetched import values


async def connected(daemon: DaemonProcess) -> Cluster:
    cluster = Cluster(daemon.address, client_id="test", request_timeout_ms=20_000)
    await cluster.start()
    return cluster


async def identity(cluster: Cluster, producer_id: int = -1, epoch: int = -1) -> InitProducerIdResponse:
    return await cluster.call(InitProducerIdRequest(None, 60_000, producer_id, epoch), InitProducerIdResponse)


def batch(producer_id: int, first: int, *contents: bytes, epoch: int = 0) -> bytes:
    return encode_batch(
        contents,
        timestamps_ms=[1] * len(contents),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=first,
    )


async def produce(cluster: Cluster, *batches: bytes) -> PartitionProduceResponse:
    data = (TopicProduceData("orders", (PartitionProduceData(0, b"".join(batches)),)),)
    response = await cluster.call(ProduceRequest(None, -1, 10_000, data), ProduceResponse)
    return response.responses[0].partition_responses[0]


async def create(cluster: Cluster, **config: str) -> None:
    topic = CreatableTopic("orders", 1, configs=tuple(TopicConfig(name, text) for name, text in config.items()))
    response = await cluster.call(CreateTopicsRequest((topic,)), CreateTopicsResponse)
    assert response.topics[0].error_code == ErrorCode.NONE, response


async def test_ids_are_given_out_once_ever_and_epochs_count_up(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        seen: set[int] = set()
        for _ in range(2):
            cluster = await connected(daemon)
            answers = [await identity(cluster) for _ in range(3)]
            assert all(answer.producer_epoch == 0 for answer in answers)
            seen |= {answer.producer_id for answer in answers}
            mine = answers[0].producer_id
            assert (await identity(cluster, mine, 0)).producer_epoch == 1
            assert (await identity(cluster, mine, 2**15 - 2)).producer_id not in seen
            assert (await identity(cluster, 10**9, 0)).error_code == ErrorCode.INVALID_REQUEST
            await cluster.close()
            daemon.kill()
            daemon.start()
        assert len(seen) == 6


async def test_a_producer_that_outlives_the_data_directory_shares_its_id_with_no_other(tmp_path: Path) -> None:
    """With one id, the first batch of the newcomer would pass for a repetition: acknowledged, and never stored."""
    with DaemonProcess(tmp_path / "data") as daemon:
        cluster = await connected(daemon)
        await cluster.call(CreateTopicsRequest((CreatableTopic("earlier", 1),)), CreateTopicsResponse)
        async with Producer(bootstrap_servers=daemon.address) as survivor:
            await survivor.send_and_wait("earlier", b"this gets it an id")
            mine = (await identity(cluster)).producer_id
            daemon.kill()
            shutil.rmtree(tmp_path / "data")
            daemon.start()
            await create(cluster)
            await survivor.send_and_wait("orders", b"survivor")
            async with Producer(bootstrap_servers=daemon.address) as newcomer:
                await newcomer.send_and_wait("orders", b"newcomer")
                await survivor.send_and_wait("orders", b"survivor again")
                await newcomer.send_and_wait("orders", b"newcomer again")
        assert (await identity(cluster, mine, 0)).error_code == ErrorCode.INVALID_REQUEST
        await cluster.close()
        kept = (await values(daemon.address, "orders"))[0]
        assert kept == [b"survivor", b"newcomer", b"survivor again", b"newcomer again"]


async def test_repetitions_of_the_last_five_batches_are_found_after_kills_and_full_segments(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        cluster = await connected(daemon)
        await create(cluster, **{"segment.bytes": "1024"})
        mine = (await identity(cluster)).producer_id
        sent = [batch(mine, 2 * number, b"%d" % number * 300, b"and") for number in range(9)]
        offsets = [(await produce(cluster, data)).base_offset for data in sent]
        assert offsets == list(range(0, 18, 2))
        for _ in range(2):
            assert [(await produce(cluster, data)).base_offset for data in sent[4:]] == offsets[4:]
            refused = await produce(cluster, sent[3])
            assert refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert "18 comes next" in refused.error_message
            await cluster.close()
            daemon.kill()
            daemon.start()
            cluster = await connected(daemon)
        assert (await produce(cluster, batch(mine, 18, b"next"))).base_offset == 18
        await cluster.close()
        assert len((await values(daemon.address, "orders"))[0]) == 19


async def test_a_request_that_repeats_one_batch_and_brings_another_says_where_each_is(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        cluster = await connected(daemon)
        await create(cluster)
        mine, other = (await identity(cluster)).producer_id, (await identity(cluster)).producer_id
        first, second = batch(mine, 0, b"a", b"b"), batch(mine, 2, b"c")
        await produce(cluster, first)
        await produce(cluster, batch(other, 0, b"between"))
        answer = await produce(cluster, first, second)
        assert (answer.error_code, answer.base_offset, answer.batch_offsets) == (ErrorCode.NONE, 0, (0, 3))
        await cluster.close()


async def test_a_request_is_taken_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """Its answer has one error for all of a partition's batches, so that none of them may be in the log then."""
    with DaemonProcess(tmp_path) as daemon:
        cluster = await connected(daemon)
        await create(cluster)
        mine, other = (await identity(cluster)).producer_id, (await identity(cluster)).producer_id
        first = batch(mine, 0, b"a", b"b")
        for second in (batch(mine, 3, b"gap"), batch(mine, 1, b"overlap"), batch(other, 0, b"of another"), first):
            answer = await produce(cluster, first, second)
            assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, answer
        assert (await produce(cluster, first, batch(mine, 2, b"c"), batch(mine, 3, b"d"))).base_offset == 0
        await cluster.close()
        assert (await values(daemon.address, "orders"))[0] == [b"a", b"b", b"c", b"d"]


async def test_sequences_that_make_no_sense_are_refused_and_the_log_is_as_it_was(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        cluster = await connected(daemon)
        await create(cluster)
        mine = (await identity(cluster)).producer_id
        await produce(cluster, batch(mine, 0, b"a", b"b", epoch=3))
        for data, code in (
            (batch(mine, 3, b"gap", epoch=3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (batch(mine, 1, b"overlap", epoch=3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (batch(mine, 2, b"new epoch", epoch=4), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (batch(mine, 2, b"old epoch", epoch=2), ErrorCode.INVALID_PRODUCER_EPOCH),
            (batch(mine, -1, b"no sequence", epoch=3), ErrorCode.INVALID_RECORD),
            (batch(-1, 0, b"no producer", epoch=-1), ErrorCode.INVALID_RECORD),
            (batch(-2, -1, b"negative", epoch=-1), ErrorCode.INVALID_RECORD),
        ):
            assert (await produce(cluster, data)).error_code == code
        await cluster.close()
        assert (await values(daemon.address, "orders"))[0] == [b"a", b"b"]
