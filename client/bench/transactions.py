"""What transactions cost: a record and a commit, many producers, many records a commit, exactly once between topics.

Each figure stands next to the floor of its work: the rounds of fdatasync and of the network that it cannot do without, or
the same work without transactions in the same run. A producer in a loop needs two rounds of fdatasync one after the other:
the records, and the decision, which also makes the partitions part of its next transaction. A partition that is new to it
takes one more before the records.

``kafka_rounds`` and ``kafka_floor`` say what Kafka 4's protocol needs for the same work, as rounds measured in this run: the
partition becomes part of each transaction, the records, the decision, and before the next transaction may write there the
markers and the completion; no Kafka is run. Its rounds are replicated writes, which take longer than these.

``best`` says how fast a program can be that waits for each commit before it goes on, as these do: it takes records as fast
as without transactions, and has two rounds of fdatasync and of the network between a commit and its next record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Final

from client.admin import Admin
from client.bench.disk import read_seconds, syncs_per_second, tree_bytes
from client.bench.figures import Figure, Setting
from client.bench.records import TOPIC, values
from client.bench.requests import TIMEOUT_S, check, connect
from client.cli.failure import CommandError
from client.cli.processes import ServerProcess, daemon
from client.consumer import Consumer
from client.producer.producer import Producer
from client.transport.metadata import parse_bootstrap_servers
from client.types.records import ConsumerRecord, Output
from protocol.errors import RETRIABLE, ErrorCode
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import ListTransactionsRequest, ListTransactionsResponse
from protocol.subscription import TopicPartition

PRODUCERS: Final = 64
SYNCS_OF_A_TRANSACTION: Final = 2
"""Of one that writes where the one before wrote: its records, and the decision."""

_ECHOES: Final = 2
_KAFKA_TO_ANSWER: Final = 3
_KAFKA_TO_READ: Final = 4
_KAFKA_TO_NEXT: Final = 5
_VALUE: Final = b"v" * 100
_RECORDS_A_COMMIT: Final = 1_000
_COMMIT_EVERY_S: Final = 0.1
_COPIES: Final = "copies"
_PIECE: Final = 500
_ROUNDS: Final = 7
"""How often ways to send many records take turns, half a second or less each: the disk and other programs disturb some."""
_AT_ONCE: Final = 64
_WAIT_S: Final = 10.0
_AGAIN_S: Final = 0.01
_TRANSACTIONAL_ID: Final = 1
"""The key type of FindCoordinator."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """What one fdatasync and one round trip take in this run, in milliseconds."""

    sync_ms: float
    echo_ms: float

    @classmethod
    async def measured(cls, setting: Setting) -> Rounds:
        """Measures both where the daemon keeps its data."""
        seconds = 0.05 if setting.quick else 1.0
        syncs = await asyncio.to_thread(syncs_per_second, setting.directory, len(_VALUE) + 100, seconds)
        return cls(1000 / syncs, await _echo_ms(setting))

    def ms(self, syncs: int, echoes: int) -> float:
        """So many, one after the other."""
        return syncs * self.sync_ms + echoes * self.echo_ms

    def params(self) -> dict[str, Any]:
        """For every figure that is made of them."""
        return {"fdatasync_ms": round(self.sync_ms, 3), "echo_ms": round(self.echo_ms, 3)}

    def kafka(self, syncs: int, echoes: int, floor: Callable[[float], float] = lambda ms: ms) -> dict[str, Any]:
        """What Kafka's protocol takes, in the unit of the figure: ``floor`` makes that of the milliseconds of its rounds."""
        rounds = f"{syncs} fdatasyncs and {echoes} echoes"
        return {"kafka_rounds": rounds, "kafka_floor": float(f"{floor(self.ms(syncs, echoes)):.4g}")}

    def best(self, records: float, filling_ms: float, plain: float) -> dict[str, Any]:
        """The rate of a program that takes so many records in so long and then waits for its commit, over and over.

        ``plain`` is the rate that it is compared with.
        """
        best = 1000 * records / (filling_ms + self.ms(SYNCS_OF_A_TRANSACTION, _ECHOES))
        rounds = f"{SYNCS_OF_A_TRANSACTION} fdatasyncs and {_ECHOES} echoes a commit"
        return {"best": float(f"{best:.4g}"), "best_ratio": float(f"{best / plain:.3g}"), "best_rounds": rounds}


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Plain work and the same work in transactions take turns; the medians count."""
    async with daemon(setting.directory / "data", "--log-level", "error") as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: 1, _COPIES: 1, "many": PRODUCERS, "input": 4, "output": 4, "plain": 4})
        rounds = await Rounds.measured(setting)
        async for figure in _one_record(setting, server.address, rounds):
            yield figure
        yield await _many_producers(setting, server.address, rounds)
        async for figure in _many_records(setting, server.address, rounds):
            yield figure
        yield await _many_at_once(setting, server.address, rounds)
        yield await _processing(setting, server.address, rounds)
    yield await _load(setting)


async def _echo_ms(setting: Setting) -> float:
    """The median milliseconds of a round trip of 200 bytes to a server that sends them back."""
    async with ServerProcess("the echo server", "-m", "client.bench.echo") as echo:
        ((host, port),) = parse_bootstrap_servers(echo.address)
        reader, writer = await asyncio.open_connection(host, port)
        taken = []
        for _ in range(50 if setting.quick else 1_000):
            began = perf_counter()
            writer.write(bytes(200))
            await reader.readexactly(200)
            taken.append((perf_counter() - began) * 1000)
        writer.close()
        return median(taken)


async def _one_record(setting: Setting, address: str, rounds: Rounds) -> AsyncIterator[Figure]:
    """One producer: begin, one record, commit, one after the other; and when a reader of committed records has it."""
    count = 30 if setting.quick else 1_500
    plain: list[float] = []
    committed: list[float] = []
    readable: list[float] = []
    async with (
        Producer(bootstrap_servers=address) as sender,
        Producer(bootstrap_servers=address, transactional_id="one") as producer,
        Consumer(bootstrap_servers=address, auto_offset_reset="latest", fetch_max_wait_ms=5_000) as reader,
    ):
        partition = TopicPartition(TOPIC, 0)
        reader.assign([partition])
        await reader.seek_to_end(partition)
        await sender.send_and_wait(_COPIES, _VALUE)
        for number in range(count + 5):
            began = perf_counter()
            await sender.send_and_wait(_COPIES, _VALUE)
            between = perf_counter()
            await producer.begin_transaction()
            await producer.send(TOPIC, _VALUE)
            await producer.commit_transaction()
            ended = perf_counter()
            async with asyncio.timeout(_WAIT_S):
                await reader.getone()
            if number >= 5:
                plain.append((between - began) * 1000)
                committed.append((ended - between) * 1000)
                readable.append((perf_counter() - between) * 1000)
    floor = rounds.ms(SYNCS_OF_A_TRANSACTION, _ECHOES)
    name = f"{SYNCS_OF_A_TRANSACTION} fdatasyncs and {_ECHOES} echoes"
    params = {"transactions": count, "value_bytes": len(_VALUE), **rounds.params()}
    # One after the other: the next transaction waits until the one before is complete.
    in_a_loop, to_read = rounds.kafka(_KAFKA_TO_NEXT, _ECHOES), rounds.kafka(_KAFKA_TO_READ, _ECHOES + 1)
    params |= {"kafka_to_answer_ms": round(rounds.ms(_KAFKA_TO_ANSWER, _ECHOES), 3)}
    params |= {"send_and_wait_p50_ms": round(median(plain), 3)}
    yield Figure("transactions", "commit_p50_ms", median(committed), "ms", floor, name, {**params, **in_a_loop})
    p99, plain_p99 = quantiles(committed, n=100)[98], quantiles(plain, n=100)[98]
    name = "send_and_wait without transactions"
    yield Figure("transactions", "commit_p99_ms", p99, "ms", plain_p99, name, {**params, **in_a_loop})
    name = f"{SYNCS_OF_A_TRANSACTION + 1} fdatasyncs and {_ECHOES + 1} echoes"
    floor += rounds.ms(1, 1)
    yield Figure("transactions", "readable_p50_ms", median(readable), "ms", floor, name, {**params, **to_read})


async def _many_producers(setting: Setting, address: str, floors: Rounds) -> Figure:
    """As many producers as there are partitions: one record each and a commit, in closed loops."""
    seconds, rounds = (0.3, 1) if setting.quick else (3.0, 3)
    kafka = floors.kafka(_KAFKA_TO_NEXT, _ECHOES, lambda ms: PRODUCERS * 1000 / ms)
    plain: list[float] = []
    transactional: list[float] = []
    async with AsyncExitStack() as stack:
        senders = [await stack.enter_async_context(Producer(address)) for _ in range(PRODUCERS)]
        producers = [
            await stack.enter_async_context(Producer(address, transactional_id=f"many-{number}"))
            for number in range(PRODUCERS)
        ]

        async def send(number: int) -> None:
            await senders[number].send_and_wait("many", _VALUE, partition=number)

        async def commit(number: int) -> None:
            await producers[number].begin_transaction()
            await producers[number].send("many", _VALUE, partition=number)
            await producers[number].commit_transaction()

        await _rate(0.2, send)
        await _rate(0.2, commit)
        for _ in range(rounds):
            plain.append(await _rate(seconds, send))
            transactional.append(await _rate(seconds, commit))
    return Figure(
        "transactions",
        f"transactions_of_{PRODUCERS}_producers_per_s",
        median(transactional),
        "1/s",
        median(plain),
        "send_and_wait of as many producers without transactions",
        {"producers": PRODUCERS, "records_a_transaction": 1, "seconds": seconds, "rounds": rounds, **kafka},
    )


async def _rate(seconds: float, act: Callable[[int], Awaitable[None]]) -> float:
    """How often a second ``act`` is done, by every producer again and again."""
    began = perf_counter()
    done = [0] * PRODUCERS

    async def repeat(number: int) -> None:
        while perf_counter() - began < seconds:
            await act(number)
            done[number] += 1

    await asyncio.gather(*map(repeat, range(PRODUCERS)))
    return sum(done) / (perf_counter() - began)


async def _many_records(setting: Setting, address: str, floors: Rounds) -> AsyncIterator[Figure]:
    """One producer that sends one record after the other and commits every thousand, or every 100 ms."""
    count, rounds = (2_000, 1) if setting.quick else (200_000, _ROUNDS)
    content = values(count, len(_VALUE))
    taken: dict[str, list[float]] = {"plain": [], "by_records": [], "by_time": []}
    async with (
        Producer(bootstrap_servers=address) as sender,
        Producer(bootstrap_servers=address, transactional_id="bulk") as producer,
    ):
        ways: dict[str, Callable[[list[bytes]], Awaitable[float]]] = {
            "plain": partial(_send, sender),
            "by_records": partial(_send_committed, producer, records=_RECORDS_A_COMMIT),
            "by_time": partial(_send_committed, producer, seconds=_COMMIT_EVERY_S),
        }
        for send in ways.values():
            await send(content[:_RECORDS_A_COMMIT])
        for number in range(rounds):
            for kind in _in_turn(list(ways), number):
                taken[kind].append(await ways[kind](content))
    floor = count / median(taken["plain"])
    for kind, every, filling_ms in (
        ("by_records", f"{_RECORDS_A_COMMIT} records", 1000 * _RECORDS_A_COMMIT / floor),
        ("by_time", f"{_COMMIT_EVERY_S * 1000:.0f} ms", 1000 * _COMMIT_EVERY_S),
    ):
        kafka = floors.kafka(_KAFKA_TO_NEXT, _ECHOES, partial(_interrupted, floor, filling_ms))
        yield Figure(
            "transactions",
            f"send_committed_{kind}_per_s",
            count / median(taken[kind]),
            "1/s",
            floor,
            "the same records without transactions, flushed once",
            {
                "commit_every": every,
                "records": count,
                "value_bytes": len(_VALUE),
                "rounds": rounds,
                **_by_round(taken["plain"], taken[kind]),
                **floors.best(floor * filling_ms / 1000, filling_ms, floor),
                **kafka,
            },
        )


def _in_turn(ways: list[str], number: int) -> list[str]:
    """What is measured in a round, another first in each: what slows the machine for a while then slows all of them."""
    first = number % len(ways)
    return ways[first:] + ways[:first]


def _by_round(plain: list[float], transactional: list[float]) -> dict[str, Any]:
    """How far the ratios of single rounds lie apart."""
    ratios = sorted(one / other for one, other in zip(plain, transactional, strict=True))
    return {"ratios_of_rounds": [float(f"{ratio:.3g}") for ratio in (ratios[0], median(ratios), ratios[-1])]}


def _interrupted(rate: float, filling_ms: float, rounds_ms: float) -> float:
    """A rate at which records are taken, of a producer that waits for its commit after so many milliseconds of that."""
    return rate * filling_ms / (filling_ms + rounds_ms)


async def _many_at_once(setting: Setting, address: str, floors: Rounds) -> Figure:
    """One producer that sends a thousand records at once and waits, over and over: with a commit and without."""
    pieces, rounds = (2, 1) if setting.quick else (200, _ROUNDS)
    piece = values(_RECORDS_A_COMMIT, len(_VALUE))
    plain: list[float] = []
    committed: list[float] = []
    async with (
        Producer(bootstrap_servers=address) as sender,
        Producer(bootstrap_servers=address, transactional_id="pieces") as producer,
    ):

        async def send() -> None:
            await sender.send_many("plain", piece)

        async def commit() -> None:
            async with producer.transaction() as transaction:
                await transaction.send_many("plain", piece)

        ways = {"plain": (plain, send), "committed": (committed, commit)}
        for number in range(rounds):
            for kind in _in_turn(list(ways), number):
                taken, act = ways[kind]
                began = perf_counter()
                for _ in range(pieces):
                    await act()
                taken.append(perf_counter() - began)
    records = pieces * _RECORDS_A_COMMIT
    filling_ms = max(0.0, 1000 * median(plain) / pieces - floors.ms(1, 1))
    kafka = floors.kafka(_KAFKA_TO_NEXT, _ECHOES, lambda ms: 1000 * _RECORDS_A_COMMIT / (filling_ms + ms))
    return Figure(
        "transactions",
        "send_many_committed_per_s",
        records / median(committed),
        "1/s",
        records / median(plain),
        "send_many of as many records without transactions, each waited for",
        {
            "commit_every": f"{_RECORDS_A_COMMIT} records",
            "records": records,
            "rounds": rounds,
            **_by_round(plain, committed),
            **floors.best(_RECORDS_A_COMMIT, filling_ms, records / median(plain)),
            **kafka,
        },
    )


async def _send(producer: Producer, content: list[bytes]) -> float:
    began = perf_counter()
    for value in content:
        await producer.send("plain", value)
    await producer.flush()
    return perf_counter() - began


async def _send_committed(producer: Producer, content: list[bytes], *, records: int = 0, seconds: float = 0.0) -> float:
    began = last = perf_counter()
    sent = 0
    await producer.begin_transaction()
    for value in content:
        await producer.send("plain", value)
        sent += 1
        if sent == records or (seconds and sent % _PIECE == 0 and perf_counter() - last >= seconds):
            await producer.commit_transaction()
            await producer.begin_transaction()
            sent, last = 0, perf_counter()
    await producer.commit_transaction()
    return perf_counter() - began


async def _processing(setting: Setting, address: str, floors: Rounds) -> Figure:
    """A group copies a topic with ``process``: at least once with a plain producer, and exactly once."""
    count, rounds = (500, 1) if setting.quick else (40_000, 3)
    content = values(count, len(_VALUE))
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send_many("input", content)
    plain: list[float] = []
    exactly: list[float] = []
    for number in range(rounds):
        plain.append(await _copy(address, f"plain-{number}", count, transactional=False))
        exactly.append(await _copy(address, f"exactly-{number}", count, transactional=True))
    return Figure(
        "transactions",
        "process_exactly_once_records_per_s",
        count / median(exactly),
        "1/s",
        count / median(plain),
        "process with a handler that sends and commits at least once",
        {
            "records": count,
            "value_bytes": len(_VALUE),
            "partitions": 4,
            "commit_interval_ms": 100,
            "rounds": rounds,
            **floors.kafka(_KAFKA_TO_NEXT, _ECHOES + 1, partial(_interrupted, count / median(plain), 100.0)),
        },
    )


async def _copy(address: str, group: str, count: int, *, transactional: bool) -> float:
    """Seconds until every record of the input is handled and its copy is safe."""
    options: dict[str, Any] = {"transactional_id": group} if transactional else {}
    async with (
        Producer(bootstrap_servers=address, **options) as producer,
        Consumer(
            "input",
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=not transactional,
            auto_commit_interval_ms=100,
        ) as consumer,
    ):
        done = 0
        finished = asyncio.Event()

        def note() -> None:
            nonlocal done
            done += 1
            if done == count:
                finished.set()

        async def copy(record: ConsumerRecord) -> list[Output]:
            note()
            return [Output("output", record.value, partition=record.partition)]

        async def send(record: ConsumerRecord) -> None:
            await producer.send("output", record.value, partition=record.partition)
            note()

        began = perf_counter()
        if transactional:
            processing = asyncio.create_task(consumer.process(copy, producer=producer, commit_interval_ms=100))
        else:
            processing = asyncio.create_task(consumer.process(send))
        waiting = asyncio.create_task(finished.wait())
        await asyncio.wait({processing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not finished.is_set():
            await processing
            raise CommandError(f"transactions: process ended after {done} of {count} records")
        await consumer.stop()
        await processing
        await producer.flush()
        took = perf_counter() - began
    async with Admin(bootstrap_servers=address) as admin:
        committed = sum(known.offset for known in (await admin.list_offsets(group)).values())
    if transactional and committed != count:
        raise CommandError(f"transactions: process committed {committed} of {count} records")
    return took


async def _load(setting: Setting) -> Figure:
    """A daemon with many transactional ids is killed and started again: seconds until all of them are served."""
    count = 500 if setting.quick else 100_000
    data = setting.directory / "ids"
    async with daemon(data, "--log-level", "error") as server:
        await _make_ids(server.address, count)
        await server.kill()
    floor = await asyncio.to_thread(read_seconds, data)
    began = perf_counter()
    async with daemon(data, "--log-level", "error") as server:
        connection = await connect(server.address)
        while True:
            request = ListTransactionsRequest(state_filters=("Ongoing",))
            answer = await connection.request(request, ListTransactionsResponse, timeout_s=TIMEOUT_S)
            if answer.error_code not in RETRIABLE:
                break
            await asyncio.sleep(_AGAIN_S)
        took = perf_counter() - began
        check(answer.error_code, answer.error_message)
        connection.close()
        memory = server.resident_bytes("VmHWM")
    params = {
        "transactional_ids": count,
        "log_bytes": tree_bytes(data, "__transaction_state-*"),
        "peak_rss_mb": round(memory / 1e6),
    }
    return Figure("transactions", "load_of_ids_s", took, "s", floor, "reading the files and their crc32", params)


async def _make_ids(address: str, count: int) -> None:
    connection = await connect(address)
    bounded = asyncio.Semaphore(_AT_ONCE)

    async def make(number: int) -> None:
        async with bounded:
            name = f"id-{number}"
            while True:
                found = await connection.request(
                    FindCoordinatorRequest(name, _TRANSACTIONAL_ID), FindCoordinatorResponse, timeout_s=TIMEOUT_S
                )
                made = InitProducerIdResponse(found.error_code, error_message=found.error_message)
                if found.error_code == ErrorCode.NONE:
                    made = await connection.request(
                        InitProducerIdRequest(name), InitProducerIdResponse, timeout_s=TIMEOUT_S
                    )
                if made.error_code not in RETRIABLE:
                    break
                await asyncio.sleep(_AGAIN_S)
            check(made.error_code, made.error_message)

    for start in range(0, count, 1_000):
        await asyncio.gather(*(make(number) for number in range(start, min(count, start + 1_000))))
    connection.close()
