"""The group coordinator of one partition of ``__consumer_offsets``; each request is decided in its own module.

``coordinator.runtime`` owns connections, clock, timers and log. It hands over requests, timers that fired and connections
that closed, and carries out the ``Effects`` it gets back, in the order that ``coordinator.runtime.effects`` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import ClassVar, Final

from coordinator.groups import deletion, describe, heartbeat, join, leave, lifecycle, offsets, sync
from coordinator.groups.config import GroupConfig, GroupStep
from coordinator.groups.error_responses import error_response
from coordinator.groups.expiry import EXPIRY_TIMER, Expiry
from coordinator.groups.given_ids import GivenIds
from coordinator.groups.group import Group, Parked, later_generation
from coordinator.groups.pending import drop_if_nothing_is_left, stop_awaiting
from coordinator.groups.records import (
    CommittedOffset,
    CoordinatorRecord,
    GenerationRecord,
    GenerationTombstone,
    GroupMetadataRecord,
    OffsetCommitRecord,
    OffsetCommitTombstone,
    decode_records,
    encode_records,
)
from coordinator.groups.topics import AnyTopic, Topics
from coordinator.runtime.core import LateAnswer
from coordinator.runtime.effects import Effects, Instant, ReplyToken, RequestContext, Step, TimerName
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
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

Listing = list[ListedGroup]

DurableState = dict[str, tuple[GroupMetadataRecord | None, int, dict[str, dict[int, CommittedOffset]]]]
"""By group: its last metadata record, the last generation handed out, and its offsets by topic and partition."""


_LOAD_WORK: Final = 500
"""Groups and members that come to life in one step of ``loaded``: about 2 ms."""

_LOADING_HEARTBEAT_MS: Final = 1_000
"""The longest time that a heartbeat waits for its answer while the log is being read."""


class GroupCore:
    """The groups of one partition of ``__consumer_offsets``.

    Every request is answered exactly once: by the ``Effects`` of its own call or by those of a later one. ``new_member_id``
    makes a new, unique member id from a client id; randomness stays outside.
    """

    WAITS_FOR_OTHERS: ClassVar[Collection[str]] = frozenset({"session", "rebalance", "sync", "pending"})
    """The kinds of timers that end the group's patience with a member."""

    def __init__(self, config: GroupConfig, new_member_id: Callable[[str], str], topics: Topics | None = None) -> None:
        """``topics`` tells which there are; None for all."""
        self.config = config
        self._topics = topics or AnyTopic()
        self.groups: dict[str, Group] = {}
        self.expiry = Expiry()
        self._new_member_id = new_member_id
        self._parked: Parked = {}
        self._given_ids = GivenIds()

    def decide(self, request: Request, step: GroupStep) -> Effects:
        """Decides a request. Each is answered once, by these effects or by later ones."""
        if isinstance(request, HeartbeatRequest):
            return heartbeat.heartbeat(self.groups, request, step)
        context, now, topics = step.context, step.now, self._topics
        match request:
            case OffsetCommitRequest():
                return self.commit(request, context, now, topics.has, topics.topic_id)
            case OffsetFetchRequest():
                return self.fetch_offsets(request, context, now, topics.is_gone)
            case JoinGroupRequest():
                return self.join(request, context, now)
            case SyncGroupRequest():
                return self.sync(request, context, now)
            case LeaveGroupRequest():
                return self.leave(request, context, now)
            case OffsetDeleteRequest():
                return self.delete_offsets(request, context, now, topics.has)
            case DeleteGroupsRequest():
                return self.delete_groups(request, context, now)
            case DescribeGroupsRequest():
                step.reply(DescribeGroupsResponse(tuple(self.describe(group_id) for group_id in request.groups)))
                return step.effects
            case ListGroupsRequest():
                # What lists groups does so in steps, see ``list``; this answer leaves when what they show is on disk.
                step.reply(ListGroupsResponse(ErrorCode.NONE, ()))
                return step.effects
        raise AssertionError(f"{type(request).__name__} is no request to a group coordinator")

    def join(self, request: JoinGroupRequest, context: RequestContext, now: Instant) -> Effects:
        """Decides a JoinGroup."""
        return join.join(
            self.groups, self._parked, self._given_ids, self.config, self._new_member_id, request, context, now
        )

    def sync(self, request: SyncGroupRequest, context: RequestContext, now: Instant) -> Effects:
        """Decides a SyncGroup."""
        return sync.sync(self.groups, self.config, request, context, now)

    def heartbeat(self, request: HeartbeatRequest, context: RequestContext, now: Instant) -> Effects:
        """Decides a Heartbeat."""
        return heartbeat.heartbeat(self.groups, request, Step(now, self.config, context))

    def leave(self, request: LeaveGroupRequest, context: RequestContext, now: Instant) -> Effects:
        """Decides a LeaveGroup."""
        return leave.leave(self.groups, self.config, request, context, now)

    def commit(
        self,
        request: OffsetCommitRequest,
        context: RequestContext,
        now: Instant,
        known: offsets.Known,
        topic_id: offsets.TopicId = lambda topic: "",
    ) -> Effects:
        """Decides an OffsetCommit; ``known(topic, partition)`` tells whether a partition exists, ``topic_id(topic)`` which
        topic has the name now, "" where topics have no ids."""
        return offsets.commit(self.groups, self.config, request, context, now, known, topic_id)

    def fetch_offsets(
        self,
        request: OffsetFetchRequest,
        context: RequestContext,
        now: Instant,
        gone: offsets.Gone = lambda topic, topic_id: False,
    ) -> Effects:
        """Decides an OffsetFetch; ``gone(topic, topic_id)`` tells whether the topic of an offset has been deleted."""
        return offsets.fetch_offsets(self.groups, self.config, request, context, gone)

    def delete_offsets(
        self, request: OffsetDeleteRequest, context: RequestContext, now: Instant, known: Callable[[str, int], bool]
    ) -> Effects:
        """Decides an OffsetDelete; ``known(topic, partition)`` tells whether a partition exists."""
        return deletion.delete_offsets(self.groups, self.config, request, context, known)

    def delete_groups(self, request: DeleteGroupsRequest, context: RequestContext, now: Instant) -> Effects:
        """Decides a DeleteGroups."""
        return deletion.delete_groups(self.groups, self.config, request, context)

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
            self.expiry.on_timer(self.groups, self.config, step.now, step.effects)
            return step.effects
        return lifecycle.on_timer(self.groups, name, step.now)

    def abandon(self, token: ReplyToken, step: GroupStep) -> Effects:
        """Decides that the connection of a parked request closed: its answer is not to be sent any more."""
        return lifecycle.abandon(self._parked, token, step.now)

    def gave_ids_over(self, connection: int) -> bool:
        """Whether ``close_connection`` would have anything to do."""
        return bool(self._given_ids.asked_over(connection))

    def close_connection(self, connection: int, step: GroupStep) -> Effects:
        """Decides that a connection closed: no rebalance waits any longer for those who asked over it for an id."""
        for group, pending in self._given_ids.asked_over(connection):
            stop_awaiting(group, pending, step.now, step.effects)
        return step.effects

    def apply(self, record: CoordinatorRecord) -> None:
        """Changes durable state, live and at replay. Nothing else does."""
        group = self.groups.get(record.group_id)
        if group is None:
            group = self.groups[record.group_id] = Group(record.group_id, self._parked, self._given_ids)
        if isinstance(record, OffsetCommitRecord):
            partitions = group.offsets.get(record.topic)
            if partitions is None:
                partitions = group.offsets[record.topic] = {}
            partitions[record.partition] = record[3:]
        elif isinstance(record, GroupMetadataRecord):
            group.durable = record
            # A static member that is replaced during a rebalance writes the settled generation again, with its new id.
            group.handed_out = later_generation(group.handed_out, record.generation)
            group.assignments = {member.member_id: member.assignment for member in record.members}
        elif isinstance(record, GenerationRecord):
            group.handed_out = record.generation
        else:
            if isinstance(record, OffsetCommitTombstone):
                _forget_offset(group, record)
            elif isinstance(record, GenerationTombstone):
                group.handed_out = 0
            else:
                group.durable = None
                group.assignments = {}
            drop_if_nothing_is_left(self.groups, group)

    def loaded(self, step: GroupStep) -> Iterator[None]:
        """The log has been replayed: members live again and their sessions start; in steps of bounded work.

        Nothing else may be asked before the last.
        """
        work = 0
        for group in self.groups.values():
            for members in lifecycle.load(group, self.config, step.now, step.effects):
                work += 1 + members
                if work >= _LOAD_WORK:
                    yield
                    work = 0

    def start_expiry(self, step: GroupStep, delay_ms: int) -> Effects:
        """Begins to look, every ``offsets_retention_check_interval_ms``, for offsets and groups that have expired.

        The first look comes after ``delay_ms``: a node with many cores spreads theirs, so that they do not all work at once.
        """
        self.expiry.start(step.now, delay_ms, step.effects)
        return step.effects

    def unload(self, step: GroupStep) -> Effects:
        """The partition is served here no longer: answers all pending requests with NOT_COORDINATOR, forgets all groups."""
        effects = step.effects
        self.expiry.stop(effects)
        for group in self.groups.values():
            lifecycle.unload(group, effects)
        self.groups.clear()
        assert not self._parked, f"tokens {list(self._parked)} would never be answered"
        assert not self._given_ids, f"{len(self._given_ids)} ids would never be void"
        return effects

    def encode(self, records: Sequence[CoordinatorRecord]) -> Iterator[tuple[bytes, bytes | None] | None]:
        """See ``encode_records``."""
        return encode_records(records)

    def decode(self, encoded: Iterable[tuple[bytes, bytes | None]]) -> Iterator[CoordinatorRecord | None]:
        """See ``decode_records``."""
        return decode_records(encoded)

    def refusal(self, request: Request, code: ErrorCode, message: str) -> Response:
        """See ``error_response``."""
        return error_response(request, code, message)

    def while_loading(self, request: Request) -> LateAnswer | None:
        """Members are not disturbed by a load (rules of Kafka's coordinator): their session starts when it ends."""
        if not isinstance(request, HeartbeatRequest):
            return None
        return LateAnswer(CARRY_ON, max(0, min(request.max_wait_ms, _LOADING_HEARTBEAT_MS)))

    def durable_state(self) -> DurableState:
        """What a replay of the log must give back, compared with ``==``."""
        return {
            group_id: (group.durable, group.handed_out, group.offsets)
            for group_id, group in self.groups.items()
            if group.durable is not None or group.handed_out or group.offsets
        }


def _forget_offset(group: Group, record: OffsetCommitTombstone) -> None:
    partitions = group.offsets.get(record.topic)
    if partitions is not None:
        partitions.pop(record.partition, None)
        if not partitions:
            del group.offsets[record.topic]
