"""A model of the shell around the core: carries out effects as the real one does, and checks the laws after every step."""

from __future__ import annotations

from dataclasses import replace

from coordinator.groups.config import GroupConfig
from coordinator.groups.core import GroupCore
from coordinator.groups.group import Group
from coordinator.groups.records import CoordinatorRecord, decode_record, encode_record
from coordinator.groups.state import GroupState
from coordinator.runtime.effects import Effects, Instant, Note, RequestContext, TimerName
from protocol.errors import ErrorCode
from protocol.messages.api import Request, Response
from protocol.messages.groups import (
    HeartbeatRequest,
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
)
from tests.coordinator.groups.laws import GROUP_LAWS, pending_tokens, timers_stand_as_the_group_says
from tests.coordinator.groups.steps import FewTopics, decide, load, step_of

MAX_WALL_MS = 1_000_000

_TOPICS = FewTopics(lambda _topic, partition: partition < 3)


class Shell:
    """Owns the clock, the timers, the log and the waiting requests of one core with one group, "g"."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.now_ms = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[TimerName, int] = {}
        self.waiting: dict[int, Request] = {}
        self.answers: dict[int, Response] = {}
        self.notes: list[Note] = []
        self.tokens = 0
        self.ids = 0
        self.generation = 0
        self.core = GroupCore(self.config, self._new_member_id, _TOPICS)

    @property
    def group(self) -> Group | None:
        """The one group, if it exists."""
        return self.core.groups.get("g")

    def send(self, request: Request, client_id: str = "c") -> int:
        """Hands a request to the core; gives its token. The answer is in ``answers`` once it came.

        It comes from a client of Kafka where ``client_id`` begins with "kafka".
        """
        self.tokens += 1
        token = self.tokens
        self.waiting[token] = request
        of_kafka = client_id.startswith("kafka")
        context = RequestContext(token, client_id, "host", connection=token, of_kafka=of_kafka)
        self.carry_out(decide(self.core, request, context, self.now()))
        return token

    def enter(self, request: JoinGroupRequest, client_id: str = "c") -> int:
        """A new member joins in two steps, as clients do; gives the token of the second."""
        answer = self.answers.get(token := self.send(request, client_id))
        if isinstance(answer, JoinGroupResponse) and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            token = self.send(replace(request, member_id=answer.member_id), client_id)
        return token

    def carry_out(self, effects: Effects) -> None:
        """Does what the core says; then checks every law."""
        self.obey(effects)
        for later in effects.rest[1] if effects.rest is not None else ():
            self.obey(later)
        self.check()

    def obey(self, effects: Effects) -> None:
        """Applies records, sets timers, takes answers."""
        for record in effects.records:
            assert isinstance(record, CoordinatorRecord)
            self.core.apply(record)
            self.log.append(encode_record(record))
        for name, deadline_ms in effects.timers.items():
            if deadline_ms is None:
                self.timers.pop(name, None)
            else:
                self.timers[name] = deadline_ms
        for token, response in effects.replies:
            assert token in self.waiting, f"an answer to no request, or a second one: {token} {response}"
            assert isinstance(response, type(self.waiting.pop(token)).response)
            self.answers[token] = response
        self.notes += effects.notes

    def abandon(self, token: int) -> None:
        """The connection of a request closes, which has been answered or waits; each has a connection of its own."""
        self.waiting.pop(token, None)
        self.carry_out(self.core.abandon(token, step_of(self.core, self.now())))
        if self.core.gave_ids_over(token):
            self.carry_out(self.core.close_connection(token, step_of(self.core, self.now())))
        assert not self.core.gave_ids_over(token)

    def fire_late(self, name: TimerName) -> None:
        """A timer fires whose deadline may have moved since: the core has to notice."""
        self.carry_out(self.core.on_timer(name, step_of(self.core, self.now())))

    def advance(self, ms: int) -> None:
        """Lets time pass and fires what is due, in the order of deadlines."""
        until_ms = self.now_ms + ms
        while due := sorted(
            (deadline_ms, name) for name, deadline_ms in self.timers.items() if deadline_ms <= until_ms
        ):
            self.now_ms = max(self.now_ms, due[0][0])
            del self.timers[due[0][1]]
            self.carry_out(self.core.on_timer(due[0][1], step_of(self.core, self.now())))
        self.now_ms = until_ms

    def replayed(self) -> GroupCore:
        """A core that has read the log so far."""
        core = GroupCore(self.config, self._new_member_id, _TOPICS)
        for key, value in self.log:
            record = decode_record(key, value)
            assert record is not None
            core.apply(record)
        return core

    def restart(self) -> None:
        """The process is gone and comes back with its log; its connections are closed."""
        core = self.replayed()
        assert core.durable_state() == self.core.durable_state()
        self.core = core
        self.timers.clear()
        self.waiting.clear()
        group = self.group
        effects = load(self.core, self.now())
        # Of generations that never settled the log has only the number; their members are refused by id or generation.
        self.generation = group.generation if group is not None else 0
        if group is not None:
            assert (group.state is GroupState.STABLE) == bool(group.members)
        self.carry_out(effects)

    def now(self) -> Instant:
        """Both clocks."""
        return Instant(self.now_ms, MAX_WALL_MS + self.now_ms)

    def check(self) -> None:
        """The laws that hold between any two requests."""
        assert self.replayed().durable_state() == self.core.durable_state()
        assert pending_tokens(self.core) == set(self.waiting), "what waits is pending, and the other way round"
        if self.group is not None:
            self._check_group(self.group)

    def _check_group(self, group: Group) -> None:
        assert group.generation >= self.generation, "the generation fell"
        self.generation = group.generation
        for law in GROUP_LAWS:
            law(group)
        timers_stand_as_the_group_says(group, self.timers)
        for member in group.members.values():
            if member.session_deadline_ms is not None:
                assert member.session_deadline_ms >= self.now_ms, "a member outlived its session"

    def _new_member_id(self, client_id: str) -> str:
        """From a client id, or the instance id of a static member."""
        self.ids += 1
        return f"{client_id}-{self.ids}"


def join(
    member_id: str = "",
    protocols: str = "range",
    metadata: bytes = b"m",
    session_ms: int = 10_000,
    *,
    instance: str | None = None,
    reason: str = "",
    rebalance_ms: int = 60_000,
) -> JoinGroupRequest:
    """A JoinGroup of group "g"; ``protocols`` are names with commas between them."""
    offered = tuple(JoinGroupProtocol(name, metadata) for name in protocols.split(","))
    return JoinGroupRequest("g", session_ms, rebalance_ms, member_id, instance, "consumer", offered, reason)


def sync(
    member_id: str, generation: int, shares: dict[str, bytes] | None = None, instance: str | None = None
) -> SyncGroupRequest:
    """A SyncGroup of group "g"."""
    assignments = tuple(SyncGroupAssignment(name, share) for name, share in (shares or {}).items())
    return SyncGroupRequest("g", generation, member_id, instance, None, None, assignments)


def heartbeat(member_id: str, generation: int, max_wait_ms: int = 0, instance: str | None = None) -> HeartbeatRequest:
    """A Heartbeat of group "g"."""
    return HeartbeatRequest("g", generation, member_id, instance, max_wait_ms)


def leave(*member_ids: str, reason: str = "", instance: str | None = None) -> LeaveGroupRequest:
    """A LeaveGroup of group "g"."""
    return LeaveGroupRequest("g", tuple(LeavingMember(member_id, instance, reason) for member_id in member_ids))


def commit(
    member_id: str, generation: int, partition: int = 0, offset: int = 1, instance: str | None = None
) -> OffsetCommitRequest:
    """An OffsetCommit of one partition of topic "t" for group "g"."""
    return OffsetCommitRequest(
        "g", generation, member_id, instance, (OffsetCommitTopic("t", (OffsetCommitPartition(partition, offset),)),)
    )


def code_of(response: Response) -> ErrorCode:
    """The error code of a response; for a commit that of its first partition."""
    if isinstance(response, OffsetCommitResponse):
        return ErrorCode(response.topics[0].partitions[0].error_code)
    return ErrorCode(response.error_code)  # type: ignore[attr-defined]


def joined(shell: Shell, request: JoinGroupRequest, client_id: str = "c") -> JoinGroupResponse:
    """Joins, in two steps if need be; gives the answer, which must be there."""
    answer = shell.answers[shell.enter(request, client_id)]
    assert isinstance(answer, JoinGroupResponse)
    return answer


def settle(shell: Shell) -> None:
    """Every member that is called joins with what it said last, then all sync: the group is Stable."""
    group = shell.group
    assert group is not None
    for member in [one for one in group.members.values() if not one.has_joined]:
        if group.state is GroupState.PREPARING_REBALANCE:
            asked = join(
                member.member_id,
                session_ms=member.session_timeout_ms,
                instance=member.group_instance_id,
                rebalance_ms=member.rebalance_timeout_ms,
            )
            shell.send(replace(asked, protocols=member.protocols), member.client_id)
    assert group.state.value == GroupState.COMPLETING_REBALANCE.value
    shares = {name: name.encode() for name in group.members}
    for name in [*(name for name in group.members if name != group.leader), group.leader or ""]:
        shell.send(sync(name, group.generation, shares if name == group.leader else None))
    assert group.state is GroupState.STABLE


def stable_group(shell: Shell, size: int, *, static: bool = False) -> list[str]:
    """Brings ``size`` members into a stable group; gives their ids, the leader's first. Instance ids are i0, i1, ..."""
    for index in range(size):
        shell.enter(join(instance=f"i{index}" if static else None))
    assert shell.group is not None
    if shell.group.state is GroupState.PREPARING_REBALANCE or shell.group.durable is None:
        settle(shell)
    return list(shell.group.members)
