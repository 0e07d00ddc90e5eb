"""Shares: how many partitions each member gets. The best balance there is, and the fewest moves to get it.

Among members that may all hold the same these are quotas. With unequal subscriptions they are a flow.

Partitions of a bundle differ only in who owned them, so the question is how many units of which bundle each member
gets.

Balance first. A plan is balanced when no chain of moves (a unit from a to b, another one from b to c, ...) goes from
a member to one with two units less; such a plan has the least sum of every convex function of the loads. The group is
split at its average k: a flow carries what it can from members with more than k to those with less. Then nothing can
go from what is reached from the former to the rest, so both can be balanced on their own. In the end there are blocks
with k or k + 1 units for each member, and by the flow's dual every balanced plan gives the bundles of a block to
members of that block and k or k + 1 to each of them.

Then the fewest moves. Given the blocks, it is a flow of least cost that begins with what the members may keep; see
``min_cost_flow``. A member with k units holds one unit of an idle bundle besides, so that all want k + 1.

Both have limits. Where members form a long chain, each sharing a topic with the next, the best balance may take a move of
every member for each unit, and the search for it the cube of their number. Then ``local_search`` takes over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from client.assignors.bitmask import mask_of, numbers_in
from client.assignors.local_search import even_out
from client.assignors.min_cost_flow import Flow, Units, min_cost_flow


def quotas(partitions: int, owned: Sequence[int]) -> list[int]:
    """How many partitions each member gets, given how many it holds now.

    All get the same number, some one more where it does not divide. The one more goes to those that hold more than
    the common number already, so that no partition moves that need not; a state that is balanced already stays as it
    is (KAFKA-18688). Beyond that the first members get it.
    """
    common, more = divmod(partitions, len(owned))
    shares = [common] * len(owned)
    eager = [place for place, count in enumerate(owned) if count > common]
    if len(eager) < more:
        eager += [place for place, count in enumerate(owned) if count <= common]
    for place in eager[:more]:
        shares[place] += 1
    return shares


MOVES_PER_GAIN: Final = 4
"""The default price of balance, see ``Limits``."""


@dataclass(frozen=True, slots=True)
class Block:
    """Members that share their bundles among themselves in every balanced plan, ``floor`` or one more units for each."""

    members: list[int]
    bundles: list[int]
    floor: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan may cost.

    ``moves_per_gain``: the most moves by which a unit may get from one member to another, for each unit by which the two
    differ beyond the one that may remain. ``most_steps``: the most bundles and members that a search looks at, each one
    about a microsecond; ``None``: 100 for each member and subscription, at least 20,000, and in large groups a million
    and 2 for each. Groups that are no long chains need less than one for each.
    """

    moves_per_gain: int = MOVES_PER_GAIN
    most_steps: int | None = None

    def __post_init__(self) -> None:
        if self.moves_per_gain < 1:
            raise ValueError(f"moves_per_gain is {self.moves_per_gain}; it must be at least 1")

    def steps(self, size: int) -> int:
        """The most steps for a group with so many members and subscriptions."""
        if self.most_steps is not None:
            return self.most_steps
        return max(20_000, min(100 * size, 1_000_000 + 2 * size))


def shares(
    sizes: Sequence[int], subscribers: Sequence[Sequence[int]], owned: Units, limits: Limits | None = None
) -> Units:
    """How many units of each bundle each member gets, given how many it owned.

    ``sizes`` are the units of each bundle, ``subscribers`` the members that may hold it, at least one; members are
    numbered from 0 and each subscribes to something.
    """
    limits = limits or Limits()
    open_to = [mask_of(members, len(owned)) for members in subscribers]
    most_steps = limits.steps(len(owned) + sum(map(len, subscribers)))
    flow, blocks = _balance(sizes, open_to[:], owned, most_steps)
    if blocks:
        if _keeps_most(flow, owned, blocks):
            return flow.held
        kept = _keep(sizes, flow, owned, blocks, limits.moves_per_gain)
        if kept is not None:
            return kept
    flow = _begun(sizes, open_to, owned, most_steps)
    even_out(flow, limits.moves_per_gain)
    return flow.held


def _begun(sizes: Sequence[int], open_to: list[int], owned: Units, most_steps: int) -> Flow:
    """Everything where it is, and what is free where there is least."""
    flow = _flow(sizes, open_to, owned, owned, most_steps=most_steps)
    by_load = _by_load(flow, list(range(len(owned))))
    for bundle in sorted(range(len(sizes)), key=lambda bundle: open_to[bundle].bit_count()):
        if flow.supply[bundle]:
            _pour(flow, bundle, by_load)
    return flow


def _keeps_most(flow: Flow, owned: Units, blocks: list[Block]) -> bool:
    """Whether the first balanced plan keeps so much already that no other one can keep more.

    None can have a member keep more than its block's floor, or one more, and that no more often than the floor leaves over.
    """
    for block in blocks:
        inside = set(block.bundles)
        kept = most = longer = 0
        for member in block.members:
            held, before = flow.held[member], 0
            for bundle, units in owned[member].items():
                if bundle in inside:
                    before += units
                    kept += min(units, held.get(bundle, 0))
            most += min(before, block.floor)
            longer += before > block.floor
        surplus = sum(flow.load[member] for member in block.members) - block.floor * len(block.members)
        if kept < most + min(longer, surplus):
            return False
    return True


def _balance(sizes: Sequence[int], open_to: list[int], owned: Units, most_steps: int) -> tuple[Flow, list[Block]]:
    """A balanced plan, not yet the one with the fewest moves, and its blocks; no blocks when the steps do not suffice."""
    flow = _flow(sizes, open_to, owned, [{}] * len(owned), most_steps=most_steps)
    everybody = list(range(len(owned)))
    by_load = _by_load(flow, everybody)
    for bundle in sorted(range(len(sizes)), key=lambda bundle: open_to[bundle].bit_count()):
        _pour(flow, bundle, by_load)
    blocks: list[Block] = []
    parts = [(everybody, list(range(len(sizes))))]
    while parts:
        members, bundles = parts.pop()
        floor = sum(flow.load[member] for member in members) // len(members)
        flow.want(members, floor)
        if flow.over and flow.under:
            reached = min_cost_flow(flow, [])
            if reached is None:
                return flow, []
            if flow.under:
                parts += _split(flow, members, bundles, reached)
                continue
        flow.want(members, floor + 1)
        reached = min_cost_flow(flow, []) if flow.over else 0
        if reached is None:
            return flow, []
        if flow.over:
            above, below = _split(flow, members, bundles, reached)
            parts.append(above)
            members, bundles = below
        blocks.append(Block(members, bundles, floor))
    return flow, blocks


def _split(flow: Flow, members: list[int], bundles: list[int], reached: int) -> list[tuple[list[int], list[int]]]:
    """Members in ``reached`` with the bundles they hold, and the others with theirs, closed to the former."""
    above: tuple[list[int], list[int]] = ([], [])
    below: tuple[list[int], list[int]] = ([], [])
    high: set[int] = set()
    for member in numbers_in(reached):
        high.update(flow.held[member])
    inside = mask_of(members, len(flow.load))
    for member in members:
        (above if reached >> member & 1 else below)[0].append(member)
    for bundle in bundles:
        (above if bundle in high else below)[1].append(bundle)
        if bundle not in high:
            flow.open_to[bundle] &= inside & ~reached
    return [above, below]


def _keep(sizes: Sequence[int], balanced: Flow, owned: Units, blocks: list[Block], moves_per_gain: int) -> Units | None:
    """The balanced plan that keeps the most of what is owned.

    None when steps do not suffice, or when a unit would cost more than ``moves_per_gain`` moves.
    """
    owned_here = owned if len(blocks) == 1 else [{}] * len(owned)
    for block in blocks if len(blocks) > 1 else ():
        inside = set(block.bundles)
        for member in block.members:
            owned_here[member] = {bundle: units for bundle, units in owned[member].items() if bundle in inside}
    plain = [block for block in blocks if len(block.bundles) == 1]
    mixed = [block for block in blocks if len(block.bundles) > 1]
    idle = len(sizes)
    open_to = balanced.open_to + [mask_of(block.members, len(owned)) for block in mixed]
    flow = _flow([*sizes, *(0 for _ in mixed)], open_to, owned_here, owned_here, idle, balanced.most_steps)
    flow.steps = balanced.steps
    for number, block in enumerate(mixed):
        _begin(flow, block, idle + number)
    members = [member for block in mixed for member in block.members]
    size = len(owned)
    flow.over = mask_of([member for member in members if flow.load[member] > flow.wanted[member]], size)
    flow.under = mask_of([member for member in members if flow.load[member] < flow.wanted[member]], size)
    supplied = [bundle for block in mixed for bundle in block.bundles] + list(range(idle, idle + len(mixed)))
    if min_cost_flow(flow, supplied, moves_per_gain) is None:
        return None
    for number, block in enumerate(mixed):
        for member in block.members:
            flow.held[member].pop(idle + number, None)
    for block in plain:
        bundle = block.bundles[0]
        before = [owned_here[member].get(bundle, 0) for member in block.members]
        for member, units in zip(block.members, quotas(sizes[bundle], before), strict=True):
            flow.held[member] = {bundle: units} if units else {}
    return flow.held


def _begin(flow: Flow, block: Block, idle: int) -> None:
    """Gives out what is free to members that have room: first up to the floor, then one more, then idle units."""
    by_load = _by_load(flow, block.members)
    for level in (block.floor, block.floor + 1):
        for bundle in block.bundles:
            if flow.supply[bundle]:
                _pour(flow, bundle, by_load, level)
    units = sum(flow.load[member] for member in block.members) + sum(flow.supply[bundle] for bundle in block.bundles)
    flow.supply[idle] = len(block.members) * (block.floor + 1) - units
    for member in block.members:
        flow.wanted[member] = block.floor + 1
        if flow.load[member] == block.floor and flow.supply[idle]:
            flow.held[member][idle] = 1
            flow.load[member] += 1
            flow.supply[idle] -= 1
            flow.open_to[idle] &= ~(1 << member)


def _flow(
    sizes: Sequence[int], open_to: list[int], held: Units, owned: Units, idle: int | None = None, most_steps: int = 0
) -> Flow:
    """A flow in which ``held`` is held and all else is free."""
    flow = Flow(open_to, [dict(units) for units in held], owned, idle, most_steps)
    flow.supply = list(sizes)
    for units in held:
        for bundle, count in units.items():
            flow.supply[bundle] -= count
    return flow


def _by_load(flow: Flow, members: list[int]) -> dict[int, int]:
    grouped: dict[int, list[int]] = {}
    for member in members:
        grouped.setdefault(flow.load[member], []).append(member)
    return {load: mask_of(alike, len(flow.load)) for load, alike in grouped.items()}


def _pour(flow: Flow, bundle: int, by_load: dict[int, int], level: int | None = None) -> None:
    """Gives the free units of ``bundle`` to the members with the least load, as water fills a vessel, up to ``level``.

    ``by_load`` is kept true.
    """
    left, filled, count, top = flow.supply[bundle], [], 0, 0
    for load in sorted(by_load):
        if (level is not None and load >= level) or (count and (load - top) * count >= left):
            break
        if lowest := by_load[load] & flow.open_to[bundle]:
            left -= (load - top) * count
            filled.append((load, lowest))
            count += lowest.bit_count()
            top = load
    if not count:
        return
    rise, more = divmod(left, count)
    top += rise
    if level is not None and top >= level:
        top, more = level, 0
    for load, mask in filled:
        by_load[load] ^= mask
        members = numbers_in(mask)
        for place, member in enumerate(members):
            units = top - load + (place < more)
            if units:
                flow.held[member][bundle] = flow.held[member].get(bundle, 0) + units
                flow.load[member] += units
                flow.supply[bundle] -= units
        raised = mask_of(members[:more], len(flow.load)) if more else 0
        more = max(0, more - len(members))
        by_load[top] = by_load.get(top, 0) | mask ^ raised
        if raised:
            by_load[top + 1] = by_load.get(top + 1, 0) | raised
        if not by_load[load]:
            del by_load[load]
