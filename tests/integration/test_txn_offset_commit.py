"""Offsets in transactions over the wire, with plain requests: what shows when, who is refused, and what a SIGKILL leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from client.admin import Admin
from client.group.member import Member
from client.transport.cluster import Cluster
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.messages.transactions import (
    StagedPartition,
    StagedTopic,
    StageOffsetsRequest,
    StageOffsetsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from protocol.subscription import TopicPartition
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import create
from tests.integration.raw_transactions import RawTransactions, becomes_committed, connected, until

NONE, UNSTABLE = ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with a topic ``t`` of three partitions."""
    with DaemonProcess(tmp_path) as running:
        asyncio.run(create(running.address, t=3))
        yield running


@pytest.fixture
async def cluster(daemon: DaemonProcess) -> AsyncIterator[Cluster]:
    async with connected(daemon.address) as made:
        yield made


@pytest.fixture
async def billing(cluster: Cluster) -> RawTransactions:
    """A producer that has its identity."""
    producer = RawTransactions(cluster, "billing")
    assert (await producer.init()).error_code == NONE
    return producer


async def tell(
    producer: RawTransactions,
    offsets: dict[int, int],
    group: str = "g",
    *,
    generation: int = -1,
    member: str = "",
    staged: bool = False,
) -> TxnOffsetCommitResponse:
    """The transaction is to commit these offsets of "t"."""
    topics = (OffsetCommitTopic("t", tuple(OffsetCommitPartition(*one) for one in offsets.items())),)
    request = TxnOffsetCommitRequest(
        group,
        producer.transactional_id,
        producer.producer_id,
        producer.epoch,
        generation,
        member,
        None,
        topics if offsets else (),
        staged,
    )
    answer = await producer.cluster.call_coordinator(group, request, TxnOffsetCommitResponse)
    codes = {entry.error_code for topic in answer.topics for entry in topic.partitions}
    assert codes <= {answer.error_code}
    assert bool(answer.error_message) == bool(answer.error_code)
    return answer


async def fetched(cluster: Cluster, group: str = "g", *, stable: bool = True) -> dict[int, int | ErrorCode]:
    """The committed offsets of "t", or why there is none to be had."""
    answer = await cluster.call_coordinator(group, OffsetFetchRequest(group, None, stable), OffsetFetchResponse)
    assert answer.error_code == NONE
    return {
        found.partition_index: ErrorCode(found.error_code) if found.error_code else found.committed_offset
        for topic in answer.topics
        for found in topic.partitions
    }


async def becomes(cluster: Cluster, expected: dict[int, int], group: str = "g") -> dict[int, int | ErrorCode]:
    """What is fetched once it is as expected, or after ten seconds: the end marker comes shortly after the decision."""
    found: dict[int, int | ErrorCode] = {}

    async def look() -> bool:
        nonlocal found
        found = await fetched(cluster, group)
        return found == expected

    await until(look)
    return found


async def test_offsets_show_when_their_transaction_has_committed_and_never_when_it_aborts(
    cluster: Cluster, billing: RawTransactions
) -> None:
    assert (await tell(billing, {0: 5, 1: 6})).error_code == NONE
    assert (await tell(billing, {1: 7}, "h")).error_code == NONE
    assert await fetched(cluster) == {0: UNSTABLE, 1: UNSTABLE}
    assert await fetched(cluster, stable=False) == {}
    assert (await billing.end(True)).error_code == NONE
    assert await becomes(cluster, {0: 5, 1: 6}) == {0: 5, 1: 6}
    assert await becomes(cluster, {1: 7}, "h") == {1: 7}
    assert (await tell(billing, {0: 50})).error_code == NONE
    assert await fetched(cluster) == {0: UNSTABLE, 1: 6}
    assert (await billing.end(False)).error_code == NONE
    assert await becomes(cluster, {0: 5, 1: 6}) == {0: 5, 1: 6}


async def test_records_and_offsets_of_many_transactions_go_together(
    daemon: DaemonProcess, cluster: Cluster, billing: RawTransactions
) -> None:
    for number in range(30):
        codes, told = await asyncio.gather(
            billing.codes({number % 3: [b"%d" % number]}), tell(billing, {number % 3: number + 1})
        )
        assert (codes, told.error_code) == ([NONE], NONE)
        assert (await billing.end(number % 5 != 4)).error_code == NONE
    kept = [number for number in range(30) if number % 5 != 4]
    expected = {index: [b"%d" % number for number in kept if number % 3 == index] for index in range(3)}
    assert await becomes_committed(daemon.address, expected) == expected
    offsets = {index: max(number for number in kept if number % 3 == index) + 1 for index in range(3)}
    assert await becomes(cluster, offsets) == offsets


async def test_a_producer_that_was_replaced_and_one_that_nobody_knows_are_refused(
    cluster: Cluster, billing: RawTransactions
) -> None:
    assert (await tell(billing, {0: 5})).error_code == NONE
    newer = RawTransactions(cluster, "billing")
    await newer.init()
    assert await becomes(cluster, {}) == {}
    assert (await tell(billing, {0: 5})).error_code == ErrorCode.PRODUCER_FENCED
    stranger = RawTransactions(cluster, "stranger")
    stranger.is_now(billing.producer_id, 0)
    assert (await tell(stranger, {0: 5})).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await tell(RawTransactions(cluster, ""), {0: 5})).error_code != NONE
    assert (await tell(newer, {0: 6})).error_code == NONE
    assert (await newer.end(True)).error_code == NONE
    assert await becomes(cluster, {0: 6}) == {0: 6}


async def test_a_request_that_comes_after_the_end_of_its_transaction_opens_nothing(
    cluster: Cluster, billing: RawTransactions
) -> None:
    late = billing.copy()
    assert (await tell(billing, {0: 5})).error_code == NONE
    assert (await billing.end(True)).error_code == NONE
    assert await becomes(cluster, {0: 5}) == {0: 5}
    assert (await tell(late, {0: 4})).error_code != NONE
    assert await fetched(cluster) == {0: 5}


async def test_a_transaction_that_takes_too_long_leaves_nothing_undecided(cluster: Cluster) -> None:
    slow = RawTransactions(cluster, "slow")
    assert (await slow.init(timeout_ms=300)).error_code == NONE
    assert (await tell(slow, {0: 5})).error_code == NONE
    assert await fetched(cluster) == {0: UNSTABLE}
    assert await becomes(cluster, {}) == {}
    answer = await tell(slow, {0: 6})
    assert answer.error_code == ErrorCode.TRANSACTION_ABORTABLE


async def test_a_plain_commit_after_it_counts(cluster: Cluster, billing: RawTransactions) -> None:
    assert (await tell(billing, {0: 5, 1: 5})).error_code == NONE
    topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, 1),)),)
    await cluster.call_coordinator("g", OffsetCommitRequest("g", -1, "", None, topics), OffsetCommitResponse)
    assert await fetched(cluster) == {0: 1, 1: UNSTABLE}
    assert (await billing.end(True)).error_code == NONE
    assert await becomes(cluster, {0: 1, 1: 5}) == {0: 1, 1: 5}


async def test_members_commit_in_their_generation_only_and_stage_what_a_batch_reads(
    daemon: DaemonProcess, cluster: Cluster, billing: RawTransactions
) -> None:
    async with (
        asyncio.timeout(60),
        Member(
            "g",
            bootstrap_servers=daemon.address,
            protocol_type="test",
            protocols=lambda: [("p", b"")],
            assign=lambda members: dict(members),
        ) as member,
    ):
        await anext(member)
        identity = {"generation": member.generation, "member": member.member_id}
        for wrong, code in (
            ({"generation": 99}, ErrorCode.ILLEGAL_GENERATION),
            ({"member": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            answer = await tell(billing, {0: 5}, **identity | wrong)  # type: ignore[arg-type]
            assert answer.error_code == code
        assert (await tell(billing, {0: 5}, **identity)).error_code == NONE  # type: ignore[arg-type]
        assert (await billing.end(True)).error_code == NONE
        assert await becomes(cluster, {0: 5}) == {0: 5}
        batch = (StagedTopic("t", "", (StagedPartition(0, 5, 9), StagedPartition(1, 0, 3))),)
        request = StageOffsetsRequest("g", member.generation, member.member_id, None, batch)
        assert (await cluster.call_coordinator("g", request, StageOffsetsResponse)).error_code == NONE
        assert (await tell(billing, {}, staged=True)).error_code == NONE
        assert (await billing.end(True)).error_code == NONE
        assert await becomes(cluster, {0: 9, 1: 3}) == {0: 9, 1: 3}
        again = await tell(billing, {}, staged=True)
        assert (again.error_code, "9 is committed" in again.error_message) == (ErrorCode.TRANSACTION_ABORTABLE, True)


@pytest.mark.parametrize("committed", [True, False])
async def test_a_sigkill_before_and_after_the_decision_changes_nothing(
    daemon: DaemonProcess, cluster: Cluster, billing: RawTransactions, committed: bool
) -> None:
    for round_ in range(3):
        assert (await tell(billing, {0: 5 + round_, 1: 6})).error_code == NONE
        daemon.kill()
        daemon.start()
        assert await fetched(cluster) == {0: UNSTABLE, 1: UNSTABLE}
        assert (await billing.end(committed)).error_code == NONE
        daemon.kill()
        daemon.start()
        expected = {0: 5 + round_, 1: 6} if committed else {}
        assert await becomes(cluster, expected) == expected


async def test_a_group_that_is_deleted_forgets_what_is_undecided(
    daemon: DaemonProcess, cluster: Cluster, billing: RawTransactions
) -> None:
    assert (await tell(billing, {0: 5})).error_code == NONE
    async with Admin(daemon.address) as admin:
        described = (await admin.describe_groups("g"))["g"]
        assert (described.state, described.pending_offsets) == ("Empty", 1)
        await admin.delete_groups("g")
        assert (await billing.end(True)).error_code == NONE
        await asyncio.sleep(0.2)
        assert (await admin.describe_groups("g"))["g"].state == "Dead"
    assert await fetched(cluster) == {}


async def test_what_makes_no_sense_is_refused_and_leaves_nothing(cluster: Cluster, billing: RawTransactions) -> None:
    mine = billing.transactional_id, billing.producer_id, billing.epoch
    partition = OffsetCommitTopic("t", (OffsetCommitPartition(0, 5),))
    for identity in (
        ("", *mine[1:]),
        ("x" * 2_000, *mine[1:]),
        (mine[0], -1, 0),
        (mine[0], -(2**63), -(2**15)),
        (mine[0], 2**63 - 1, 2**15 - 1),
        (mine[0], mine[1], mine[2] - 1),
        (mine[0], mine[1], mine[2] + 1),
        ("an\x00other", *mine[1:]),
    ):
        request = TxnOffsetCommitRequest("g", *identity, -1, "", None, (partition,))
        answer = await cluster.call_coordinator("g", request, TxnOffsetCommitResponse)
        assert answer.error_code != NONE, identity
    await cluster.topic_partitions("t")
    for group in ("", "x" * 2_000):
        request = TxnOffsetCommitRequest(group, *mine, -1, "", None, (partition,))
        connection = await cluster.connection_to_leader(TopicPartition("t", 0))  # the one node there is
        answer = await connection.request(request, TxnOffsetCommitResponse, timeout_s=10)
        assert answer.error_code == ErrorCode.INVALID_GROUP_ID
    for staged, topics in ((True, ()), (True, (partition,)), (False, (OffsetCommitTopic("nowhere", ()),))):
        request = TxnOffsetCommitRequest("g", *mine, -1, "", None, topics, staged)
        answer = await cluster.call_coordinator("g", request, TxnOffsetCommitResponse)
        assert (answer.error_code != NONE) == staged
    assert await fetched(cluster) == {}
    assert (await tell(billing, {0: 7})).error_code == NONE
    assert (await billing.end(True)).error_code == NONE
    assert await becomes(cluster, {0: 7}) == {0: 7}
