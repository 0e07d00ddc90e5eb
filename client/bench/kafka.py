"""Kafka's clients beside Cohort's own: the daemon's processor time for the same work, in one run.

Clients and bare requests take turns, the medians of the rounds count. Clients show what a user pays, and bare requests what
the protocols cost where nothing else differs. The floor of each figure is what the same costs in Cohort's own protocol;
``target`` is what the figure is meant to stay within, as a multiple of the floor or in its own unit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

from client.admin import Admin
from client.bench import kafka_requests
from client.bench.consume import one_getmany, read_seconds
from client.bench.figures import Figure, Setting, Skipped
from client.bench.kafka_clients import LINGER_MS, PARTITIONS, VALUE
from client.bench.kafka_members import PARTITIONS as SHARED
from client.bench.kafka_members import Program, join_and_leave_s, missing_packages
from client.bench.kafka_requests import Asked, Pair
from client.bench.raw_group import form_group
from client.cli.processes import ServerProcess, daemon
from client.producer.producer import Producer

_OPTIONS: Final = ("--kafka-port", "-1", "--log-level", "error")
_OWN: Final = "own"
_KAFKA: Final = "kafka"
_AIOKAFKA: Final = "aiokafka"
_GROUP: Final = "group"
_MEMBERS: Final = 5
_BURST: Final = 16
_HEARTBEAT_S: Final = 3.0
"""librdkafka's ``heartbeat.interval.ms``."""


class Cost(NamedTuple):
    """Microseconds an item: the daemon's processor time, that of this process, and wall time as the client tells it."""

    daemon_us: float
    own_us: float
    wall_us: float


class _Costs:
    """Costs of several rounds, by name."""

    def __init__(self) -> None:
        self._all: dict[str, list[Cost]] = {}

    async def add(self, name: str, server: ServerProcess, work: Callable[[], Awaitable[tuple[int, float]]]) -> None:
        """Does work that gives items and seconds."""
        cpu, own = server.cpu_s(), process_time()
        items, seconds = await work()
        spent = (server.cpu_s() - cpu, process_time() - own, seconds)
        self._all.setdefault(name, []).append(Cost(*(each / items * 1e6 for each in spent)))

    def __getitem__(self, name: str) -> Cost:
        return Cost(*map(median, zip(*self._all[name], strict=True)))


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Raises ``Skipped`` where Kafka's clients are not installed."""
    if missing := missing_packages():
        raise Skipped(f"it runs Kafka's clients against the daemon: pip install {missing}")
    rounds = 1 if setting.quick else 3
    count = 2_000 if setting.quick else 400_000
    async with daemon(setting.directory / "records", *_OPTIONS) as server:
        for figure in await _records(server, rounds, count):
            yield figure
    # Held heartbeats are answered with the next one: here every request gets its answer at once.
    async with daemon(setting.directory / "groups", *_OPTIONS, "--kafka-heartbeat-hold-ms", "0") as server:
        for figure in await _groups(server, rounds, 5 if setting.quick else 500):
            yield figure
    async with daemon(setting.directory / "members", *_OPTIONS) as server:
        for figure in await _members(server, 1 if setting.quick else 6):
            yield figure


async def _records(server: ServerProcess, rounds: int, count: int) -> list[Figure]:
    costs = _Costs()
    await _create(
        server, {_OWN: PARTITIONS, _KAFKA: PARTITIONS, _AIOKAFKA: PARTITIONS, "o": PARTITIONS, "k": PARTITIONS}
    )
    fewer = max(count // 8, 1_000)  # aiokafka takes as long for them
    for _ in range(rounds):
        await costs.add("produce own", server, lambda: _produced(server.address, count))
        await costs.add("produce confluent", server, lambda: _program(server, "produce-confluent", _KAFKA, count))
        await costs.add("produce aiokafka", server, lambda: _program(server, "produce-aiokafka", _AIOKAFKA, fewer))
        await _add_bare(costs, "produce", server, kafka_requests.produce("k", "o"), 4, max(1, count // 4_000))
    there = rounds * count
    for _ in range(rounds):
        await costs.add("fetch own", server, lambda: _read(server.address, _OWN, there))
        await costs.add("fetch kafka by own", server, lambda: _read(server.address, _KAFKA, there))
        await costs.add("fetch kafka", server, lambda: _program(server, "consume-confluent", _KAFKA, there))
        await costs.add("fetch columns", server, lambda: _program(server, "consume-confluent", _OWN, there))
        await _add_bare(costs, "fetch", server, kafka_requests.fetch(_KAFKA, _OWN), 4, max(1, count // 8_000))
    params = {"value_bytes": len(VALUE), "partitions": PARTITIONS, "rounds": rounds}
    return [*_produce_figures(costs, count, fewer, params), *_fetch_figures(costs, {**params, "records": there})]


def _produce_figures(costs: _Costs, count: int, fewer: int, params: dict[str, Any]) -> Iterator[Figure]:
    as_set = {**params, "linger_ms": LINGER_MS, "batches": "each client's default size", "idempotent": True}
    own = "Cohort's producer with the same settings"
    yield _figure(
        "produce_confluent_us",
        costs["produce confluent"],
        costs["produce own"],
        own,
        "1.4x",
        {**as_set, "records": count},
    )
    yield _figure(
        "produce_aiokafka_us",
        costs["produce aiokafka"],
        costs["produce own"],
        own,
        "1.4x",
        {**as_set, "records": fewer},
    )
    bare = {**params, "records_a_batch": kafka_requests.BATCH_RECORDS}
    same = "the same requests in Cohort's protocol"
    yield _figure("produce_requests_us", costs["produce requests"], costs["own produce requests"], same, "1.4x", bare)


def _fetch_figures(costs: _Costs, params: dict[str, Any]) -> Iterator[Figure]:
    own, own_name = costs["fetch own"], "Cohort's consumer of what its producer wrote"
    yield _figure("fetch_confluent_us", costs["fetch kafka"], own, own_name, "1.1x", params)
    bare = {**params, "records_a_batch": kafka_requests.BATCH_RECORDS, "fetch_bytes": kafka_requests.FETCH_BYTES}
    same = "the same requests in Cohort's protocol, of what its producer wrote"
    yield _figure("fetch_requests_us", costs["fetch requests"], costs["own fetch requests"], same, "1.1x", bare)
    yield _figure("fetch_columns_confluent_us", costs["fetch columns"], own, own_name, "1.2 us", params)
    converted = costs["fetch kafka by own"]
    yield _figure("native_fetch_of_kafka_us", converted, own, own_name, "1x", params)
    client, floor = converted._replace(daemon_us=converted.own_us), own._replace(daemon_us=own.own_us)
    yield _figure("native_fetch_of_kafka_client_us", client, floor, f"the client's time in {own_name}", "2 us", params)


async def _groups(server: ServerProcess, rounds: int, bursts: int) -> list[Figure]:
    costs = _Costs()
    await _create(server, {_OWN: PARTITIONS})
    (member,) = await form_group(server.address, _GROUP, 1)
    for _ in range(rounds):
        await _add_bare(costs, "heartbeat", server, kafka_requests.heartbeat(member), _BURST, 4 * bursts)
        await _add_bare(costs, "lone heartbeat", server, kafka_requests.heartbeat(member), 1, 8 * bursts)
        await _add_bare(costs, "commit", server, kafka_requests.offset_commit(member, _OWN), _BURST, bursts)
    same = "the same requests in Cohort's protocol"

    def figure(metric: str, name: str, target: str, in_flight: int, **params: Any) -> Figure:
        told = {"in_flight": in_flight, "rounds": rounds, **params}
        return _figure(metric, costs[f"{name} requests"], costs[f"own {name} requests"], same, target, told)

    return [
        figure("heartbeat_us", "lone heartbeat", "1.3x", 1),
        figure("heartbeat_pipelined_us", "heartbeat", "1.3x", _BURST),
        figure("offset_commit_us", "commit", "1.1x", _BURST, partitions=PARTITIONS),
    ]


async def _members(server: ServerProcess, rounds: int) -> list[Figure]:
    await _create(server, {_GROUP: SHARED})
    joined, left = [], []
    for number in range(rounds):
        # Evenly spread between two heartbeats: a member whose heartbeat is not held then hears of it with the next one.
        calm_s = _HEARTBEAT_S * (1 + (number + 0.5) / rounds)
        both = await join_and_leave_s(server.kafka_address, _GROUP, f"{_GROUP}-{number}", _MEMBERS, calm_s)
        joined.append(both[0])
        left.append(both[1])
    params = {"members": _MEMBERS, "partitions": SHARED, "rounds": rounds, "target": "0.1 s"}
    return [
        Figure("kafka", "member_joins_s", median(joined), "s", params={**params, "worst": round(max(joined), 3)}),
        Figure("kafka", "member_leaves_s", median(left), "s", params={**params, "worst": round(max(left), 3)}),
    ]


def _figure(metric: str, cost: Cost, floor: Cost, floor_name: str, target: str, params: dict[str, Any]) -> Figure:
    walls = {"wall_us": round(cost.wall_us, 3), "floor_wall_us": round(floor.wall_us, 3)}
    return Figure(
        "kafka", metric, cost.daemon_us, "us", floor.daemon_us, floor_name, {"target": target, **walls, **params}
    )


async def _create(server: ServerProcess, topics: dict[str, int]) -> None:
    async with Admin(bootstrap_servers=server.address) as admin:
        await admin.create_topics(topics)


async def _add_bare(costs: _Costs, name: str, server: ServerProcess, pair: Pair, burst: int, bursts: int) -> None:
    async def asked(address: str, request: Asked) -> tuple[int, float]:
        return await asyncio.to_thread(kafka_requests.in_bursts, address, request, burst, bursts)

    await costs.add(f"own {name} requests", server, lambda: asked(server.address, pair.native))
    await costs.add(f"{name} requests", server, lambda: asked(server.kafka_address, pair.kafka))


async def _program(server: ServerProcess, program: str, topic: str, count: int) -> tuple[int, float]:
    async with Program(program, server.kafka_address, topic, str(count)) as running:
        return count, (await running.line())["seconds"]


async def _produced(address: str, count: int) -> tuple[int, float]:
    async with Producer(bootstrap_servers=address, linger_ms=LINGER_MS) as producer:
        began = perf_counter()
        sent = [await producer.send(_OWN, VALUE, partition=number % PARTITIONS) for number in range(count)]
        for each in sent:
            await each
        return count, perf_counter() - began


async def _read(address: str, topic: str, count: int) -> tuple[int, float]:
    return count, await read_seconds(address, count, one_getmany, topic)
