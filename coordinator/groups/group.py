"""A group: its members and where it stands (kept in memory), and what its log says of it (kept through restarts)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coordinator.groups.given_ids import GivenIds
from coordinator.groups.member import Member, PendingMember
from coordinator.groups.reasons import Causes
from coordinator.groups.records import CommittedOffset, GroupMetadataRecord
from coordinator.groups.state import TRANSITIONS, GroupState
from coordinator.runtime.effects import ReplyToken
from protocol.messages.groups import JoinGroupProtocol

if TYPE_CHECKING:
    from coordinator.groups.subscriptions import Subscriptions

MAX_GENERATION: Final = 2**31 - 1
MAX_DEPARTED: Final = 64
"""A group remembers why its last members were removed, so that one that comes back learns it; so many of them."""


MEMBERS_PER_SLICE: Final = 2_000
"""Members that one slice of a decision deals with: 2 to 3 ms."""


def takes_slices(members: Collection[Member]) -> bool:
    """Whether a decision about so many members is carried out in more than one slice."""
    return len(members) > MEMBERS_PER_SLICE


def slices(members: Sequence[Member]) -> Iterator[Sequence[Member]]:
    """The members, as many at a time as one slice of a decision deals with."""
    return (members[start : start + MEMBERS_PER_SLICE] for start in range(0, len(members), MEMBERS_PER_SLICE))


@dataclass(slots=True)
class InitialDelay:
    """How long the first generation is still held back, in ms."""

    configured_ms: int
    delay_ms: int
    """The delay that is running."""
    remaining_ms: int
    """How much longer it may be made after it, as long as members keep coming."""
    more_came: bool = False
    """Somebody joined while it was running."""


Parked = dict[ReplyToken, tuple["Group", Member]]
"""The requests of a shard that wait for their answer, by token."""


def later_generation(one: int, other: int) -> int:
    """Whichever was handed out after the other, when both are less than half of all generations apart; 0 is none yet."""
    if not one or not other:
        return one or other
    return other if (other - one) % MAX_GENERATION < MAX_GENERATION // 2 else one


class Group:
    """One group. Counters stand beside the members so that no single request walks through all of them.

    ``durable``, ``handed_out``, ``assignments`` and ``offsets`` change in ``apply`` of the core only, live and at replay
    alike. All else is soft: a restart makes it anew from these.
    """

    __slots__ = (
        "_support",
        "assignments",
        "awaited_pending",
        "causes",
        "departed",
        "durable",
        "generation",
        "given_ids",
        "group_id",
        "handed_out",
        "initial",
        "instances",
        "joined_members",
        "joined_statics",
        "leader",
        "loaded",
        "members",
        "metadata_bytes",
        "names_bytes",
        "offsets",
        "parked",
        "pending",
        "phase_timeout_ms",
        "protocol_name",
        "protocol_type",
        "protocols_version",
        "rebalance_deadline_ms",
        "rebalance_reason",
        "state",
        "subscriptions",
        "sync_deadline_ms",
        "unsynced_members",
    )

    def __init__(self, group_id: str, parked: Parked, given_ids: GivenIds) -> None:
        self.group_id = group_id
        self.parked = parked
        self.given_ids = given_ids
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.loaded = False
        """It was read from the log: what it was in the middle of then is gone, and so is the memory of who left it."""
        self.members: dict[str, Member] = {}
        """In the order they joined, which is also the order in which they inherit the leadership."""
        self.instances: dict[str, str] = {}
        """The member id of each static member, by its instance id."""
        self.pending: dict[str, PendingMember] = {}
        """New members that were given their id and have not joined with it yet, the oldest first; see ``pending``."""
        self.awaited_pending = 0
        """How many of them a join phase waits for."""
        self.joined_members = 0
        """How many members have answered the call of this rebalance."""
        self.joined_statics = 0
        """How many of them are static."""
        self.unsynced_members = 0
        """How many members have not asked for their assignment in this generation."""
        self.metadata_bytes = 0
        self.names_bytes = 0
        self.causes: Causes | None = None
        """Why the rebalance that is going on is going on; None outside PreparingRebalance."""
        self.rebalance_reason = ""
        """Why this generation came about."""
        self.phase_timeout_ms = 0
        """The longest rebalance timeout of the members, as read when the timer of this phase was set."""
        self.initial: InitialDelay | None = None
        """The first generation of an empty group is held back for more members; see ``initial_delay``."""
        self.rebalance_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        self.departed: dict[str, str] = {}
        self.durable: GroupMetadataRecord | None = None
        self.handed_out = 0
        """The generation whose number was given out last, settled or not: the next one follows it."""
        self.assignments: dict[str, bytes] = {}
        """Assignment by member id, as in ``durable``."""
        self.offsets: dict[str, dict[int, CommittedOffset]] = {}
        self.protocols_version = 0
        """Counts every change of what the members offer, so that what was made of it before is known to be old."""
        self.subscriptions: Subscriptions | None = None
        """What has been read of the members' subscriptions; see ``subscriptions.subscriptions``."""
        self._support: dict[str, int] = {}

    @property
    def reason(self) -> str:
        """Why the rebalance that is going on began, or else why this generation came about."""
        return self.rebalance_reason if self.causes is None else self.causes.text()

    def transition(self, target: GroupState) -> None:
        """Goes to another state; only along ``TRANSITIONS``."""
        assert target in TRANSITIONS[self.state], f"group {self.group_id}: {self.state.value} to {target.value}"
        self.state = target

    def next_generation(self) -> int:
        """The generation after all others; 1 follows the greatest 32-bit integer, as negative ones mean "no generation"."""
        return 1 if self.handed_out == MAX_GENERATION else self.handed_out + 1

    def add(self, member: Member) -> None:
        """Takes a member in, behind all others. The first one leads."""
        assert member.member_id not in self.members, f"member id {member.member_id} twice in group {self.group_id}"
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.instances, f"instance {member.group_instance_id} twice"
            self.instances[member.group_instance_id] = member.member_id
        self.metadata_bytes += member.metadata_bytes
        self.names_bytes += member.names_bytes
        self._count_support(member.protocols, 1)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        """Takes a member out; the one that joined first of the others inherits the leadership."""
        del self.members[member.member_id]
        if member.group_instance_id is not None:
            del self.instances[member.group_instance_id]
        self.metadata_bytes -= member.metadata_bytes
        self.names_bytes -= member.names_bytes
        self._count_support(member.protocols, -1)
        self.joined_members -= member.has_joined
        self.joined_statics -= member.has_joined and member.group_instance_id is not None
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Gives a static member the id of its new process. It keeps its place in the order of joining, and the lead."""
        assert member.group_instance_id is not None, f"{member.member_id} is no static member"
        old_id = member.member_id
        member.set_id(member_id)
        self.members = {one.member_id: one for one in self.members.values()}
        self.instances[member.group_instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id

    def set_protocols(self, member: Member, protocols: tuple[JoinGroupProtocol, ...]) -> None:
        """Replaces what a member offers."""
        self.metadata_bytes -= member.metadata_bytes
        self._count_support(member.protocols, -1)
        member.set_protocols(protocols)
        self.metadata_bytes += member.metadata_bytes
        self._count_support(protocols, 1)

    def count_names(self, member: Member) -> None:
        """The member has other names, or offers another number of protocols, than when they were counted last."""
        self.names_bytes -= member.names_bytes
        member.names_bytes = member.count_names()
        self.names_bytes += member.names_bytes

    def set_joined(self, member: Member) -> None:
        """Counts a member as one that has answered the call of this rebalance."""
        self.joined_members += not member.has_joined
        self.joined_statics += not member.has_joined and member.group_instance_id is not None
        member.has_joined = True

    def others_support(self, protocols: tuple[JoinGroupProtocol, ...], member: Member | None) -> bool:
        """Whether every member, ``member`` itself aside, supports at least one of ``protocols``."""
        own = {protocol.name for protocol in member.protocols} if member is not None else set()
        others = len(self.members) - (member is not None)
        return any(self._support.get(protocol.name, 0) - (protocol.name in own) == others for protocol in protocols)

    def protocols_of_all(self) -> list[str]:
        """The protocols that every member supports, in the order in which they were first offered."""
        return [name for name, supporters in self._support.items() if supporters == len(self.members)]

    def elect_protocol(self) -> str:
        """The protocol of the next generation.

        Candidates are what all members support; each member votes for the candidate it likes best; most votes win. Of
        candidates with equal votes the one that the leader likes best wins (Kafka leaves ties to the order of a hash map).
        """
        assert self.leader is not None, f"group {self.group_id} has no leader to break a tie"
        candidates = dict.fromkeys(self.protocols_of_all(), 0)
        if len(candidates) == 1:
            return next(iter(candidates))
        for member in self.members.values():
            for protocol in member.protocols:
                if protocol.name in candidates:
                    candidates[protocol.name] += 1
                    break
        most = max(candidates.values())
        ranking = self.members[self.leader].protocols
        return next(protocol.name for protocol in ranking if candidates.get(protocol.name) == most)

    def longest_rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to join again, or to sync."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def remember_departed(self, member_id: str, why: str) -> None:
        """Keeps why a member was removed, for the last ``MAX_DEPARTED`` of them."""
        if len(self.departed) == MAX_DEPARTED:
            del self.departed[next(iter(self.departed))]
        self.departed[member_id] = why

    def _count_support(self, protocols: tuple[JoinGroupProtocol, ...], by: int) -> None:
        self.protocols_version += 1
        for protocol in protocols:
            supporters = self._support.get(protocol.name, 0) + by
            if supporters:
                self._support[protocol.name] = supporters
            else:
                del self._support[protocol.name]
