"""A shell around the core for everything about offsets: many groups, clocks set by hand, a log that is replayed often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.groups.config import GroupConfig
from coordinator.groups.core import GroupCore
from coordinator.groups.expiry import EXPIRY_TIMER
from coordinator.groups.records import CoordinatorRecord, decode_record, encode_record
from coordinator.runtime.effects import Effects, Instant, Note, RequestContext, TimerName
from protocol.errors import ErrorCode
from protocol.messages.api import Request, Response
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.messages.transactions import (
    StagedPartition,
    StagedTopic,
    StageOffsetsRequest,
    StageOffsetsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from protocol.subscription import Subscription, encode_subscription
from tests.coordinator.groups.steps import FewTopics, decide, load, step_of

BEGIN_WALL_MS = 1_700_000_000_000
PARTITIONS = 3
"""Every topic exists and has so many partitions, except "nowhere"."""


def known(topic: str, partition: int) -> bool:
    """The partitions that exist."""
    return topic != "nowhere" and 0 <= partition < PARTITIONS


class Keeper:
    """Owns clocks, timers and log of one core. The first pass comes one check interval after the start and each restart."""

    def __init__(self, retention_ms: int = 10_000, interval_ms: int = 1_000, **bounds: int) -> None:
        self.config = GroupConfig(
            offsets_retention_ms=retention_ms, offsets_retention_check_interval_ms=interval_ms, **bounds
        )
        self.now = Instant(0, BEGIN_WALL_MS)
        self.log: dict[bytes, bytes | None] = {}
        self.timers: dict[TimerName, int] = {}
        self.notes: list[Note] = []
        self.slices = 0
        self.largest_slice = 0
        self._answers: dict[int, Response] = {}
        self._tokens = 0
        self._ids = 0
        self.core = self._new_core()
        self.carry_out(self.core.start_expiry(step_of(self.core, self.now), interval_ms))

    def ask(self, request: Request) -> int:
        """Puts a request to the core; gives its token."""
        self._tokens += 1
        self.carry_out(decide(self.core, request, RequestContext(self._tokens, "c", "host"), self.now))
        return self._tokens

    def answer(self, token: int) -> Response:
        """The answer to a request that has been answered."""
        return self._answers[token]

    def carry_out(self, effects: Effects) -> None:
        """Applies and keeps records, sets timers, takes answers; then the same for each slice that is left."""
        self._obey(effects)
        for later in effects.rest[1] if effects.rest is not None else ():
            self._obey(later)

    def _obey(self, effects: Effects) -> None:
        for record in effects.records:
            assert isinstance(record, CoordinatorRecord)
            self.core.apply(record)
            key, value = encode_record(record)
            self.log.pop(key, None)
            self.log[key] = value
        for name, deadline_ms in effects.timers.items():
            if deadline_ms is None:
                self.timers.pop(name, None)
            else:
                self.timers[name] = deadline_ms
        for token, response in effects.replies:
            assert token not in self._answers
            self._answers[token] = response
        self.notes += effects.notes

    def pass_ms(self, ms: int) -> None:
        """Lets time pass on both clocks and fires what comes due."""
        until_ms = self.now.ms + ms
        while due := sorted((at, name) for name, at in self.timers.items() if at <= until_ms):
            at, name = due[0]
            del self.timers[name]
            self._set_clock(max(at, self.now.ms))
            effects = self.core.on_timer(name, step_of(self.core, self.now))
            if name == EXPIRY_TIMER:
                self.slices += 1
                self.largest_slice = max(self.largest_slice, len(effects.records))
            self.carry_out(effects)
        self._set_clock(until_ms)

    def step_wall(self, ms: int) -> None:
        """Somebody sets the wall clock."""
        self.now = Instant(self.now.ms, self.now.wall_ms + ms)

    def restart(self) -> None:
        """The process is gone; another one reads the log."""
        before = self.core.durable_state()
        self.core = self.replayed()
        assert self.core.durable_state() == before, "the log tells another story than the memory"
        self.timers.clear()
        self.carry_out(load(self.core, self.now))
        self.carry_out(
            self.core.start_expiry(step_of(self.core, self.now), self.config.offsets_retention_check_interval_ms)
        )

    def replayed(self) -> GroupCore:
        """A core that has read the log."""
        core = self._new_core()
        for key, value in self.log.items():
            record = decode_record(key, value)
            assert record is not None
            core.apply(record)
        return core

    def live_keys(self) -> set[bytes]:
        """The keys that have a value in the log."""
        return {key for key, value in self.log.items() if value is not None}

    def commit(
        self,
        group: str,
        *places: tuple[str, int, int],
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        **options: object,
    ) -> list[int]:
        """Commits ``(topic, partition, offset)``; gives the code of each."""
        topics = tuple(
            OffsetCommitTopic(topic, (OffsetCommitPartition(partition, offset, **options),))  # type: ignore[arg-type]
            for topic, partition, offset in places
        )
        request = OffsetCommitRequest(group, generation, member, instance, topics)
        answer = self._answers[self.ask(request)]
        assert isinstance(answer, OffsetCommitResponse)
        return [entry.error_code for topic in answer.topics for entry in topic.partitions]

    def commit_in_transaction(
        self,
        group: str,
        *places: tuple[str, int, int],
        producer: tuple[int, int] = (7, 0),
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        staged: bool = False,
    ) -> TxnOffsetCommitResponse:
        """Gives the transaction of a producer id and epoch ``(topic, partition, offset)`` to commit."""
        topics = tuple(
            OffsetCommitTopic(topic, (OffsetCommitPartition(partition, offset),)) for topic, partition, offset in places
        )
        request = TxnOffsetCommitRequest(group, "id", *producer, generation, member, instance, topics, staged)
        answer = self._answers[self.ask(request)]
        assert isinstance(answer, TxnOffsetCommitResponse)
        return answer

    def end(self, *ends: tuple[int, int, bool]) -> None:
        """The markers of transactions come: producer id, epoch, and whether it committed."""
        self.carry_out(self.core.end_transactions(ends, step_of(self.core, self.now)))

    def stage(
        self, group: str, *places: tuple[str, int, int, int], member: str, generation: int, topic_id: str = ""
    ) -> StageOffsetsResponse:
        """Stages ``(topic, partition, start, end)``."""
        topics = tuple(
            StagedTopic(topic, topic_id, (StagedPartition(partition, start, end, "staged"),))
            for topic, partition, start, end in places
        )
        answer = self._answers[self.ask(StageOffsetsRequest(group, generation, member, None, topics))]
        assert isinstance(answer, StageOffsetsResponse)
        return answer

    def fetch(self, group: str) -> dict[tuple[str, int], int]:
        """All offsets of a group that are decided."""
        return {place: offset for place, (offset, _) in self._fetched(group, require_stable=False).items()}

    def fetch_stable(self, group: str) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]]]:
        """What a new owner is told: the offsets, and where it has to wait for a transaction."""
        fetched = self._fetched(group, require_stable=True)
        told = {place: offset for place, (offset, code) in fetched.items() if code == ErrorCode.NONE}
        assert all(
            (offset, code) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT) for offset, code in fetched.values() if code
        )
        return told, fetched.keys() - told

    def _fetched(self, group: str, *, require_stable: bool) -> dict[tuple[str, int], tuple[int, int]]:
        request = OffsetFetchRequest(group, None, require_stable)
        answer = self._answers[self.ask(request)]
        assert isinstance(answer, OffsetFetchResponse)
        return {
            (topic.name, entry.partition_index): (entry.committed_offset, entry.error_code)
            for topic in answer.topics
            for entry in topic.partitions
        }

    def delete_offsets(self, group: str, *places: tuple[str, int]) -> OffsetDeleteResponse:
        """Asks to erase offsets."""
        topics = tuple(OffsetDeleteTopic(topic, (partition,)) for topic, partition in places)
        request = OffsetDeleteRequest(group, topics)
        answer = self._answers[self.ask(request)]
        assert isinstance(answer, OffsetDeleteResponse)
        return answer

    def delete(self, *groups: str) -> DeleteGroupsResponse:
        """Asks to delete groups."""
        request = DeleteGroupsRequest(groups)
        answer = self._answers[self.ask(request)]
        assert isinstance(answer, DeleteGroupsResponse)
        return answer

    def ask_to_join(
        self, group: str, metadata: bytes, kind: str = "consumer", session_ms: int = 1_000_000
    ) -> tuple[str, JoinGroupRequest]:
        """A new member's first JoinGroup; gives the id it was told, and the request for the second."""
        protocols = (JoinGroupProtocol("range", metadata),)
        request = JoinGroupRequest(group, session_ms, session_ms, "", None, kind, protocols)
        answer = self._answers[self.ask(request)]
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return answer.member_id, replace(request, member_id=answer.member_id)

    def join(self, group: str, metadata: bytes, kind: str = "consumer", session_ms: int = 1_000_000) -> str:
        """A new member joins, in two steps; gives its id. Its answer may be still to come."""
        member, request = self.ask_to_join(group, metadata, kind, session_ms)
        self.ask(request)
        return member

    def told(self, request: JoinGroupRequest) -> str:
        """Joins; gives the member id in the answer, which must be there at once."""
        answer = self._answers[self.ask(request)]
        assert isinstance(answer, JoinGroupResponse)
        return answer.member_id

    def settle(self, group: str) -> int:
        """All members of the group join again and sync; gives the generation."""
        found = self.core.groups[group]
        for member in list(found.members.values()):
            if not member.has_joined:
                again = JoinGroupRequest(
                    group,
                    member.session_timeout_ms,
                    member.rebalance_timeout_ms,
                    member.member_id,
                    None,
                    found.protocol_type,
                    member.protocols,
                )
                self.ask(again)
        shares = tuple(SyncGroupAssignment(member, b"share") for member in found.members)
        for member_id in found.members:
            sync = SyncGroupRequest(group, found.generation, member_id, None, None, None, shares)
            self.ask(sync)
        return found.generation

    def consumers(self, group: str, *subscriptions: Sequence[str] | bytes, kind: str = "consumer") -> list[str]:
        """Brings new members with these topics (or bytes) into a Stable group; gives their ids."""
        blobs = [
            one if isinstance(one, bytes) else encode_subscription(Subscription(tuple(one))) for one in subscriptions
        ]
        members = [self.join(group, blob, kind) for blob in blobs]
        self.settle(group)
        return members

    def leave(self, group: str, *members: str) -> None:
        """Members go."""
        request = LeaveGroupRequest(group, tuple(LeavingMember(member) for member in members))
        self.ask(request)

    def state(self, group: str) -> str:
        """The state that an administrator sees."""
        return self.core.describe(group).group_state

    def passing(self) -> bool:
        """Whether the core is in the middle of a pass over its offsets."""
        return self.core.expiry.under_way

    def _set_clock(self, ms: int) -> None:
        self.now = Instant(ms, self.now.wall_ms + ms - self.now.ms)

    def _new_core(self) -> GroupCore:
        return GroupCore(self.config, self._new_member_id, FewTopics(known))

    def _new_member_id(self, client_id: str) -> str:
        self._ids += 1
        return f"{client_id}-{self._ids}"
