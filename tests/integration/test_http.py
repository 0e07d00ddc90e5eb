"""The HTTP port of a daemon with work: what it tells, in which format, and what it refuses."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientSession
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from client import Admin, Consumer, Producer, TopicPartition
from client.bench.requests import connect
from client.cli.cluster_processes import free_port
from coordinator import Cluster, Coordinator
from coordinator.metadata.memory import SharedMemoryStore
from coordinator.metadata.store import Lease
from coordinator.metrics.definitions import METRICS
from coordinator.web import server
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.describe_topic_partitions_request import Cursor, DescribeTopicPartitionsRequest
from protocol.kafka.messages.list_offsets_request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.cluster import MetadataRequest, MetadataResponse
from protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.coordinator.kafka.wire import connected
from tests.coordinator.metrics.monitoring import expressions

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
SETTINGS: dict[str, Any] = {"http": "127.0.0.1:0", "initial_rebalance_delay_ms": 0}
CLUSTER_OF_ONE: dict[str, Any] = {"serve_metadata": "127.0.0.1:0", "offsets_replication_factor": 1}

MONITORING = ("grafana-dashboard.json", "alerts.yml")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def get(coordinator: Coordinator, path: str, accept: str = "") -> tuple[int, str, str]:
    return await get_from(coordinator.http_address, path, accept)


async def get_from(address: str, path: str, accept: str = "") -> tuple[int, str, str]:
    headers = {"Accept": accept} if accept else {}
    async with ClientSession() as session, session.get(f"http://{address}{path}", headers=headers) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def scrape(coordinator: Coordinator) -> Samples:
    return await scrape_from(coordinator.http_address)


async def scrape_from(address: str) -> Samples:
    status, _, text = await get_from(address, "/metrics")
    assert status == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def errors(samples: Samples, port: str, api: str, error: str) -> float:
    """How often requests of an API key were answered with an error."""
    return value(samples, "cohort_request_errors_total", port=port, api=api, error=error)


def names(file: str) -> set[str]:
    """The metrics that the expressions of a dashboard or of alert rules ask for."""
    found = {name for expression in expressions(file) for name in re.findall(r"\bcohort_[a-z_]+", expression)}
    assert found, f"{file} asks for metrics"
    return found


def families(samples: Samples) -> Iterator[str]:
    for name, _ in samples:
        for metric in METRICS.values():
            if name == metric.name or (metric.kind == "histogram" and name.startswith(f"{metric.name}_")):
                yield metric.name
                break
        else:
            raise AssertionError(f"{name} is no metric that is defined")


async def work(address: str) -> Consumer:
    """50 records in one partition, 20 of them read and committed by a group whose member goes on."""
    async with Admin(address) as admin:
        await admin.create_topics({"lines": 1})
    async with Producer(address) as producer:
        for number in range(50):
            await producer.send("lines", str(number).encode())
    consumer = Consumer(
        "lines", bootstrap_servers=address, group_id="readers", auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    read = 0
    while read < 20:
        for records in (await consumer.getmany(timeout_ms=1_000, max_records=20 - read)).values():
            read += len(records)
    await consumer.commit()
    return consumer


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the daemon ends the connection within 10 s, without a byte; it may say so with a reset."""
    try:
        async with asyncio.timeout(10):
            return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_a_daemon_with_work_tells_every_metric_and_their_values() -> None:
    async with Coordinator(**SETTINGS, **CLUSTER_OF_ONE, metrics_max_series=3) as coordinator:
        consumer = await work(coordinator.address)
        samples = await scrape(coordinator)
        assert value(samples, "cohort_group_lag_records", group="readers", topic="lines", partition="0") == 30
        assert value(samples, "cohort_group_committed_offset", group="readers", topic="lines", partition="0") == 20
        assert value(samples, "cohort_group_members", group="readers") == 1
        assert value(samples, "cohort_groups", state="Stable") == 1
        assert value(samples, "cohort_rebalances_total", kind="member_joined") == 1
        assert value(samples, "cohort_rebalance_duration_seconds_count") == 1
        assert value(samples, "cohort_requests_total", port="native", api="OffsetCommit") == 1
        labels = {"port": "native", "api": "JoinGroup", "error": "MEMBER_ID_REQUIRED"}
        assert value(samples, "cohort_request_errors_total", **labels) == 1
        assert value(samples, "cohort_disk_sync_seconds_count") > 0
        assert value(samples, "cohort_partitions_led") > 0
        assert value(samples, "cohort_metrics_left_out", metric="cohort_log_size_bytes") > 0
        assert set(families(samples)) == set(METRICS)
        exposed = {name for name, _ in samples}
        assert {name for file in MONITORING for name in names(file) if name not in exposed} == set()
        await consumer.stop()
        samples = await scrape(coordinator)
        assert value(samples, "cohort_rebalances_total", kind="member_left") == 1
        assert value(samples, "cohort_groups", state="Empty") == 1
        assert value(samples, "cohort_received_bytes_total") > 50


async def test_a_coordinator_tells_the_lag_of_partitions_that_it_follows_too() -> None:
    async with Cluster(nodes=2, **SETTINGS) as cluster:
        async with Admin(cluster.address) as admin, Producer(cluster.address) as producer:
            await admin.create_topics({"lines": 4})
            for number in range(12):
                await producer.send_and_wait("lines", b"x", partition=number % 4)
            await admin.alter_offsets("g", {TopicPartition("lines", index): 1 for index in range(4)})
        lags: dict[str, float] = {}
        async with asyncio.timeout(20):  # a follower hears of the last records with its next fetch
            while lags != dict.fromkeys("0123", 2.0):
                scraped = [await scrape_from(address) for address in cluster.http_addresses]
                lags = {
                    dict(labels)["partition"]: lag
                    for samples in scraped
                    for (name, labels), lag in samples.items()
                    if name == "cohort_group_lag_records"
                }


async def test_what_kafka_s_clients_ask_is_counted_with_the_errors_of_requests_and_partitions() -> None:
    offset = ListOffsetsTopic("nope", [ListOffsetsPartition(index, -1, -1) for index in (0, 1)])
    nowhere = DescribeTopicPartitionsRequest(topics=[], cursor=Cursor("t", -7))
    async with Coordinator(**SETTINGS, kafka_port=-1) as coordinator:
        async with connected(coordinator.kafka_address) as wire:
            await wire.ask(ApiVersionsRequest(), 0)
            await wire.ask(nowhere, 0)  # its answer has a code for each topic, and there are none
            await wire.ask(ListOffsetsRequest(-1, 0, [offset]), 7)
            await wire.ask(
                ProduceRequest(None, -1, 9_000, [TopicProduceData("", b"\1" * 16, [PartitionProduceData()])]), 13
            )
        samples = await scrape(coordinator)
    assert value(samples, "cohort_requests_total", port="kafka", api="ApiVersions") == 1
    assert value(samples, "cohort_requests_total", port="kafka", api="DescribeTopicPartitions") == 1
    assert errors(samples, "kafka", "DescribeTopicPartitions", "INVALID_REQUEST") == 1
    assert errors(samples, "kafka", "ListOffsets", "UNKNOWN_TOPIC_OR_PARTITION") == 2
    assert errors(samples, "kafka", "Produce", "UNKNOWN_TOPIC_ID") == 1


async def test_errors_within_answers_are_counted_also_of_those_that_are_packed_before() -> None:
    """A Metadata answer is put together of pieces that are packed already, and no message any more."""
    async with Coordinator(**SETTINGS) as coordinator:
        connection = await connect(coordinator.address)
        try:
            for _ in range(2):
                await connection.request(MetadataRequest(("gone", "no name!")), MetadataResponse, timeout_s=20)
            await connection.request(DeleteTopicsRequest(("gone", "gone too")), DeleteTopicsResponse, timeout_s=20)
        finally:
            connection.close()
        samples = await scrape(coordinator)
    assert errors(samples, "native", "Metadata", "UNKNOWN_TOPIC_OR_PARTITION") == 2
    assert errors(samples, "native", "Metadata", "INVALID_TOPIC_EXCEPTION") == 2
    assert errors(samples, "native", "DeleteTopics", "UNKNOWN_TOPIC_OR_PARTITION") == 2


async def test_the_format_is_the_one_that_is_accepted() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        _, content_type, text = await get(coordinator, "/metrics")
        assert content_type.startswith("text/plain; version=0.0.4")
        assert list(parse_text(text))
        _, content_type, text = await get(coordinator, "/metrics", OPENMETRICS)
        assert content_type.startswith("application/openmetrics-text")
        assert list(parse_openmetrics(text))


async def test_a_node_is_alive_and_ready_and_says_why_not(tmp_path: Path) -> None:
    async with Coordinator(str(tmp_path), **SETTINGS) as coordinator:
        assert (await get(coordinator, "/healthz"))[0] == 200
        assert await get(coordinator, "/readyz") == (
            200,
            "application/json; charset=utf-8",
            '{"status": "ready", "reasons": []}',
        )
    (tmp_path / "writable").unlink()
    (tmp_path / "writable").mkdir()
    async with Coordinator(str(tmp_path), **SETTINGS) as coordinator:
        status, _, text = await get(coordinator, "/readyz")
        assert status == 503
        assert "the disk takes no writes" in text


async def test_a_node_is_not_ready_while_a_log_of_its_groups_cannot_be_read(tmp_path: Path) -> None:
    async with Coordinator(str(tmp_path), **SETTINGS) as coordinator, Admin(coordinator.address) as admin:
        await admin.create_topics({"lines": 1})
        await admin.alter_offsets("readers", {TopicPartition("lines", 0): 0})
    (segment,) = [path for path in tmp_path.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    with segment.open("r+b") as file:
        file.seek(60)
        file.write(b"\xff" * 30)
    async with Coordinator(str(tmp_path), **SETTINGS) as coordinator:
        async with asyncio.timeout(30):
            while f"{segment.parent.name} is damaged" not in (told := await get(coordinator, "/readyz"))[2]:
                await asyncio.sleep(0.05)
        assert told[0] == 503


async def test_a_node_of_a_cluster_is_ready_once_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the metadata store does not answer: the port does, and says so."""
    answered = asyncio.Event()
    grant = SharedMemoryStore.grant

    async def grant_late(store: SharedMemoryStore, ttl_ms: int, **options: Any) -> Lease:
        await answered.wait()
        return await grant(store, ttl_ms, **options)

    monkeypatch.setattr(SharedMemoryStore, "grant", grant_late)
    address = f"http://127.0.0.1:{free_port()}"
    cluster = Cluster(nodes=1, http=address.removeprefix("http://"))
    starting = asyncio.create_task(cluster.__aenter__())

    async def until(path: str, wanted: int) -> str:
        async with ClientSession() as session, asyncio.timeout(30):
            while True:
                try:
                    async with session.get(address + path) as answer:
                        if answer.status == wanted:
                            text: str = await answer.text()
                            return text
                except ClientConnectionError:
                    assert not starting.done()
                await asyncio.sleep(0.02)

    try:
        await until("/healthz", 200)
        assert "the node is not registered in its cluster" in await until("/readyz", 503)
        assert "cohort_build_info" in await until("/metrics", 200)
        assert not starting.done()
        answered.set()
        await starting
        assert await until("/readyz", 200) == '{"status": "ready", "reasons": []}'
    finally:
        answered.set()
        await starting
        await cluster.__aexit__(None, None, None)


async def test_what_is_asked_is_bounded() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        address = f"http://{coordinator.http_address}"
        async with ClientSession() as session:
            async with session.get(f"{address}/metrics", headers={"X": "x" * 20_000}) as answer:
                assert answer.status == 400
            async with session.post(f"{address}/metrics", data=b"x" * 10_000) as answer:
                assert answer.status == 405
            async with session.get(f"{address}/nothing") as answer:
                assert answer.status == 404


async def test_a_connection_too_many_is_closed_and_the_others_end_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTION_S", 0.5)
    async with Coordinator(**SETTINGS) as coordinator:
        host, _, port = coordinator.http_address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(server.MAX_CONNECTIONS)]
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await closed(reader)
        writer.close()
        for reader, writer in silent:
            assert await closed(reader)
            writer.close()
        assert (await get(coordinator, "/healthz"))[0] == 200


def test_without_the_extra_a_daemon_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from coordinator.__main__ import main\n"
        f"sys.exit(main(['--http', '127.0.0.1:0', '--port', '0', '--data-dir', {str(tmp_path)!r}]))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        "cohortd: http is set, and it needs prometheus-client: pip install 'aiocohort[web]'"
    )


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(Exception, match="'7338' is not HOST:PORT"):
        Coordinator(http="7338")
