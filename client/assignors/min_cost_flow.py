"""A flow of partitions between bundles and members, and the primal-dual method for flows of least cost.

The nodes are bundles and members. A bundle can give a unit (one of its partitions, no matter which) to any member it is
``open`` to; a member can give up a unit of a bundle it holds. To give up what a member owned before costs 1, to give it
back earns 1, all else is free. Units go from where there is too much (a bundle's ``supply``, a member that holds more than
it is to) to members that hold less.

Units go only along steps that cost just the rise in price, all shortest paths of one length together (Dinic). When no
such path is left, prices change so that the next cheapest paths open.

It ends. After each change of prices a path costs at least 1 more than before, and each unit sent along a path of cost
c makes c owned units change hands, so with P owned units there are fewer than sqrt(2 P) + 2 changes. Between two
changes each search finds longer paths than the one before it, so there are at most as many searches as nodes.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from client.assignors.bitmask import lowest_in, mask_of, numbers_in

Units = list[dict[int, int]]
"""For each member, how many units of which bundle."""


class Flow:
    """What members hold of each bundle, where it is too much or too little, and prices that show the cheapest steps.

    ``open_to``: for each bundle, the mask of members that may take a unit. ``held`` and ``owned``: units now and
    before; ``held`` is changed in place. Bundles from place ``idle`` on stand for having nothing to do: a member
    takes one unit of them at most. ``most_steps`` bounds the work of searches, see ``exhausted``.
    """

    def __init__(
        self, open_to: list[int], held: Units, owned: Units, idle: int | None = None, most_steps: int = 0
    ) -> None:
        self.open_to = open_to
        self.held = held
        self.owned = owned
        self.idle = len(open_to) if idle is None else idle
        self.most_steps = most_steps
        self.steps = 0
        """Bundles and members that searches have looked at: the measure of work, since a pure core has no clock."""
        self.supply = [0] * len(open_to)
        """Units of each bundle that no member holds."""
        self.load = [sum(units.values()) for units in held]
        self.wanted = self.load[:]
        """How many units each member is to hold."""
        self.over = self.under = 0
        """Members that hold more, and less, than wanted."""
        self.member_price = [0] * len(held)
        self.bundle_price = [0] * len(open_to)
        self.priced = {0: (1 << len(held)) - 1}
        """Members by price. No step costs less than the rise in price along it."""
        self.costly = any(owned)
        self.lacking = [0] * len(open_to)
        """Members that hold less of a bundle than they owned."""
        for member, before in enumerate(owned):
            for bundle, units in before.items():
                if held[member].get(bundle, 0) < units:
                    self.lacking[bundle] |= 1 << member

    @property
    def exhausted(self) -> bool:
        """Whether searches have taken all the steps they may."""
        return self.steps > self.most_steps

    def want(self, members: list[int], wanted: int) -> None:
        """Sets what ``members`` are to hold. The next search moves units among them only."""
        for member in members:
            self.wanted[member] = wanted
        size = len(self.load)
        self.over = mask_of([member for member in members if self.load[member] > wanted], size)
        self.under = mask_of([member for member in members if self.load[member] < wanted], size)

    def takers(self, bundle: int) -> int:
        """Members to which a unit of ``bundle`` can go at just the rise in price."""
        price = self.bundle_price[bundle]
        free = self.open_to[bundle] & self.priced.get(price, 0)
        lacking = self.lacking[bundle]
        return free | lacking & self.priced.get(price - 1, 0) if lacking else free

    def givable(self, member: int) -> list[int]:
        """Bundles of which ``member`` can give up a unit at just the rise in price."""
        self.steps += 1 + len(self.held[member])
        price, owned, prices = self.member_price[member], self.owned[member], self.bundle_price
        return [
            bundle
            for bundle, units in self.held[member].items()
            if prices[bundle] == price + (units <= owned.get(bundle, 0))
        ]

    def room(self, path: list[int]) -> int:
        """How many units can go along ``path``: places of members, and of bundles inverted (``~place``)."""
        source, sink = path[0], path[-1]
        room = self.supply[~source] if source < 0 else self.load[source] - self.wanted[source]
        room = min(room, self.wanted[sink] - self.load[sink])
        for here, there in pairwise(path):
            if here >= 0:
                units, before = self.held[here][~there], self.owned[here].get(~there, 0)
                room = min(room, units - before if units > before else units)
            elif ~here >= self.idle:
                room = 1
            elif self.lacking[~here] >> there & 1:
                room = min(room, self.owned[there][~here] - self.held[there].get(~here, 0))
        return room

    def move(self, path: list[int], units: int) -> None:
        """Moves ``units`` along ``path``."""
        source, sink = path[0], path[-1]
        if source < 0:
            self.supply[~source] -= units
        else:
            self.load[source] -= units
            if self.load[source] == self.wanted[source]:
                self.over ^= 1 << source
        for here, there in pairwise(path):
            if here >= 0:
                self._take(here, ~there, units)
            else:
                self._give(there, ~here, units)
        self.load[sink] += units
        if self.load[sink] == self.wanted[sink]:
            self.under ^= 1 << sink

    def _take(self, member: int, bundle: int, units: int) -> None:
        held = self.held[member]
        left = held[bundle] - units
        if left:
            held[bundle] = left
        else:
            del held[bundle]
        if left < self.owned[member].get(bundle, 0):
            self.lacking[bundle] |= 1 << member
        if bundle >= self.idle:
            self.open_to[bundle] |= 1 << member

    def _give(self, member: int, bundle: int, units: int) -> None:
        held = self.held[member]
        have = held[bundle] = held.get(bundle, 0) + units
        if self.lacking[bundle] >> member & 1 and have >= self.owned[member][bundle]:
            self.lacking[bundle] ^= 1 << member
        if bundle >= self.idle:
            self.open_to[bundle] &= ~(1 << member)


def min_cost_flow(flow: Flow, bundles: list[int], dearest: int = 0) -> int | None:
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
