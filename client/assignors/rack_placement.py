"""Which partitions of a bundle each member gets when racks matter: those with a replica in its rack first (KIP-881).

Balance comes first: how many partitions of which bundle each member gets is known before. Among the plans that give so
many, one with the most partitions in their owner's rack is taken, and of what is near or far alike members keep what they
have. A partition may move for being near.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from client.assignors.assignor import Racks, topic_partitions
from client.assignors.min_cost_flow import Units
from client.assignors.owned import Owned
from client.assignors.placement import surplus_of
from client.assignors.subscribers import Subscribers
from protocol.subscription import Subscription, TopicPartition

Near = tuple[str, ...]
"""The racks of members in which a partition is, sorted."""

_NOWHERE: frozenset[str] = frozenset()


def racks_can_help(near: Sequence[Near | frozenset[str]], of_members: set[str | None]) -> bool:
    """Whether it can matter who gets which partition: not if they are all in the same racks, or in no member's rack."""
    return any(each != near[0] for each in near) and any(rack in of_members for each in near for rack in each)


def place_near(
    members: Mapping[str, Subscription], subscribers: Subscribers, owned: Owned, needs: Units, racks: Racks
) -> tuple[list[list[TopicPartition]], list[list[TopicPartition]]]:
    """What each member keeps and what it gets besides, of the bundles in which racks matter.

    These bundles are taken out of ``owned`` and ``needs``: no member owns or needs anything of them any more.
    """
    kept: list[list[TopicPartition]] = [[] for _ in needs]
    added: list[list[TopicPartition]] = [[] for _ in needs]
    rack_of = [members[member_id].rack for member_id in subscribers.order]
    for at, bundle in enumerate(subscribers.bundles if racks else ()):
        present = {rack for place in bundle.subscribers if (rack := rack_of[place]) is not None}
        near = {
            tp: tuple(sorted(racks.get(tp, _NOWHERE) & present))
            for topic in bundle.topics
            for tp in topic_partitions(topic, range(len(owned.taken[topic])))
        }
        if not racks_can_help(list(near.values()), {*present}):
            continue
        placing = _Placing(near, rack_of, {place: needs[place].pop(at, 0) for place in bundle.subscribers})
        placing.place({place: owned.kept[place].pop(at, []) for place in bundle.subscribers})
        for place in bundle.subscribers:
            kept[place] += placing.kept[place]
            added[place] += placing.added[place]
    return kept, added


class _Placing:
    """The partitions of one bundle, first shared out among racks, then among the members of each."""

    def __init__(
        self, near: Mapping[TopicPartition, Near], rack_of: Sequence[str | None], room: dict[int, int]
    ) -> None:
        """``room``: how many partitions each member gets, by place."""
        self.kept: dict[int, list[TopicPartition]] = {place: [] for place in room}
        self.added: dict[int, list[TopicPartition]] = {place: [] for place in room}
        self._near = near
        self._rack_of = rack_of
        self._room = room
        self._owner: dict[TopicPartition, int] = {}
        self._staying: set[TopicPartition] = set()  # in their owner's rack, with room there
        self._room_in: dict[str | None, int] = {}
        for place, units in room.items():
            self._room_in[rack_of[place]] = self._room_in.get(rack_of[place], 0) + units
        self._in_rack: dict[str, dict[Near, list[TopicPartition]]] = {
            rack: {} for rack in sorted(rack for rack in self._room_in if rack is not None)
        }
        self._full: set[str] = set()  # racks from which nothing can be passed on to one with room

    def place(self, owned: Mapping[int, list[TopicPartition]]) -> None:
        """``owned``: what each member claims, sorted."""
        for place, claimed in owned.items():
            self._owner |= dict.fromkeys(claimed, place)
            rack = self._rack_of[place]
            mine = [tp for tp in claimed if rack in self._near[tp]]
            gone = surplus_of(place, len(mine), self._room[place])
            for number, tp in enumerate(mine):
                if rack is not None and number not in gone:
                    self._staying.add(tp)
                    self._room[place] -= 1
                    self._put(tp, rack)
        rest = sorted(self._near.keys() - self._staying, key=lambda tp: (len(self._near[tp]), tp))
        far = [tp for tp in rest if not self._bring_near(tp)]
        far = [tp for tp in far if not self._leave(tp)]
        for rack in self._in_rack:
            self._share_out(rack)
        self._deal(far, list(self._room))

    def _put(self, tp: TopicPartition, rack: str) -> None:
        self._in_rack[rack].setdefault(self._near[tp], []).append(tp)
        self._room_in[rack] -= 1

    def _bring_near(self, tp: TopicPartition) -> bool:
        """Gives ``tp`` to a rack in which it is, passing others on to racks in which they are too if need be."""
        came_from: dict[str, tuple[str, Near] | None] = {
            rack: None for rack in self._near[tp] if rack not in self._full
        }
        reached = sorted(came_from, key=lambda rack: (-self._room_in[rack], rack))
        for rack in reached:
            if self._room_in[rack]:
                self._pass_on(rack, came_from)
                self._put(tp, self._first(rack, came_from))
                return True
            for near, placed in self._in_rack[rack].items():
                for other in near if placed else ():
                    if other not in came_from and other not in self._full:
                        came_from[other] = rack, near
                        reached.append(other)
        self._full.update(reached)
        return False

    def _first(self, rack: str, came_from: Mapping[str, tuple[str, Near] | None]) -> str:
        while (step := came_from[rack]) is not None:
            rack = step[0]
        return rack

    def _pass_on(self, rack: str, came_from: Mapping[str, tuple[str, Near] | None]) -> None:
        """Makes room in the first rack of the way to ``rack``, which has some."""
        while (step := came_from[rack]) is not None:
            before, near = step
            passed = self._in_rack[before][near].pop()  # the last one came last: what stays is taken at the end
            if passed in self._staying:
                self._staying.remove(passed)
                self._room[self._owner[passed]] += 1
            self._room_in[before] += 1
            self._put(passed, rack)
            rack = before

    def _leave(self, tp: TopicPartition) -> bool:
        """Leaves a far partition with its owner if nothing near takes the room."""
        place = self._owner.get(tp)
        if place is None or not self._room[place] or not self._room_in[self._rack_of[place]]:
            return False
        self._room[place] -= 1
        self._room_in[self._rack_of[place]] -= 1
        self.kept[place].append(tp)
        return True

    def _share_out(self, rack: str) -> None:
        """Gives the partitions of a rack to its members: to their owners what they have room for, the others in turn."""
        coming: list[TopicPartition] = []
        for tp in sorted(tp for placed in self._in_rack[rack].values() for tp in placed):
            place = self._owner.get(tp)
            if tp in self._staying and place is not None:
                self.kept[place].append(tp)
            elif place is not None and self._rack_of[place] == rack and self._room[place]:
                self._room[place] -= 1
                self.kept[place].append(tp)
            else:
                coming.append(tp)
        self._deal(coming, [place for place in self._room if self._rack_of[place] == rack])

    def _deal(self, tps: list[TopicPartition], places: list[int]) -> None:
        """Deals ``tps`` in turn to those of ``places`` that have room."""
        turns = deque(place for place in places if self._room[place])
        for tp in tps:
            place = turns.popleft()
            self._room[place] -= 1
            if self._room[place]:
                turns.append(place)
            (self.kept if self._owner.get(tp) == place else self.added)[place].append(tp)
