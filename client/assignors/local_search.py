"""Shares by local search, for groups in which the best balance would take too long to find or move too much.

It begins with what the members own and with free units where there is least, and shortens the longest differences: the
member with the most units passes one on, by a chain of other members if need be, to one with at least two less. A chain
of ``n`` members costs ``n`` moves at most, and is taken only when that is no more than ``moves_per_gain`` for each unit by
which the two ends differ, beyond the one that may remain. So every step improves the balance, at a bounded price; what
remains is a slope: neighbours that differ by little although members far apart differ by more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from client.assignors.bitmask import numbers_in
from client.assignors.min_cost_flow import Flow

_BATCH = 4
"""Of the units that may go along a chain before it is too expensive, one in so many goes at once."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """A way for units: members, and the bundle of which each but the last passes on a unit."""

    members: list[int]
    bundles: list[int]
    units: int


def even_out(flow: Flow, moves_per_gain: int) -> None:
    """Improves what ``flow`` holds until no chain is worth its moves or the flow's steps are used up."""
    improved = True
    while improved and not flow.exhausted:
        improved = False
        waiting = [(-load, member) for member, load in enumerate(flow.load)]
        heapify(waiting)
        lowest = min(flow.load)
        while waiting and not flow.exhausted:
            load, member = heappop(waiting)
            if flow.load[member] != -load:
                continue
            chain = _best_chain(flow, member, lowest, moves_per_gain)
            if chain is not None:
                improved = True
                _pass_on(flow, chain)
                for end in (chain.members[0], chain.members[-1]):
                    heappush(waiting, (-flow.load[end], end))


def _best_chain(flow: Flow, first: int, lowest: int, moves_per_gain: int) -> _Chain | None:
    """The chain from ``first`` with the highest gain beyond its price, found breadth first."""
    before = {first: (-1, -1)}  # of each member reached: the member before it, and the bundle between them
    best, last = -1, -1
    for depth, member in _reached(flow, first, before):
        gain = moves_per_gain * (flow.load[first] - flow.load[member] - 1) - depth
        if flow.load[first] - flow.load[member] > 1 and gain > best:
            best, last = gain, member
        if moves_per_gain * (flow.load[first] - lowest - 1) - depth <= best:
            break  # no member further away can bring more
    if last < 0:
        return None
    members, bundles = [last], []
    while members[-1] != first:
        member, bundle = before[members[-1]]
        members.append(member)
        bundles.append(bundle)
    members.reverse()
    bundles.reverse()
    room = min(flow.held[member][bundle] for member, bundle in zip(members, bundles, strict=False))
    return _Chain(members, bundles, min(room, 1 + best // (2 * moves_per_gain * _BATCH)))


def _reached(flow: Flow, first: int, before: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The members to which ``first`` can pass on a unit, nearest first, each with its distance."""
    unseen = (1 << len(flow.load)) - 1 ^ 1 << first
    used: set[int] = set()
    layer, depth = [first], 0
    while layer:
        depth += 1
        following: list[int] = []
        for member in layer:
            flow.steps += 1 + len(flow.held[member])
            for bundle in flow.held[member]:
                if bundle not in used:
                    used.add(bundle)
                    takers = flow.open_to[bundle] & unseen
                    unseen ^= takers
                    for taker in numbers_in(takers):
                        before[taker] = member, bundle
                        following.append(taker)
                        yield depth, taker
        flow.steps += len(following)
        layer = following


def _pass_on(flow: Flow, chain: _Chain) -> None:
    for here, there, bundle in zip(chain.members, chain.members[1:], chain.bundles, strict=False):
        left = flow.held[here][bundle] - chain.units
        if left:
            flow.held[here][bundle] = left
        else:
            del flow.held[here][bundle]
        flow.held[there][bundle] = flow.held[there].get(bundle, 0) + chain.units
    flow.load[chain.members[0]] -= chain.units
    flow.load[chain.members[-1]] += chain.units
