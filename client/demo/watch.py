"""Watches the group through the eyes of its coordinator and tells each rebalance as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from client.admin import Admin
from client.cli.failure import CommandError
from client.demo.narrator import Narrator
from client.types.descriptions import GroupDescription

_LOOK_EVERY_S: Final = 0.02
_STABLE: Final = "Stable"


class GroupWatch:
    """Looks at a group fifty times a second. Rebalances that follow each other faster are told from members' reports."""

    def __init__(self, admin: Admin, group: str, partitions: int, narrator: Narrator) -> None:
        self.rebalances = 0
        self.owners: dict[str, tuple[int, ...]] = {}
        self._admin = admin
        self._group = group
        self._partitions = partitions
        self._narrator = narrator
        self._names: dict[str, str] = {}
        self._unrest = ""
        self._reported: dict[int, dict[str, tuple[int, ...]]] = {}
        self._reasons: dict[int, str] = {}
        self._settled = asyncio.Event()

    async def run(self) -> None:
        """Watches until it is cancelled."""
        while True:
            described = (await self._admin.describe_groups(self._group))[self._group]
            self._learn_names(described)
            if described.state == _STABLE and described.generation != self.rebalances:
                self._tell_overtaken(described.generation)
                self._tell_stable(described)
            elif described.state not in (_STABLE, "Empty", "Dead"):
                self._tell_unrest(described)
            await asyncio.sleep(_LOOK_EVERY_S)

    def heard(self, member: str, generation: int, partitions: list[int], reason: str) -> None:
        """A member reports what it was assigned."""
        self._reported.setdefault(generation, {})[member] = tuple(partitions)
        self._reasons[generation] = reason

    async def settled(self, members: set[str], timeout_s: float) -> Mapping[str, tuple[int, ...]]:
        """Waits until exactly these members own all partitions. Raises ``CommandError`` after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                while set(self.owners) != members:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            raise CommandError(
                f"the group did not settle on {', '.join(sorted(members))} within {timeout_s:.0f} s; "
                f"it has {', '.join(self.owners) or 'no member'}"
            ) from None
        return self.owners

    def _learn_names(self, described: GroupDescription) -> None:
        for member in described.members:
            self._names[member.member_id] = member.client_id

    def _plain(self, reason: str) -> str:
        """A reason with members called by their names instead of their ids."""
        for member_id, name in self._names.items():
            reason = reason.replace(f"{member_id} (client {name})", name).replace(member_id, name)
        return reason.replace("member member-", "member-").replace("members member-", "member-")

    def _tell_unrest(self, described: GroupDescription) -> None:
        unrest = self._plain(described.last_rebalance_reason)
        if unrest and unrest != self._unrest:
            self._unrest = unrest
            self._narrator.tell("rebalancing", f"rebalancing: {unrest}", style="dim", reason=unrest)

    def _tell_overtaken(self, generation: int) -> None:
        for missed in range(self.rebalances + 1, generation):
            reason = self._plain(self._reasons.get(missed, "")) or "over before a member owned anything"
            owners = self._reported.get(missed, {})
            self._narrator.tell(
                "rebalance",
                f"rebalance {missed}, overtaken at once: {reason}",
                style="bold",
                generation=missed,
                reason=reason,
                owners=owners,
            )
            self._narrator.ownership(owners, self._partitions)

    def _tell_stable(self, described: GroupDescription) -> None:
        owned = {
            member.client_id: tuple(partition.partition for partition in member.assignment)
            for member in described.members
        }
        self.owners = {name: owned[name] for name in sorted(owned)}
        self.rebalances = described.generation
        reason = self._plain(described.last_rebalance_reason)
        self._unrest = ""
        self._narrator.tell(
            "rebalance",
            f"rebalance {described.generation}: {reason}",
            style="bold",
            generation=described.generation,
            reason=reason,
            owners=self.owners,
        )
        self._narrator.ownership(self.owners, self._partitions)
        self._settled.set()
