"""Cohort beside a Kafka on the same machine, row by row, alternately in one run.

The Kafka is one that runs already. What is compared is what users get: of Kafka its broker with librdkafka
(confluent-kafka) or aiokafka, of Cohort its daemon with its own clients; heartbeats and commits are bare requests of both
protocols from the same load generator. Medians of the rounds count, and each row has the floor of Cohort's figure.

A daemon of Cohort acknowledges what is on disk. A Kafka does so where ``flush.messages`` of a topic is 1, and has it in the
page cache alone otherwise: rows that are named flushed set that for their topics, and give it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Final
from uuid import uuid4

from client.admin import Admin
from client.bench import commits, heartbeats, join
from client.bench.closed_loop import Exchange, Load
from client.bench.consume import one_getmany, one_getmany_columns, read_seconds
from client.bench.disk import syncs_per_second, write_seconds
from client.bench.figures import Figure, Setting, Skipped
from client.bench.kafka_clients import PARTITIONS, TRANSACTION_PARTITIONS, TRANSACTION_RECORDS
from client.bench.kafka_group import commit_exchange, form_kafka_group, heartbeat_exchange
from client.bench.kafka_members import Program, missing_packages
from client.bench.produce import UNDER_WAY, send_many_seconds, send_seconds
from client.bench.raw_group import form_group
from client.bench.records import TOPIC, checksum_seconds, future_seconds, pieces, slice_seconds, socket_seconds, values
from client.bench.transactions import SYNCS_OF_A_TRANSACTION
from client.bench.workers import form_groups
from client.cli.failure import CommandError
from client.cli.output import table
from client.cli.processes import ServerProcess, daemon
from client.producer.producer import Producer
from client.transport.metadata import parse_bootstrap_servers
from client.types.records import TopicPartition

BENCH: Final = "against_kafka"
_CONNECT_S: Final = 5.0
_OFFSETS: Final = "__consumer_offsets"
_DECISIONS: Final = "__transaction_state"
_SMALL, _LARGE = 100, 1024
_QUIET: Final = ("--log-level", "error")

_Measure = Callable[[], Awaitable[float]]
_Asked = Mapping[str, Sequence[Exchange]]
"""What each address is asked over and over, over a connection for each exchange."""
_WORKERS: Final = 2
_GROUP: Final = 5
"""Members of each of the groups that are spread over workers: a group has one coordinator, whatever runs beside it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: what both took or did in each round.

    ``less`` is for what is better when it is less. ``target`` is how many times as fast as Kafka Cohort is meant to be.
    """

    metric: str
    unit: str
    kafka: Sequence[float]
    cohort: Sequence[float]
    floor: float | None = None
    floor_name: str | None = None
    target: float | None = None
    less: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)

    def figure(self) -> Figure:
        """The row as a figure of Cohort's, with Kafka's among its circumstances."""
        kafka, cohort = median(self.kafka), median(self.cohort)
        if not kafka or not cohort:
            raise CommandError(
                f"{BENCH}: {self.metric}: {'Cohort' if kafka else 'the Kafka'} has answered nothing at all"
            )
        ahead = kafka / cohort if self.less else cohort / kafka
        told = {"kafka": float(f"{kafka:.6g}"), "times_as_fast": float(f"{ahead:.3g}"), "target": self.target}
        params = {**told, "rounds": len(self.kafka), **self.params}
        return Figure(BENCH, self.metric, cohort, self.unit, self.floor, self.floor_name, params)


class Peer:
    """The Kafka that is compared with, asked through programs of Kafka's clients in processes of their own."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._name = f"cohort-bench-{uuid4().hex[:8]}"
        self._made: list[str] = []

    def name(self, of: str) -> str:
        """A name that is this run's only: of a topic, a group."""
        return f"{self._name}-{of}"

    async def create(self, of: str, partitions: int, *, flush: bool) -> str:
        """Makes a topic and returns its name; ``flush``: its batches are durable before they are acknowledged."""
        topic = self.name(of)
        await self.said("create", topic, str(partitions), "flush" if flush else "default")
        self._made.append(topic)
        return topic

    async def flush(self, internal: Sequence[str]) -> bool:
        """Has the broker's own topics flushed before an acknowledgement; False where the broker refuses that."""
        return all([(await self.said("flush", topic, "flush"))["done"] for topic in internal])

    async def unflush(self, internal: Sequence[str]) -> None:
        """Gives that back."""
        for topic in internal:
            await self.said("flush", topic, "default")

    async def said(self, program: str, topic: str, *rest: str) -> dict[str, Any]:
        """What a program says once it is done. Raises ``CommandError`` when it ends without."""
        async with Program(program, self.servers, topic, *rest) as running:
            return await running.line()

    async def seconds(self, program: str, topic: str, *rest: object) -> float:
        """What a program took."""
        return float((await self.said(program, topic, *map(str, rest)))["seconds"])

    async def close(self) -> None:
        """Deletes the topics."""
        if self._made:
            await self.said("delete", *self._made)


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Row after row. Raises ``Skipped`` without a Kafka or its clients, ``CommandError`` when one refuses something."""
    if missing := missing_packages():
        raise Skipped(f"it runs Kafka's clients against a Kafka: pip install {missing}")
    peer = Peer(await running_kafka(BENCH, setting.kafka.bootstrap))
    try:
        for measured in _ROWS:
            for row in await measured(setting, peer):
                yield row.figure()
    finally:
        await peer.close()


def as_table(figures: Sequence[Figure]) -> str:
    """All rows side by side."""
    columns = ("row", "unit", "kafka", "cohort", "times_as_fast", "target", "floor", "of_floor")
    rows = []
    for figure in figures:
        params = figure.params
        known = (figure.value, params["times_as_fast"], params["target"], figure.floor, figure.ratio)
        value, ahead, target, floor, ratio = (None if each is None else float(f"{each:.3g}") for each in known)
        rows.append((figure.metric, figure.unit, float(f"{params['kafka']:.3g}"), value, ahead, target, floor, ratio))
    return "\n" + table(columns, rows)


async def running_kafka(bench: str, bootstrap: str) -> str:
    """The first of the addresses in ``bootstrap`` at which something listens.

    Raises ``Skipped`` when none is named, ``CommandError`` when none answers.
    """
    if not bootstrap:
        raise Skipped("there is no Kafka to compare with; --kafka-bootstrap HOST:PORT names one that runs")
    for address in bootstrap.split(","):
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(*parse_bootstrap_servers(address)[0])
        except ValueError as error:
            raise CommandError(f"{bench}: --kafka-bootstrap: {error}") from None
        except OSError:
            continue
        writer.close()
        return address
    raise CommandError(f"{bench}: no Kafka answers at {bootstrap}; --kafka-bootstrap HOST:PORT names one that runs")


async def _alternately(rounds: int, kafka: _Measure, cohort: _Measure) -> tuple[list[float], list[float]]:
    """Both in each round, another first in every second one: what slows the machine for a while slows both."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            found[which].append(await (kafka, cohort)[which]())
    return found


def _rounds(setting: Setting) -> int:
    return 1 if setting.quick else 3


async def _loaded(setting: Setting, kafka: _Asked, cohort: _Asked) -> tuple[list[float], list[float]]:
    """Answers a second of both to the same load generator, after both have run warm."""
    warm_s, seconds = (0.1, 0.3) if setting.quick else (15.0, 5.0)
    loads = [[await Load.connect(*each) for each in asked.items()] for asked in (kafka, cohort)]
    try:
        for some in loads:
            await _rate(some, warm_s)
        return await _alternately(_rounds(setting), lambda: _rate(loads[0], seconds), lambda: _rate(loads[1], seconds))
    finally:
        for load in (*loads[0], *loads[1]):
            load.close()


async def _rate(loads: Sequence[Load], seconds: float) -> float:
    return sum(done.rate for done in await asyncio.gather(*(load.round(seconds) for load in loads)))


async def _heartbeats(setting: Setting, peer: Peer) -> list[Row]:
    size = heartbeats.CONNECTIONS
    theirs = [heartbeat_exchange(each) for each in await form_kafka_group(peer.servers, peer.name("beating"), size)]
    async with (
        ServerProcess("the echo server", "-m", "client.bench.echo") as echo,
        daemon(setting.directory / "heartbeats", *_QUIET) as server,
    ):
        ours = [heartbeats.exchange_of(each) for each in await form_group(server.address, "heartbeats", size)]
        kafka, cohort = await _loaded(setting, {peer.servers: theirs}, {server.address: ours})
        echoed = await Load.connect(echo.address, [Exchange(each.request, each.request) for each in ours])
        try:
            floor = (await echoed.round(0.3 if setting.quick else 3.0)).rate
        finally:
            echoed.close()
    name = "asyncio echo of the same frames"
    return [Row("heartbeats_per_s", "1/s", kafka, cohort, floor, name, 1.3, params={"connections": size})]


async def _commits(setting: Setting, peer: Peer) -> list[Row]:
    size = commits.MEMBERS
    topic = await peer.create("commits", size, flush=False)
    members = await form_kafka_group(peer.servers, peer.name("committing"), size)
    theirs = [commit_exchange(member, topic, number) for number, member in enumerate(members)]
    flushes = await peer.flush([_OFFSETS])
    try:
        async with daemon(setting.directory / "commits", *_QUIET) as server:
            async with Admin(bootstrap_servers=server.address) as admin:
                await admin.create_topics({commits.TOPIC: size})
            joined = await form_group(server.address, "commits", size)
            ours = [commits.exchange_of(member, number) for number, member in enumerate(joined)]
            kafka, cohort = await _loaded(setting, {peer.servers: theirs}, {server.address: ours})
    finally:
        await peer.unflush([_OFFSETS])
    floor = size * await _syncs(setting, size * 150)
    name = f"fdatasync alone, {size} commits at a time"
    params = {"connections": size, "kafka_flushes": flushes}
    return [Row("commits_flushed_per_s", "1/s", kafka, cohort, floor, name, 2.0, params=params)]


async def _workers(setting: Setting, peer: Peer) -> list[Row]:
    """Heartbeats and commits of as many connections, of several groups: those of one are with one process of Cohort's.

    A broker uses all cores with its threads, ``cohortd --workers`` with its processes.
    """
    size = heartbeats.CONNECTIONS
    groups = size // _GROUP
    topic = await peer.create("commits-of-groups", size, flush=False)
    theirs = [
        member
        for number in range(groups)
        for member in await form_kafka_group(peer.servers, peer.name(f"group-{number}"), _GROUP)
    ]
    beats = {peer.servers: [heartbeat_exchange(member) for member in theirs]}
    commit = {peer.servers: [commit_exchange(member, topic, number) for number, member in enumerate(theirs)]}
    async with daemon(setting.directory / "workers", "--workers", str(_WORKERS), *_QUIET) as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({commits.TOPIC: size})
        ours = await form_groups(server.address, groups, _GROUP)
        beating = await _loaded(
            setting, beats, {worker: list(map(heartbeats.exchange_of, some)) for worker, some in ours.items()}
        )
        numbers = iter(range(size))
        asked = {
            worker: [commits.exchange_of(member, next(numbers)) for member in some] for worker, some in ours.items()
        }
        flushes = await peer.flush([_OFFSETS])
        try:
            committing = await _loaded(setting, commit, asked)
        finally:
            await peer.unflush([_OFFSETS])
    params = {"connections": size, "groups": groups, "workers": _WORKERS}
    return [
        Row("heartbeats_of_groups_per_s_by_workers", "1/s", *beating, target=1.3, params=params),
        Row(
            "commits_of_groups_flushed_per_s_by_workers",
            "1/s",
            *committing,
            target=2.0,
            params={**params, "kafka_flushes": flushes},
        ),
    ]


async def _latency(setting: Setting, peer: Peer) -> list[Row]:
    count = 100 if setting.quick else 3_000
    topic = await peer.create("latency", 1, flush=True)
    async with daemon(setting.directory / "latency", *_QUIET) as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: 1})

        async def theirs(client: str) -> float:
            return float(median((await peer.said(f"latency-{client}", topic, str(count)))["ms"]))

        async def ours() -> float:
            taken = []
            async with Producer(bootstrap_servers=server.address, linger_ms=0) as producer:
                for _ in range(count + count // 10):
                    began = perf_counter()
                    await producer.send_and_wait(TOPIC, bytes(_SMALL))
                    taken.append((perf_counter() - began) * 1000)
            return median(taken[-count:])

        confluent = await _alternately(_rounds(setting), lambda: theirs("confluent"), ours)
        aiokafka = await _alternately(_rounds(setting), lambda: theirs("aiokafka"), ours)
    floor = 1000 / await _syncs(setting, 2 * _SMALL)
    name, params = "one write of as many bytes with fdatasync", {"value_bytes": _SMALL, "acks": "all", "records": count}
    return [
        Row("send_flushed_p50_ms_vs_confluent", "ms", *confluent, floor, name, 1.25, less=True, params=params),
        Row("send_flushed_p50_ms_vs_aiokafka", "ms", *aiokafka, floor, name, less=True, params=params),
    ]


async def _produced_and_read(setting: Setting, peer: Peer) -> list[Row]:
    """Records of 100 bytes: written one by one and in bulk, and read again."""
    count = 3_000 if setting.quick else 1_000_000
    few = count // 6  # aiokafka takes as long for them
    topic = await peer.create("small", PARTITIONS, flush=False)
    content, rounds = values(count, _SMALL), _rounds(setting)
    async with daemon(setting.directory / "small", *_QUIET) as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: PARTITIONS})
        async with Producer(bootstrap_servers=server.address) as producer:

            async def sent(records: int) -> float:
                return records / await send_seconds(producer, content[:records])

            async def in_bulk() -> float:
                return count / await send_many_seconds(producer, content)

            async def theirs(program: str, records: int) -> float:
                return records / await peer.seconds(program, topic, records)

            async def read(poll: Any) -> float:
                return count / await read_seconds(server.address, count, poll)

            confluent = "produce-confluent"
            await sent(few)
            one_by_one = await _alternately(rounds, lambda: theirs(confluent, count), lambda: sent(count))
            aiokafka = await _alternately(rounds, lambda: theirs("produce-aiokafka", few), lambda: sent(few))
            bulk = await _alternately(rounds, lambda: theirs(confluent, count), in_bulk)
        reader = "consume-confluent-in-bulk"
        getmany = await _alternately(rounds, lambda: theirs(reader, count), lambda: read(one_getmany))
        others = await _alternately(rounds, lambda: theirs("consume-aiokafka", few), lambda: read(one_getmany))
        columns = await _alternately(rounds, lambda: theirs(reader, count), lambda: read(one_getmany_columns))
    floors = await _floors(setting, content, _SMALL)
    params = {"value_bytes": _SMALL, "partitions": PARTITIONS, "records": count, "kafka_flushes": False}
    one_at_a_time = {**params, "cohort_under_way": UNDER_WAY}
    return [
        Row("send_100_per_s_vs_confluent", "1/s", *one_by_one, *floors["promise"], 0.7, params=one_at_a_time),
        Row("send_100_per_s_vs_aiokafka", "1/s", *aiokafka, *floors["promise"], params=one_at_a_time),
        Row("send_many_100_per_s_vs_confluent", "1/s", *bulk, *floors["write"], 3.0, params=params),
        Row("getmany_100_per_s_vs_confluent", "1/s", *getmany, *floors["slice"], 2.0, params=params),
        Row("getmany_100_per_s_vs_aiokafka", "1/s", *others, *floors["slice"], params=params),
        Row("columns_100_per_s_vs_confluent", "1/s", *columns, *floors["copy"], 8.0, params=params),
    ]


async def _large_produced(setting: Setting, peer: Peer) -> list[Row]:
    """Records of 1 KiB in bulk, as megabytes a second."""
    count = 2_000 if setting.quick else 250_000
    topic = await peer.create("large", PARTITIONS, flush=False)
    content, megabytes = values(count, _LARGE), count * _LARGE / 1e6
    async with daemon(setting.directory / "large", *_QUIET) as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: PARTITIONS})
        async with Producer(bootstrap_servers=server.address) as producer:

            async def theirs() -> float:
                return megabytes / await peer.seconds("produce-confluent", topic, count, _LARGE)

            async def ours() -> float:
                return megabytes / await send_many_seconds(producer, content)

            found = await _alternately(_rounds(setting), theirs, ours)
    rate, name = (await _floors(setting, content, _LARGE))["write"]
    params = {"value_bytes": _LARGE, "partitions": PARTITIONS, "records": count, "kafka_flushes": False}
    return [Row("send_many_1024_mb_per_s_vs_confluent", "MB/s", *found, rate * _LARGE / 1e6, name, 1.5, params=params)]


async def _floors(setting: Setting, content: list[bytes], size: int) -> dict[str, tuple[float, str]]:
    """Records a second at most, and what that is the floor of."""
    count = len(content)
    copied = await asyncio.to_thread(socket_seconds, count * size)
    checked = copied + await asyncio.to_thread(checksum_seconds, content, size)
    written = await asyncio.to_thread(write_seconds, setting.directory, pieces(content, size))
    cut = await asyncio.to_thread(slice_seconds, content, size)
    return {
        "promise": (count / await future_seconds(count), "one asyncio future a record, made, settled and awaited"),
        "write": (count / written, "the same values joined and written to a file, fdatasync every MiB"),
        "slice": (count / cut, "the same bytes cut into ConsumerRecord objects in memory"),
        "copy": (count / checked, "the same bytes over TCP on the loopback, then through crc32"),
    }


async def _members(setting: Setting, peer: Peer) -> list[Row]:
    """Consumers that start together, and one of them that leaves; aiokafka's are in one process, as ours are."""
    size = 4 if setting.quick else 50
    topic = await peer.create("members", 2 * size, flush=False)
    kafka: list[dict[str, Any]] = []
    cohort: list[tuple[float, float]] = []
    async with daemon(setting.directory / "members", *_QUIET) as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({join.TOPIC: 2 * size})
        for number in range(_rounds(setting)):
            group = f"members-{number}"
            kafka.append(await peer.said("join-aiokafka", topic, peer.name(group), str(size)))
            cohort.append(await join.settle_seconds(server.address, group, size))
    floor_name = "none: a rebalance is the group's own work"
    params = {"members": size, "partitions": 2 * size, "no_floor": floor_name}
    both = [
        ("members_join_s_vs_aiokafka", [each["joined_s"] for each in kafka], [each[0] for each in cohort]),
        ("member_leaves_s_vs_aiokafka", [each["left_s"] for each in kafka], [each[1] for each in cohort]),
    ]
    return [Row(metric, "s", theirs, ours, less=True, params=params) for metric, theirs, ours in both]


async def _transactions(setting: Setting, peer: Peer) -> list[Row]:
    """A hundred records for six partitions, a group's offset, and the commit, one transaction after the other."""
    count, rounds = (3, 1) if setting.quick else (100, 3)
    fast = await peer.create("transactions", TRANSACTION_PARTITIONS, flush=False)
    flushed = await peer.create("transactions-flushed", TRANSACTION_PARTITIONS, flush=True)
    async with daemon(setting.directory / "transactions", *_QUIET) as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: TRANSACTION_PARTITIONS})

        async def theirs(topic: str) -> float:
            return count / await peer.seconds("transact-confluent", topic, count)

        async def ours() -> float:
            return count / await _transact(server.address, count)

        cached = await _alternately(rounds, lambda: theirs(fast), ours)
        flushes = await peer.flush([_OFFSETS, _DECISIONS])
        try:
            durable = await _alternately(rounds, lambda: theirs(flushed), ours)
        finally:
            await peer.unflush([_OFFSETS, _DECISIONS])
    floor = await _syncs(setting, TRANSACTION_RECORDS * _SMALL) / SYNCS_OF_A_TRANSACTION
    name = f"{SYNCS_OF_A_TRANSACTION} fdatasyncs one after the other"
    params = {"records": TRANSACTION_RECORDS, "partitions": TRANSACTION_PARTITIONS, "transactions": count}
    return [
        Row("transactions_per_s_vs_confluent", "1/s", *cached, floor, name, 5.0, params=params),
        Row(
            "transactions_flushed_per_s_vs_confluent",
            "1/s",
            *durable,
            floor,
            name,
            5.0,
            params={**params, "kafka_flushes": flushes},
        ),
    ]


async def _transact(address: str, count: int) -> float:
    """Seconds of so many transactions, after some that do not count."""
    warm_up, began = count // 10 + 1, 0.0
    async with Producer(bootstrap_servers=address, linger_ms=0, transactional_id="against-kafka") as producer:
        for number in range(warm_up + count):
            if number == warm_up:
                began = perf_counter()
            await producer.begin_transaction()
            for record in range(TRANSACTION_RECORDS):
                await producer.send(TOPIC, bytes(_SMALL), partition=record % TRANSACTION_PARTITIONS)
            await producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): number + 1}, "readers")
            await producer.commit_transaction()
        return perf_counter() - began


async def _syncs(setting: Setting, size: int) -> float:
    return await asyncio.to_thread(syncs_per_second, setting.directory, size, 0.05 if setting.quick else 1.0)


_ROWS: Final[Sequence[Callable[[Setting, Peer], Awaitable[list[Row]]]]] = (
    _heartbeats,
    _commits,
    _workers,
    _latency,
    _produced_and_read,
    _large_produced,
    _members,
    _transactions,
)
