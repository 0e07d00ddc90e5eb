"""Whatever a client sends has an answer of its kind, or ends its connection: nothing else happens to the daemon.

A handler that fails, or an answer that its version cannot say, shows as an error in the daemon's log."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator

import pytest

from coordinator.embedded import Coordinator
from coordinator.kafka.calls import Api
from protocol.errors import ErrorCode
from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.headers import RequestHeader, decode_response_header, encode_request_header
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.init_producer_id_request import InitProducerIdRequest
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.coordinator.kafka.any_request import NAMES, any_structure, damaged
from tests.coordinator.kafka.test_port import served
from tests.coordinator.kafka.wire import connected, framed, response_kind

ROUNDS = 12
PATIENCE_S = 0.5


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(kafka_port=-1, flush="os", max_fetch_wait_ms=50, kafka_heartbeat_hold_ms=50) as running:
        yield running


async def table(coordinator: Coordinator) -> list[Api]:
    """What is served; there is a topic ``t``, and a group ``g`` that has committed an offset of it."""
    async with connected(coordinator.kafka_address) as wire:
        await wire.ask(MetadataRequest([MetadataRequestTopic(name="t")]), 9)
        topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 3, 2, "why")])
        await wire.ask(OffsetCommitRequest("g", topics=[topic]), 9)
        return served(coordinator)


async def answered(address: str, api: Api, version: int, payload: bytes) -> str:
    """What became of a request: its answer can be read, its connection was closed, or it waits still."""
    async with connected(address) as wire:
        wire.writer.write(framed(payload))
        try:
            async with asyncio.timeout(PATIENCE_S):
                data = await wire.frame()
        except TimeoutError:
            return "waits"
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return "closed"
        _, at = decode_response_header(api.key, version, data)
        decode(response_kind(api.key), version, data, at)
        return "answered"


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_fault_of_ours_would_be_seen(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.kafka.producers._given", None)
    async with connected(coordinator.kafka_address) as wire:
        await wire.ask(InitProducerIdRequest(None), 4)
    assert len(errors(caplog)) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_any_request_has_an_answer_of_its_kind(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    draw, address = random.Random(seed), coordinator.kafka_address
    fates: list[str] = []
    for api in await table(coordinator):
        for version in range(api.first, api.last + 1):
            requests = [any_structure(api.translator.request, version, draw) for _ in range(ROUNDS)]
            header = encode_request_header(RequestHeader(api.key, version, 7, draw.choice(NAMES)))
            payloads = [header + b"".join(encode(request, version)) for request in requests]
            fates += await asyncio.gather(*(answered(address, api, version, payload) for payload in payloads))
            assert errors(caplog) == [], f"{api.key} {version}: one of {requests}"
    assert fates.count("answered") > 0.7 * len(fates)


@pytest.mark.parametrize("seed", range(3))
async def test_damaged_requests_end_their_connections_at_most(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    draw, address = random.Random(seed), coordinator.kafka_address
    fates: list[str] = []
    async with connected(address) as other:
        for api in await table(coordinator):
            for version in range(api.first, api.last + 1):
                payloads = []
                for _ in range(ROUNDS):
                    request = any_structure(api.translator.request, version, draw)
                    header = encode_request_header(RequestHeader(api.key, version, 7, "c"))
                    body = damaged(b"".join(encode(request, version)), draw)
                    payloads.append(header + body)
                fates += await asyncio.gather(*(answered(address, api, version, payload) for payload in payloads))
                assert errors(caplog) == [], f"{api.key} {version}"
            assert (await other.ask(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
    assert fates.count("closed") > 0.1 * len(fates)
