"""Programs of Kafka users, run as processes of their own: ``python -m tests.integration.kafka_programs CLIENT SERVERS
COMPRESSION``. Each makes a topic, writes to it, reads it in a group, commits, and has a new member go on from there; it ends
with a traceback when something is not as it should be."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin

RECORDS: Final = 300


def values(prefix: str) -> list[bytes]:
    return [f"{prefix} {number}".encode() for number in range(RECORDS)]


def kafka_python_client(servers: str, compression: str) -> None:
    """A topic of three partitions."""
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([kafka.admin.NewTopic("t", 3, 1)])
    admin.close()
    writer = kafka.KafkaProducer(
        bootstrap_servers=servers,
        acks="all",
        enable_idempotence=True,
        compression_type=None if compression == "none" else compression,
    )
    sent = [writer.send("t", value, key=value) for value in values("v")]
    writer.flush(20)
    assert {future.get(1).topic for future in sent} == {"t"}
    writer.close()
    first = kafka.KafkaConsumer("t", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest")
    read: list[bytes] = []
    while len(read) < RECORDS:
        for found in first.poll(5_000).values():
            read += [record.value for record in found]
    first.commit()
    first.close()
    assert sorted(read) == sorted(values("v"))
    second = kafka.KafkaConsumer("t", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest")
    assert second.poll(1_500) == {}
    assert sum(second.committed(partition) or 0 for partition in second.assignment()) == RECORDS
    second.close()


def confluent_kafka_client(servers: str, compression: str) -> None:
    """The same, by librdkafka."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([confluent_kafka.admin.NewTopic("t", 3, 1)]).values():
        made.result(20)
    writer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "compression.type": compression}
    )
    faults: list[object] = []
    for value in values("v"):
        writer.produce("t", value, value, on_delivery=lambda error, message: faults.append(error) if error else None)
    assert writer.flush(20) == 0
    assert not faults
    settings = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
    first = confluent_kafka.Consumer(settings)
    first.subscribe(["t"])
    read: list[bytes] = []
    while len(read) < RECORDS:
        message = first.poll(20)
        assert message is not None
        assert message.error() is None
        read.append(message.value())
    first.commit(asynchronous=False)
    first.close()
    assert sorted(read) == sorted(values("v"))
    second = confluent_kafka.Consumer(settings)
    second.subscribe(["t"])
    assert second.poll(1.5) is None
    partitions = [confluent_kafka.TopicPartition("t", index) for index in range(3)]
    assert sum(max(0, each.offset) for each in second.committed(partitions, 20)) == RECORDS
    second.close()


async def aiokafka_client(servers: str, compression: str) -> None:
    """A topic that is made as it is first written to, with one partition."""
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=servers,
        enable_idempotence=True,
        compression_type=None if compression == "none" else compression,
    ) as writer:
        for sent in [await writer.send("t", value) for value in values("v")]:
            await sent
    read: list[bytes | None] = []
    async with aiokafka.AIOKafkaConsumer(
        "t", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest"
    ) as reader:
        while len(read) < RECORDS:
            for found in (await reader.getmany(timeout_ms=5_000)).values():
                read += [record.value for record in found]
        await reader.commit()
    assert read == values("v")
    async with aiokafka.AIOKafkaConsumer(
        "t", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest"
    ) as reader:
        assert await reader.getmany(timeout_ms=500) == {}
        assert [await reader.committed(each) for each in reader.assignment()] == [RECORDS]


def survivor(servers: str, compression: str) -> None:
    """Writes with idempotence and reads in a group, both over a failover that the test brings about when it is told."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([confluent_kafka.admin.NewTopic("t", 6, 3)]).values():
        made.result(20)
    writer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "compression.type": compression, "acks": "all"}
    )
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest", "session.timeout.ms": 10_000}
    )
    reader.subscribe(["t"])
    faults: list[object] = []
    read: list[bytes] = []
    for number, value in enumerate(values("v")):
        writer.produce("t", value, value, on_delivery=lambda error, message: faults.append(error) if error else None)
        writer.poll(0)
        if number == RECORDS // 2:
            assert writer.flush(30) == 0
            print("half", flush=True)
        message = reader.poll(0.05)
        if message is not None and message.error() is None:
            read.append(message.value())
    assert writer.flush(60) == 0
    assert not faults
    while len(set(read)) < RECORDS:
        message = reader.poll(30)
        assert message is not None, f"{len(read)} records were read"
        assert message.error() is None, message.error()
        read.append(message.value())
    reader.commit(asynchronous=False)
    reader.close()
    check = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "h", "auto.offset.reset": "earliest"})
    check.subscribe(["t"])
    every: list[bytes] = []
    while (message := check.poll(30 if len(every) < RECORDS else 2)) is not None:
        assert message.error() is None, message.error()
        every.append(message.value())
    check.close()
    assert sorted(every) == sorted(values("v")), "each record is there once"


CLIENTS: Final[dict[str, Callable[[str, str], None]]] = {
    "aiokafka": lambda servers, compression: asyncio.run(aiokafka_client(servers, compression)),
    "survivor": survivor,
    "confluent-kafka": confluent_kafka_client,
    "kafka-python": kafka_python_client,
}

if __name__ == "__main__":
    CLIENTS[sys.argv[1]](*sys.argv[2:])
