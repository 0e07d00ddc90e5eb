"""Moving units to where they are wanted along the cheapest paths: the primal-dual method for flows of least cost.

Units go only along steps that cost just the rise in price, all shortest paths of one length together (Dinic). When no
such path is left, prices change so that the next cheapest paths open.

It ends. After each change of prices a path costs at least 1 more than before, and each unit sent along a path of cost
c makes c owned units change hands, so with P owned units there are fewer than sqrt(2 P) + 2 changes. Between two
changes each search finds longer paths than the one before it, so there are at most as many searches as nodes.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from client.assignors.bitmask import lowest_in, numbers_in
from client.assignors.flow import Flow


def settle(flow: Flow, bundles: list[int], dearest: int = 0) -> int | None:
    """Moves all that can be moved to where it is wanted, at the least cost. ``bundles``: those that may have a supply.

    Returns the mask of members that can be reached from where there still is too much; empty when there is nothing to move.
    None when it stopped before the end: the flow is out of steps, or what is left costs more than ``dearest`` moves a unit.
    """
    price = 0
    while flow.under and (flow.over or any(flow.supply[bundle] for bundle in bundles)):
        if flow.exhausted:
            return None
        search = _Search(flow, bundles)
        if search.found:
            search.push()
            continue
        rise = _change_prices(flow, bundles) if flow.costly else 0
        if not rise:
            return search.reached
        price += rise
        if price > dearest:
            return None
    return 0


class _Search:
    """One search for the shortest paths at the present prices, breadth first, and the sending of units along them."""

    def __init__(self, flow: Flow, bundles: list[int]) -> None:
        self._flow = flow
        self._sources = [bundle for bundle in bundles if flow.supply[bundle]]
        self._depth = [-1] * len(flow.open_to)  # of bundles; -1: not reached, or a dead end
        self._layers = [flow.over]  # members by depth
        self._alive = 0  # members that are no dead ends
        self._takers: dict[int, int] = {}
        self._givable: dict[int, list[int]] = {}
        self.reached = flow.over
        self.found = self._spread()

    def _spread(self) -> bool:
        flow, depth_of = self._flow, self._depth
        members, bundles = self._layers[0], self._sources
        for bundle in bundles:
            depth_of[bundle] = 0
        depth = 0
        while members or bundles:
            depth += 1
            following = 0
            flow.steps += len(bundles)
            for bundle in bundles:
                following |= flow.takers(bundle)
            following &= ~self.reached
            self.reached |= following
            if following & flow.under:
                self._layers.append(following & flow.under)
                self._alive = self.reached
                return True
            bundles = []
            for member in numbers_in(members):
                for bundle in flow.givable(member):
                    if depth_of[bundle] < 0:
                        depth_of[bundle] = depth
                        bundles.append(bundle)
            members = following
            self._layers.append(members)
        return False

    def push(self) -> None:
        """Sends units along the paths found until each is blocked."""
        flow = self._flow
        sources = [~bundle for bundle in self._sources] + numbers_in(flow.over)
        for source in sources:
            while (flow.supply[~source] if source < 0 else flow.over >> source & 1) and (path := self._path(source)):
                if flow.exhausted:
                    return
                flow.steps += len(path)
                flow.move(path, flow.room(path))
                self._close(path)

    def _path(self, source: int) -> list[int]:
        """A path from ``source`` to a member with too little, depth first; empty when there is none."""
        path, last = [source], len(self._layers) - 1
        while path:
            node = path[-1]
            if node >= 0:
                if len(path) > last:
                    return path
                givable = self._givable.get(node)
                if givable is None:
                    givable = [bundle for bundle in self._flow.givable(node) if self._depth[bundle] == len(path)]
                    self._givable[node] = givable
                while givable and self._depth[givable[-1]] < 0:
                    givable.pop()
                if givable:
                    path.append(~givable[-1])
                    continue
                self._alive &= ~(1 << node)
            else:
                takers = self._takers.get(~node)
                if takers is None:
                    following = self._layers[len(path)] if len(path) <= last else 0
                    takers = self._takers[~node] = self._flow.takers(~node) & following
                takers &= self._alive
                if takers:
                    path.append(lowest_in(takers))
                    continue
                self._depth[~node] = -1
            path.pop()
        return path

    def _close(self, path: list[int]) -> None:
        """Takes out of the search the steps of ``path`` that have no room left."""
        flow = self._flow
        for here, there in pairwise(path):
            if here >= 0:
                left = flow.held[here].get(~there, 0)
                if not left or left == flow.owned[here].get(~there, 0):
                    self._givable[here].pop()
            elif ~here >= flow.idle or flow.held[there][~here] == flow.owned[there].get(~here, 0):
                self._takers[~here] &= ~(1 << there)
        if not flow.under >> path[-1] & 1:
            self._alive &= ~(1 << path[-1])


def _change_prices(flow: Flow, sources: list[int]) -> int:
    """Opens the next cheapest paths and returns how much more they cost; 0 when there is none at all.

    Distances are found cheapest first (Dijkstra, in buckets since they are small integers), and the price of whatever
    is nearer than the nearest member with too little falls by the difference.
    """
    unseen = (1 << len(flow.load)) - 1
    seen_bundles = bytearray(len(flow.open_to))
    members_at: defaultdict[int, int] = defaultdict(int, {0: flow.over})
    bundles_at: defaultdict[int, list[int]] = defaultdict(list, {0: [at for at in sources if flow.supply[at]]})
    passed: list[tuple[int, int, list[int]]] = []
    while members_at or bundles_at:
        distance = min([*members_at, *bundles_at])
        members = members_at.pop(distance, 0) & unseen
        if members & flow.under:
            for nearer, mask, bundles in passed:
                if nearer < distance:
                    _lower(flow, mask, bundles, distance - nearer)
            return distance
        unseen &= ~members
        bundles = []
        for bundle in bundles_at.pop(distance, ()):
            if not seen_bundles[bundle]:
                seen_bundles[bundle] = 1
                bundles.append(bundle)
                price, lacking = distance + flow.bundle_price[bundle], flow.lacking[bundle] & unseen
                flow.steps += len(flow.priced)
                for other, priced in flow.priced.items():
                    if takers := flow.open_to[bundle] & priced & unseen:
                        members_at[price - other] |= takers
                    if takers := lacking & priced:
                        members_at[price - other - 1] |= takers
        for member in numbers_in(members):
            price, owned = distance + flow.member_price[member], flow.owned[member]
            flow.steps += 1 + len(flow.held[member])
            for bundle, units in flow.held[member].items():
                if not seen_bundles[bundle]:
                    bundles_at[price + (units <= owned.get(bundle, 0)) - flow.bundle_price[bundle]].append(bundle)
        passed.append((distance, members, bundles))
    return 0


def _lower(flow: Flow, members: int, bundles: list[int], by: int) -> None:
    for bundle in bundles:
        flow.bundle_price[bundle] -= by
    for member in numbers_in(members):
        flow.member_price[member] -= by
    for price, priced in list(flow.priced.items()):
        if moved := priced & members:
            flow.priced[price] ^= moved
            flow.priced[price - by] = flow.priced.get(price - by, 0) | moved
            if not flow.priced[price]:
                del flow.priced[price]
