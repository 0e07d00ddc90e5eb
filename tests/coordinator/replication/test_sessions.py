"""Replica sessions: armed partitions, what an answer brings, and connections that are over."""

from __future__ import annotations

from coordinator.replication.fetch import FetchPartition
from coordinator.replication.sessions import ReplicaSession, ReplicaSessions
from tests.coordinator.replication.replicas import B


def request(offset: int) -> FetchPartition:
    return FetchPartition(B, 1, offset, 1, 0)


def sized(sizes: dict[str, int]) -> ReplicaSession[str]:
    """A session in which these partitions are armed."""
    session: ReplicaSession[str] = ReplicaSession(B, 1)
    for partition in sizes:
        session.arm(partition, request(0))
    return session


def taken(session: ReplicaSession[str], sizes: dict[str, int], max_bytes: int = 100, partition_bytes: int = 40) -> str:
    """What one answer brings of partitions that have so many bytes, each in batches of 10."""

    def size_of(partition: str, _: FetchPartition, most: int) -> int:
        return min(sizes[partition], max(10, most // 10 * 10))

    return "".join(partition for partition, _ in session.take(size_of, max_bytes, partition_bytes))


def test_what_was_delivered_is_not_armed_until_it_is_named_again() -> None:
    sizes = {"a": 10}
    session = sized(sizes)
    assert taken(session, sizes) == "a"
    assert taken(session, sizes) == ""
    session.arm("a", request(1))
    assert session.armed("a") == request(1)
    assert taken(session, sizes) == "a"


def test_partitions_without_anything_new_stay_armed() -> None:
    sizes = {"a": 0, "b": 10}
    session = sized(sizes)
    assert taken(session, sizes) == "b"
    assert session.armed("a") is not None


def test_what_found_no_room_is_served_first_the_next_time() -> None:
    sizes = dict.fromkeys("abcd", 500)
    session = sized(sizes)
    assert taken(session, sizes) == "abc"
    for partition in "abc":
        session.arm(partition, request(4))
    assert taken(session, sizes) == "dab"


def test_a_batch_that_is_larger_than_every_bound_comes_alone() -> None:
    session = sized({"a": 1, "b": 1})
    assert session.take(lambda *_: 5_000, 100, 40) == [("a", request(0))]


def test_a_partition_that_is_forgotten_is_not_served() -> None:
    sizes = {"a": 10, "b": 10}
    session = sized(sizes)
    session.forget(["a", "c"])
    assert taken(session, sizes) == "b"


def test_a_request_of_a_former_connection_is_refused() -> None:
    sessions: ReplicaSessions[str] = ReplicaSessions()
    first = sessions.open(B, 1)
    assert first is not None
    assert sessions.open(B, 1) is first
    second = sessions.open(B, 2)
    assert second is not first
    assert sessions.open(B, 1) is None


def test_numbers_begin_anew_with_a_new_incarnation_and_the_old_one_is_refused() -> None:
    sessions: ReplicaSessions[str] = ReplicaSessions()
    again = B._replace(broker_epoch=B.broker_epoch + 1)
    assert sessions.open(B, 7) is not None
    assert sessions.open(again, 1) is not None
    assert sessions.open(B, 8) is None


def test_a_session_that_ended_serves_nothing_and_is_not_opened_by_what_was_still_on_its_way() -> None:
    sessions: ReplicaSessions[str] = ReplicaSessions()
    session = sessions.open(B, 1)
    assert session is not None
    session.arm("a", request(0))
    session.end()
    assert session.armed("a") is None
    assert sessions.open(B, 1) is None
    assert sessions.open(B, 2) is not None
