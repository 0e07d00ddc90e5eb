"""How long a daemon needs after a restart to serve a large offsets log, and how much memory.

The log is filled through the wire: many groups without members commit to every partition of a topic, so that each of the
records is the latest of its key and compaction can drop none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from time import perf_counter
from typing import Final

from client.admin import Admin
from client.bench.disk import read_seconds, tree_bytes
from client.bench.figures import Figure, Setting
from client.bench.requests import TIMEOUT_S, check, connect, find_coordinator
from client.cli.failure import CommandError
from client.cli.processes import ServerProcess, daemon
from client.transport.connection import Connection
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)

_TOPIC: Final = "load"
_COMMITS_AT_ONCE: Final = 8
_FETCHES_AT_ONCE: Final = 50
_LOADING: Final = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE})


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Fills the log, then restarts the daemon after SIGTERM and after SIGKILL."""
    groups, partitions = (10, 20) if setting.quick else (1000, 1000)
    data = setting.directory / "data"
    async with daemon(data, "--log-level", "error") as server:
        await _fill(server, groups, partitions)
    for ending in ("SIGTERM", "SIGKILL"):
        floor = await asyncio.to_thread(read_seconds, data)
        began = perf_counter()
        async with daemon(data, "--log-level", "error") as server:
            listening_s = perf_counter() - began
            await _ask_every_group(server.address, groups, partitions)
            served_s = perf_counter() - began
            memory = server.resident_bytes("VmHWM")
            await _check_all(server.address, groups, partitions)
            await server.kill()
        params = {
            "offsets": groups * partitions,
            "groups": groups,
            "partitions": partitions,
            "after": ending,
            "log_bytes": tree_bytes(data, "__consumer_offsets-*"),
            "listening_s": round(listening_s, 3),
        }
        yield Figure(
            "load",
            f"serves_after_{ending.lower()}_s",
            served_s,
            "s",
            floor,
            "reading the files and their crc32",
            params,
        )
        yield Figure("load", f"peak_rss_after_{ending.lower()}_mb", memory / 1e6, "MB", None, None, params)


def _group(number: int) -> str:
    return f"load-{number}"


def _offset(group: int, partition: int) -> int:
    return group * 1000 + partition


async def _fill(server: ServerProcess, groups: int, partitions: int) -> None:
    async with Admin(bootstrap_servers=server.address) as admin:
        await admin.create_topics({_TOPIC: partitions})
    connection = await connect(server.address)
    bounded = asyncio.Semaphore(_COMMITS_AT_ONCE)

    async def commit(group: int) -> None:
        offsets = tuple(OffsetCommitPartition(number, _offset(group, number)) for number in range(partitions))
        request = OffsetCommitRequest(_group(group), -1, "", None, (OffsetCommitTopic(_TOPIC, offsets),))
        async with bounded:
            await find_coordinator(connection, _group(group))
            response = await connection.request(request, OffsetCommitResponse, timeout_s=TIMEOUT_S)
        for topic in response.topics:
            for partition in topic.partitions:
                check(partition.error_code, response.error_message)

    try:
        await asyncio.gather(*(commit(group) for group in range(groups)))
    finally:
        connection.close()


async def _ask_every_group(address: str, groups: int, partitions: int) -> None:
    """One offset of each group, after finding its coordinator. Raises ``CommandError`` for a wrong one."""
    connection = await connect(address)
    bounded = asyncio.Semaphore(_FETCHES_AT_ONCE)

    async def ask(group: int) -> None:
        async with bounded:
            await find_coordinator(connection, _group(group))
            await _fetch(connection, group, [group % partitions])

    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(ask(group) for group in range(groups)))
    finally:
        connection.close()


async def _check_all(address: str, groups: int, partitions: int) -> None:
    """Every offset of every group; not part of the figure."""
    connection = await connect(address)
    try:
        for group in range(groups):
            await _fetch(connection, group, range(partitions))
    finally:
        connection.close()


async def _fetch(connection: Connection, group: int, numbers: Sequence[int]) -> None:
    request = OffsetFetchRequest(_group(group), (OffsetFetchTopic(_TOPIC, tuple(numbers)),))
    while True:
        response = await connection.request(request, OffsetFetchResponse, timeout_s=TIMEOUT_S)
        if response.error_code not in _LOADING:
            break
        await asyncio.sleep(0.01)
    check(response.error_code, response.error_message)
    found = {each.partition_index: each.committed_offset for topic in response.topics for each in topic.partitions}
    wanted = {number: _offset(group, number) for number in numbers}
    if found != wanted:
        raise CommandError(f"load: group {_group(group)} came back with other offsets than were committed")
