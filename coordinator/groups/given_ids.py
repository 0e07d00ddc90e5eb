"""The ids of a shard's pending members (KIP-394): which is the oldest, and which were asked for over a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.groups.member import PendingMember
from coordinator.runtime.effects import TimerName

if TYPE_CHECKING:
    from coordinator.groups.group import Group


class GivenIds:
    """Every id that was given out and is still good, by the name of its timer, the oldest first."""

    def __init__(self) -> None:
        self._groups: dict[TimerName, Group] = {}
        self._by_connection: dict[int, dict[TimerName, Group]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, pending: PendingMember) -> bool:
        return pending.timer in self._groups

    def add(self, pending: PendingMember, group: Group) -> None:
        """Keeps an id that was given out."""
        self._groups[pending.timer] = group
        self._by_connection.setdefault(pending.connection, {})[pending.timer] = group

    def remove(self, pending: PendingMember) -> None:
        """The id is good no longer."""
        del self._groups[pending.timer]
        self.forget_connection(pending)

    def forget_connection(self, pending: PendingMember) -> None:
        """It does not matter any more over which connection the id was asked for."""
        asked = self._by_connection.get(pending.connection)
        if asked is not None and asked.pop(pending.timer, None) is not None and not asked:
            del self._by_connection[pending.connection]

    def oldest(self) -> tuple[Group, PendingMember]:
        """The group and the id that was given out first."""
        timer, group = next(iter(self._groups.items()))
        return group, group.pending[timer[2]]

    def asked_over(self, connection: int) -> list[tuple[Group, PendingMember]]:
        """The groups and ids that were asked for over a connection, the oldest first."""
        return [(group, group.pending[timer[2]]) for timer, group in self._by_connection.get(connection, {}).items()]
