"""What a Kafka that runs on this machine keeps in memory for each thing that ``memory`` counts in a daemon.

The same things are made in both, over each one's own protocol: idle connections, members, groups, committed offsets, empty
partitions and idempotent producers. Of the Kafka its live heap counts, after a full collection that the JDK's ``jcmd`` asks
for, and where there is no ``jcmd`` what its process holds in all; of a daemon of Cohort its resident memory. What was made
stays in the Kafka until its retention: measure one that is there for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from shutil import which
from typing import Final, TypeVar
from uuid import uuid4

from client.bench import memory
from client.bench.against_kafka import running_kafka
from client.bench.figures import Figure, Setting, Skipped
from client.bench.kafka_group import KafkaConnection, find_kafka_coordinator, form_kafka_group
from client.bench.records import values
from client.bench.requests import TIMEOUT_S
from client.cli.failure import CommandError
from client.cli.processes import resident_bytes
from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaBatchHeader
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.api_versions_response import ApiVersionsResponse
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.create_topics_response import CreateTopicsResponse
from protocol.kafka.messages.init_producer_id_request import InitProducerIdRequest
from protocol.kafka.messages.init_producer_id_response import InitProducerIdResponse
from protocol.kafka.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.kafka.messages.offset_commit_response import OffsetCommitResponse
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.kafka.messages.produce_response import ProduceResponse
from protocol.kafka.records import records_of
from protocol.kafka.schema import Message
from protocol.record_batch import decode_columns, encode_batch, read_header

BENCH: Final = "kafka_memory"
_CREATE, _COMMIT, _INIT, _PRODUCE, _VERSIONS = 5, 9, 4, 9, 3
_CONNECTIONS: Final = 50
"""That make things side by side: a broker answers one request of a connection after the other."""
_JCMD_S: Final = 120.0
_AGAIN_S: Final = 0.1
_AGAIN: Final = frozenset(
    {
        *(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR),
        *(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    }
)

_Answer = TypeVar("_Answer", bound=Message)
_Make = Callable[["_Broker", int, int, AsyncExitStack], Awaitable[None]]


class _Broker:
    """The Kafka that is measured, and the names of this run."""

    def __init__(self, address: str, pid: int, settles_s: float) -> None:
        self.address = address
        self.pid = pid
        self._settles_s = settles_s
        self.prefix = f"cohort-bench-{uuid4().hex[:8]}"

    async def bytes(self) -> tuple[int | None, int]:
        """The live heap, None where there is no JVM to ask, and the resident memory."""
        await asyncio.sleep(self._settles_s)
        return await _live_heap(self.pid), _resident(self.pid)

    async def create(self, topic: str, partitions: int) -> None:
        """Makes a topic of one replica."""
        asked = CreateTopicsRequest([CreatableTopic(topic, partitions, 1)])
        async with KafkaConnection(self.address) as connection:
            await _taken(
                connection,
                asked,
                _CREATE,
                CreateTopicsResponse,
                lambda answer: (each.error_code for each in answer.topics),
            )

    async def side_by_side(
        self, one: Callable[[KafkaConnection, int], Awaitable[None]], numbers: Iterable[int]
    ) -> None:
        """Does one for each number, over several connections."""
        left = iter(numbers)

        async def work() -> None:
            async with KafkaConnection(self.address) as connection:
                for number in left:
                    await one(connection, number)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_CONNECTIONS):
                    tasks.create_task(work())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Each of Cohort's figures with Kafka's beside it. Raises ``Skipped`` without a Kafka or without its process id."""
    address = await running_kafka(BENCH, setting.kafka.bootstrap)
    broker = _Broker(address, setting.kafka.pid, memory.settles_s(setting))
    if not broker.pid:
        raise Skipped("--kafka-pid names the process of the Kafka whose memory is measured")
    await broker.create(broker.prefix, memory.OFFSETS_OF_A_GROUP)
    async for figure in memory.run(setting):
        count = figure.params["count"]
        heap, resident = await _each(broker, _MAKES[figure.metric], count)
        kafka = resident if heap is None else heap
        params = {
            "count": count,
            "kafka": kafka,
            "kafka_heap": heap,
            "kafka_resident": resident,
            "times_as_small": float(f"{kafka / figure.value:.3g}") if figure.value else None,
        }
        yield Figure(BENCH, figure.metric, figure.value, "bytes", params=params)


async def _each(broker: _Broker, make: _Make, count: int) -> tuple[float | None, float]:
    """Bytes of heap and of resident memory for each of ``count``; a tenth, in addition, is the warm-up."""
    warm = max(1, count // 10)
    async with AsyncExitStack() as stack:
        await make(broker, 0, warm, stack)
        heap_before, resident_before = await broker.bytes()
        await make(broker, warm, warm + count, stack)
        heap_after, resident_after = await broker.bytes()
    resident = max(0, resident_after - resident_before) / count
    if heap_before is None or heap_after is None:
        return None, resident
    return max(0, heap_after - heap_before) / count, resident


async def _connections(broker: _Broker, first: int, end: int, stack: AsyncExitStack) -> None:
    for _ in range(first, end):
        connection = await stack.enter_async_context(KafkaConnection(broker.address))
        asked = ApiVersionsRequest("bench", "1")
        await _taken(connection, asked, _VERSIONS, ApiVersionsResponse, lambda answer: (answer.error_code,))


async def _members(broker: _Broker, first: int, end: int, stack: AsyncExitStack) -> None:
    for number in range(first, end, memory.MEMBERS_OF_A_GROUP):
        size = min(memory.MEMBERS_OF_A_GROUP, end - number)
        await form_kafka_group(broker.address, f"{broker.prefix}-members-{number}", size)


async def _groups(broker: _Broker, first: int, end: int, stack: AsyncExitStack) -> None:
    async def one(connection: KafkaConnection, number: int) -> None:
        await _commit(broker, connection, f"group-{number}", 1)

    await broker.side_by_side(one, range(first, end))


async def _offsets(broker: _Broker, first: int, end: int, stack: AsyncExitStack) -> None:
    async def one(connection: KafkaConnection, number: int) -> None:
        await _commit(broker, connection, f"offsets-{number}", min(memory.OFFSETS_OF_A_GROUP, end - number))

    await broker.side_by_side(one, range(first, end, memory.OFFSETS_OF_A_GROUP))


async def _commit(broker: _Broker, connection: KafkaConnection, group: str, partitions: int) -> None:
    """Offsets of a group without members, for the first partitions of the topic of this run."""
    group_id = f"{broker.prefix}-{group}"
    await find_kafka_coordinator(connection, group_id)
    offsets = [OffsetCommitRequestPartition(number, 1_000_000 + number, -1, "") for number in range(partitions)]
    topics = [OffsetCommitRequestTopic(broker.prefix, partitions=offsets)]
    asked = OffsetCommitRequest(group_id, -1, "", None, topics=topics)
    await _taken(
        connection,
        asked,
        _COMMIT,
        OffsetCommitResponse,
        lambda answer: (each.error_code for topic in answer.topics for each in topic.partitions),
    )


async def _partitions(broker: _Broker, first: int, end: int, stack: AsyncExitStack) -> None:
    for number in range(first, end, memory.PARTITIONS_OF_A_TOPIC):
        await broker.create(f"{broker.prefix}-{number}", min(memory.PARTITIONS_OF_A_TOPIC, end - number))


async def _producers(broker: _Broker, first: int, end: int, stack: AsyncExitStack) -> None:
    columns = encode_batch(values(1, 10), timestamps_ms=[0])
    records = records_of(decode_columns(columns, 0, read_header(columns)), 0)

    async def one(connection: KafkaConnection, _: int) -> None:
        asked = InitProducerIdRequest(None, 60_000)
        given = await _taken(connection, asked, _INIT, InitProducerIdResponse, lambda answer: (answer.error_code,))
        header = KafkaBatchHeader(0, 0, 0, 0, 0, 0, 0, 0, given.producer_id, given.producer_epoch, 0, 1)
        data = [TopicProduceData(broker.prefix, partition_data=[PartitionProduceData(0, header.with_records(records))])]
        await _taken(
            connection,
            ProduceRequest(None, -1, 30_000, data),
            _PRODUCE,
            ProduceResponse,
            lambda answer: (each.error_code for topic in answer.responses for each in topic.partition_responses),
        )

    await broker.side_by_side(one, range(first, end))


_MAKES: Final[dict[str, _Make]] = {
    "idle_connection_bytes": _connections,
    "member_bytes": _members,
    "group_bytes": _groups,
    "committed_offset_bytes": _offsets,
    "partition_bytes": _partitions,
    "producer_id_bytes": _producers,
}


async def _live_heap(pid: int) -> int | None:
    """Bytes of all objects that a full collection leaves: the last line of ``jcmd PID GC.class_histogram``.

    None without ``jcmd``, and for a process that is no JVM: ``jcmd`` begins with a SIGQUIT, which would end that.
    """
    if which("jcmd") is None:
        return None
    jvms = {line.split()[0] for line in (await _jcmd("-l")).splitlines() if line}
    if str(pid) not in jvms:
        return None
    return int((await _jcmd(str(pid), "GC.class_histogram")).split("Total")[-1].split()[1])


async def _jcmd(*words: str) -> str:
    """What it prints. Raises ``CommandError`` when it fails or takes longer than ``_JCMD_S``."""
    asking = await asyncio.create_subprocess_exec(
        "jcmd", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_JCMD_S):
            told, failure = await asking.communicate()
    except TimeoutError:
        asking.kill()
        await asking.wait()
        raise CommandError(f"{BENCH}: jcmd {' '.join(words)} has not answered for {_JCMD_S:.0f} s") from None
    if asking.returncode:
        raise CommandError(f"{BENCH}: jcmd {' '.join(words)}: {failure.decode().strip()}")
    return told.decode()


def _resident(pid: int) -> int:
    try:
        return resident_bytes(pid, "VmRSS")
    except OSError as error:
        raise CommandError(f"{BENCH}: --kafka-pid: there is no process {pid}: {error}") from None


async def _taken(
    connection: KafkaConnection,
    request: Message,
    version: int,
    answer: type[_Answer],
    codes: Callable[[_Answer], Iterable[int]],
) -> _Answer:
    """The answer to a request, which is sent again while a coordinator loads or a topic is not known yet.

    Raises ``CommandError`` for another error among its ``codes``, ``TimeoutError`` after ``TIMEOUT_S``.
    """
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            given = await connection.request(request, version, answer)
            wrong = set(codes(given)) - {ErrorCode.NONE}
            if not wrong:
                return given
            if not wrong & _AGAIN:
                names = ", ".join(sorted(ErrorCode(code).name for code in wrong))
                raise CommandError(f"{BENCH}: the Kafka refuses {type(request).__name__}: {names}")
            await asyncio.sleep(_AGAIN_S)
