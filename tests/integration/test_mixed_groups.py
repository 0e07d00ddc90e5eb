"""Groups with members of both kinds, as ``docs/kafka-clients.md`` says they are to be set up, and what a wrong mix is told.

The table of the page is read: each client that it names joins a group with Cohort's consumer, before it and behind it, and
the one that came first stays alone in the end, as its leader.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import pytest
from aiokafka.coordinator.assignors import range as aiokafka_range
from aiokafka.coordinator.assignors import roundrobin as aiokafka_roundrobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

import client
from client import Admin, Consumer, InconsistentGroupProtocolError, Producer
from coordinator.embedded import Coordinator
from protocol.subscription import Subscription, TopicPartition, encode_subscription
from tests.integration.consuming import until_told

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of its own, while it loads
    import kafka
    import kafka.errors
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor as TheirCooperativeSticky
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

PAGE: Final = Path(__file__).parents[2] / "docs" / "kafka-clients.md"
PARTITIONS: Final = 4
NAMES: Final[dict[str, dict[str, Any]]] = {
    "confluent-kafka": {name: name for name in ("range", "roundrobin", "cooperative-sticky")},
    "aiokafka": {
        "RangePartitionAssignor": aiokafka_range.RangePartitionAssignor,
        "RoundRobinPartitionAssignor": aiokafka_roundrobin.RoundRobinPartitionAssignor,
    },
    "kafka-python": {
        "RangePartitionAssignor": RangePartitionAssignor,
        "RoundRobinPartitionAssignor": RoundRobinPartitionAssignor,
        "CooperativeStickyAssignor": TheirCooperativeSticky,
    },
}
"""What the cells of the table stand for."""


class Member:
    """A member of a group that is another client's consumer: what it read, what it has, and the errors it was told."""

    def __init__(self, servers: str, strategy: Any) -> None:
        self.servers, self.strategy = servers, strategy
        self.read: list[bytes] = []
        self.has: set[int] = set()
        self.errors: list[Any] = []

    async def polls(self, poll: Callable[[], Awaitable[None]]) -> None:
        """Until it is cancelled, or told an error."""
        while not self.errors:
            await poll()

    @asynccontextmanager
    async def of_confluent_kafka(self) -> AsyncIterator[None]:
        settings = {"bootstrap.servers": self.servers, "group.id": "g", "auto.offset.reset": "earliest"}
        strategy = {} if self.strategy is None else {"partition.assignment.strategy": self.strategy}
        consumer = confluent_kafka.Consumer({**settings, **strategy})
        consumer.subscribe(["t"])

        async def poll() -> None:
            message = await asyncio.to_thread(consumer.poll, 0.1)
            if message is not None and message.error():
                self.errors.append(message.error())
            elif message is not None:
                self.read.append(message.value())
            self.has = {each.partition for each in consumer.assignment()}

        try:
            async with running(self.polls(poll)):
                yield
        finally:
            await asyncio.to_thread(consumer.close)  # its threads would disturb later tests

    @asynccontextmanager
    async def of_kafka_python(self) -> AsyncIterator[None]:
        strategy = {} if self.strategy is None else {"partition_assignment_strategy": [self.strategy]}
        settings = {"bootstrap_servers": self.servers, "group_id": "g", "auto_offset_reset": "earliest", **strategy}
        consumer = await asyncio.to_thread(kafka.KafkaConsumer, "t", **settings)  # it waits until it is connected

        async def poll() -> None:
            try:
                for found in (await asyncio.to_thread(consumer.poll, 100)).values():
                    self.read += [record.value for record in found]
            except kafka.errors.KafkaError as error:
                self.errors.append(error)
            self.has = {each.partition for each in consumer.assignment()}

        try:
            async with running(self.polls(poll)):
                yield
        finally:
            await asyncio.to_thread(consumer.close)  # its threads would disturb later tests

    @asynccontextmanager
    async def of_aiokafka(self) -> AsyncIterator[None]:
        strategy = {} if self.strategy is None else {"partition_assignment_strategy": [self.strategy]}
        consumer = aiokafka.AIOKafkaConsumer(
            "t", bootstrap_servers=self.servers, group_id="g", auto_offset_reset="earliest", **strategy
        )

        async def poll() -> None:
            try:
                for found in (await consumer.getmany(timeout_ms=100)).values():
                    self.read += [record.value for record in found]
            except aiokafka.errors.KafkaError as error:
                self.errors.append(error)
            self.has = {each.partition for each in consumer.assignment()}

        async def run() -> None:
            try:
                await consumer.start()
            except aiokafka.errors.KafkaError as error:
                self.errors.append(error)
            await self.polls(poll)

        try:
            async with running(run()):
                yield
        finally:
            await consumer.stop()  # its tasks would disturb what follows

    def of(self, name: str) -> Any:
        """The member of a client by the name of its package."""
        return getattr(self, f"of_{name.replace('-', '_')}")()


@asynccontextmanager
async def running(coroutine: Any) -> AsyncIterator[None]:
    """Beside the block, and no longer."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(kafka_port=-1, flush="os", node_id=1) as running_one:
        async with Admin(running_one.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        yield running_one


def ours(address: str, **settings: Any) -> Consumer:
    return Consumer("t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest", **settings)


def rows() -> dict[str, dict[str, str]]:
    """The table of the page: what to write for an assignor, by its name and the client."""
    part = PAGE.read_text(encoding="utf-8").partition("## Groups with members of both kinds\n")[2].partition("\n## ")[0]
    head, _, *lines = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", part, re.M)
    ]
    return {line[0]: dict(zip(head[1:], line[1:], strict=True)) for line in lines}


def test_the_table_says_what_the_clients_call_their_assignors() -> None:
    for name, told in rows().items():
        assert getattr(client, told["Cohort"]).name == name
        assert told["Java"] == f"org.apache.kafka.clients.consumer.{told['Cohort']}"
        for package, known in NAMES.items():
            if told[package]:
                assert getattr(known[told[package]], "name", known[told[package]]) == name
            else:
                assert name not in [getattr(each, "name", each) for each in known.values()]


def test_a_sticky_leader_of_theirs_knows_nothing_of_what_ours_own() -> None:
    """Which is why the table does not have it: KIP-341 puts it into bytes of the assignor's own, KIP-429 into a field."""
    said = encode_subscription(Subscription(("t",), owned_partitions=(TopicPartition("t", 3),)))
    read = ConsumerProtocolMemberMetadata.decode(said)
    assert read.subscription == ["t"]
    assert StickyPartitionAssignor.parse_member_metadata(read).partitions == []
    assert "sticky" not in rows()


CASES: Final = [
    (package, name) for name, told in rows().items() for package in NAMES if told[package]
]  # tests/kafka/suites has the consumer of Kafka's own tools, in Java, join such a group


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize(("package", "name"), CASES)
async def test_members_of_both_kinds_share_what_there_is(
    coordinator: Coordinator, package: str, name: str, ours_first: bool
) -> None:
    told = rows()[name]
    theirs = Member(coordinator.kafka_address, NAMES[package][told[package]])
    consumer = ours(coordinator.address, assignors=[getattr(client, told["Cohort"])])
    await assert_shared(coordinator, consumer, theirs, package, ours_first, name)


@pytest.mark.parametrize("package", ["confluent-kafka", "kafka-python"])
async def test_members_as_they_come_share_range(coordinator: Coordinator, package: str) -> None:
    theirs = Member(coordinator.kafka_address, None)
    await assert_shared(coordinator, ours(coordinator.address), theirs, package, True, "range")


async def assert_shared(
    coordinator: Coordinator, consumer: Consumer, theirs: Member, package: str, ours_first: bool, name: str
) -> None:
    """Each has two partitions, each record is read once, and the member that stays has what the other leaves."""
    read: list[bytes | None] = []

    async def poll() -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                read.extend(record.value for record in records)

    @asynccontextmanager
    async def of_ours() -> AsyncIterator[None]:
        async with consumer, running(poll()):
            yield

    def has() -> set[int]:
        return {each.partition for each in consumer.assignment()}

    def standing() -> object:
        return has(), theirs.has, theirs.errors, len(read), len(theirs.read)

    first, second = (of_ours(), theirs.of(package)) if ours_first else (theirs.of(package), of_ours())
    of_first = has if ours_first else lambda: theirs.has
    async with first:
        await until_told(lambda: len(of_first()) == PARTITIONS, standing)
        async with second:
            await until_told(lambda: len(has()) == len(theirs.has) == 2 and not has() & theirs.has, standing)
            async with Admin(coordinator.address) as admin:
                described = (await admin.describe_groups("g"))["g"]
            assert described.protocol == name
            values = [b"%d" % number for number in range(10 * PARTITIONS)]
            async with Producer(coordinator.address) as producer:
                for number, value in enumerate(values):
                    await producer.send("t", value, partition=number % PARTITIONS)
            await until_told(lambda: len(read) + len(theirs.read) >= len(values), standing)
            assert sorted(filter(None, [*read, *theirs.read])) == sorted(values)
            assert read
            assert theirs.read
        await until_told(lambda: len(of_first()) == PARTITIONS, standing)


async def test_what_handlers_work_on_stays_theirs_although_a_client_of_kafka_came_first(
    coordinator: Coordinator,
) -> None:
    """As the leader it would give away what they hold: a third member moves partitions under an eager assignor."""
    first, second = (Member(coordinator.kafka_address, "roundrobin") for _ in range(2))
    working: set[int] = set()
    done = asyncio.Event()

    async def handle(record: client.ConsumerRecord) -> None:
        working.add(record.partition)
        try:
            await done.wait()
        finally:
            working.discard(record.partition)

    consumer = ours(coordinator.address, assignors=[client.RoundRobinAssignor], client_id="a", revoke_grace_ms=20_000)

    def shares() -> tuple[set[int], ...]:
        return working, {each.partition for each in consumer.assignment()}, first.has, second.has

    async with first.of("confluent-kafka"):
        await until_told(lambda: len(first.has) == PARTITIONS, shares)
        async with consumer, running(consumer.process(handle)), Producer(coordinator.address) as producer:
            await until_told(lambda: len(consumer.assignment()) == len(first.has) == 2, shares)
            for number in range(PARTITIONS):
                await producer.send("t", b"record", partition=number)
            await until_told(lambda: len(working) == 2, shares)
            async with second.of("confluent-kafka"):
                await until_told(lambda: len(first.has) == 1, shares)
                await asyncio.sleep(1.0)  # a share that the second is given comes with that of the first
                assert not working & (first.has | second.has), shares()
                done.set()
                await until_told(
                    lambda: len(first.has | second.has | shares()[1]) == PARTITIONS and bool(second.has), shares
                )


@pytest.mark.parametrize("package", NAMES)
async def test_a_member_that_shares_no_assignor_is_told_so(coordinator: Coordinator, package: str) -> None:
    told = rows()["roundrobin"]
    strategy = None if package == "aiokafka" else NAMES[package][told[package]]  # aiokafka's members offer no other
    theirs = Member(coordinator.kafka_address, strategy)
    async with ours(coordinator.address) as consumer, running(anext(aiter(consumer))):
        await until_told(lambda: len(consumer.assignment()) == PARTITIONS, consumer.assignment)
        async with theirs.of(package):
            await until_told(lambda: bool(theirs.errors), lambda: theirs.has)
            assert "InconsistentGroupProtocol" in repr(theirs.errors[0]) or "INCONSISTENT_GROUP_PROTOCOL" in repr(
                theirs.errors[0]
            )
            assert len(consumer.assignment()) == PARTITIONS


async def test_ours_is_told_which_assignors_the_others_share(coordinator: Coordinator) -> None:
    theirs = Member(coordinator.kafka_address, aiokafka_roundrobin.RoundRobinPartitionAssignor)
    async with theirs.of_aiokafka():
        await until_told(lambda: len(theirs.has) == PARTITIONS, lambda: theirs.errors)
        async with ours(coordinator.address) as consumer:
            with pytest.raises(InconsistentGroupProtocolError, match="who share roundrobin; offer one of these"):
                await consumer.getone()
