"""Requests about transactions over real sockets: what administrators see of them, and what they may end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from client.transport.cluster import Cluster, CoordinatorKey
from protocol.errors import ErrorCode
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.transactions import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    JoinTransactionRequest,
    JoinTransactionResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    MarkerTopic,
    TransactionMarker,
    TransactionTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.daemon_process import DaemonProcess
from tests.integration.raw_transactions import RawTransactions, becomes_committed

Identity = tuple[int, int]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path) as running:
        yield running


@pytest.fixture
async def raw(daemon: DaemonProcess) -> AsyncIterator[Raw]:
    cluster = Cluster(daemon.address, client_id="test", request_timeout_ms=20_000)
    await cluster.start()
    yield Raw(cluster)
    await cluster.close()


class Raw:
    """A client that sends what it is told."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topic_id = ""

    async def create(self) -> None:
        response = await self.cluster.call(CreateTopicsRequest((CreatableTopic("a", 2),)), CreateTopicsResponse)
        assert response.topics[0].error_code == ErrorCode.NONE
        await self.cluster.topic_partitions("a")
        self.topic_id = response.topics[0].topic_id

    async def init(self, name: str = "t", identity: Identity = (-1, -1)) -> InitProducerIdResponse:
        return await self.cluster.call_coordinator(
            name,
            InitProducerIdRequest(name, 60_000, *identity),
            InitProducerIdResponse,
            key_type=CoordinatorKey.TRANSACTIONAL_ID,
        )

    async def identity(self, name: str = "t") -> Identity:
        response = await self.init(name)
        assert response.error_code == ErrorCode.NONE, response
        return response.producer_id, response.producer_epoch

    async def add(self, identity: Identity, name: str = "t", partition: int = 0) -> int:
        topics = (TransactionTopic("a", self.topic_id, (partition,)),)
        request = AddPartitionsToTxnRequest(name, *identity, topics)
        return (await self.cluster.call(request, AddPartitionsToTxnResponse)).error_code

    async def end(self, identity: Identity, committed: bool, name: str = "t", version: int = -1) -> EndTxnResponse:
        return await self.cluster.call(EndTxnRequest(name, *identity, committed, version), EndTxnResponse)

    async def described(self, *names: str) -> tuple[DescribedTransaction, ...]:
        response = await self.cluster.call(DescribeTransactionsRequest(names), DescribeTransactionsResponse)
        return response.transaction_states

    async def state(self, name: str = "t") -> str:
        (described,) = await self.described(name)
        return described.state

    async def until_state(self, state: str, name: str = "t") -> None:
        async with asyncio.timeout(30):
            while await self.state(name) != state:
                await asyncio.sleep(0.01)


async def test_a_transactional_id_has_a_coordinator_that_keeps_its_identity_through_a_kill(
    daemon: DaemonProcess, raw: Raw
) -> None:
    found = await raw.cluster.call(FindCoordinatorRequest("t", 1), FindCoordinatorResponse)
    assert (found.error_code, found.partition_index) == (ErrorCode.NONE, 16)
    await raw.create()
    identity = await raw.identity()
    assert await raw.add(identity) == ErrorCode.NONE
    ended = await raw.end(identity, committed=True)
    following = ended.producer_id, ended.producer_epoch
    assert following == (identity[0], identity[1] + 1)
    daemon.kill()
    daemon.start()
    repeated = await raw.init(identity=identity)
    assert (repeated.error_code, repeated.previous_outcome) == (ErrorCode.NONE, 1)
    assert (repeated.producer_id, repeated.producer_epoch) == following
    assert (await raw.end(identity, committed=True)).error_code == ErrorCode.NONE, "a repetition"
    await raw.until_state("CompleteCommit")


async def test_ids_of_producers_with_and_without_transactions_never_meet(daemon: DaemonProcess, raw: Raw) -> None:
    seen: set[int] = set()
    for life in range(2):
        for number in range(30):
            seen.add((await raw.identity(f"id-{life}-{number}"))[0])
            response = await raw.cluster.call(InitProducerIdRequest(None, 60_000), InitProducerIdResponse)
            seen.add(response.producer_id)
        daemon.kill()
        daemon.start()
    assert len(seen) == 120


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (FindCoordinatorRequest("", 1), ErrorCode.INVALID_REQUEST),
        (FindCoordinatorRequest("x" * 1025, 1), ErrorCode.INVALID_REQUEST),
        (FindCoordinatorRequest("t", 2), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest("never asked for", 60_000), ErrorCode.NOT_COORDINATOR),
        (InitProducerIdRequest("", 60_000), ErrorCode.INVALID_REQUEST),
        (EndTxnRequest("never asked for", 1, 0, True), ErrorCode.NOT_COORDINATOR),
        (JoinTransactionRequest("never asked for", "q", 0, "m"), ErrorCode.NOT_COORDINATOR),
        (AbortTransactionRequest("x" * 2000), ErrorCode.INVALID_REQUEST),
        (AddPartitionsToTxnRequest("never asked for", 1, 0, ()), ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_what_cannot_be_served_is_refused_with_the_reason(raw: Raw, request_: object, code: ErrorCode) -> None:
    connection = await raw.cluster._any_connection()
    response = await connection.request(request_, request_.response, timeout_s=10)  # type: ignore[arg-type, attr-defined]
    assert response.error_code == code
    assert response.error_message


async def test_describe_and_list_show_where_transactional_ids_stand(daemon: DaemonProcess, raw: Raw) -> None:
    await raw.create()
    for name in ("c", "b", "a"):
        await raw.identity(name)
    open_ = await raw.identity("open")
    assert await raw.add(open_, "open") == ErrorCode.NONE
    shown, empty, unknown = await raw.described("open", "a", "unknown")
    assert (shown.state, shown.producer_id, shown.coordinator) == ("Ongoing", open_[0], 0)
    assert [topic.name for member in shown.members for topic in member.topics] == ["a"]
    assert (empty.state, empty.members) == ("Empty", ())
    assert unknown.error_code != ErrorCode.NONE
    assert unknown.error_message

    async def names(*filters: object) -> list[str]:
        request = ListTransactionsRequest(*filters)  # type: ignore[arg-type]
        response = await raw.cluster.call(request, ListTransactionsResponse)
        assert response.error_code == ErrorCode.NONE
        return [entry.transactional_id for entry in response.transaction_states]

    assert await names() == ["a", "b", "c", "open"]
    assert await names(("Ongoing",)) == ["open"]
    assert await names((), (open_[0],)) == ["open"]
    assert await names((), (), 60_000) == []
    assert await names((), (), 0) == ["open"]
    response = await raw.cluster.call(ListTransactionsRequest(("Ongoing", "Odd")), ListTransactionsResponse)
    assert response.unknown_state_filters == ("Odd",)
    daemon.kill()
    daemon.start()
    assert await names() == ["a", "b", "c", "open"]
    assert await raw.state("open") == "Ongoing"


async def test_an_administrator_aborts_a_transaction_and_its_producer_goes_on(raw: Raw) -> None:
    await raw.create()
    identity = await raw.identity()
    assert await raw.add(identity) == ErrorCode.NONE
    aborted = await raw.cluster.call(AbortTransactionRequest("t"), AbortTransactionResponse)
    assert (aborted.error_code, aborted.aborted) == (ErrorCode.NONE, True)
    assert (await raw.end(identity, committed=True)).error_code == ErrorCode.TRANSACTION_ABORTABLE
    following = await raw.end(identity, committed=False)
    assert following.error_code == ErrorCode.NONE
    assert await raw.add((following.producer_id, following.producer_epoch)) == ErrorCode.NONE
    again = await raw.cluster.call(AbortTransactionRequest("t", fence=True), AbortTransactionResponse)
    assert (again.error_code, again.aborted) == (ErrorCode.NONE, True)
    fenced = await raw.end((following.producer_id, following.producer_epoch), committed=False)
    assert fenced.error_code == ErrorCode.PRODUCER_FENCED


async def test_members_of_a_version_commit_together_once(raw: Raw) -> None:
    await raw.create()
    members = []
    await raw.cluster.call(FindCoordinatorRequest("job", 1), FindCoordinatorResponse)
    for name in ("task-1", "task-2", "driver"):
        joined = await raw.cluster.call(JoinTransactionRequest("job", "query", 0, name), JoinTransactionResponse)
        assert joined.error_code == ErrorCode.NONE, joined
        members.append(joined)
    assert len({member.producer_id for member in members}) == 3
    assert await raw.add((members[0].producer_id, members[0].producer_epoch), "job") == ErrorCode.NONE
    identity = members[0].transaction_producer_id, members[0].producer_epoch
    winners = (members[0].producer_id, members[2].producer_id)
    for _ in range(2):
        ended = await raw.cluster.call(EndTxnRequest("job", *identity, True, 0, "query", winners), EndTxnResponse)
        assert (ended.error_code, ended.committed_version) == (ErrorCode.NONE, 0)
    late = await raw.cluster.call(JoinTransactionRequest("job", "query", 0, "task-3"), JoinTransactionResponse)
    assert (late.error_code, late.committed_version) == (ErrorCode.NONE, 0)


async def test_the_first_member_after_a_start_joins(raw: Raw) -> None:
    """No producer id has been reserved yet, and the id of the transaction and its member need one each."""
    await raw.cluster.call(FindCoordinatorRequest("job", 1), FindCoordinatorResponse)
    joined = await raw.cluster.call(JoinTransactionRequest("job", "query", 0, "task-1"), JoinTransactionResponse)
    assert joined.error_code == ErrorCode.NONE, joined


async def markers(raw: Raw, *asked: tuple[Identity, bool, str, tuple[int, ...]]) -> list[list[tuple[int, int]]]:
    request = WriteTxnMarkersRequest(
        tuple(
            TransactionMarker(*identity, committed, 0, (MarkerTopic(topic_id, partitions),))
            for identity, committed, topic_id, partitions in asked
        )
    )
    response = await raw.cluster.call(request, WriteTxnMarkersResponse)
    return [
        [(entry.partition_index, entry.error_code) for topic in marker.topics for entry in topic.partitions]
        for marker in response.markers
    ]


async def test_markers_for_what_is_not_open_change_nothing_and_unknown_partitions_are_told(raw: Raw) -> None:
    await raw.create()
    assert await markers(
        raw,
        ((1, 0), True, raw.topic_id, (0, 1, 0)),
        ((2, 0), False, raw.topic_id, (7, 1)),
        ((3, 0), True, "gone", (0,)),
    ) == [[(0, 0), (1, 0), (0, 0)], [(7, 3), (1, 0)], [(0, 3)]]
    assert await markers(raw) == []


async def described_producers(raw: Raw, name: str, *partitions: int, only: bool = False) -> DescribeProducersResponse:
    request = DescribeProducersRequest((DescribeProducersTopic(name, partitions),), only)
    return await raw.cluster.call(request, DescribeProducersResponse)


async def test_producers_of_partitions_that_are_not_there_are_told_one_by_one(raw: Raw) -> None:
    await raw.create()
    response = await described_producers(raw, "a", 0, 5)
    codes = [(entry.partition_index, entry.error_code) for entry in response.topics[0].partitions]
    assert codes == [(0, ErrorCode.NONE), (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    response = await described_producers(raw, "nope", 0)
    assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = await described_producers(raw, "__consumer_offsets", 3, 50)
    codes = [(entry.partition_index, entry.error_code) for entry in response.topics[0].partitions]
    assert codes == [(3, ErrorCode.NONE), (50, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_what_is_open_in_a_partition_is_shown_and_can_be_ended_there(daemon: DaemonProcess, raw: Raw) -> None:
    await raw.create()
    producer = RawTransactions(raw.cluster, "t")
    assert (await producer.init()).error_code == ErrorCode.NONE
    assert await producer.codes({0: [b"x", b"y"], 1: [b"z"]}, topic="a") == [ErrorCode.NONE] * 2
    identity = producer.producer_id, producer.epoch
    response = await described_producers(raw, "a", 0, 1, only=True)
    (first, second) = response.topics[0].partitions
    assert (first.last_stable_offset, first.high_watermark) == (0, 2)
    (shown,) = first.active_producers
    assert (shown.producer_id, shown.producer_epoch) == identity
    assert (shown.last_sequence, shown.current_txn_start_offset) == (1, 0)
    assert len(second.active_producers) == 1
    assert await markers(raw, (identity, False, raw.topic_id, (0,))) == [[(0, 0)]]
    response = await described_producers(raw, "a", 0, 1)
    (first, second) = response.topics[0].partitions
    assert (first.last_stable_offset, first.active_producers) == (3, ())
    assert (second.last_stable_offset, len(second.active_producers)) == (0, 1)
    assert await becomes_committed(daemon.address, {0: [], 1: []}, "a") == {0: [], 1: []}
    assert (await producer.end(committed=False)).error_code == ErrorCode.NONE
    await raw.until_state("CompleteAbort")
    response = await described_producers(raw, "a", 1)
    assert response.topics[0].partitions[0].last_stable_offset == 2
