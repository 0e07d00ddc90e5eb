"""The transaction core, one decision after the other: identities, partitions, decisions and markers."""

from __future__ import annotations

import pytest

from coordinator.transactions.config import LAST_EPOCH, TransactionConfig
from coordinator.transactions.orders import MarkerEnd, MarkerOutcome, MarkerPartition, TransactionName, WriteMarkers
from coordinator.transactions.records import IdentityRecord, MemberRecord, MemberTombstone
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.producers import OUTCOME_ABORTED, OUTCOME_COMMITTED, InitProducerIdRequest
from protocol.messages.transactions import (
    AbortTransactionRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    JoinTransactionRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tests.coordinator.transactions.steps import Coordinator, adding

IN_ORDERS_0 = MarkerPartition("orders", "id-orders", 0)


def test_a_transaction_is_added_to_decided_marked_and_complete() -> None:
    there = Coordinator()
    begun = there.init()
    assert (begun.error_code, begun.producer_id, begun.producer_epoch) == (0, 1000, 0)
    assert there.add(1000, 0, 0).error_code == ErrorCode.NONE
    ended = there.end(1000, 0)
    assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, 1000, 1)
    (order,) = there.write_markers()
    assert order == WriteMarkers("t", 1000, 0, {1000: True}, {IN_ORDERS_0: [1000]})
    assert (order.partitions, order.ends(IN_ORDERS_0)) == ((IN_ORDERS_0,), (MarkerEnd(1000, 0, True),))
    assert order.transaction == TransactionName("t", 1000, 0)
    there.advance(200)
    assert isinstance(there.written[-1], MemberTombstone)
    completed = there.written[-2]
    assert isinstance(completed, IdentityRecord)
    assert completed.completing is None
    there.advance(there.config.carried_ms)
    assert there.timers == {}
    assert not there.core.transactions["t"].transactions


def test_the_decision_is_one_record() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    before = len(there.written)
    there.end(1000, 0)
    record, carried = there.written[before:]
    assert isinstance(record, IdentityRecord)
    assert isinstance(carried, MemberRecord)  # says nothing of what is decided
    assert carried.transaction == record.identity
    assert record.identity == (1000, 1)
    assert record.completing is not None
    assert record.completing.verdicts == ((1000, True),)


def test_partitions_of_one_request_are_one_record() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 3, 1, 2)
    member = there.written[-1]
    assert isinstance(member, MemberRecord)
    assert member.topics[0].partitions == (1, 2, 3)
    written = len(there.written)
    there.add(1000, 0, 2, 1)
    assert len(there.written) == written, "a partition that is known is written again"
    there.add(1000, 0, 7, 1)
    assert there.written[-1] == member._replace(
        topics=(member.topics[0].__class__("orders", "id-orders", (1, 2, 3, 7)),)
    )


def test_the_next_transaction_is_added_to_while_the_markers_are_on_their_way() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    there.end(1000, 0)
    assert there.add(1000, 1, 1).error_code == ErrorCode.NONE, "another partition has no marker to wait for"
    waiting = there.ask(adding("t", 1000, 1, 0))
    assert waiting not in there.answers
    there.write_markers(MarkerOutcome.TAKEN)
    assert there.answers[waiting].error_code == ErrorCode.NONE  # type: ignore[attr-defined]


def test_the_next_decision_waits_for_all_markers() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0, 1)
    there.end(1000, 0)
    there.add(1000, 1, 2)
    waiting = there.ask(EndTxnRequest("t", 1000, 1, True))
    (order,) = there.orders
    there.marked(order.transaction, "id-orders", 0, MarkerOutcome.DONE)
    there.marked(order.transaction, "id-orders", 1, MarkerOutcome.TAKEN)
    assert waiting not in there.answers
    there.orders.clear()
    there.marked(order.transaction, "id-orders", 1, MarkerOutcome.DONE)
    assert there.answers[waiting].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
    assert [one.producer_epoch for one in there.orders] == [1]
    assert any(isinstance(record, MemberTombstone) for record in there.written), "complete with the next decision"


def test_a_marker_that_is_refused_is_waited_for_with_its_reason() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    there.end(1000, 0)
    (order,) = there.orders
    there.marked(order.transaction, "id-orders", 0, MarkerOutcome.REFUSED, "the disk is full")
    assert there.core.describe("t").waits_for == ("orders-0 (the disk is full)",)
    waiting = there.ask(adding("t", 1000, 1, 0))
    there.advance(4_999)
    assert waiting not in there.answers
    there.advance(1)
    answer = there.answers[waiting]
    assert answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS  # type: ignore[attr-defined]
    assert "orders-0 (the disk is full)" in answer.error_message  # type: ignore[attr-defined]
    there.marked(order.transaction, "id-orders", 0, MarkerOutcome.GONE)
    assert there.core.describe("t").waits_for == ()


def test_a_marker_that_was_taken_and_then_refused_is_waited_for_again() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    there.end(1000, 0)
    (order,) = there.orders
    there.marked(order.transaction, "id-orders", 0, MarkerOutcome.TAKEN)
    there.marked(order.transaction, "id-orders", 0, MarkerOutcome.REFUSED, "the write failed")
    assert there.ask(adding("t", 1000, 1, 0)) not in there.answers


def test_outcomes_of_another_transaction_change_nothing() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    there.end(1000, 0)
    for name in (TransactionName("t", 1000, 1), TransactionName("t", 7, 0), TransactionName("u", 1000, 0)):
        there.marked(name, "id-orders", 0, MarkerOutcome.DONE)
    there.marked(TransactionName("t", 1000, 0), "id-others", 0, MarkerOutcome.DONE)
    assert there.core.describe("t").state == "PrepareCommit"


def test_a_parked_request_is_not_decided_when_its_connection_closes() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    there.end(1000, 0)
    waiting = there.ask(adding("t", 1000, 1, 0))
    there.carry_out(there.core.abandon(waiting, there.step()))
    there.write_markers()
    there.advance(10_000)
    assert waiting not in there.answers
    assert there.core.describe("t").members == ()


def test_what_is_parked_is_decided_in_its_order() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    there.end(1000, 0)
    there.add(1000, 1, 1)
    first = there.ask(adding("t", 1000, 1, 0))
    commit = there.ask(EndTxnRequest("t", 1000, 1, True))
    again = there.ask(EndTxnRequest("t", 1000, 1, True))
    other = there.ask(InitProducerIdRequest("t"))
    there.write_markers()
    assert there.answers[first].error_code == 0  # type: ignore[attr-defined]
    for token in (commit, again, other):
        assert there.answers[token].error_code == 0  # type: ignore[attr-defined]
    assert there.answers[commit] == there.answers[again]
    assert there.answers[other].producer_epoch == 3  # type: ignore[attr-defined]
    (order,) = there.orders
    assert {place.partition for place in order.partitions} == {0, 1}


def test_after_the_last_epoch_comes_a_new_producer_id() -> None:
    there = Coordinator(TransactionConfig(last_epoch=1))
    there.init()
    for pid, epoch in ((1000, 0), (1000, 1), (1001, 0), (1001, 1)):
        assert there.add(pid, epoch, 0).error_code == ErrorCode.NONE
        ended = there.end(pid, epoch)
        assert (ended.producer_id, ended.producer_epoch) == ((pid, 1) if epoch == 0 else (pid + 1, 0))
        there.write_markers()
    assert TransactionConfig().last_epoch == LAST_EPOCH


def test_without_a_producer_id_nothing_is_decided() -> None:
    there = Coordinator(TransactionConfig(last_epoch=1))
    there.has_producer_ids = False
    assert there.init().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert there.core.transactions == {}
    there.has_producer_ids = True
    there.init()
    there.end(1000, 0, False)
    there.add(1000, 1, 0)
    there.has_producer_ids = False
    written = len(there.written)
    assert there.end(1000, 1).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert there.abort().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(there.written) == written
    there.advance(60_500)
    assert there.core.describe("t").state == "Ongoing", "the timeout needs an id as well"
    there.has_producer_ids = True
    there.advance(1_000)
    assert there.core.describe("t").state == "PrepareAbort"


def test_an_uncertain_commit_is_settled_with_the_identity_it_had() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    there.end(1000, 0)
    settled = there.init(pid=1000, epoch=0)
    assert (settled.producer_epoch, settled.previous_outcome) == (1, OUTCOME_COMMITTED)
    there.write_markers()
    there.add(1000, 1, 0)
    there.end(1000, 1, False)
    assert there.init(pid=1000, epoch=1).previous_outcome == OUTCOME_ABORTED


@pytest.mark.parametrize("restart", [False, True])
def test_markers_leave_again_after_a_load(restart: bool) -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0, 1)
    there.end(1000, 0, False)
    before = list(there.orders)
    if restart:
        there.restart()
    assert there.orders == before
    there.write_markers()
    there.advance(200)
    assert there.core.transactions["t"].identity.completing is None
    assert there.core.describe("t").state == ("Ongoing" if restart else "CompleteAbort")


def test_a_completion_that_was_not_written_is_found_at_the_load() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    there.end(1000, 0)
    there.write_markers()
    there.restart()
    (order,) = there.orders
    assert order.producer_epoch == 0
    there.write_markers()
    there.advance(200)
    there.restart()
    assert there.orders == []


def test_members_that_a_crash_left_over_are_erased() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    there.end(1000, 0)
    there.write_markers()
    there.advance(200)
    other = Coordinator()
    for record in there.written:
        if not isinstance(record, MemberTombstone):  # they were lost
            other.core.apply(record)
    step = other.step()
    for _ in other.core.loaded(step):
        pass
    assert [type(record) for record in step.effects.records] == [MemberTombstone]


def test_replay_gives_the_same_state() -> None:
    there = Coordinator(TransactionConfig(last_epoch=2))
    identity = there.init()
    pid, epoch = identity.producer_id, identity.producer_epoch
    for number in range(12):
        there.add(pid, epoch, number % 3)
        ended = there.end(pid, epoch, number % 4 != 0)
        pid, epoch = ended.producer_id, ended.producer_epoch
        there.write_markers()
    assert there.replayed().durable_state() == there.core.durable_state()


@pytest.mark.parametrize(
    "request_",
    [
        InitProducerIdRequest("t"),
        adding("t", 1, 0, 0),
        EndTxnRequest("t", 1, 0, True),
        JoinTransactionRequest("t", "q", 1, "m"),
        AbortTransactionRequest("t"),
    ],
)
def test_every_request_can_be_refused(request_: Request) -> None:
    answer = Coordinator().core.refusal(request_, ErrorCode.NOT_COORDINATOR, "elsewhere")
    assert type(answer) is request_.response
    assert answer.error_code == ErrorCode.NOT_COORDINATOR  # type: ignore[attr-defined]
    assert Coordinator().core.request_is_about(request_) == "t"


def test_descriptions_and_lists_are_answers_as_well() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    described = there.answered(DescribeTransactionsRequest(("t", "u")), DescribeTransactionsResponse)
    assert [one.state for one in described.transaction_states] == ["Ongoing", ""]
    assert described.transaction_states[1].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert described.transaction_states[0] == there.core.describe("t")
    listed = there.answered(ListTransactionsRequest(("Ongoing", "Onboard")), ListTransactionsResponse)
    assert listed.unknown_state_filters == ("Onboard",)
    assert list(listed.transaction_states) == there.core.list((), (), -1, there.wall_ms)
    about = there.core.request_is_about
    assert (about(DescribeTransactionsRequest(("t",))), about(ListTransactionsRequest())) == ("t", "")
    refused = there.core.refusal(DescribeTransactionsRequest(("t",)), ErrorCode.NOT_COORDINATOR, "elsewhere")
    assert isinstance(refused, DescribeTransactionsResponse)
    assert refused.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR
    assert isinstance(
        there.core.refusal(ListTransactionsRequest(), ErrorCode.NOT_COORDINATOR, ""), ListTransactionsResponse
    )


def test_unloading_answers_what_is_parked_and_leaves_no_timer() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0)
    there.end(1000, 0)
    there.add(1000, 1, 1)
    waiting = [there.ask(adding("t", 1000, 1, 0)), there.ask(EndTxnRequest("t", 1000, 1, True))]
    there.carry_out(there.core.start_expiry(there.step(), 100))
    there.carry_out(there.core.unload(there.step()))
    assert [there.answers[token].error_code for token in waiting] == [ErrorCode.NOT_COORDINATOR] * 2  # type: ignore[attr-defined]
    assert there.timers == {}
    assert there.core.durable_state() == {}


@pytest.mark.parametrize("field", ["transaction_max_timeout_ms", "max_transactional_ids", "last_epoch", "max_wait_ms"])
def test_a_bound_is_at_least_one(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        TransactionConfig(**{field: 0})


def test_epochs_end_where_kafka_ends_them() -> None:
    with pytest.raises(ValueError, match="last_epoch"):
        TransactionConfig(last_epoch=LAST_EPOCH + 1)


def test_a_hundred_partitions_are_named_that_are_waited_for_and_the_others_counted() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, *range(150))
    there.end(1000, 0)
    waits = there.core.describe("t").waits_for
    assert waits[:2] == ("orders-0", "orders-1")
    assert waits[99:] == ("orders-99", "and 50 more partitions")
