"""What an observer outside the core knows of a group: who owns what, which offsets were accepted, how long a phase lasts.

Ownership follows the coordinator's clock, which is the order of its decisions. A member owns a partition from the decision
that tells it so (its SyncGroup is answered) until the first of:

- its JoinGroup is taken (answered without error, or held): a member that joins has given up what it had;
- its LeaveGroup is answered without error;
- the coordinator removes it: its session ended, it did not rejoin or did not sync in time;
- a generation begins for which it did not rejoin in time, though as a static member it stays; or another process takes its
  place;
- a request it sends for the generation in which it owns is answered ILLEGAL_GENERATION or UNKNOWN_MEMBER_ID.

REBALANCE_IN_PROGRESS ends nothing: a member that is called still works and commits until it joins. After a restart whoever
has a share in the log owns it, because it may never hear of anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.groups.group import Group
from coordinator.groups.records import GenerationTombstone, OffsetCommitRecord, OffsetCommitTombstone
from coordinator.groups.state import GroupState

if TYPE_CHECKING:
    from tests.simulation.core.journal import Written


class Ledger:
    """The observer's book on one group."""

    __slots__ = (
        "committed",
        "erased_up_to",
        "first_token",
        "generation",
        "group_id",
        "heard",
        "heard_before_restart",
        "owners",
        "shares",
        "shares_generation",
        "since_ms",
        "state",
        "told_generation",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        """As it was after the last step."""
        self.generation = 0
        """As it was after the last step."""
        self.since_ms = 0
        """When state or generation changed last."""
        self.owners: dict[int, tuple[str, int]] = {}
        """Member and generation of it, by partition."""
        self.shares: dict[int, str] = {}
        """Who was ever told that a partition is its own, in ``shares_generation``."""
        self.shares_generation = 0
        self.told_generation = 0
        """The greatest generation of which a member has its share: an answer that has left."""
        self.heard = 0
        """The greatest generation that a member has heard of: its JoinGroup was answered, and the answer has left."""
        self.heard_before_restart = 0
        self.committed: dict[int, tuple[int, str, int]] = {}
        """Offset, and member and generation that wrote it, by partition."""
        self.first_token = 0
        """The last request before the group was erased for the last time."""
        self.erased_up_to = 0
        """Of so many records of the log, whatever was the group's is gone for good: somebody was told that it is deleted."""

    def __str__(self) -> str:
        return f"{self.group_id}: {self.state.value}, generation {self.generation}"

    def reads(self, entry: Written, token: int) -> None:
        """A record was applied, now or at a restart."""
        record = entry.record
        if isinstance(record, OffsetCommitRecord):
            self.committed[record.partition] = record.offset, entry.member_id, entry.generation
        elif isinstance(record, OffsetCommitTombstone):
            self.committed.pop(record.partition, None)
        elif isinstance(record, GenerationTombstone):
            # What is heard of generations from before is about another group of the same name.
            self.first_token = token
            self.generation = self.told_generation = self.heard = self.heard_before_restart = 0
            self.shares, self.shares_generation = {}, 0

    def takes(self, member_id: str, generation: int, share: bytes) -> None:
        """A member was told its share."""
        if generation != self.shares_generation:
            self.shares_generation = generation
            self.shares = {}
        for partition in share:
            self.shares[partition] = member_id
            self.owners[partition] = member_id, generation

    def gives_up(self, member_id: str) -> None:
        """A member owns nothing any more."""
        for partition in [partition for partition, (owner, _) in self.owners.items() if owner == member_id]:
            del self.owners[partition]

    def begins_without_the_late(self, timer: str, group: Group | None) -> None:
        """A timer fired. If the rebalance timeout is over, static members that did not rejoin stay, but own nothing."""
        if timer == "rebalance" and group is not None and group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                if member.group_instance_id is not None and not member.has_joined:
                    self.gives_up(member.member_id)

    def owned_generation(self, member_id: str) -> int:
        """The generation in which a member owns something; -1 if it owns nothing."""
        for owner, generation in self.owners.values():
            if owner == member_id:
                return generation
        return -1

    def restart(self, group: Group | None, now_ms: int) -> None:
        """The coordinator lives again from its log."""
        self.owners = {}
        self.shares = {}
        self.since_ms = now_ms
        self.heard_before_restart = self.heard
        self.state = GroupState.EMPTY if group is None else group.state
        self.generation = self.shares_generation = 0 if group is None else group.generation
        if group is not None:
            for member_id, share in group.assignments.items():
                self.takes(member_id, group.generation, share)
