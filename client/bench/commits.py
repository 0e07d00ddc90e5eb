"""Offset commits in a closed loop, each acknowledged after it is on disk, next to fdatasync alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from client.admin import Admin
from client.bench.closed_loop import Exchange, Load, percentile
from client.bench.disk import syncs_per_second, tree_bytes
from client.bench.figures import Figure, Setting
from client.bench.raw_group import RawMember, form_group
from client.cli.processes import daemon
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import encode_request, encode_response
from protocol.messages.offsets import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)

MEMBERS: Final = 64
TOPIC: Final = "commits"
_CORRELATION_ID: Final = 1
_OFFSETS_LOGS: Final = "__consumer_offsets-*"


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """One long round of load, then the floor on the same disk with as many bytes a sync as one commit a member makes."""
    warm_s, seconds = (0.1, 0.3) if setting.quick else (1.0, 5.0)
    data = setting.directory / "data"
    async with daemon(data, "--log-level", "error") as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: MEMBERS})
        members = await form_group(server.address, "commits", MEMBERS)
        exchanges = [exchange_of(member, number) for number, member in enumerate(members)]
        load = await Load.connect(server.address, exchanges)
        try:
            before = tree_bytes(data, _OFFSETS_LOGS)
            warm = await load.round(warm_s)
            commit_bytes = (tree_bytes(data, _OFFSETS_LOGS) - before) / max(1, warm.answers)
            measured = await load.round(seconds)
        finally:
            load.close()
    sync_bytes = int(max(1.0, commit_bytes) * MEMBERS)
    syncs = await asyncio.to_thread(syncs_per_second, setting.directory, sync_bytes, seconds / 2)
    latencies = sorted(measured.latencies)
    params = {"members": MEMBERS, "in_flight": 1, "seconds": seconds, "bytes_a_sync": sync_bytes}
    floor_name = f"fdatasync alone, {MEMBERS} commits' bytes at a time"
    yield Figure("commits", "commits_per_s", measured.rate, "1/s", MEMBERS * syncs, floor_name, params)
    for percent in (50, 99):
        latency_ms = percentile(latencies, percent) * 1000
        yield Figure("commits", f"p{percent}_ms", latency_ms, "ms", 1000 / syncs, "one fdatasync alone", params)


def exchange_of(member: RawMember, partition: int) -> Exchange:
    """A member's OffsetCommit for a partition and the one right answer."""
    request = OffsetCommitRequest(
        member.group_id,
        member.generation,
        member.member_id,
        None,
        (OffsetCommitTopic(TOPIC, (OffsetCommitPartition(partition, 1),)),),
    )
    answer = OffsetCommitResponse((CommittedTopic(TOPIC, (CommittedPartition(partition, ErrorCode.NONE),)),))
    return Exchange(
        encode_request(request.api_key, 0, _CORRELATION_ID, "bench", encode_message(request)),
        encode_response(_CORRELATION_ID, encode_message(answer)),
    )
