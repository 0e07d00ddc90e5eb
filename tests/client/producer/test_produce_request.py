"""Produce requests are filled up to their bounds, and every item is in one of them, in its order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from client.producer.produce_request import ENOUGH_BYTES, RequestFilling
from protocol.limits import max_request_elements
from protocol.messages import ApiKey

BYTES = 10_000


def filled(items: list[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """The requests for items of a leader and a size each: leader, and the numbers of the items."""
    requests = RequestFilling[int, int](lambda leader: BYTES)
    sent: list[tuple[int, list[int]]] = []
    for number, (leader, size) in enumerate(items):
        if size > requests.room(leader):
            sent.append((leader, requests.take(leader)))
        requests.add(leader, number, size)
    return [*sent, *requests.take_all()]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 15_000)), max_size=60))
def test_requests_keep_their_bound_and_the_order(items: list[tuple[int, int]]) -> None:
    sent = [(leader, numbers) for leader, numbers in filled(items) if numbers]
    for leader in range(3):
        mine = [number for to, numbers in sent if to == leader for number in numbers]
        assert mine == [number for number, (to, _) in enumerate(items) if to == leader]
    for _, numbers in sent:
        assert len(numbers) == 1 or sum(items[number][1] for number in numbers) <= BYTES


def test_no_request_is_cut_before_it_must_be() -> None:
    assert [numbers for _, numbers in filled([(0, 4000), (0, 5500), (0, 1), (1, 9999)])] == [[0, 1], [2], [3]]


def test_a_request_has_no_more_partitions_than_a_daemon_takes() -> None:
    most = max_request_elements(ApiKey.PRODUCE) // 6
    requests = RequestFilling[int, int](lambda leader: most * 1000)
    for number in range(most):
        if requests.room(0) < 1:
            break
        requests.add(0, number, 1)
    assert most - 10 < len(requests.take(0)) < most
    assert requests.room(0) == most * 1000


def test_a_request_has_enough_of_one_mebibyte_and_the_next_begins_empty() -> None:
    requests = RequestFilling[int, int](lambda leader: 8 * ENOUGH_BYTES)
    requests.add(0, 1, ENOUGH_BYTES - 1)
    assert not requests.has_enough(0)
    requests.add(0, 2, 1)
    assert requests.has_enough(0)
    assert not requests.has_enough(1)
    assert requests.take(0) == [1, 2]
    assert not requests.has_enough(0)
    requests.add(0, 3, 2 * ENOUGH_BYTES)
    assert requests.take_all() == [(0, [3])]
    assert not requests.has_enough(0)
