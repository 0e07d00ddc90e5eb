"""Partitions that are carried from a transaction to the next: how many, for how long, and what people are told of them."""

from __future__ import annotations

from coordinator.transactions.carrying import MAX_CARRIED
from coordinator.transactions.records import NOT_STARTED, MemberRecord, MemberTombstone
from protocol.errors import ErrorCode
from tests.coordinator.transactions.steps import START_WALL_MS, Coordinator


def in_a_loop(*partitions: int, transactions: int = 1) -> Coordinator:
    """A producer that has written to these partitions in each of its transactions; all markers are on disk."""
    there = Coordinator()
    there.init()
    for epoch in range(transactions):
        assert there.add(1000, epoch, *partitions).error_code == ErrorCode.NONE
        assert there.end(1000, epoch).error_code == ErrorCode.NONE
        there.write_markers()
    return there


def members(there: Coordinator) -> list[MemberRecord]:
    return [record for record in there.written if isinstance(record, MemberRecord)]


def test_a_loop_writes_one_member_and_one_identity_for_each_transaction() -> None:
    there = in_a_loop(0, 1, transactions=5)
    before = len(there.written)
    there.add(1000, 5, 1, 0)
    assert len(there.written) == before, "what is carried needs no record"
    there.end(1000, 5)
    assert [type(record).__name__ for record in there.written[before:]] == [
        "IdentityRecord",
        "MemberTombstone",
        "MemberRecord",
    ]


def test_the_carried_member_has_the_same_partitions_and_says_that_it_is_carried() -> None:
    there = in_a_loop(3, 1)
    added, carried = members(there)
    assert carried.topics is added.topics
    assert (carried.transaction, carried.producer_id) == ((1000, 1), 1000)
    assert (added.started_wall_ms, carried.started_wall_ms) == (START_WALL_MS, NOT_STARTED)


def test_as_many_are_carried_as_there_may_be_and_no_more() -> None:
    assert len(members(in_a_loop(*range(MAX_CARRIED)))) == 2
    there = in_a_loop(*range(MAX_CARRIED + 1))
    assert len(members(there)) == 1
    there.add(1000, 1, 0)
    there.end(1000, 1)
    assert members(there)[-1].topics[0].partitions == (0,)


def test_what_many_small_requests_add_is_counted_together() -> None:
    there = Coordinator()
    there.init()
    for partition in range(MAX_CARRIED + 1):
        there.add(1000, 0, partition)
    there.end(1000, 0)
    assert members(there)[-1].transaction == (1000, 0)


def test_people_see_an_open_transaction_from_its_first_write_on() -> None:
    there = in_a_loop(0)
    there.advance(100)
    described = there.core.describe("t")
    assert (described.state, described.members, described.transaction_start_ms) == ("CompleteCommit", (), -1)
    assert there.core.list(("Ongoing",), (), -1, there.wall_ms) == []
    assert there.core.list((), (), 0, there.wall_ms) == []
    there.add(1000, 1, 0)
    there.advance(50)
    described = there.core.describe("t")
    assert (described.state, described.transaction_start_ms) == ("Ongoing", START_WALL_MS + 100)
    assert described.members[0].started_ms == START_WALL_MS + 100
    assert [one.transactional_id for one in there.core.list(("Ongoing",), (), 49, there.wall_ms)] == ["t"]


def test_a_record_that_is_written_with_the_first_write_says_when_it_was() -> None:
    there = in_a_loop(0)
    there.advance(100)
    there.add(1000, 1, 1)
    assert members(there)[-1].started_wall_ms == START_WALL_MS + 100


def test_a_transaction_that_is_found_carried_after_a_crash_is_shown_as_open_since_then() -> None:
    there = in_a_loop(0)
    there.advance(1_000)
    there.restart()
    assert there.core.describe("t").transaction_start_ms == START_WALL_MS + 1_000


def test_what_is_given_up_leaves_nothing_behind_and_its_producer_goes_on() -> None:
    there = in_a_loop(0)
    there.advance(there.config.carried_ms)
    assert there.written[-1] == MemberTombstone("t", (1000, 1), 1000)  # type: ignore[arg-type]
    assert there.timers == {}
    assert not there.core.transactions["t"].transactions
    assert "transaction_aborted" not in there.notes
    there.add(1000, 1, 0)
    assert there.end(1000, 1).error_code == ErrorCode.NONE


def test_a_request_that_names_no_partition_opens_nothing() -> None:
    there = in_a_loop(0)
    assert there.add(1000, 1).error_code == ErrorCode.NONE
    assert there.core.describe("t").state == "CompleteCommit"
