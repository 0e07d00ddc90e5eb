"""A group of one partition of ``__consumer_offsets``: its members, those pending, and what its log says of it.

``Groups`` are all groups of the partition, with what they share: the requests that wait for an answer, and the members
pending of all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from coordinator.groups.config import Topics
from coordinator.groups.rebalance_counts import RebalanceCounts, RebalanceKind
from coordinator.groups.records import CommittedOffset, GroupMetadataRecord, PendingOffsetsRecord, StagedOffsetsRecord
from coordinator.groups.state import TRANSITIONS, GroupState, InitialDelay
from coordinator.runtime.effects import Instant, ReplyToken, TimerName
from protocol.messages.groups import JoinGroupMember, JoinGroupProtocol
from protocol.names import clipped as clipped  # handed on: the modules of groups take it from here

if TYPE_CHECKING:
    from coordinator.groups.subscriptions import Subscriptions

MAX_NAMES: Final = 5
"""A list of members names so many of them."""

MAX_CAUSES: Final = 5
"""A rebalance names so many of its causes; a thousand members that join together are five names and a number."""

MAX_GENERATION: Final = 2**31 - 1
MAX_DEPARTED: Final = 64
"""A group remembers why its last members were removed, so that one that comes back learns it; so many of them."""

MEMBERS_PER_SLICE: Final = 2_000
"""Members that one slice of a decision deals with: 2 to 3 ms."""

_FRAME_BYTES: Final = 64
_PROTOCOL_FRAME_BYTES: Final = 16


def takes_slices(members: Collection[Member]) -> bool:
    """Whether a decision about so many members is carried out in more than one slice."""
    return len(members) > MEMBERS_PER_SLICE


def slices(members: Sequence[Member]) -> Iterator[Sequence[Member]]:
    """The members, as many at a time as one slice of a decision deals with."""
    return (members[start : start + MEMBERS_PER_SLICE] for start in range(0, len(members), MEMBERS_PER_SLICE))


@dataclass(slots=True, eq=False)
class PendingMember:
    """A new member that was given its id and has not joined with it yet (KIP-394)."""

    group_id: str
    member_id: str
    deadline_ms: int
    """When the id is void unless a member has joined with it."""

    connection: int = 0
    """The connection over which it was asked for."""

    awaited: bool = True
    """A join phase waits for it. No longer once that connection has closed: a client that lives comes over another one."""

    timer: TimerName = field(init=False)

    def __post_init__(self) -> None:
        self.timer = ("pending", self.group_id, self.member_id)


@dataclass(slots=True, eq=False)
class Member:
    """A member: who it is, what it offers, and which of its requests wait for an answer."""

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinGroupProtocol, ...]
    group_instance_id: str | None = None
    """Set for a static member (KIP-345): the next process that joins with it takes this member's place."""

    client_software: str = ""
    """What the client runs, as it says (KIP-511): not written to the log, so unknown until it is heard of again."""

    of_kafka: bool = False
    """Whether it joined as a client of Kafka; not written to the log, so False until it joins again."""

    is_new: bool = False
    """It has not been told any generation yet: its first JoinGroup still waits."""

    has_joined: bool = False
    """It has answered the call of the rebalance that is going on; meaningful in PreparingRebalance."""

    has_synced: bool = True
    """It has asked for its assignment in this generation; meaningful in CompletingRebalance and Stable."""

    is_loaded: bool = False
    """It was read from the log, and nothing was heard of it since."""

    join_token: ReplyToken | None = None
    sync_token: ReplyToken | None = None
    heartbeat_token: ReplyToken | None = None
    session_deadline_ms: int | None = None
    """When the session ends; None while the coordinator holds a JoinGroup or SyncGroup of the member."""

    heartbeat_deadline_ms: int | None = None
    """When the pending Heartbeat is answered; None when there is none."""

    _shown: tuple[str | None, JoinGroupMember] | None = field(init=False, default=None)
    """What the leader was shown of it last, and for which protocol: most of it is the same in the next generation."""

    session_timer: TimerName = field(init=False)
    heartbeat_timer: TimerName = field(init=False)
    metadata_bytes: int = field(init=False)
    names_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.set_id(self.member_id)
        self.metadata_bytes = size_of(self.protocols)
        self.names_bytes = self.count_names()

    def count_names(self) -> int:
        """See ``names_size``."""
        names = self.member_id, self.client_id, self.client_host, self.client_software, self.group_instance_id
        return names_size(names, len(self.protocols))

    def set_id(self, member_id: str) -> None:
        """Gives the member its id, and its timers their names; none of them may be set."""
        self.member_id = member_id
        self._shown = None
        self.session_timer = ("session", self.group_id, member_id)
        self.heartbeat_timer = ("heartbeat", self.group_id, member_id)

    def set_protocols(self, protocols: tuple[JoinGroupProtocol, ...]) -> None:
        """Replaces what the member offers."""
        self.protocols = protocols
        self.metadata_bytes = size_of(protocols)
        self._shown = None

    def shown(self, protocol_name: str | None) -> JoinGroupMember:
        """The member as its leader sees it in a generation with this protocol."""
        shown = self._shown
        if shown is None or shown[0] != protocol_name:
            metadata = self.metadata(protocol_name)
            shown = self._shown = (protocol_name, JoinGroupMember(self.member_id, self.group_instance_id, metadata))
        return shown[1]

    def metadata(self, protocol_name: str | None) -> bytes:
        """What the member says to one of its protocols; empty for one it does not know."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""


def names_size(names: Iterable[str | None], protocols: int) -> int:
    """Bytes that a member takes in a frame or in the log beside metadata and assignment: its names and what frames them."""
    return sum(len(name.encode()) for name in names if name) + _FRAME_BYTES + protocols * _PROTOCOL_FRAME_BYTES


def size_of(protocols: tuple[JoinGroupProtocol, ...]) -> int:
    """Bytes that protocols take, names included."""
    return sum(len(protocol.name.encode()) + len(protocol.metadata) for protocol in protocols)


class Causes:
    """Why the rebalance that is going on is going on: the first few causes in order, and how many more there were."""

    __slots__ = ("_more", "_text", "_texts")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._more = 0
        self._text = ""

    def add(self, text: str) -> None:
        """Adds one cause; beyond ``MAX_CAUSES`` it is only counted."""
        if len(self._texts) < MAX_CAUSES:
            self._texts.append(text)
        else:
            self._more += 1
        self._text = ""

    def text(self) -> str:
        """All of it in one line."""
        if not self._text:
            self._text = "; ".join(self._texts) + (f"; and {self._more} more" if self._more else "")
        return self._text


def described(member: Member) -> str:
    """A member by its id and client; a static one also by its instance id."""
    static = "" if member.group_instance_id is None else f", group_instance_id {clipped(member.group_instance_id)}"
    return f"member {clipped(member.member_id)} (client {clipped(member.client_id)}{static})"


def listed(members: Sequence[Member]) -> str:
    """Several members by their ids."""
    names = ", ".join(clipped(member.member_id) for member in members[:MAX_NAMES])
    more = f" and {len(members) - MAX_NAMES} more" if len(members) > MAX_NAMES else ""
    return f"{'member' if len(members) == 1 else 'members'} {names}{more}"


def with_reason(text: str, reason: str, max_chars: int) -> str:
    """``text``, followed by the reason a client gave, if it gave one; line breaks become spaces."""
    given = clipped(" ".join(reason.split()), max_chars)
    return f"{text}: {given}" if given else text


def counted(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


PendingRequests = dict[ReplyToken, tuple["Group", Member]]
"""The requests that wait for their answer (Kafka's purgatory), by token."""


class Group:
    """One group. Counters stand beside the members so that no single request walks through all of them.

    ``durable``, ``handed_out``, ``assignments``, ``offsets``, ``pending_offsets`` and ``staged`` change in ``apply`` of the
    core only, live and at replay alike. All else is soft: a restart makes it anew from these.
    """

    __slots__ = (
        "_support",
        "assignments",
        "awaited_pending",
        "causes",
        "clipped_id",
        "departed",
        "durable",
        "generation",
        "group_id",
        "handed_out",
        "initial",
        "instances",
        "joined_members",
        "joined_statics",
        "leader",
        "loaded",
        "members",
        "members_pending",
        "metadata_bytes",
        "names_bytes",
        "offsets",
        "pending",
        "pending_offsets",
        "phase_timeout_ms",
        "protocol_name",
        "protocol_type",
        "protocols_version",
        "rebalance_began_ms",
        "rebalance_counts",
        "rebalance_deadline_ms",
        "rebalance_reason",
        "requests",
        "staged",
        "state",
        "subscriptions",
        "sync_deadline_ms",
        "unsynced_members",
    )

    def __init__(
        self, group_id: str, requests: PendingRequests, members_pending: MembersPending, counts: RebalanceCounts
    ) -> None:
        self.group_id = group_id
        self.rebalance_counts = counts
        self.rebalance_began_ms: int | None = None
        """When the rebalance that has not brought an assignment yet began; None when there is none."""
        self.clipped_id = clipped(group_id)
        """The id as sentences and log events show it."""
        self.requests = requests
        self.members_pending = members_pending
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
        """New members that were given their id and have not joined with it yet (KIP-394), the oldest first."""
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
        """The first generation of an empty group is held back for more members; see ``begin_initial_delay``."""
        self.rebalance_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        self.departed: dict[str, str] = {}
        self.durable: GroupMetadataRecord | None = None
        self.handed_out = 0
        """The generation whose number was given out last, settled or not: the next one follows it."""
        self.assignments: dict[str, bytes] = {}
        """Assignment by member id, as in ``durable``."""
        self.offsets: dict[str, dict[int, CommittedOffset]] = {}
        self.pending_offsets: dict[int, PendingOffsetsRecord] = {}
        """What open transactions are to commit, by producer id. It shows in no answer until a transaction is decided."""
        self.staged: StagedOffsetsRecord | None = None
        """What the next batch reads, see ``staged``."""
        self.protocols_version = 0
        """Counts every change of what the members offer, so that what was made of it before is known to be old."""
        self.subscriptions: Subscriptions | None = None
        """What has been read of the members' subscriptions; see ``subscriptions``."""
        self._support: dict[str, int] = {}

    @property
    def reason(self) -> str:
        """Why the rebalance that is going on began, or else why this generation came about."""
        return self.rebalance_reason if self.causes is None else self.causes.text()

    def transition(self, target: GroupState) -> None:
        """Goes to another state; only along ``TRANSITIONS``."""
        assert target in TRANSITIONS[self.state], f"group {self.group_id}: {self.state.value} to {target.value}"
        self.state = target

    def prepare_rebalance(self, cause: str) -> None:
        """Goes to PreparingRebalance for ``cause``: every member is to join again."""
        self.causes = Causes()
        self.causes.add(cause)
        self.transition(GroupState.PREPARING_REBALANCE)
        self.joined_members = self.joined_statics = 0
        for member in self.members.values():
            member.has_joined = False
        self.phase_timeout_ms = self.longest_rebalance_timeout_ms()

    def begin_rebalance(self, kind: RebalanceKind, now: Instant) -> None:
        """Counts a rebalance of ``kind``. One that takes the place of another has lasted since that one began."""
        counts = self.rebalance_counts
        counts.begin(kind)
        if counts.history is not None:
            counts.history.begin(self.group_id, kind, self.reason, len(self.assignments), now)
        if self.rebalance_began_ms is None:
            self.rebalance_began_ms = now.ms

    def end_rebalance(self, now: Instant) -> None:
        """The assignment is decided, or no member is left that would need one; it is not applied yet."""
        counts = self.rebalance_counts
        if self.rebalance_began_ms is not None:
            counts.end(now.ms - self.rebalance_began_ms)
            self.rebalance_began_ms = None
        if counts.history is not None:
            counts.history.end(
                self.group_id, self.generation, self.reason, self.assignments, self.members, self.departed, now
            )

    def complete_join(self) -> None:
        """The members that there are make the next generation: all of them are to sync. Without any it is Empty."""
        assert self.causes is not None, f"group {self.group_id} completes a rebalance that never began"
        self.rebalance_reason = self.causes.text()
        self.causes = self.initial = self.rebalance_deadline_ms = None
        self.generation = self.next_generation()
        if not self.members:
            self.protocol_name = None
            self.transition(GroupState.EMPTY)
            return
        self.protocol_name = self.elect_protocol()
        self.transition(GroupState.COMPLETING_REBALANCE)
        for member in self.members.values():
            member.has_synced = False
        self.unsynced_members = len(self.members)
        self.phase_timeout_ms = self.longest_rebalance_timeout_ms()

    @property
    def is_written(self) -> bool:
        """Whether the log has anything of the group."""
        own = self.durable is not None or self.handed_out or self.offsets
        return bool(own or self.pending_offsets or self.staged is not None)

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


class MembersPending:
    """The members pending of a partition (KIP-394), by the names of their timers, the oldest first."""

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


class Groups(dict[str, Group]):
    """The groups of one partition of ``__consumer_offsets`` by id, and what they share.

    ``new_member_id`` makes a new, unique member id from a client id; ``topics`` tells which topics there are.
    """

    def __init__(
        self, new_member_id: Callable[[str], str], topics: Topics, rebalance_counts: RebalanceCounts | None = None
    ) -> None:
        super().__init__()
        self.rebalance_counts = rebalance_counts or RebalanceCounts()
        self.new_member_id = new_member_id
        self.topics = topics
        self.requests: PendingRequests = {}
        self.members_pending = MembersPending()
        self.open_transactions: dict[int, dict[str, int]] = {}
        """By producer id, the groups of which its transaction has pending offsets, and its epoch: the same for all."""

    def add(self, group_id: str) -> Group:
        """Makes a group that is not there yet."""
        group = self[group_id] = Group(group_id, self.requests, self.members_pending, self.rebalance_counts)
        return group

    def drop_if_nothing_is_left(self, group: Group) -> None:
        """Forgets a group that has neither members, pending or not, nor anything in the log."""
        if group.state is GroupState.EMPTY and not group.pending and not group.is_written:
            group.transition(GroupState.DEAD)
            del self[group.group_id]
