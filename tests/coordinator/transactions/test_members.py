"""Transactions with many members, and bounds."""

from __future__ import annotations

import sys
import time
from types import FrameType

from coordinator.server.handlers.describe_transactions import bounded
from coordinator.transactions.config import TransactionConfig, TransactionStep
from coordinator.transactions.orders import MarkerOutcome, WriteMarkers
from coordinator.transactions.records import MemberTombstone
from coordinator.transactions.transaction import Waits
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribedTransaction,
    EndTxnRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionMember,
    TransactionTopic,
)
from tests.coordinator.transactions.steps import Coordinator, adding

TASKS = 300


def test_members_that_wrote_to_the_same_partitions_share_an_order() -> None:
    there = Coordinator()
    members = [there.join(7, f"task-{number}") for number in range(TASKS)]
    for number, member in enumerate(members):
        places = (2, 0, 1) if number % 2 else (0, 1, 2)
        there.add(member.producer_id, member.producer_epoch, *places)
    winners = tuple(member.producer_id for member in members[::2])
    transaction_producer_id = members[0].transaction_producer_id
    ended = there.end(transaction_producer_id, 0, version=7, scope="query", members=winners)
    assert ended.error_code == ErrorCode.NONE
    (order,) = there.write_markers()
    assert {place.partition for place in order.partitions} == {0, 1, 2}
    for place in order.partitions:
        assert order.weight(place) == len(order.ends(place)) == TASKS
        assert {end.producer_id for end in order.ends(place) if end.committed} == set(winners)
    there.advance(200)
    assert sum(isinstance(record, MemberTombstone) for record in there.written) == TASKS
    assert there.core.transactions["t"].names == {}


def test_ends_are_made_when_they_are_asked_for_and_once_for_partitions_with_the_same_writers() -> None:
    there = Coordinator()
    members = [there.join(7, f"task-{number}") for number in range(3)]
    for number, member in enumerate(members):
        there.add(member.producer_id, member.producer_epoch, 0, 1, number + 2)
    there.end(members[0].transaction_producer_id, 0, committed=False, version=7, scope="query")
    (order,) = there.write_markers()
    by_number = {place.partition: place for place in order.partitions}
    assert sorted(by_number) == [0, 1, 2, 3, 4]
    assert order.ends(by_number[0]) is order.ends(by_number[1]), "10,000 members in 600 partitions took 600 ms"
    assert [len(order.ends(by_number[number])) for number in range(5)] == [3, 3, 1, 1, 1]


def test_a_decision_about_many_members_takes_no_longer_for_the_partitions_they_share() -> None:
    there = Coordinator(TransactionConfig())
    for number in range(2_000):
        member = there.join(7, f"task-{number}")
        there.add(member.producer_id, 0, *{number % 40, 40 + number % 7, 50 + number % 3})
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    request = EndTxnRequest("t", there.core.transactions["t"].identity.producer_id, 0, False, 7, "query")
    step = there.step(1)
    sys.setprofile(count)
    try:
        there.core.decide(request, step)
    finally:
        sys.setprofile(None)
    assert step.effects.orders is not None
    (order,) = step.effects.orders
    assert isinstance(order, WriteMarkers)
    assert len(order.partitions) == 50
    assert calls < 4_000, "some for each member and some for each partition, and none for each pair"


def test_an_answer_describes_as_many_members_as_fit_and_says_so() -> None:
    topics = (TransactionTopic("t", "id", (0, 1, 2, 3)),)
    members = tuple(TransactionMember(number, f"m-{number}", 0, topics) for number in range(3))
    described = [DescribedTransaction(0, "a", members=members), DescribedTransaction(0, "b", members=members[:1])]
    assert list(bounded(described, 80)) == described
    first, second = bounded(described, 40)
    assert (first.members, second.members) == (members[:2], ())
    assert "1 of 3 members are left out" in first.error_message
    assert "1 of 1 members are left out" in second.error_message


def test_each_partition_is_in_one_order() -> None:
    there = Coordinator()
    members = [there.join(0, f"task-{number}") for number in range(20)]
    for number, member in enumerate(members):
        there.add(member.producer_id, 0, number % 5, 5 + number % 3, 8)
    there.end(members[0].transaction_producer_id, 0, committed=False, version=0, scope="query")
    assert len(there.orders) == 1
    places = [place.partition for order in there.orders for place in order.partitions]
    assert sorted(places) == list(range(9))
    for order in there.orders:
        for place in order.partitions:
            wrote = {
                member.producer_id
                for number, member in enumerate(members)
                if place.partition in (number % 5, 5 + number % 3, 8)
            }
            assert {end.producer_id for end in order.ends(place)} == wrote


def test_a_name_is_known_again_after_a_restart() -> None:
    there = Coordinator()
    first = there.join(0, "a")
    there.restart()
    assert there.join(0, "a") == first
    there.end(first.transaction_producer_id, 0, committed=False, version=0, scope="query")
    assert there.join(0, "a").producer_id != first.producer_id, (
        "the same name in the next transaction is another member"
    )


def test_members_keep_their_identity_when_the_bound_is_reached() -> None:
    there = Coordinator(TransactionConfig(max_transaction_members=2))
    there.join(0, "a")
    there.join(0, "b")
    assert there.join(0, "c").error_code == ErrorCode.POLICY_VIOLATION
    assert there.join(0, "b").error_code == ErrorCode.NONE


def test_a_producer_writes_to_so_many_partitions_and_goes_on_with_those_it_has() -> None:
    there = Coordinator(TransactionConfig(max_transaction_partitions=3))
    there.init()
    assert there.add(1000, 0, 0, 1).error_code == ErrorCode.NONE
    before = list(there.written)
    refused = there.add(1000, 0, 1, 2, 3)
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert "max_transaction_partitions 3" in refused.error_message
    assert there.written == before, "all partitions of a request or none"
    assert [there.add(1000, 0, *some).error_code for some in ((1, 2), (0, 1, 2))] == [ErrorCode.NONE] * 2
    assert there.end(1000, 0).error_code == ErrorCode.NONE
    (order,) = there.write_markers()
    assert [place.partition for place in order.partitions] == [0, 1, 2]


def test_an_add_to_a_large_transaction_and_a_list_with_many_filters_are_short_steps() -> None:
    there = Coordinator()
    there.init()
    for first in (0, 5_000):
        there.add(1000, 0, *range(first, first + 5_000))
    began = time.process_time()
    assert there.add(1000, 0, *range(9_999, -1, -2)).error_code == ErrorCode.NONE
    assert time.process_time() - began < 0.05, "looking one by one took 300 ms"
    for number in range(1_000):
        there.init(f"id-{number}")
    names, ids = tuple(f"state-{number}" for number in range(8_000)), tuple(range(1 << 40, (1 << 40) + 8_000))
    for filters in (ListTransactionsRequest(names), ListTransactionsRequest((), ids)):
        began = time.process_time()
        assert there.answered(filters, ListTransactionsResponse).transaction_states == ()
        assert time.process_time() - began < 0.05, "comparing one by one took 100 to 250 ms"


def test_what_becomes_part_of_records_has_bounds() -> None:
    there = Coordinator()
    there.init()
    for topic in (TransactionTopic("t" * 250, "id", (0,)), TransactionTopic("t", "x" * 65, (0,))):
        request = AddPartitionsToTxnRequest("t", 1000, 0, (topic,), False)
        refused = there.answered(request, AddPartitionsToTxnResponse)
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "there can be no topic t" in refused.error_message
        assert len(refused.error_message) < 250
    ended = there.end(1000, 0, version=1, scope="q" * 1025)
    assert ended.error_code == ErrorCode.INVALID_REQUEST
    assert "scope" in ended.error_message
    assert there.end(1000, 0, version=1, scope="q" * 1024).error_code == ErrorCode.NONE


def test_bounds_of_all_partitions_are_shared_out() -> None:
    assert TransactionConfig().max_ids_of_a_partition == 4_000
    assert TransactionConfig(max_transactional_ids=1).max_ids_of_a_partition == 1


def test_many_completions_take_several_records_of_a_batch_each() -> None:
    there = Coordinator()
    for number in range(150):
        name = f"id-{number}"
        begun = there.init(name)
        there.add(begun.producer_id, 0, 0, name=name)
        there.end(begun.producer_id, 0, name=name)
    orders = list(there.orders)
    there.orders.clear()
    for order in orders:
        there.marked(order.transaction, "id-orders", 0, MarkerOutcome.DONE)
    assert len(there.core.transactions.finished) == 150
    there.advance(200)
    assert there.core.transactions.finished == {}
    there.advance(there.config.carried_ms)
    assert not any(state.transactions for state in there.core.transactions.values())
    assert there.replayed().durable_state() == there.core.durable_state()


def test_members_and_their_partitions_have_a_bound_together() -> None:
    there = Coordinator(TransactionConfig(max_transaction_writes=3))
    first, second = there.join(0, "a"), there.join(0, "b")
    assert there.add(first.producer_id, 0, 0, 1).error_code == ErrorCode.NONE
    refused = there.add(second.producer_id, 0, 0, 1)
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert "max_transaction_writes 3" in refused.error_message
    assert there.add(second.producer_id, 0, 0).error_code == ErrorCode.NONE
    assert there.add(first.producer_id, 0, 1, 0).error_code == ErrorCode.NONE, "it is known"
    assert there.add(first.producer_id, 0, 2).error_code == ErrorCode.POLICY_VIOLATION
    there.restart()
    assert there.add(second.producer_id, 0, 1).error_code == ErrorCode.POLICY_VIOLATION


def test_a_marker_asks_those_again_that_wait_for_it_and_no_others() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, *range(50))
    there.end(1000, 0)
    (order,) = there.orders
    there.orders.clear()
    parked = [there.ask(adding("t", 1000, 1, number)) for number in range(50)]
    several = there.ask(adding("t", 1000, 1, 3, 4))
    asked = 0
    decide = there.core._decide

    def count(request: Request, step: TransactionStep) -> Waits | None:
        nonlocal asked
        asked += 1
        return decide(request, step)

    there.core._decide = count  # type: ignore[method-assign]
    for number, token in enumerate(parked):
        assert token not in there.answers
        there.marked(order.transaction, "id-orders", number, MarkerOutcome.TAKEN)
        assert token in there.answers
        assert (several in there.answers) == (number >= 4)
    assert asked == 51
    behind_all = there.ask(EndTxnRequest("t", 1000, 1, False))
    assert behind_all not in there.answers
    for number in range(50):
        there.marked(order.transaction, "id-orders", number, MarkerOutcome.DONE)
    assert behind_all in there.answers
    assert asked == 53
    assert there.core.transactions["t"].behind == {}


def test_a_parked_add_that_its_partition_still_blocks_stays_parked() -> None:
    there = Coordinator()
    there.init()
    there.add(1000, 0, 0, 1)
    there.end(1000, 0)
    (order,) = there.orders
    there.orders.clear()
    blocked, free = there.ask(adding("t", 1000, 1, 0)), there.ask(adding("t", 1000, 1, 1))
    there.marked(order.transaction, "id-orders", 1, MarkerOutcome.TAKEN)
    assert free in there.answers
    assert blocked not in there.answers
    there.marked(order.transaction, "id-orders", 0, MarkerOutcome.TAKEN)
    assert blocked in there.answers
