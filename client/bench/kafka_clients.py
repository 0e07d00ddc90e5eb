"""Programs of Kafka users, each run as a process of its own, as Kafka's clients have no business in ours.

``python -m client.bench.kafka_clients PROGRAM SERVERS TOPIC ...``. ``produce-confluent`` and ``produce-aiokafka`` write so
many records (of so many bytes), ``consume-confluent`` and ``consume-aiokafka`` read so many, ``transact-confluent`` makes so
many transactions, and tell the seconds they took; ``latency-confluent`` and ``latency-aiokafka`` tell the milliseconds of
each acknowledgement. ``create``, ``flush`` and ``delete`` prepare topics and clear them away. ``member`` is in a group: each
line that it reads is an order, ``join`` or ``leave``, and each line that it prints says when something happened, by the
clock that all processes of a machine share. ``join-aiokafka`` is a whole group, and tells how long it takes to settle.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Final

VALUE: Final = b"v" * 100
LINGER_MS: Final = 5
"""Batches are as large as each client makes them by default: librdkafka 1,000,000 bytes, Cohort's producer 256 KiB, aiokafka
16 KiB. A smaller one is a request and a group commit for fewer records, whatever the protocol.
"""
PARTITIONS: Final = 2
_TIMEOUT_S: Final = 60.0
_IN_BULK: Final = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1024 * 1024,
    "fetch.wait.max.ms": 100,
    "max.partition.fetch.bytes": 10 * 1024 * 1024,
    "fetch.max.bytes": 64 * 1024 * 1024,
    "receive.message.max.bytes": 128 * 1024 * 1024,
    "fetch.queue.backoff.ms": 10,
}
"""What librdkafka reads fastest with: it looks ahead by a gibibyte and asks for 10 MiB a partition."""
TRANSACTION_PARTITIONS: Final = 6
TRANSACTION_RECORDS: Final = 100
_CALM_S: Final = 4.0
"""A group has settled when nothing has changed for longer than two heartbeats of a member are apart."""
_WARM_UP: Final = 0.1
"""The part of acknowledgements and transactions that are done before the clock counts, in addition to those that count."""


def produce_confluent(servers: str, topic: str, count: int, value_bytes: int = len(VALUE)) -> float:
    """Seconds until librdkafka, idempotent, has every record acknowledged."""
    from confluent_kafka import Producer

    faults: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "queue.buffering.max.messages": count + 1,
            "queue.buffering.max.kbytes": 2 * 1024 * 1024,
            "on_delivery": lambda error, message: faults.append(error) if error else None,
        }
    )
    value = b"v" * value_bytes
    producer.list_topics(topic, _TIMEOUT_S)  # connects: that is no part of the figure
    began = perf_counter()
    for number in range(count):
        producer.produce(topic, value, partition=number % PARTITIONS)
    left = producer.flush(_TIMEOUT_S)
    if left or faults:
        raise SystemExit(f"{left} of {count} records are not acknowledged, {len(faults)} are refused: {faults[:1]}")
    return perf_counter() - began


async def produce_aiokafka(servers: str, topic: str, count: int) -> float:
    """The same by aiokafka."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, linger_ms=LINGER_MS)
    async with producer:
        began = perf_counter()
        sent = [await producer.send(topic, VALUE, partition=number % PARTITIONS) for number in range(count)]
        async with asyncio.timeout(_TIMEOUT_S):
            await asyncio.gather(*sent)
        return perf_counter() - began


def consume_confluent(servers: str, topic: str, count: int, *, in_bulk: bool = False) -> float:
    """Seconds until librdkafka has given every record to its program; ``in_bulk`` with ``_IN_BULK``."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings: dict[str, Any] = {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, **(_IN_BULK if in_bulk else {})})
    consumer.list_topics(topic, _TIMEOUT_S)  # connects: that is no part of the figure
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    began, read = perf_counter(), 0
    while read < count:
        messages = consumer.consume(10_000, 1.0)
        faults = [message.error() for message in messages if message.error()]
        if faults or perf_counter() - began > _TIMEOUT_S:
            raise SystemExit(f"{read} of {count} records were read: {faults}")
        read += len(messages)
    took = perf_counter() - began
    consumer.close()
    return took


async def consume_aiokafka(servers: str, topic: str, count: int) -> float:
    """Seconds until aiokafka has given every record to its program, asking for as much at once as librdkafka in bulk."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_IN_BULK["max.partition.fetch.bytes"],
        fetch_max_bytes=_IN_BULK["fetch.max.bytes"],
        fetch_max_wait_ms=_IN_BULK["fetch.wait.max.ms"],
    )
    async with consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        began, read = perf_counter(), 0
        async with asyncio.timeout(_TIMEOUT_S):
            while read < count:
                read += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
        return perf_counter() - began


def latency_confluent(servers: str, topic: str, count: int) -> list[float]:
    """Milliseconds of each acknowledgement of librdkafka without linger, when each record waits for the one before."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "socket.nagle.disable": True})
    told: list[object] = []
    taken = []
    for _ in range(count + int(count * _WARM_UP)):
        began = perf_counter()
        told.clear()
        producer.produce(topic, VALUE, partition=0, on_delivery=lambda error, message: told.append(error))
        while not told and perf_counter() - began < _TIMEOUT_S:
            producer.poll(1.0)
        if told != [None]:
            raise SystemExit(f"a record was not acknowledged: {told}")
        taken.append((perf_counter() - began) * 1000)
    return taken[-count:]


async def latency_aiokafka(servers: str, topic: str, count: int) -> list[float]:
    """The same by aiokafka."""
    from aiokafka import AIOKafkaProducer

    taken = []
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=0) as producer:
        for _ in range(count + int(count * _WARM_UP)):
            began = perf_counter()
            async with asyncio.timeout(_TIMEOUT_S):
                await producer.send_and_wait(topic, VALUE, partition=0)
            taken.append((perf_counter() - began) * 1000)
    return taken[-count:]


def transact_confluent(servers: str, topic: str, count: int) -> float:
    """Seconds of so many transactions of librdkafka one after the other: records, a group's offset, and the commit."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    settings: dict[str, Any] = {"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 0}
    # After a commit a broker answers CONCURRENT_TRANSACTIONS for a while: it is asked again as soon as librdkafka may.
    producer = Producer({**settings, "retry.backoff.ms": 5, "socket.nagle.disable": True})
    producer.init_transactions(_TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"{topic}-readers"})
    group = consumer.consumer_group_metadata()
    warm_up = int(count * _WARM_UP) + 1
    began = 0.0
    for number in range(warm_up + count):
        if number == warm_up:
            began = perf_counter()
        producer.begin_transaction()
        for record in range(TRANSACTION_RECORDS):
            producer.produce(topic, VALUE, partition=record % TRANSACTION_PARTITIONS)
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, number + 1)], group, _TIMEOUT_S)
        producer.commit_transaction(_TIMEOUT_S)
    took = perf_counter() - began
    consumer.close()
    return took


class _Shares:
    """Who of a group owns what, and when that last changed."""

    def __init__(self, partitions: int) -> None:
        self.owned: dict[int, frozenset[int]] = {}
        self.changed_at = 0.0
        self.changed = asyncio.Event()
        self._partitions = partitions

    def give(self, number: int, partitions: frozenset[int]) -> None:
        """A member has another share."""
        self.owned[number] = partitions
        self.changed_at = perf_counter()
        self.changed.set()

    def whole(self, members: int) -> bool:
        """Whether every member has a share, and each partition one owner."""
        shares = [share for share in self.owned.values() if share]
        return len(shares) == members and sum(map(len, shares)) == self._partitions == len(frozenset().union(*shares))


async def join_aiokafka(servers: str, topic: str, group: str, members: int) -> dict[str, object]:
    """Seconds until all of aiokafka's consumers own a share for good, and until the rest do after one has left.

    The topic has two partitions for each. They start at once, with the heartbeats every 3 s that Kafka's clients have.
    """
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # each rebalance is a warning, and a group is made of them
    shares = _Shares(2 * members)

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def __init__(self, number: int) -> None:
            self.number = number

        async def on_partitions_revoked(self, revoked: Any) -> None:
            """The next assignment takes the place of this one."""

        async def on_partitions_assigned(self, assigned: Any) -> None:
            shares.give(self.number, frozenset(each.partition for each in assigned))

    async def settled_s(count: int, began: float) -> float:
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                shares.changed.clear()
                try:
                    await asyncio.wait_for(shares.changed.wait(), _CALM_S)
                except TimeoutError:
                    if shares.whole(count):
                        return shares.changed_at - began

    consumers = []
    for number in range(members):
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
        consumer.subscribe([topic], listener=Listener(number))
        consumers.append(consumer)
    try:
        began = perf_counter()
        await asyncio.gather(*(consumer.start() for consumer in consumers))
        joined_s = await settled_s(members, began)
        began = perf_counter()
        await consumers.pop().stop()
        del shares.owned[members - 1]
        return {"joined_s": joined_s, "left_s": await settled_s(members - 1, began)}
    finally:
        await asyncio.gather(*(consumer.stop() for consumer in consumers), return_exceptions=True)


def create(servers: str, topic: str, partitions: int, flush: bool) -> None:
    """Makes a topic, and one whose batches are durable before they are acknowledged if ``flush``."""
    from confluent_kafka.admin import AdminClient, NewTopic

    config = {"flush.messages": "1"} if flush else {}
    admin = AdminClient({"bootstrap.servers": servers})
    (made,) = admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values()
    made.result(_TIMEOUT_S)


def flush_topic(servers: str, topic: str, flush: bool) -> bool:
    """Has each batch of a topic that there is, or none again, made durable first; False where that is refused."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    change = AlterConfigOpType.SET if flush else AlterConfigOpType.DELETE
    entry = ConfigEntry("flush.messages", "1", incremental_operation=change)
    admin = AdminClient({"bootstrap.servers": servers})
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (changed,) = admin.incremental_alter_configs([resource]).values()
    try:
        changed.result(_TIMEOUT_S)
    except KafkaException:
        return False
    return True


def delete(servers: str, *topics: str) -> None:
    """Deletes topics."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    for each in admin.delete_topics(list(topics)).values():
        each.result(_TIMEOUT_S)


def member(servers: str, topic: str, group: str) -> None:
    """A member of a group, by librdkafka, until it is to leave."""
    from confluent_kafka import Consumer

    def owns(consumer: Any, partitions: list[Any]) -> None:
        _tell({"at": monotonic(), "owns": len(partitions)})

    def owns_nothing(consumer: Any, partitions: list[Any]) -> None:
        _tell({"at": monotonic(), "owns": 0})

    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "latest"})
    leaving = threading.Event()

    def wait_to_leave() -> None:
        sys.stdin.readline()
        leaving.set()

    _tell({"ready": True})
    sys.stdin.readline()
    threading.Thread(target=wait_to_leave, daemon=True).start()
    _tell({"joins_at": monotonic()})
    consumer.subscribe([topic], on_assign=owns, on_revoke=owns_nothing)
    while not leaving.is_set():
        consumer.poll(0.1)
    _tell({"leaves_at": monotonic()})
    consumer.close()


def main(program: str, servers: str, topic: str, *rest: str) -> None:
    """Runs one of them."""
    if program == "member":
        member(servers, topic, rest[0])
    elif program == "delete":
        delete(servers, topic, *rest)
        _tell({"done": True})
    elif program == "create":
        create(servers, topic, int(rest[0]), flush=rest[1] == "flush")
        _tell({"done": True})
    elif program == "flush":
        _tell({"done": flush_topic(servers, topic, flush=rest[0] == "flush")})
    elif program == "join-aiokafka":
        _tell(asyncio.run(join_aiokafka(servers, topic, rest[0], int(rest[1]))))
    elif program.startswith("latency"):
        _tell({"ms": _LATENCIES[program](servers, topic, int(rest[0]))})
    else:
        _tell({"seconds": _TIMED[program](servers, topic, *map(int, rest))})


def _tell(said: dict[str, object]) -> None:
    print(json.dumps(said), flush=True)


_TIMED: Final[dict[str, Callable[..., float]]] = {
    "produce-confluent": produce_confluent,
    "produce-aiokafka": lambda *arguments: asyncio.run(produce_aiokafka(*arguments)),
    "consume-confluent": consume_confluent,
    "consume-confluent-in-bulk": partial(consume_confluent, in_bulk=True),
    "consume-aiokafka": lambda *arguments: asyncio.run(consume_aiokafka(*arguments)),
    "transact-confluent": transact_confluent,
}
_LATENCIES: Final[dict[str, Callable[..., list[float]]]] = {
    "latency-confluent": latency_confluent,
    "latency-aiokafka": lambda *arguments: asyncio.run(latency_aiokafka(*arguments)),
}


if __name__ == "__main__":
    main(*sys.argv[1:])
