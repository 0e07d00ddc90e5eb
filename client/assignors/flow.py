"""A flow of partitions between bundles and members, and what a step of it costs.

The nodes are bundles and members. A bundle can give a unit (one of its partitions, no matter which) to any member it
is ``open`` to; a member can give up a unit of a bundle it holds. To give up what a member owned before costs 1, to
give it back earns 1, all else is free. Units go from where there is too much (a bundle's ``supply``, a member that
holds more than it is to) to members that hold less. ``client.assignors.settling`` finds the paths.
"""

from __future__ import annotations

from itertools import pairwise

from client.assignors.bitmask import mask_of

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
        """Units of each bundle that nobody holds."""
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
