"""What it costs to read only what is committed: without transactions, and where a tenth of the batches was aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from client.admin import Admin
from client.bench.consume import one_getmany, one_getmany_columns, read_seconds
from client.bench.figures import Figure, Setting
from client.bench.records import PARTITIONS, VALUE_SIZES, values
from client.cli.processes import daemon
from client.producer.batch import RECORD_OVERHEAD_BYTES
from client.producer.producer import Producer
from client.types.records import IsolationLevel

_BATCH_BYTES: Final = 64 * 1024
_COMMITTED: Final = 9
"""Batches of each partition that are committed, for one that is aborted."""
_BYTES: Final = 200_000_000
_ROUNDS: Final = 9
_PLAIN: Final = "plain"
_ABORTED: Final = "tenth-aborted"
_POLLS: Final = {"getmany": one_getmany, "columns": one_getmany_columns}
_EVERYTHING: Final = "read_uncommitted of the same records"
_WITHOUT: Final = "read_uncommitted of as many records, none of them written in a transaction"


@dataclass(slots=True)
class _Rounds:
    """Seconds of each round."""

    everything: list[float] = field(default_factory=list)
    committed: list[float] = field(default_factory=list)
    tenth_aborted: list[float] = field(default_factory=list)


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """The ways to read take turns; the medians count. A new consumer reads everything each time."""
    for size in VALUE_SIZES:
        batch = _BATCH_BYTES // (size + RECORD_OVERHEAD_BYTES)
        groups = 1 if setting.quick else _BYTES // (size * batch * _COMMITTED * PARTITIONS)
        async with daemon(setting.directory / f"data-{size}", "--log-level", "error") as server:
            async with Admin(bootstrap_servers=server.address) as admin:
                await admin.create_topics({_PLAIN: PARTITIONS, _ABORTED: PARTITIONS})
            await _write(server.address, size, batch, groups)
            count = groups * batch * _COMMITTED * PARTITIONS
            for name in _POLLS:
                rounds = await _measure(server.address, name, count, 1 if setting.quick else _ROUNDS)
                for figure in _figures(rounds, name, size, count):
                    yield figure


async def _write(address: str, size: int, batch: int, groups: int) -> None:
    """As many committed records into both topics, in batches of the same size."""
    committed, aborted = values(batch * _COMMITTED, size), values(batch, size)
    async with (
        Producer(bootstrap_servers=address, batch_size=_BATCH_BYTES) as plain,
        Producer(bootstrap_servers=address, batch_size=_BATCH_BYTES, transactional_id="bench") as producer,
    ):
        for _ in range(groups):
            await _to_each_partition(plain, _PLAIN, committed)
            async with producer.transaction():
                await _to_each_partition(producer, _ABORTED, committed)
            await producer.begin_transaction()
            await _to_each_partition(producer, _ABORTED, aborted)
            await producer.abort_transaction()


async def _to_each_partition(producer: Producer, topic: str, content: list[bytes]) -> None:
    await asyncio.gather(*(producer.send_many(topic, content, partition=index) for index in range(PARTITIONS)))


async def _measure(address: str, name: str, count: int, times: int) -> _Rounds:
    rounds, poll = _Rounds(), _POLLS[name]
    ways: list[tuple[list[float], str, IsolationLevel]] = [
        (rounds.everything, _PLAIN, "read_uncommitted"),
        (rounds.committed, _PLAIN, "read_committed"),
        (rounds.tenth_aborted, _ABORTED, "read_committed"),
    ]
    for turn in range(times):
        for seconds, topic, isolation_level in ways[turn % 3 :] + ways[: turn % 3]:
            seconds.append(await read_seconds(address, count, poll, topic, isolation_level))
    return rounds


def _figures(rounds: _Rounds, name: str, size: int, count: int) -> Iterator[Figure]:
    params = {"value_bytes": size, "records": count, "partitions": PARTITIONS, "rounds": len(rounds.everything)}
    most = median(rounds.everything)

    def figure(metric: str, amount: float, unit: str, seconds: list[float], floor_name: str) -> Figure:
        return Figure("transactions_read", metric, amount / median(seconds), unit, amount / most, floor_name, params)

    yield figure(f"read_committed_{name}_{size}_records_per_s", count, "1/s", rounds.committed, _EVERYTHING)
    megabytes = count * size / 1e6
    yield figure(f"tenth_aborted_{name}_{size}_mb_per_s", megabytes, "MB/s", rounds.tenth_aborted, _WITHOUT)
