"""Programs of Kafka users, each run as a process of its own, as Kafka's clients have no business in ours.

``python -m client.bench.kafka_clients PROGRAM SERVERS TOPIC ...``. ``produce-confluent`` and ``produce-aiokafka`` write so
many records, ``consume-confluent`` reads so many, and tell the seconds they took. ``member`` is in a group: each line that
it reads is an order, ``join`` or ``leave``, and each line that it prints says when something happened, by the clock that
all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from time import monotonic, perf_counter
from typing import Any, Final

VALUE: Final = b"v" * 100
LINGER_MS: Final = 5
"""Batches are as large as each client makes them by default: librdkafka 1,000,000 bytes, Cohort's producer 256 KiB, aiokafka
16 KiB. A smaller one is a request and a group commit for fewer records, whatever the protocol.
"""
PARTITIONS: Final = 2
_TIMEOUT_S: Final = 60.0


def produce_confluent(servers: str, topic: str, count: int) -> float:
    """Seconds until librdkafka, idempotent, has every record acknowledged."""
    from confluent_kafka import Producer

    faults: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "queue.buffering.max.messages": count + 1,
            "on_delivery": lambda error, message: faults.append(error) if error else None,
        }
    )
    began = perf_counter()
    for number in range(count):
        producer.produce(topic, VALUE, partition=number % PARTITIONS)
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


def consume_confluent(servers: str, topic: str, count: int) -> float:
    """Seconds until librdkafka has given every record to its program."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
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
    elif program == "produce-aiokafka":
        _tell({"seconds": asyncio.run(produce_aiokafka(servers, topic, int(rest[0])))})
    else:
        run = {"produce-confluent": produce_confluent, "consume-confluent": consume_confluent}[program]
        _tell({"seconds": run(servers, topic, int(rest[0]))})


def _tell(said: dict[str, object]) -> None:
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
