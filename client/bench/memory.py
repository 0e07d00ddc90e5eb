"""What a daemon keeps in memory for each idle connection, member, group, committed offset, partition and producer id.

Each is counted in a daemon of its own: resident memory after a warm-up, then with so many more of the thing, divided by how
many there are. Small counts show the daemon's buffers instead, so the figures are those of ``full`` counts or near them.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

from client.admin import Admin
from client.bench.figures import Figure, Setting
from client.bench.raw_group import form_group
from client.bench.records import values
from client.bench.requests import TIMEOUT_S, check, connect, find_coordinator
from client.cli.processes import ServerProcess, daemon
from client.transport.connection import Connection
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.record_batch import encode_batch

_AT_ONCE: Final = 200
MEMBERS_OF_A_GROUP: Final = 100
OFFSETS_OF_A_GROUP: Final = 1_000
PARTITIONS_OF_A_TOPIC: Final = 500
_TOPIC: Final = "memory"
_OTHER_FILES: Final = 200
"""What a daemon has open beside connections and partitions, with some to spare."""
_NO_SYNC: Final = ("--flush", "os")
"""How often the disk syncs is no matter of memory, and hundreds of thousands of commits would take an hour."""

_Make = Callable[[ServerProcess, int, int, AsyncExitStack], Awaitable[None]]
"""Makes the things with the numbers from one up to another; what has to stay open is the stack's to close."""


class _Kind(NamedTuple):
    metric: str
    make: _Make
    quick: int
    usual: int
    full: int


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """One daemon after the other. A tenth of the things, in addition, is the warm-up."""
    for kind in _kinds():
        count = kind.quick if setting.quick else kind.full if setting.full else kind.usual
        warm = max(1, count // 10)
        options = ("--log-level", "error", *_NO_SYNC)
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(daemon(setting.directory / kind.metric, *options))
            async with Admin(bootstrap_servers=server.address) as admin:
                await admin.create_topics({_TOPIC: OFFSETS_OF_A_GROUP if kind.make is _offsets else 1})
            await kind.make(server, 0, warm, stack)
            await asyncio.sleep(settles_s(setting))
            before = server.resident_bytes("VmRSS")
            await kind.make(server, warm, warm + count, stack)
            await asyncio.sleep(settles_s(setting))
            after = server.resident_bytes("VmRSS")
        each = max(0, after - before) / count
        params = {
            "count": count,
            "fit_in_1_gb": round(1e9 / each) if each else None,
            "daemon_mb": round(after / 1e6, 1),
        }
        yield Figure("memory", kind.metric, each, "bytes", params=params)


def settles_s(setting: Setting) -> float:
    """How long a process is left alone before its memory is read, in seconds."""
    return 0.2 if setting.quick else 2.0


def _kinds() -> list[_Kind]:
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = max(100, (open_files - _OTHER_FILES) // 2 * 10 // 11)  # half is for partitions, and a tenth warms up
    return [
        _Kind("idle_connection_bytes", _connections, 50, min(5_000, files), min(10_000, files)),
        _Kind("member_bytes", _members, 100, 20_000, 100_000),
        _Kind("group_bytes", _groups, 100, 20_000, 100_000),
        _Kind("committed_offset_bytes", _offsets, 2_000, 200_000, 1_000_000),
        _Kind("partition_bytes", _partitions, 20, min(2_000, files), min(10_000, files)),
        _Kind("producer_id_bytes", _producers, 100, 20_000, 100_000),
    ]


async def _connections(server: ServerProcess, first: int, end: int, stack: AsyncExitStack) -> None:
    """Each has asked something once, as every client does, and is silent since."""

    async def one(_: int) -> None:
        connection = await connect(server.address)
        stack.callback(connection.close)
        await connection.request(ApiVersionsRequest(), ApiVersionsResponse, timeout_s=TIMEOUT_S)

    await _bounded(one, range(first, end))


async def _members(server: ServerProcess, first: int, end: int, stack: AsyncExitStack) -> None:
    """Members of groups of a hundred, over few connections."""
    for number in range(first, end, MEMBERS_OF_A_GROUP):
        await form_group(server.address, f"members-{number}", min(MEMBERS_OF_A_GROUP, end - number))


async def _groups(server: ServerProcess, first: int, end: int, stack: AsyncExitStack) -> None:
    """Groups without members, with one committed offset each."""
    async with _connected(server) as connection:

        async def one(number: int) -> None:
            await _commit(connection, f"group-{number}", [0])

        await _bounded(one, range(first, end))


async def _offsets(server: ServerProcess, first: int, end: int, stack: AsyncExitStack) -> None:
    """Offsets of few groups, a thousand in each."""
    async with _connected(server) as connection:

        async def one(number: int) -> None:
            await _commit(connection, f"offsets-{number}", range(min(OFFSETS_OF_A_GROUP, end - number)))

        await _bounded(one, range(first, end, OFFSETS_OF_A_GROUP))


async def _commit(connection: Connection, group: str, partitions: Iterable[int]) -> None:
    offsets = tuple(OffsetCommitPartition(number, 1_000_000 + number) for number in partitions)
    await find_coordinator(connection, group)
    request = OffsetCommitRequest(group, -1, "", None, (OffsetCommitTopic(_TOPIC, offsets),))
    answer = await connection.request(request, OffsetCommitResponse, timeout_s=TIMEOUT_S)
    for topic in answer.topics:
        for partition in topic.partitions:
            check(partition.error_code, answer.error_message)


async def _partitions(server: ServerProcess, first: int, end: int, stack: AsyncExitStack) -> None:
    """Partitions that hold nothing, of topics with five hundred each."""
    async with Admin(bootstrap_servers=server.address) as admin:
        for number in range(first, end, PARTITIONS_OF_A_TOPIC):
            await admin.create_topics({f"partitions-{number}": min(PARTITIONS_OF_A_TOPIC, end - number)})


async def _producers(server: ServerProcess, first: int, end: int, stack: AsyncExitStack) -> None:
    """Idempotent producers that have each written one record to the same partition."""
    async with _connected(server) as connection:

        async def one(_: int) -> None:
            given = await connection.request(InitProducerIdRequest(), InitProducerIdResponse, timeout_s=TIMEOUT_S)
            check(given.error_code, given.error_message)
            batch = encode_batch(
                values(1, 10),
                timestamps_ms=[0],
                producer_id=given.producer_id,
                producer_epoch=given.producer_epoch,
                base_sequence=0,
            )
            data = (TopicProduceData(_TOPIC, (PartitionProduceData(0, batch),)),)
            answer = await connection.request(
                ProduceRequest(None, -1, 30_000, data), ProduceResponse, timeout_s=TIMEOUT_S
            )
            for partition in answer.responses[0].partition_responses:
                check(partition.error_code, partition.error_message)

        await _bounded(one, range(first, end))


@asynccontextmanager
async def _connected(server: ServerProcess) -> AsyncIterator[Connection]:
    connection = await connect(server.address)
    try:
        yield connection
    finally:
        connection.close()


async def _bounded(one: Callable[[int], Awaitable[Any]], numbers: range) -> None:
    """Does one for each number, so many at once."""
    left = iter(numbers)

    async def work() -> None:
        for number in left:
            await one(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(work())
