"""Offsets in transactions on one node: the end of a transaction takes effect in the groups' shard once it is on disk."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from coordinator.groups.config import GroupStep
from coordinator.groups.core import GroupCore
from coordinator.metadata.catalog import OFFSETS_TOPIC
from coordinator.runtime.effects import Effects, RequestContext, Slices
from coordinator.runtime.shard import ShardState
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TransactionTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.coordinator.logs.test_log_manager import Hook
from tests.coordinator.transaction_node import Question, TransactionNode, transaction_node

GROUP = "g"


async def group_answer(there: TransactionNode, request: Request, group: str = GROUP) -> Response:
    await there.groups.open(group)
    shard = there.groups.shard(group)
    assert shard is not None
    question = Question(request)
    shard.submit(request, RequestContext(there.groups.replies.open(question), "client", "127.0.0.1"))
    async with asyncio.timeout(30):
        return await question.answered


async def commit_in_transaction(
    there: TransactionNode, identity: tuple[int, int], offset: int, group: str = GROUP
) -> None:
    """As the handler of TxnOffsetCommit: its coordinator is asked first."""
    partition = await there.groups.open(group)
    topic = TransactionTopic(OFFSETS_TOPIC, there.catalog.topic_id(OFFSETS_TOPIC), (partition,))
    added: asyncio.Future[AddPartitionsToTxnResponse] = asyncio.get_running_loop().create_future()
    there.transactions.add(AddPartitionsToTxnRequest("t", *identity, (topic,)), added.set_result)
    assert (await added).error_code == ErrorCode.NONE
    topics = (OffsetCommitTopic("a", (OffsetCommitPartition(0, offset),)),)
    request = TxnOffsetCommitRequest(group, "t", *identity, -1, "", None, topics)
    response = await group_answer(there, request, group)
    assert isinstance(response, TxnOffsetCommitResponse)
    assert [entry.error_code for entry in response.topics[0].partitions] == [ErrorCode.NONE]


async def fetched(there: TransactionNode, group: str = GROUP) -> list[int]:
    response = await group_answer(there, OffsetFetchRequest(group, None), group)
    assert isinstance(response, OffsetFetchResponse)
    assert response.error_code == ErrorCode.NONE
    return [entry.committed_offset for topic in response.topics for entry in topic.partitions]


def open_in(there: TransactionNode, identity: tuple[int, int], group: str = GROUP) -> int | None:
    shard = there.groups.shard(group)
    assert shard is not None
    return shard.core.open_epoch(identity[0])


@pytest.mark.parametrize("committed", [True, False])
async def test_offsets_are_committed_with_the_transaction_or_not_at_all(tmp_path: Path, committed: bool) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        await commit_in_transaction(there, identity, 7)
        assert await fetched(there) == []
        await there.end(identity, committed)
        await there.until_state("CompleteCommit" if committed else "CompleteAbort")
        assert open_in(there, identity) is None
        assert await fetched(there) == ([7] if committed else [])
    async with transaction_node(tmp_path) as there:
        assert await fetched(there) == ([7] if committed else [])


@pytest.mark.parametrize("committed", [True, False])
async def test_ends_that_were_decided_and_not_written_take_effect_after_the_next_start(
    tmp_path: Path, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        await commit_in_transaction(there, identity, 7)
        monkeypatch.setattr(there.transactions.end_markers, "write", lambda *_: None)  # it is killed before
        await there.end(identity, committed)
        assert open_in(there, identity) == identity[1]
    async with transaction_node(tmp_path) as there:
        await there.until(lambda: open_in(there, identity) is None)
        assert await fetched(there) == ([7] if committed else [])
        await there.until_state("CompleteCommit" if committed else "CompleteAbort")


async def test_a_shard_of_groups_that_could_not_write_the_end_is_asked_again(tmp_path: Path) -> None:
    hook = Hook()
    async with transaction_node(tmp_path, hook) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        await commit_in_transaction(there, identity, 7)
        shard = there.groups.shard(GROUP)
        assert shard is not None
        hook.fails, hook.number = (
            ("append", f"{OFFSETS_TOPIC}-{shard.partition}/00000000000000000000.log"),
            errno.ENOSPC,
        )
        await there.end(identity, committed=True)
        await there.until(lambda: bool(there.described().waits_for))
        await there.until(lambda: "read its log again" in there.described().waits_for[0])
        assert there.described().state == "PrepareCommit"
        hook.fails = ("", "")
        await there.until_state("CompleteCommit")
        await there.until(lambda: shard.state is ShardState.ACTIVE)
        assert await fetched(there) == [7]


async def test_the_end_waits_for_a_decision_about_its_group_that_is_carried_out_in_slices(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        await commit_in_transaction(there, identity, 7)
        shard = there.groups.shard(GROUP)
        assert shard is not None
        slices: list[int] = []

        def decide(core: GroupCore, step: GroupStep) -> Effects:
            step.effects.begin(GROUP, work(core))
            return step.effects

        def work(core: GroupCore) -> Slices:
            while len(slices) < 200:
                slices.append(len(core.groups.open_transactions))
                yield

        shard.decide(GROUP, decide)
        await there.end(identity, committed=True)
        await there.until_state("CompleteCommit")
        assert slices == [1] * 200
        assert await fetched(there) == [7]


async def test_where_no_group_has_ever_been_there_is_nothing_to_end(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        identity = await there.init()
        topic = TransactionTopic(OFFSETS_TOPIC, there.catalog.topic_id(OFFSETS_TOPIC), (3,))
        answers: list[AddPartitionsToTxnResponse] = []
        there.transactions.add(AddPartitionsToTxnRequest("t", *identity, (topic,)), answers.append)
        await there.until(lambda: bool(answers))
        await there.end(identity, committed=True)
        await there.until_state("CompleteCommit")
