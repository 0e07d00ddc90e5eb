"""Shares of bundles among members with unequal subscriptions, against every other way to share them out."""

from __future__ import annotations

from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from client.assignors import Subscription
from client.assignors.shares import shares
from protocol.subscription import TopicPartition
from tests.client.assignors.oracles import best_by_exhaustion


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Sizes of bundles, their subscribers, and how many units of each bundle each subscriber owns."""
    count = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4 if count < 4 else 3))
    subscribers = [sorted(draw(st.frozensets(st.integers(0, count - 1), min_size=1))) for _ in sizes]
    reached = sorted({member for members in subscribers for member in members})
    subscribers = [[reached.index(member) for member in members] for members in subscribers]
    owned = []
    for size, members in zip(sizes, subscribers, strict=True):
        owners = [draw(st.sampled_from([*members, -1])) for _ in range(size)]
        owned.append([owners.count(member) for member in members])
    return sizes, subscribers, owned


@given(problems())
# One way to make room costs a move that another one does without.
@example(([1, 4], [[1, 3], [0, 2, 3]], [[0, 1], [2, 1, 0]]))
# What a member gives up at first it must get back later.
@example(([2, 1, 4], [[0, 3, 4], [0, 1, 3], [1, 2, 3]], [[2, 0, 0], [1, 0, 0], [4, 0, 0]]))
@settings(max_examples=400, deadline=None)
def test_shares_have_the_best_balance_and_keep_the_most(
    problem: tuple[list[int], list[list[int]], list[list[int]]],
) -> None:
    sizes, subscribers, owned = problem
    count = max(member for members in subscribers for member in members) + 1
    before: list[dict[int, int]] = [{} for _ in range(count)]
    for bundle, (members, units) in enumerate(zip(subscribers, owned, strict=True)):
        for member, number in zip(members, units, strict=True):
            if number:
                before[member][bundle] = number
    result = shares(sizes, subscribers, before)

    for bundle, (size, members) in enumerate(zip(sizes, subscribers, strict=True)):
        assert sum(share.get(bundle, 0) for share in result) == size
        assert all(member in members for member, share in enumerate(result) if share.get(bundle, 0))
    unevenness = sum(sum(share.values()) ** 2 for share in result)
    keeps = sum(
        min(units, result[member].get(bundle, 0)) for member, had in enumerate(before) for bundle, units in had.items()
    )
    assert (unevenness, keeps) == best_by_exhaustion(*_as_group(sizes, subscribers, before))


def _as_group(
    sizes: list[int], subscribers: list[list[int]], before: list[dict[int, int]]
) -> tuple[dict[str, int], dict[str, Subscription]]:
    numbers = [iter(range(size)) for size in sizes]
    members = {
        f"m{member}": Subscription(
            tuple(f"t{bundle}" for bundle, subscribed in enumerate(subscribers) if member in subscribed),
            owned_partitions=tuple(
                TopicPartition(f"t{bundle}", next(numbers[bundle]))
                for bundle, units in had.items()
                for _ in range(units)
            ),
        )
        for member, had in enumerate(before)
    }
    return {f"t{bundle}": size for bundle, size in enumerate(sizes)}, members


def test_every_chain_of_three_members_and_what_they_may_own() -> None:
    # Exhaustive both ways: bundles a (of the first two) and b (of the last two), every size up to 4 and every ownership.
    for first, second in product(range(1, 5), repeat=2):
        for a, b in product(range(first + 1), range(second + 1)):
            before = [{0: a} if a else {}, {0: first - a, 1: b}, {1: second - b} if second > b else {}]
            before[1] = {bundle: units for bundle, units in before[1].items() if units}
            sizes, subscribers = [first, second], [[0, 1], [1, 2]]
            result = shares(sizes, subscribers, before)
            unevenness = sum(sum(share.values()) ** 2 for share in result)
            keeps = sum(
                min(units, result[member].get(bundle, 0))
                for member, had in enumerate(before)
                for bundle, units in had.items()
            )
            assert (unevenness, keeps) == best_by_exhaustion(*_as_group(sizes, subscribers, before))


def test_what_is_owned_is_not_changed() -> None:
    before = [{0: 3}, {1: 1}]
    shares([3, 1], [[0, 1], [0, 1]], before)
    assert before == [{0: 3}, {1: 1}]
