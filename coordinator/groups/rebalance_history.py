"""The last rebalances of each group: when, why, how long, and who came and went. Kept in memory, for people who look."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.runtime.effects import Instant
from protocol.names import clipped

MAX_REBALANCES: Final = 50
"""Rebalances that are kept of one group."""
MAX_GROUPS: Final = 10_000
"""Groups of which rebalances are kept: those that have rebalanced last."""
MAX_RECENT: Final = 100
"""Rebalances that are kept of all groups together, for those who ask what happened last."""
MAX_REASON_CHARS: Final = 1_000
_MAX_NAMES: Final = 5
_MAX_COMPARED: Final = 2_000
"""Members up to which it is found out who came and went: the comparison takes time in the middle of a decision."""

Departures = tuple[tuple[str, str], ...]
"""Members that went: the id, and why, "" where that is not known."""


@dataclass(slots=True)
class Rebalance:
    """One rebalance of a group."""

    group_id: str
    kind: str
    """What began it, see ``RebalanceKind``."""
    reason: str
    began_wall_ms: int
    began_ms: int
    members_before: int
    """Members that had an assignment when it began."""
    outcome: str = ""
    """Nothing while it goes on; "assigned", "emptied", "restarted" when another one took its place before the assignment, or
    "moved" when the group was unloaded meanwhile."""
    took_ms: int = -1
    generation: int = -1
    members: int = -1
    joined: tuple[str, ...] = ()
    """Members that have an assignment now and had none before; ``joined_more`` further ones are not named."""
    joined_more: int = 0
    left: Departures = ()
    left_more: int = 0


class RebalanceHistory:
    """Rebalances by group, the oldest first; bounded by number, and forgotten with the process."""

    def __init__(self) -> None:
        self.changes = 0
        """Counts what was noted, so that a reader knows whether there is anything new."""
        self.recent: deque[Rebalance] = deque(maxlen=MAX_RECENT)
        """The last ones of all groups, the oldest first."""
        self._by_group: dict[str, deque[Rebalance]] = {}

    def of(self, group_id: str) -> Collection[Rebalance]:
        """The rebalances of a group, the oldest first."""
        return self._by_group.get(group_id, ())

    def state_of(self, group_id: str) -> tuple[int, str]:
        """Another value whenever something has changed in what ``of`` gives."""
        known = self._by_group.get(group_id)
        return (known[-1].began_ms, known[-1].outcome) if known else (-1, "")

    def begin(self, group_id: str, kind: str, reason: str, members: int, now: Instant) -> None:
        """A group rebalances; ``members`` have an assignment. One that was going on has come to nothing."""
        known = self._by_group.pop(group_id, None)
        if known is None:
            known = deque(maxlen=MAX_REBALANCES)
            if len(self._by_group) >= MAX_GROUPS:
                del self._by_group[next(iter(self._by_group))]
        self._by_group[group_id] = known  # behind all others: the first is the next to be forgotten
        if known and not known[-1].outcome:
            known[-1].outcome = "restarted"
            known[-1].took_ms = now.ms - known[-1].began_ms
        rebalance = Rebalance(group_id, kind, clipped(reason, MAX_REASON_CHARS), now.wall_ms, now.ms, members)
        known.append(rebalance)
        self.recent.append(rebalance)
        self.changes += 1

    def end(
        self,
        group_id: str,
        generation: int,
        reason: str,
        before: Mapping[str, object],
        members: Mapping[str, object],
        departed: Mapping[str, str],
        now: Instant,
    ) -> None:
        """The rebalance of a group has brought an assignment for ``members``, or there are none; ``before`` had one.

        ``departed`` says why members were removed. ``reason`` has all that came together since it began.
        """
        known = self._by_group.get(group_id)
        if not known or known[-1].outcome:
            return  # it began before the group was loaded here
        last = known[-1]
        last.outcome = "assigned" if members else "emptied"
        last.took_ms, last.generation, last.members = now.ms - last.began_ms, generation, len(members)
        last.reason = clipped(reason, MAX_REASON_CHARS)
        if max(len(before), len(members)) <= _MAX_COMPARED:
            joined = [member for member in members if member not in before]
            left = [member for member in before if member not in members]
            last.joined = tuple(map(clipped, joined[:_MAX_NAMES]))
            last.left = tuple((clipped(member), clipped(departed.get(member, ""))) for member in left[:_MAX_NAMES])
            last.joined_more, last.left_more = max(0, len(joined) - _MAX_NAMES), max(0, len(left) - _MAX_NAMES)
        self.changes += 1

    def unload(self, group_id: str, now: Instant) -> None:
        """The group is coordinated here no longer: what goes on does so elsewhere."""
        known = self._by_group.get(group_id)
        if known and not known[-1].outcome:
            known[-1].outcome, known[-1].took_ms = "moved", now.ms - known[-1].began_ms
            self.changes += 1
