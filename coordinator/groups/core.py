"""The group coordinator of one partition of ``__consumer_offsets``; each request is decided in its own module.

``coordinator.runtime`` owns connections, clock, timers and log. It hands over requests, timers that fired and connections
that closed, and carries out the ``Effects`` it gets back, in the order that ``coordinator.runtime.effects`` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Final

from coordinator.groups import deletion, describe, join, offsets, pending_offsets, session, staged, sync
from coordinator.groups.config import AnyTopic, GroupConfig, GroupStep, Topics
from coordinator.groups.expiry import EXPIRY_TIMER, Expiry
from coordinator.groups.group import MAX_GENERATION, Group, Groups, Member
from coordinator.groups.rebalance import answer_all, call_to_join, renew_session
from coordinator.groups.rebalance_counts import RebalanceCounts
from coordinator.groups.records import (
    CommittedOffset,
    CoordinatorRecord,
    GenerationRecord,
    GenerationTombstone,
    GroupMetadataRecord,
    OffsetCommitRecord,
    OffsetCommitTombstone,
    PendingOffsetsRecord,
    PendingOffsetsTombstone,
    StagedOffsetsRecord,
    StagedOffsetsTombstone,
    decode_records,
    encode_records,
)
from coordinator.groups.refusals import error_response
from coordinator.groups.state import GroupState
from coordinator.runtime.core import LateAnswer
from coordinator.runtime.effects import Effects, ReplyToken, TimerName
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.groups import (
    CARRY_ON,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from protocol.messages.transactions import StageOffsetsRequest, TxnOffsetCommitRequest

Listing = list[ListedGroup]

_ID_AND_ASSIGNMENT: Final = itemgetter(0, 7)
"""Of a ``MemberRecord``, at a quarter of the cost of its names: a generation has up to fifty thousand."""

DurableState = dict[
    str,
    tuple[
        GroupMetadataRecord | None,
        int,
        dict[str, dict[int, CommittedOffset]],
        dict[int, PendingOffsetsRecord],
        StagedOffsetsRecord | None,
    ],
]
"""By group: its last metadata record, the last generation handed out, its offsets by topic and partition, those pending by
producer id, and what is staged."""


_LOAD_WORK: Final = 500
"""Groups and members that come to life in one step of ``loaded``: about 2 ms."""

_MEMBERS_PER_STEP: Final = 250
"""Members of one group after which a step of ``loaded`` may end."""

_LOADING_HEARTBEAT_MS: Final = 1_000
"""The longest time that a heartbeat waits for its answer while the log is being read."""


class GroupCore:
    """The groups of one partition of ``__consumer_offsets``.

    Every request is answered exactly once: by the ``Effects`` of its own call or by those of a later one. ``new_member_id``
    makes a new, unique member id from a client id; randomness stays outside.
    """

    WAITS_FOR_OTHERS: ClassVar[Collection[str]] = frozenset({"session", "rebalance", "sync", "pending"})
    """The kinds of timers that end the group's patience with a member."""

    encode = staticmethod(encode_records)
    decode = staticmethod(decode_records)
    refusal = staticmethod(error_response)

    def __init__(
        self,
        config: GroupConfig,
        new_member_id: Callable[[str], str],
        topics: Topics | None = None,
        rebalance_counts: RebalanceCounts | None = None,
    ) -> None:
        """``topics`` tells which there are, None for all; ``rebalance_counts`` is where rebalances are counted."""
        self.config = config
        self.groups = Groups(new_member_id, topics or AnyTopic(), rebalance_counts)
        self.expiry = Expiry()

    def decide(self, request: Request, step: GroupStep) -> Effects:
        """Decides a request. Each is answered once, by these effects or by later ones."""
        decide = _DECISIONS.get(type(request))
        assert decide is not None, f"{type(request).__name__} is no request to a group coordinator"
        decide(self.groups, request, step)
        return step.effects

    def renewed(self, request: HeartbeatRequest, software: str, now_ms: int) -> dict[TimerName, int] | None:
        """The one timer that a Heartbeat which is not held moves, where ``CARRY_ON`` is its answer; None to ``decide`` it.

        ``software`` is what its client runs.
        """
        return session.renewed(self.groups, request, software, now_ms)

    def describe(self, group_id: str) -> DescribedGroup:
        """Everything about one group."""
        return describe.describe(self.groups, group_id)

    def list(
        self,
        states: frozenset[str],
        protocol_types: frozenset[str] = frozenset(),
        group_ids: Sequence[str] | None = None,
    ) -> Listing:
        """The groups in one of ``states`` and of one of ``protocol_types``, sorted by id; an empty filter lets all pass.

        Looks at those of ``group_ids`` that there are, None for all.
        """
        some = (
            self.groups if group_ids is None else {name: self.groups[name] for name in group_ids if name in self.groups}
        )
        return describe.list_groups(some, states, protocol_types)

    def forget_topics(self, gone: offsets.Gone, topics: Collection[str] | None = None) -> Iterator[Effects]:
        """Erases the committed offsets of topics that are gone, as Kafka does when a topic is deleted.

        Looks at the offsets of ``topics`` only, None for all. Each ``Effects`` is a slice of bounded work and has to be
        carried out before the next is asked for; requests may be decided in between, as an offset of a topic that is gone is
        shown by no answer, erased or not.
        """
        return offsets.forget_topics(self.groups, gone, topics)

    def open_epoch(self, producer_id: int) -> int | None:
        """The epoch of the producer's transaction that has pending offsets of some group here; None when none has."""
        epochs = self.groups.open_transactions.get(producer_id)
        return None if epochs is None else next(iter(epochs.values()))

    def end_transactions(self, ends: Sequence[pending_offsets.End], step: GroupStep) -> Effects:
        """Decides that transactions have ended: producer id, epoch, and whether it committed, of each.

        The offsets of those that committed become the committed ones. Nothing happens for what is not open here with that
        epoch, as at a marker that comes again. It has taken effect when the records are on disk.
        """
        pending_offsets.end_transactions(self.groups, ends, step)
        return step.effects

    @staticmethod
    def request_is_about(request: Request) -> str:
        """The group that a request is about: it waits while a decision about this group is carried out in slices.

        "" for DescribeGroups and DeleteGroups: they change no group that has members, and see it as it is.
        """
        return getattr(request, "group_id", "")

    @staticmethod
    def timer_is_about(name: TimerName) -> str:
        """The group that a timer is about; "" for expiry, which looks at the offsets of all: no slice touches these."""
        return name[1] if len(name) > 1 else ""

    def on_timer(self, name: TimerName, step: GroupStep) -> Effects:
        """Decides a timer that fired; it may be void by now, or have moved."""
        if name == EXPIRY_TIMER:
            self.expiry.on_timer(self.groups, step)
        else:
            session.on_timer(self.groups, name, step)
        return step.effects

    def abandon(self, token: ReplyToken, step: GroupStep) -> Effects:
        """Decides that the connection of a pending request closed: its answer is not to be sent any more."""
        session.abandon(self.groups, token, step)
        return step.effects

    def gave_ids_over(self, connection: int) -> bool:
        """Whether ``close_connection`` would have anything to do."""
        return bool(self.groups.members_pending.asked_over(connection))

    def close_connection(self, connection: int, step: GroupStep) -> Effects:
        """Decides that a connection closed: no rebalance waits any longer for those who asked over it for an id."""
        for group, pending in self.groups.members_pending.asked_over(connection):
            join.stop_awaiting(group, pending, step)
        return step.effects

    def apply(self, record: CoordinatorRecord) -> None:
        """Changes durable state, live and at replay. Nothing else does."""
        group = self.groups.get(record.group_id) or self.groups.add(record.group_id)
        if isinstance(record, OffsetCommitRecord):
            partitions = group.offsets.get(record.topic)
            if partitions is None:
                partitions = group.offsets[record.topic] = {}
            partitions[record.partition] = record[3:]
        elif isinstance(record, GroupMetadataRecord):
            group.durable = record
            # A static member that is replaced during a rebalance writes the settled generation again, with its new id.
            group.handed_out = later_generation(group.handed_out, record.generation)
            group.assignments = dict(map(_ID_AND_ASSIGNMENT, record.members))
        elif isinstance(record, GenerationRecord):
            group.handed_out = record.generation
        elif isinstance(record, PendingOffsetsRecord):
            group.pending_offsets[record.producer_id] = record
            self.groups.open_transactions.setdefault(record.producer_id, {})[group.group_id] = record.producer_epoch
        elif isinstance(record, StagedOffsetsRecord):
            group.staged = record
        else:
            if isinstance(record, OffsetCommitTombstone):
                _forget_offset(group, record)
            elif isinstance(record, GenerationTombstone):
                group.handed_out = 0
            elif isinstance(record, PendingOffsetsTombstone):
                pending_offsets.forget(self.groups, group, record.producer_id)
            elif isinstance(record, StagedOffsetsTombstone):
                group.staged = None
            else:
                group.durable = None
                group.assignments = {}
            self.groups.drop_if_nothing_is_left(group)

    def loaded(self, step: GroupStep) -> Iterator[None]:
        """The log has been replayed: members live again and their sessions start; in steps of bounded work.

        Nothing else may be asked before the last.
        """
        work = 0
        for group in self.groups.values():
            for members in _load(group, step):
                work += 1 + members
                if work >= _LOAD_WORK:
                    yield
                    work = 0

    def start_expiry(self, step: GroupStep, delay_ms: int) -> Effects:
        """Begins to look, every ``offsets_retention_check_interval_ms``, for offsets and groups that have expired.

        The first look comes after ``delay_ms``: a node with many cores spreads theirs, so that they do not all work at once.
        """
        self.expiry.start(delay_ms, step)
        return step.effects

    def unload(self, step: GroupStep) -> Effects:
        """The partition is served here no longer: answers all pending requests with NOT_COORDINATOR, forgets all groups."""
        groups = self.groups
        self.expiry.stop(step)
        for group in groups.values():
            _unload(group, step)
        groups.clear()
        groups.open_transactions.clear()
        assert not groups.requests, f"tokens {list(groups.requests)} would never be answered"
        assert not groups.members_pending, f"{len(groups.members_pending)} ids would never be void"
        return step.effects

    def while_loading(self, request: Request) -> LateAnswer | None:
        """Members are not disturbed by a load (rules of Kafka's coordinator): their session starts when it ends."""
        if not isinstance(request, HeartbeatRequest):
            return None
        return LateAnswer(CARRY_ON, max(0, min(request.max_wait_ms, _LOADING_HEARTBEAT_MS)))

    def durable_state(self) -> DurableState:
        """What a replay of the log must give back, compared with ``==``."""
        return {
            group_id: (group.durable, group.handed_out, group.offsets, group.pending_offsets, group.staged)
            for group_id, group in self.groups.items()
            if group.is_written
        }


def later_generation(one: int, other: int) -> int:
    """Whichever was handed out after the other, when both are less than half of all generations apart; 0 is none yet."""
    if not one or not other:
        return one or other
    return other if (other - one) % MAX_GENERATION < MAX_GENERATION // 2 else one


def _forget_offset(group: Group, record: OffsetCommitTombstone) -> None:
    partitions = group.offsets.get(record.topic)
    if partitions is not None:
        partitions.pop(record.partition, None)
        if not partitions:
            del group.offsets[record.topic]


def _load(group: Group, step: GroupStep) -> Iterator[int]:
    """Makes the soft state of a group from its durable state; the sessions of its members start now.

    Gives 0 at the end, and before it how many members have come to life since the last time, now and then.

    Of a rebalance only the number of its generation is written, so a group with members is Stable in the generation that was
    settled last: those that come back in time go on without a rebalance. A group that is larger than it may be, because the
    bound was lowered, rebalances at once.
    """
    group.loaded = True
    record = group.durable
    if record is None:
        group.generation = group.handed_out
        yield 0
        return
    group.generation = record.generation
    group.protocol_type, group.protocol_name = record.protocol_type, record.protocol_name
    group.rebalance_reason = record.rebalance_reason
    for place, stored in enumerate(record.members, start=1):
        member = Member(
            group_id=group.group_id,
            member_id=stored.member_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            session_timeout_ms=stored.session_timeout_ms,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            protocols=stored.protocols,
            group_instance_id=stored.group_instance_id,
        )
        group.add(member)
        renew_session(member, step)
        member.is_loaded = True
        if place % _MEMBERS_PER_STEP == 0:
            yield _MEMBERS_PER_STEP
    if record.members:
        group.leader = record.leader
        group.state = GroupState.STABLE  # born so: TRANSITIONS begins here
    if len(group.members) > step.config.group_max_size:
        size = f"{len(group.members)} members, more than group_max_size {step.config.group_max_size}"
        call_to_join(group, "group_full", f"the coordinator restarted, and the group has {size}", step)
    yield 0


def _unload(group: Group, step: GroupStep) -> None:
    """Another node leads the partition, or none: pending requests are answered NOT_COORDINATOR, and no timer stays."""
    for member in group.members.values():
        answer_all(group, member, ErrorCode.NOT_COORDINATOR, "the group has moved; find its coordinator again", step)
    for pending in list(group.pending.values()):
        join.forget_pending(group, pending, step)
    for kind, deadline_ms in (("rebalance", group.rebalance_deadline_ms), ("sync", group.sync_deadline_ms)):
        if deadline_ms is not None:
            step.effects.timers[kind, group.group_id] = None
    history = group.rebalance_counts.history
    if history is not None:
        history.unload(group.group_id, step.now)
    group.transition(GroupState.DEAD)


def _describe_groups(groups: Groups, request: DescribeGroupsRequest, step: GroupStep) -> None:
    step.reply(DescribeGroupsResponse(tuple(describe.describe(groups, group_id) for group_id in request.groups)))


def _list_groups(groups: Groups, request: ListGroupsRequest, step: GroupStep) -> None:
    """What lists groups does so in steps, see ``GroupCore.list``; this answer leaves when what they show is on disk."""
    step.reply(ListGroupsResponse(ErrorCode.NONE, ()))


_DECISIONS: Final[dict[type[Request], Callable[[Groups, Any, GroupStep], None]]] = {
    HeartbeatRequest: session.heartbeat,
    OffsetCommitRequest: offsets.commit,
    OffsetFetchRequest: offsets.fetch_offsets,
    TxnOffsetCommitRequest: pending_offsets.commit_in_transaction,
    StageOffsetsRequest: staged.stage,
    JoinGroupRequest: join.join,
    SyncGroupRequest: sync.sync,
    LeaveGroupRequest: session.leave,
    OffsetDeleteRequest: deletion.delete_offsets,
    DeleteGroupsRequest: deletion.delete_groups,
    DescribeGroupsRequest: _describe_groups,
    ListGroupsRequest: _list_groups,
}
"""What decides each request."""
