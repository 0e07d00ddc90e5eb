"""What balance may cost: chains of members that share topics with their neighbours, and searches that are cut short."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.assignors import Assignor, CooperativeStickyAssignor, StickyAssignor, Subscription
from client.assignors.shares import Limits, shares
from protocol.subscription import TopicPartition
from tests.client.assignors.histories import claiming
from tests.client.assignors.oracles import check_valid, kept

Units = list[dict[int, int]]
NO_WORK = Limits(most_steps=-1)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[int], list[list[int]], Units]:
    """Members in a row, each sharing bundles with the next ones; most units have an owner."""
    count = draw(st.integers(2, 14))
    reach = draw(st.integers(2, 3))
    subscribers = [list(range(first, min(count, first + reach))) for first in range(count)]
    sizes = draw(st.lists(st.integers(1, 30), min_size=count, max_size=count))
    owned: Units = [{} for _ in range(count)]
    for bundle, (size, members) in enumerate(zip(sizes, subscribers, strict=True)):
        left = draw(st.integers(0, size))
        for member in members:
            units = draw(st.integers(0, left))
            left -= units
            if units:
                owned[member][bundle] = units
    return sizes, subscribers, owned


def check_shares(sizes: list[int], subscribers: list[list[int]], result: Units) -> None:
    for bundle, (size, members) in enumerate(zip(sizes, subscribers, strict=True)):
        assert sum(share.get(bundle, 0) for share in result) == size
        assert all(member in members for member, share in enumerate(result) if share.get(bundle, 0))


def unevenness(plan: Units) -> int:
    return sum(sum(share.values()) ** 2 for share in plan)


def moved(owned: Units, plan: Units) -> int:
    """Units that an owner loses."""
    return sum(
        max(0, units - share.get(bundle, 0))
        for had, share in zip(owned, plan, strict=True)
        for bundle, units in had.items()
    )


@given(problem=chains(), steps=st.integers(-1, 300), moves_per_gain=st.integers(1, 6))
@settings(max_examples=400, deadline=None)
def test_a_search_that_is_cut_short_anywhere_is_valid_no_worse_than_before_and_within_its_price(
    problem: tuple[list[int], list[list[int]], Units], steps: int, moves_per_gain: int
) -> None:
    sizes, subscribers, owned = problem
    before = shares(sizes, subscribers, owned, NO_WORK)
    assert moved(owned, before) == 0
    plan = shares(sizes, subscribers, owned, Limits(moves_per_gain, steps))
    check_shares(sizes, subscribers, plan)
    assert plan == shares(sizes, subscribers, owned, Limits(moves_per_gain, steps))
    gained = unevenness(before) - unevenness(plan)
    assert gained >= 0
    exact = shares(sizes, subscribers, owned, Limits(10**6, 10**9))
    if plan != exact:
        # The sum of squares falls by 2 (d - 1) when a unit goes from one member to another with d less.
        assert moved(owned, plan) <= moves_per_gain * gained // 2


@given(problem=chains())
@settings(deadline=None)
def test_with_all_the_work_it_takes_neighbours_differ_by_one_at_most(
    problem: tuple[list[int], list[list[int]], Units],
) -> None:
    sizes, subscribers, owned = problem
    plan = shares(sizes, subscribers, owned, Limits(1, 10**9))
    loads = [sum(share.values()) for share in plan]
    for member, share in enumerate(plan):
        for bundle, units in share.items():
            assert not units or loads[member] - min(loads[other] for other in subscribers[bundle]) <= 1


@given(problem=chains(), moves_per_gain=st.integers(1, 20))
@settings(deadline=None)
def test_a_higher_price_never_buys_a_worse_balance_than_none(
    problem: tuple[list[int], list[list[int]], Units], moves_per_gain: int
) -> None:
    sizes, subscribers, owned = problem
    exact = unevenness(shares(sizes, subscribers, owned, Limits(10**6, 10**9)))
    bought = unevenness(shares(sizes, subscribers, owned, Limits(moves_per_gain, 10**9)))
    assert exact <= bought <= unevenness(shares(sizes, subscribers, owned, NO_WORK))


def grown_ring(count: int, size: int, grown_by: int) -> tuple[dict[str, int], dict[str, Subscription]]:
    """Each member shares a topic with the member before it and the one after it; then one topic grows."""
    partitions = {f"t{n:04}": size for n in range(count)}
    members = {f"m{n:04}": Subscription((f"t{n:04}", f"t{(n + 1) % count:04}")) for n in range(count)}
    members = claiming(members, StickyAssignor().assign(partitions, members), 1)
    return partitions | {"t0001": size + grown_by}, members


def shifted_chain(count: int) -> tuple[dict[str, int], dict[str, Subscription]]:
    """The first member has ``count`` partitions too many; the best balance has every member pass on one or more."""
    partitions = {f"t{n:04}": count for n in range(count + 1)} | {"t0000": 2 * count + 1}
    topics = [f"t{n:04}" for n in range(count + 1)]
    members = {
        f"m{n:04}": Subscription(
            tuple(topics[max(0, n - 1) : n + 1]),
            owned_partitions=tuple(TopicPartition(topics[n], number) for number in range(partitions[topics[n]])),
            generation=3,
        )
        for n in range(count + 1)
    }
    return partitions, members


@pytest.mark.parametrize("count", [150, 400])
@pytest.mark.parametrize("assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=lambda each: each.name)
def test_a_long_ring_is_not_shifted_round_for_a_perfect_balance(assignor: Assignor, count: int) -> None:
    partitions, members = grown_ring(count, 400, count)
    plan = StickyAssignor().assign(partitions, members)
    check_valid(partitions, members, plan)
    lost = count * 400 - kept(members, plan)
    loads = [len(share) for share in plan.values()]
    assert max(loads) - min(loads) <= 14  # 1 takes count² / 2 moves, and 0 moves leave count / 2
    assert lost <= 20 * count
    after = claiming(members, plan, 2)
    assert StickyAssignor().assign(partitions, after) == plan
    held = assignor.assign(partitions, members)
    assert all(set(held[member]) <= set(plan[member]) for member in plan)


def test_a_long_chain_is_shifted_as_far_as_it_is_worth() -> None:
    partitions, members = shifted_chain(300)
    moves = {}
    for moves_per_gain in (1, 4, 16):
        plan = StickyAssignor(moves_per_gain=moves_per_gain).assign(partitions, members)
        check_valid(partitions, members, plan)
        loads = [len(share) for share in plan.values()]
        moves[moves_per_gain] = sum(partitions.values()) - kept(members, plan), max(loads) - min(loads)
    (few, steep), (more, flat), (most, flatter) = moves.values()
    assert few < more < most < 300 * 300 / 4
    assert 301 > steep > flat > flatter > 1


@pytest.mark.parametrize(("count", "spread"), [(5, 0), (6, 2)])
def test_a_difference_of_two_is_evened_out_by_four_moves_but_not_by_five(count: int, spread: int) -> None:
    # The first member has three partitions, the last one, all others two; each can pass on only to the next.
    partitions = {f"t{n}": 2 + (n == 0) - (n == count - 1) for n in range(count)}
    members = {
        f"m{n}": Subscription(
            (f"t{max(0, n - 1)}", f"t{n}"),
            owned_partitions=tuple(TopicPartition(f"t{n}", number) for number in range(partitions[f"t{n}"])),
            generation=1,
        )
        for n in range(count)
    }
    loads = [len(share) for share in StickyAssignor().assign(partitions, members).values()]
    assert max(loads) - min(loads) == spread


def test_a_price_below_one_move_is_refused() -> None:
    for assignor in (StickyAssignor, CooperativeStickyAssignor):
        with pytest.raises(ValueError, match="moves_per_gain is 0; it must be at least 1"):
            assignor(moves_per_gain=0)
