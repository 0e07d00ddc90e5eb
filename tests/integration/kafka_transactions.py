"""Transactions of unmodified Kafka clients, each in a process of its own: started by ``test_kafka_transactions``.

Each consumes numbers, transforms them and produces the results in transactions with its offsets, of which every third is
aborted and done again; in the middle another producer takes over its transactional id.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.errors
import kafka.structs
import pytest

NUMBERS: Final = 60
A_TRANSACTION: Final = 5
EXPECTED: Final = [b"result %d" % number for number in range(NUMBERS)]


def confluent_kafka_client(servers: str) -> None:
    """librdkafka, with topics of one partition."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([confluent_kafka.admin.NewTopic(name, 1, 1) for name in ("in", "out")]).values():
        made.result(20)
    writer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for number in range(NUMBERS):
        writer.produce("in", b"%d" % number)
    assert writer.flush(20) == 0
    reading = {
        "bootstrap.servers": servers,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
    }

    def producer() -> confluent_kafka.Producer:
        made = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "transformer"})
        made.init_transactions(20)
        return made

    first = producer()
    reader = confluent_kafka.Consumer({**reading, "group.id": "transformers"})
    reader.subscribe(["in"])
    done = turns = 0
    while done < NUMBERS:
        if turns == 4:
            zombie, first = first, producer()
            zombie.begin_transaction()
            zombie.produce("out", b"of a zombie")
            with pytest.raises(confluent_kafka.KafkaException) as refused:
                zombie.commit_transaction(20)
            assert refused.value.args[0].fatal(), refused.value
        first.begin_transaction()
        offset = done
        while offset < done + A_TRANSACTION:
            message = reader.poll(20)
            assert message is not None
            assert message.error() is None, message.error()
            assert message.offset() == offset
            first.produce("out", b"result %s" % message.value())
            offset += 1
        place = confluent_kafka.TopicPartition("in", 0, offset)
        first.send_offsets_to_transaction([place], reader.consumer_group_metadata(), 20)
        if turns % 3 == 2:
            assert first.flush(20) == 0
            first.abort_transaction(20)
            reader.seek(confluent_kafka.TopicPartition("in", 0, done))
        else:
            first.commit_transaction(20)
            done = offset
        turns += 1
    (committed,) = reader.committed([confluent_kafka.TopicPartition("in", 0)], 20)
    assert committed.offset == NUMBERS
    reader.close()
    check = confluent_kafka.Consumer({**reading, "group.id": "check"})
    check.subscribe(["out"])
    read: list[bytes] = []
    while (message := check.poll(20 if len(read) < NUMBERS else 1)) is not None:
        assert message.error() is None, message.error()
        read.append(message.value())
    check.close()
    assert read == EXPECTED


async def aiokafka_client(servers: str) -> None:
    """The same with a client of asyncio; topics come into being as they are first written to."""
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as writer:
        for number in range(NUMBERS):
            await writer.send_and_wait("in", b"%d" % number)

    async def producer() -> aiokafka.AIOKafkaProducer:
        made = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="transformer")
        await made.start()
        return made

    place = aiokafka.TopicPartition("in", 0)
    first = await producer()
    reader = aiokafka.AIOKafkaConsumer(
        "in",
        bootstrap_servers=servers,
        group_id="transformers",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    await reader.start()
    done = turns = 0
    while done < NUMBERS:
        if turns == 4:
            zombie, first = first, await producer()
            await zombie.begin_transaction()
            with pytest.raises(aiokafka.errors.ProducerFenced):
                await zombie.send_and_wait("out", b"of a zombie")
            await zombie.stop()
        await first.begin_transaction()
        offset = done
        while offset < done + A_TRANSACTION:
            record = await asyncio.wait_for(reader.getone(place), 20)
            assert record.offset == offset
            await first.send("out", b"result %s" % record.value)
            offset += 1
        await first.send_offsets_to_transaction({place: offset}, "transformers")
        if turns % 3 == 2:
            await first.flush()
            await first.abort_transaction()
            reader.seek(place, done)
        else:
            await first.commit_transaction()
            done = offset
        turns += 1
    assert await reader.committed(place) == NUMBERS
    await reader.stop()
    await first.stop()
    read: list[bytes | None] = []
    async with aiokafka.AIOKafkaConsumer(
        "out", bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as check:
        while found := await check.getmany(timeout_ms=20_000 if len(read) < NUMBERS else 1_000):
            read += [record.value for records in found.values() for record in records]
    assert read == EXPECTED


def kafka_python_client(servers: str) -> None:
    """The same with a client in plain Python."""
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([kafka.admin.NewTopic(name, 1, 1) for name in ("in", "out")])
    admin.close()
    writer = kafka.KafkaProducer(bootstrap_servers=servers)
    for number in range(NUMBERS):
        writer.send("in", b"%d" % number)
    writer.flush(20)
    writer.close()

    def producer() -> kafka.KafkaProducer:
        made = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id="transformer")
        made.init_transactions()
        return made

    place = kafka.TopicPartition("in", 0)
    first = producer()
    reader = kafka.KafkaConsumer(
        "in",
        bootstrap_servers=servers,
        group_id="transformers",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=A_TRANSACTION,
    )
    done = turns = 0
    while done < NUMBERS:
        if turns == 4:
            zombie, first = first, producer()
            zombie.begin_transaction()
            with pytest.raises(kafka.errors.KafkaError) as refused:
                zombie.send("out", b"of a zombie").get(20)
            assert not refused.value.retriable, refused.value
            zombie.close(timeout=1)
        first.begin_transaction()
        offset = done
        while offset < done + A_TRANSACTION:
            for record in reader.poll(20_000, max_records=done + A_TRANSACTION - offset).get(place, ()):
                assert record.offset == offset
                first.send("out", b"result %s" % record.value)
                offset += 1
        ends = {place: kafka.structs.OffsetAndMetadata(offset, "", -1)}
        first.send_offsets_to_transaction(ends, reader.group_metadata())
        if turns % 3 == 2:
            first.flush(20)
            first.abort_transaction()
            reader.seek(place, done)
        else:
            first.commit_transaction()
            done = offset
        turns += 1
    assert reader.committed(place) == NUMBERS
    reader.close()
    first.close()
    check = kafka.KafkaConsumer(
        "out", bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    read: list[bytes] = []
    while found := check.poll(20_000 if len(read) < NUMBERS else 1_000):
        read += [record.value for records in found.values() for record in records]
    check.close()
    assert read == EXPECTED


def survivor(servers: str) -> None:
    """librdkafka: each fifth transaction is aborted; after the first ten the test kills the node that coordinates them."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([confluent_kafka.admin.NewTopic("out", 3, 3)]).values():
        made.result(20)
    writer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "survivor"})
    writer.init_transactions(30)

    def insisted(step: Callable[[float], None]) -> None:
        for _ in range(20):
            try:
                step(30)
                return
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise

    expected = []
    for number in range(NUMBERS // 2):
        if number == 10:
            print("ten", flush=True)
            sys.stdin.readline()
        while True:
            writer.begin_transaction()
            try:
                for partition in range(3):
                    writer.produce("out", b"%d" % number, partition=partition)
                if number % 5 == 4:
                    assert writer.flush(30) == 0
                    insisted(writer.abort_transaction)
                else:
                    insisted(writer.commit_transaction)
                    expected.append(b"%d" % number)
                break
            except confluent_kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                insisted(writer.abort_transaction)
    check = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "check",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    check.subscribe(["out"])
    read: dict[int, list[bytes]] = {}
    while (message := check.poll(30 if sum(map(len, read.values())) < 3 * len(expected) else 2)) is not None:
        assert message.error() is None, message.error()
        read.setdefault(message.partition(), []).append(message.value())
    check.close()
    assert read == dict.fromkeys(range(3), expected)


CLIENTS: Final[dict[str, Callable[[str], None]]] = {
    "aiokafka": lambda servers: asyncio.run(aiokafka_client(servers)),
    "confluent-kafka": confluent_kafka_client,
    "kafka-python": kafka_python_client,
    "survivor": survivor,
}

if __name__ == "__main__":
    CLIENTS[sys.argv[1]](*sys.argv[2:])
