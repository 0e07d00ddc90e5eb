"""What an honest client feels beside a hostile one: requests as large as the daemon takes, of each kind, without a pause.

Nothing that one client sends may keep the daemon's loop from the others for long. So the figures are how long a request
that needs nothing but the loop and a heartbeat take meanwhile, next to the same without the hostile client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

from client.bench.figures import Figure, Setting
from client.bench.probe import Measured, probe
from client.bench.requests import TIMEOUT_S, check, connect, find_coordinator
from client.cli.failure import CommandError
from client.cli.processes import ServerProcess, daemon
from client.transport.metadata import parse_bootstrap_servers
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import LENGTH_BYTES, decode_response, encode_request
from protocol.limits import least_elements, max_request_elements
from protocol.messages import Request
from protocol.messages.cluster import MetadataRequest
from protocol.messages.configs import (
    AlterableTopicConfigs,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from protocol.messages.reassignment import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectTopic,
    ListPartitionReassignmentsRequest,
    ListReassignmentsTopic,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    TopicPartitionCount,
)
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    MarkerTopic,
    StagedPartition,
    StagedTopic,
    StageOffsetsRequest,
    TransactionMarker,
    TransactionTopic,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from protocol.record_batch import encode_batch

TOPIC: Final = "hostile"
PARTITIONS: Final = 28
_GROUP: Final = "hostile"
_UNDER_WAY: Final = 3
_QUICK_SHARE: Final = 16
_FLOOR: Final = "the same without the hostile client"
_FELT: Final = {"ping": "loop", "heartbeat": "same_shard"}

Make = Callable[[int], Request]
"""Makes a request of so many entries."""


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"{number:05x}" for number in range(count))


MAKES: Final[dict[str, Make]] = {
    "produce": lambda n: ProduceRequest(
        None, -1, 1000, (TopicProduceData(TOPIC, tuple(PartitionProduceData(i % PARTITIONS, b"") for i in range(n))),)
    ),
    "fetch": lambda n: FetchRequest(
        0, 1, 1 << 20, (FetchTopic(TOPIC, tuple(FetchPartition(i % PARTITIONS, 0, 1 << 20) for i in range(n))),)
    ),
    "list_offsets": lambda n: ListOffsetsRequest(
        (ListOffsetsTopic(TOPIC, tuple(ListOffsetsPartition(i % PARTITIONS, -1) for i in range(n))),)
    ),
    "metadata": lambda n: MetadataRequest(_names(n)),
    "offset_commit": lambda n: OffsetCommitRequest(
        _GROUP, -1, "", None,
        (OffsetCommitTopic(TOPIC, tuple(OffsetCommitPartition(i % PARTITIONS, i) for i in range(n))),),
    ),
    "offset_fetch": lambda n: OffsetFetchRequest(_GROUP, (OffsetFetchTopic(TOPIC, tuple(range(n))),)),
    "offset_delete": lambda n: OffsetDeleteRequest(_GROUP, (OffsetDeleteTopic(TOPIC, tuple(range(n))),)),
    "join_group": lambda n: JoinGroupRequest(
        _GROUP, 10_000, 10_000, "", None, "consumer", tuple(JoinGroupProtocol(name, b"") for name in _names(n))
    ),
    "leave_group": lambda n: LeaveGroupRequest(_GROUP, tuple(LeavingMember(name) for name in _names(n))),
    "sync_group": lambda n: SyncGroupRequest(
        _GROUP, 1, "nobody", None, None, None, tuple(SyncGroupAssignment(name, b"") for name in _names(n))
    ),
    "describe_groups": lambda n: DescribeGroupsRequest(_names(n)),
    "list_groups": lambda n: ListGroupsRequest((), _names(n)),
    "delete_groups": lambda n: DeleteGroupsRequest(_names(n)),
    "create_topics": lambda n: CreateTopicsRequest(
        tuple(CreatableTopic(name, 1) for name in _names(n)), validate_only=True
    ),
    "delete_topics": lambda n: DeleteTopicsRequest(_names(n)),
    "delete_records": lambda n: DeleteRecordsRequest(
        (DeleteRecordsTopic(TOPIC, tuple(DeleteRecordsPartition(i % PARTITIONS, 0) for i in range(n))),)
    ),
    "create_partitions": lambda n: CreatePartitionsRequest(tuple(TopicPartitionCount(name, 2) for name in _names(n))),
    "describe_configs": lambda n: DescribeConfigsRequest(_names(n)),
    "alter_configs": lambda n: IncrementalAlterConfigsRequest(
        tuple(AlterableTopicConfigs(name, ()) for name in _names(n))
    ),
    "describe_log_dirs": lambda n: DescribeLogDirsRequest(_names(n)),
    "add_partitions_to_txn": lambda n: AddPartitionsToTxnRequest(
        TOPIC, 1, 0, tuple(TransactionTopic(name, name, (0,)) for name in _names(n))
    ),
    "end_txn": lambda n: EndTxnRequest(TOPIC, 1, 0, True, members=tuple(range(n))),
    "write_txn_markers": lambda n: WriteTxnMarkersRequest(
        tuple(TransactionMarker(i, 0, False, 0, (MarkerTopic(TOPIC, (i % PARTITIONS,)),)) for i in range(n))
    ),
    "txn_offset_commit": lambda n: TxnOffsetCommitRequest(
        _GROUP, TOPIC, 1, 0, -1, "", None,
        (OffsetCommitTopic(TOPIC, tuple(OffsetCommitPartition(i % PARTITIONS, i) for i in range(n))),),
    ),
    "stage_offsets": lambda n: StageOffsetsRequest(
        _GROUP, 1, "stranger", None, (StagedTopic(TOPIC, "", tuple(StagedPartition(i, 0, i) for i in range(n))),)
    ),
    "describe_producers": lambda n: DescribeProducersRequest(
        (DescribeProducersTopic(TOPIC, tuple(i % PARTITIONS for i in range(n))),)
    ),
    "alter_partition_reassignments": lambda n: AlterPartitionReassignmentsRequest(
        (ReassignableTopic(TOPIC, tuple(ReassignablePartition(PARTITIONS + i) for i in range(n))),)
    ),
    "list_partition_reassignments": lambda n: ListPartitionReassignmentsRequest(
        (ListReassignmentsTopic(TOPIC, tuple(i % PARTITIONS for i in range(n))),)
    ),
    "elect_leaders": lambda n: ElectLeadersRequest((ElectTopic(TOPIC, tuple(i % PARTITIONS for i in range(n))),)),
    "describe_transactions": lambda n: DescribeTransactionsRequest(_names(n)),
    "list_transactions": lambda n: ListTransactionsRequest((), tuple(range(n))),
}  # fmt: skip
"""Every kind of request that holds more than a few values. None of them leaves more behind than committed offsets."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of request, as large as is allowed: its frames, and how many entries each has."""

    kind: str
    frames: tuple[bytes, ...]
    entries: int


def attacks(share: int = 1) -> list[Attack]:
    """Each kind with as many entries as are allowed, or a ``share``-th of them, and a Produce with as many bytes."""
    found = []
    for kind, make in MAKES.items():
        one, more = _elements(make(1)), _elements(make(65))
        most = max_request_elements(make(1).api_key) // share
        entries = max(1, 1 + int((most - one) * 64 / (more - one)))
        found.append(Attack(kind, _frames(make(entries)), entries))
    batch = encode_batch([b"x" * 1000] * (1000 // share), timestamps_ms=[1] * (1000 // share))
    data = tuple(PartitionProduceData(index, batch) for index in range(PARTITIONS))
    request = ProduceRequest(None, -1, 30_000, (TopicProduceData(TOPIC, data),))
    return [*found, Attack("produce_bytes", _frames(request), PARTITIONS)]


def _elements(request: Request) -> int:
    return least_elements(_frame(request, 1)[LENGTH_BYTES:], 1 << 30)


def _frame(request: Request, number: int) -> bytes:
    return encode_request(request.api_key, 0, number, "hostile", encode_message(request))


def _frames(request: Request) -> tuple[bytes, ...]:
    return tuple(_frame(request, number) for number in range(1, _UNDER_WAY + 1))


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Each kind in turn: a while of peace, then the attack for as long."""
    seconds = 0.05 if setting.quick else 1.0
    async with (
        ServerProcess("the echo server", "-m", "client.bench.echo") as echo,
        daemon(setting.directory / "data", "--log-level", "error") as server,
    ):
        await _prepare(server.address)
        async with probe(server.address, echo.address, beside=_GROUP, groups=1, size=5) as beside:
            alone: list[Measured] = []
            felt: dict[str, Measured] = {}
            for attack in attacks(_QUICK_SHARE if setting.quick else 1):
                await beside.take()
                await asyncio.sleep(seconds)
                alone.append(await beside.take())
                answered, longest_s = await _attack(server.address, attack, seconds)
                felt[attack.kind] = await beside.take()
                params: dict[str, object] = {
                    "entries": attack.entries,
                    "bytes": len(attack.frames[0]),
                    "under_way": _UNDER_WAY,
                    "answered": answered,
                    "slowest_answers_ms": round(1000 * longest_s, 1),
                }
                for figure in _figures(f"{attack.kind}_", felt[attack.kind], alone[-1:], params):
                    yield figure
    for who, kind in _FELT.items():
        for quantile in ("p99_ms", "max_ms"):
            worst = max(felt, key=lambda name: felt[name][kind][quantile])
            yield _figure(f"worst_{who}_{quantile}", felt[worst], alone, kind, quantile, {"beside": worst})


async def _prepare(address: str) -> None:
    connection = await connect(address)
    try:
        request = CreateTopicsRequest((CreatableTopic(TOPIC, PARTITIONS),))
        (made,) = (await connection.request(request, CreateTopicsResponse, timeout_s=TIMEOUT_S)).topics
        check(made.error_code, made.error_message)
        await find_coordinator(connection, _GROUP)
    finally:
        connection.close()


async def _attack(address: str, attack: Attack, seconds: float) -> tuple[int, float]:
    """Sends its requests again and again; returns how many were answered and how long the slowest few took together.

    Raises ``CommandError`` when one is refused as a whole: then nothing was measured.
    """
    ((host, port),) = parse_bootstrap_servers(address)
    answered, longest_s, began = 0, 0.0, perf_counter()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                while not answered or perf_counter() < began + seconds:
                    sent = perf_counter()
                    for frame in attack.frames:
                        writer.write(frame)
                    await writer.drain()
                    for _ in attack.frames:
                        size = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
                        answer = decode_response(await reader.readexactly(size))
                        if answer.error_code != ErrorCode.NONE:
                            raise CommandError(f"the daemon refused {attack.kind} as a whole: {answer.error_message}")
                        answered += 1
                    longest_s = max(longest_s, perf_counter() - sent)
            finally:
                writer.transport.abort()
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        raise CommandError(f"{attack.kind} had no answer: {error!r}") from error
    return answered, longest_s


def _figures(prefix: str, felt: Measured, alone: list[Measured], params: dict[str, object]) -> list[Figure]:
    quantiles = {
        f"{who}_{quantile}": round(felt[kind][quantile], 3) for who, kind in _FELT.items() for quantile in felt[kind]
    }
    return [_figure(f"{prefix}ping_max_ms", felt, alone, "loop", "max_ms", {**params, **quantiles})]


def _figure(
    metric: str, felt: Measured, alone: list[Measured], kind: str, quantile: str, params: dict[str, object]
) -> Figure:
    floor = median(each[kind][quantile] for each in alone)
    return Figure("hostile_requests", metric, felt[kind][quantile], "ms", floor, _FLOOR, params)
