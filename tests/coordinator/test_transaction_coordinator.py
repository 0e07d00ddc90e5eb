"""Transactions on one node: decisions on disk, then end markers in every participant, also after restarts and refusals."""

from __future__ import annotations

import asyncio
import errno
from itertools import pairwise
from pathlib import Path

import pytest
import structlog

from coordinator.runtime.effects import RequestContext
from coordinator.runtime.shard import ShardState
from protocol.errors import ErrorCode
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TransactionTopic,
)
from protocol.record_batch import Attributes, iter_batches
from tests.coordinator.logs.test_log_manager import Hook
from tests.coordinator.transaction_node import Question, TransactionNode, transaction_node


async def stable(there: TransactionNode, *topics: str) -> None:
    """All transactions in these topics have ended."""
    await there.until(
        lambda: all(there.log(topic).last_stable_offset == there.log(topic).end_offset for topic in topics)
    )


async def readable(there: TransactionNode, topic: str) -> int:
    """How many records a reader with read_committed sees."""
    return len(await there.committed(topic))


async def test_a_transaction_is_readable_in_all_partitions_once_it_is_committed(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        for topic in ("a", "b"):
            await there.opened.create(topic, 1)
        identity = await there.init()
        await there.wrote(identity, "a")
        await there.wrote(identity, "a", sequence=1)
        await there.wrote(identity, "b")
        assert [there.log(topic).last_stable_offset for topic in ("a", "b")] == [0, 0]
        assert there.described().state == "Ongoing"
        following = await there.end(identity, committed=True)
        assert following == (identity[0], identity[1] + 1)
        await stable(there, "a", "b")
        assert [await readable(there, topic) for topic in ("a", "b")] == [2, 1]
        await there.until_state("CompleteCommit")


async def test_partitions_that_are_not_there_do_not_hold_up_the_end(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        topics = (TransactionTopic("a", there.catalog.topic_id("a"), (0, 1, -1)),)
        added = await there.ask(AddPartitionsToTxnRequest("t", *identity, topics, False), AddPartitionsToTxnResponse)
        assert added.error_code == ErrorCode.NONE
        await there.wrote(identity, "a")
        await there.end(identity, committed=True)
        await there.until_state("CompleteCommit")
        assert await readable(there, "a") == 1


async def test_an_aborted_transaction_is_never_readable_and_the_next_one_is(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        await there.wrote(identity, "a")
        following = await there.end(identity, committed=False)
        await there.wrote(following, "a")
        await there.end(following, committed=True)
        await stable(there, "a")
        assert await readable(there, "a") == 1


async def test_the_next_transaction_writes_to_the_same_partition_without_being_told_to_wait(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        for _ in range(20):
            await there.wrote(identity, "a")
            identity = await there.end(identity, committed=True)
        await stable(there, "a")
        assert await readable(there, "a") == 20


async def test_a_commit_that_is_decided_ahead_is_parked_and_written_when_its_records_are_on_disk(
    tmp_path: Path,
) -> None:
    """It waits for the end markers of the one before, which come sooner than its own records are said to be stored."""
    hook = Hook()
    async with transaction_node(tmp_path, hook) as there:
        for topic in ("a", "b"):
            await there.opened.create(topic, 1)
        identity = await there.init()
        await there.wrote(identity, "a")
        hook.fails = ("append", next(path for _, path in hook.seen if "/a-0/" in f"/{path}" and path.endswith(".log")))
        with structlog.testing.capture_logs():
            identity = await there.end(identity, committed=True)
            await there.wrote(identity, "b")
            await there.until(lambda: there.shard().at_rest)
            question = Question(EndTxnRequest("t", *identity, True))
            token = there.transactions.replies.open(question)
            tell = there.shard().submit_ahead(question.request, RequestContext(token, "client", "127.0.0.1"))
            known = there.shard().core.transactions.known("t")
            assert known is not None
            assert known.parked
            end = there.shard()._log.end_offset
            hook.fails = ("", "")
            await there.until(lambda: not known.parked)
        assert known.identity.identity == (identity[0], identity[1] + 1), "it is decided"
        for _ in range(50):
            await asyncio.sleep(0)
        assert there.shard()._log.end_offset == end
        assert not question.answered.done()
        tell("")
        async with asyncio.timeout(30):
            answer = await question.answered
        assert isinstance(answer, EndTxnResponse)
        assert answer.error_code == ErrorCode.NONE
        await stable(there, "a", "b")


async def test_a_transaction_costs_four_syncs_and_its_completion_none(tmp_path: Path) -> None:
    """Add, data, decision, end marker; that it is complete is written with what the next one writes."""
    hook = Hook()
    async with transaction_node(tmp_path, hook) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        hook.seen.clear()
        for _ in range(30):
            await there.wrote(identity, "a")
            identity = await there.end(identity, committed=True)
        syncs = [path for operation, path in hook.seen if operation == "sync"]
        assert len(syncs) < 4.5 * 30
        await there.until(lambda: there.shard().core.durable_state()["t"][0].completing is None)


async def test_ends_of_many_transactions_in_one_turn_are_one_batch_of_the_partition(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        names = [f"id-{number}" for number in range(20)]
        identities = [await there.init(name) for name in names]
        for name, identity in zip(names, identities, strict=True):
            await there.wrote(identity, "a", transactional_id=name)
        for producer_id, epoch in identities:
            there.transactions.end_markers.write(
                ("a", there.catalog.topic_id("a"), 0), [(producer_id, epoch, True)], 0, Reports()
            )
        await stable(there, "a")
        content = await there.log("a").read(0, 1 << 20)
        control = [header for _, header in iter_batches(content) if header.attributes & Attributes.CONTROL]
        assert [header.record_count for header in control] == [20]


async def test_the_ends_of_ten_thousand_members_in_many_partitions_hold_up_the_loop_for_no_longer_than_a_few_ms(
    tmp_path: Path,
) -> None:
    """A job of Spark has so many: they are handed over partition by partition, in turns of the loop."""
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 40)
        topic_id = there.catalog.topic_id("a")
        ends = [(producer_id, 0, True) for producer_id in range(10_000)]
        reports = [Reports() for _ in range(40)]
        for partition, report in enumerate(reports):
            there.transactions.end_markers.write(("a", topic_id, partition), ends, 0, report)
        written = []
        while not all(report.told for report in reports):
            await asyncio.sleep(0)
            written.append(sum(bool(report.told) for report in reports))
        assert all(after - before <= 1 for before, after in pairwise([0, *written]))
        assert [report.told for report in reports] == [["taken", "written"]] * 40


class Reports:
    """What was told of a marker."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def taken(self) -> None:
        self.told.append("taken")

    def written(self) -> None:
        self.told.append("written")

    def gone(self) -> None:
        self.told.append("gone")

    def refused(self, reason: str) -> None:
        self.told.append(reason)


async def test_a_marker_is_told_when_it_is_in_the_log_and_when_it_is_on_disk_and_again_at_a_repetition(
    tmp_path: Path,
) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        await there.wrote(identity, "a")
        key = "a", there.catalog.topic_id("a"), 0
        for _ in range(2):
            report = Reports()
            there.transactions.end_markers.write(key, [(*identity, True)], 0, report)
            assert report.told == [], "not before the end of the turn"
            await there.until(lambda report=report: len(report.told) == 2)  # type: ignore[misc]
            assert report.told == ["taken", "written"]
            assert there.log("a").end_offset == 2, "one record and one marker, however often it is asked for"


@pytest.mark.parametrize("committed", [True, False])
async def test_markers_that_were_decided_and_not_written_leave_again_at_the_next_start(
    tmp_path: Path, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with transaction_node(tmp_path) as there:
        for topic in ("a", "b"):
            await there.opened.create(topic, 1)
        identity = await there.init()
        await there.wrote(identity, "a")
        await there.wrote(identity, "b")
        monkeypatch.setattr(there.transactions.end_markers, "write", lambda *_: None)  # it is killed before
        await there.end(identity, committed)
        assert there.log("a").last_stable_offset == 0
    async with transaction_node(tmp_path) as there:
        await stable(there, "a", "b")
        assert [await readable(there, topic) for topic in ("a", "b")] == [int(committed)] * 2
        await there.until_state("CompleteCommit" if committed else "CompleteAbort")


async def test_a_partition_that_refuses_its_marker_is_asked_again_and_the_reason_is_told_meanwhile(
    tmp_path: Path,
) -> None:
    hook = Hook()
    async with transaction_node(tmp_path, hook) as there:
        for topic in ("a", "b"):
            await there.opened.create(topic, 1)
        identity = await there.init()
        await there.wrote(identity, "a")
        await there.wrote(identity, "b")
        hook.fails, hook.number = ("append", "a-0/00000000000000000000.log"), errno.ENOSPC
        with structlog.testing.capture_logs() as lines:
            following = await there.end(identity, committed=True)
            await stable(there, "b")
            await there.until(lambda: len(there.described().waits_for) == 1)
            await there.until(lambda: "No space left on device" in there.described().waits_for[0])
        assert there.described().waits_for[0].startswith("a-0 (")
        refusals = [line for line in lines if line["event"] == "end_markers_refused"]
        assert [(line["topic"], line["partition"]) for line in refusals] == [("a", 0)]
        await there.wrote(following, "b")
        hook.fails = ("", "")
        await stable(there, "a")
        assert await readable(there, "a") == 1
        await there.end(following, committed=True)
        await stable(there, "b")


async def test_a_fault_at_one_partition_keeps_no_other_from_its_marker_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with transaction_node(tmp_path) as there:
        for topic in ("a", "b"):
            await there.opened.create(topic, 1)
        identity = await there.init()
        await there.wrote(identity, "a")
        await there.wrote(identity, "b")

        def fail(*_: object) -> int:
            raise RuntimeError("a fault of ours")

        with structlog.testing.capture_logs() as lines, monkeypatch.context() as faulty:
            faulty.setattr(there.log("a"), "end_transactions", fail)
            await there.end(identity, committed=True)
            await stable(there, "b")
            await there.until(lambda: "a fault of ours" in str(there.described().waits_for))
        assert {line["topic"] for line in lines if line["event"] == "end_markers_failed"} == {"a"}
        await stable(there, "a")
        await there.until_state("CompleteCommit")


async def test_a_topic_that_is_deleted_holds_up_no_transaction(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        for topic in ("a", "b"):
            await there.opened.create(topic, 1)
        identity = await there.init()
        await there.wrote(identity, "a")
        await there.wrote(identity, "b")
        await there.catalog.begin_deletion(there.catalog.topic("a"))
        await there.opened.partitions.delete("a", range(1))
        await there.end(identity, committed=True)
        await stable(there, "b")
        await there.until_state("CompleteCommit")


async def test_a_transaction_that_times_out_is_aborted_and_logged(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        with structlog.testing.capture_logs() as lines:
            identity = await there.init(timeout_ms=50)
            await there.wrote(identity, "a")
            await stable(there, "a")
        assert await readable(there, "a") == 0
        (aborted,) = [line for line in lines if line["event"] == "transaction_aborted"]
        assert (aborted["transactional_id"], aborted["producer_id"]) == ("t", identity[0])
        response = await there.ask(EndTxnRequest("t", *identity, True), EndTxnResponse)
        assert response.error_code == ErrorCode.TRANSACTION_ABORTABLE
        code, _ = await there.write(identity, "a")
        assert code == ErrorCode.TRANSACTION_ABORTABLE
        assert await there.end(identity, committed=False) == (identity[0], identity[1] + 1)


async def test_a_producer_whose_id_was_taken_over_writes_nothing(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        first = await there.init()
        await there.wrote(first, "a")
        second = await there.init()
        assert second == (first[0], first[1] + 1)
        await stable(there, "a")
        assert (await there.write(first, "a"))[0] == ErrorCode.PRODUCER_FENCED
        await there.wrote(second, "a")
        await there.end(second, committed=True)
        await stable(there, "a")
        assert await readable(there, "a") == 1


async def test_a_refused_decision_sends_no_marker_and_the_transaction_stays_open(tmp_path: Path) -> None:
    hook = Hook()
    async with transaction_node(tmp_path, hook) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        await there.wrote(identity, "a")
        hook.fails, hook.number = ("append", "__transaction_state-16/00000000000000000000.log"), errno.ENOSPC
        assert there.shard().partition == 16
        response = await there.ask(EndTxnRequest("t", *identity, True), EndTxnResponse)
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        hook.fails = ("", "")
        await there.until(lambda: there.shard().state is ShardState.ACTIVE)
        assert (there.described().state, there.log("a").last_stable_offset) == ("Ongoing", 0)
        await there.end(identity, committed=True)
        await stable(there, "a")


def add_of(there: TransactionNode, name: str, producer_id: int) -> AddPartitionsToTxnRequest:
    topic = TransactionTopic("a", there.catalog.topic_id("a"), (0,))
    return AddPartitionsToTxnRequest(name, producer_id, 0, (topic,))


async def test_an_add_is_answered_once_whatever_there_is_of_the_coordinator(tmp_path: Path) -> None:
    answers: list[AddPartitionsToTxnResponse] = []
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        for name in ("", "x" * 2000, "never seen"):
            there.transactions.add(add_of(there, name, 1), answers.append)
        assert [answer.error_code for answer in answers] == [
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ]
        identity = await there.init()
        there.shard().state = ShardState.LOADING
        there.transactions.add(add_of(there, "t", identity[0]), answers.append)
        assert answers.pop().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        there.shard().state = ShardState.ACTIVE
        there.transactions.add(add_of(there, "t", identity[0]), answers.append)  # stopped while it is under way
    assert answers[3:] == [AddPartitionsToTxnResponse(ErrorCode.NONE)]
    there.transactions.add(add_of(there, "t", identity[0]), answers.append)
    assert [answer.error_code for answer in answers[4:]] == [ErrorCode.NOT_COORDINATOR]


async def test_without_a_producer_id_at_hand_the_client_is_told_to_come_again(tmp_path: Path) -> None:
    given = iter([None, 7])
    async with transaction_node(tmp_path, producer_ids=lambda: next(given)) as there:
        await there.transactions.open("t")
        refused = await there.ask(InitProducerIdRequest("t"), InitProducerIdResponse)
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await there.init() == (7, 0)


async def test_replay_gives_the_state_that_was_with_and_without_completion_on_disk(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        await there.opened.create("a", 1)
        identity = await there.init()
        for _ in range(3):
            await there.wrote(identity, "a")
            identity = await there.end(identity, committed=True)
        await there.wrote(identity, "a")
        await there.until(lambda: there.shard().core.durable_state()["t"][0].completing is None)
        await asyncio.sleep(0)
        before = there.shard().core.durable_state()
        there.shard()._drop("as after a fault")
        await there.until(lambda: there.shard().state is ShardState.ACTIVE)
        assert there.shard().core.durable_state() == before
