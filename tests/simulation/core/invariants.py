"""What must hold in every history: one function and one name each, registered for the moment at which it is checked.

An invariant asserts. ``violated`` finds the name of the one that failed; an assertion of the core itself counts as
``the_core_keeps_its_assertions``. To add one: write the function, decorate it with its moment.

Generations: within a life of the coordinator a group's generation never falls, and changes as ``steps.STEPS`` says. A
restart goes back to the last one that was settled, whose members go on; but each new one is greater than any that a member
has heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final, cast

from coordinator.groups.core import GroupCore
from coordinator.groups.expiry import EXPIRY_TIMER
from coordinator.groups.group import Group, Member
from coordinator.groups.state import GroupState
from coordinator.runtime.effects import Effects, TimerName
from protocol.errors import ErrorCode
from protocol.messages.api import Response
from protocol.messages.groups import CARRY_ON, HeartbeatRequest, JoinGroupResponse, SyncGroupRequest
from protocol.messages.offsets import OffsetCommitRequest
from protocol.messages.transactions import TxnOffsetCommitRequest
from tests.coordinator.groups import laws
from tests.simulation.core.call import COMMIT, HEARTBEAT, JOIN, SYNC, Call, Kind
from tests.simulation.core.client import MAX_REBALANCE_MS, MAX_SESSION_MS, PARTITIONS, TOPIC
from tests.simulation.core.ledger import Ledger
from tests.simulation.core.steps import STEPS
from tests.simulation.rings import THE_CORE

if TYPE_CHECKING:
    from tests.simulation.core.shell import Shell

FIRED_LATE_MS: Final = 60
"""How late a timer of the simulated shell fires at most."""

HELD_MS: Final = 40
"""How long the slices of a decision hold back what is about the same group, at most."""

LATE_MS: Final = FIRED_LATE_MS + HELD_MS
"""How late what a timer brings about happens at most."""

Law = Callable[[Group], None]
Step = Callable[["Shell", Ledger, Group], None]
Sample = Callable[["Shell"], None]
Arrival = Callable[["Shell", Call, Response | None], None]
Commit = Callable[["Shell", Call, OffsetCommitRequest], None]
TxnCommit = Callable[["Shell", Call, TxnOffsetCommitRequest], None]
Told = Callable[["Shell", Call, JoinGroupResponse], None]
Share = Callable[["Shell", Call, SyncGroupRequest, bytes], None]
Fired = Callable[["Shell", TimerName, int | None, Effects], None]

INVARIANTS: Final[dict[str, Callable[..., None]]] = {}
"""All of them by name."""

EVERY_STEP: Final[list[Step]] = []
"""After each step, for the group it was about."""

EVERY_STEP_LAWS: Final[list[Law]] = [laws.the_leader_is_a_member]
"""The same for laws that need nothing but the group."""

ON_CHANGE_LAWS: Final[list[Law]] = [law for law in laws.GROUP_LAWS if law is not laws.the_leader_is_a_member]
"""The same at the moment of ``ON_CHANGE``."""

ON_CHANGE: Final[list[Step]] = []
"""After each step that changed the state or the generation of its group, and whenever a sample is taken."""

SAMPLED: Final[list[Sample]] = []
"""After one step of many, after each restart and at the end: they look at everything."""

ON_RESTART: Final[list[Step]] = []
"""After the coordinator has come back from its log, for each group; the book still says what it said before."""

ON_ARRIVAL: Final[tuple[list[Arrival], ...]] = tuple([] for _ in Kind)
"""By kind, when a request was decided: with its answer, or None if it is pending."""

ON_COMMIT: Final[list[Commit]] = []
"""When a commit was accepted."""

ON_TXN_COMMIT: Final[list[TxnCommit]] = []
"""When a TxnOffsetCommit was accepted."""

ON_SHARE: Final[list[Share]] = []
"""When a SyncGroup is answered with a share, at once or later."""

ON_GENERATION: Final[list[Told]] = []
"""When a JoinGroup is answered with a generation, at once or later."""

ON_TIMER: Final[list[Fired]] = []
"""When a timer fired: with its name, the deadline the shell had for it (None: none) and what the core made of it."""

AT_THE_END: Final[list[Sample]] = []
"""Once the faults have stopped and nothing changes any more."""

Check = Callable[..., Any]


def invariant(*moments: list[Any]) -> Callable[[Check], Check]:
    """Registers a function for its moments."""

    def register(check: Check) -> Check:
        INVARIANTS[check.__name__] = check
        for moment in moments:
            moment.append(check)
        return check

    return register


def violated(error: BaseException) -> str:
    """The name of the invariant that an exception comes from."""
    names = [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)]
    return next((name for name in reversed(names) if name in INVARIANTS), THE_CORE)


@contextmanager
def blind(names: Iterable[str]) -> Iterator[None]:
    """Some invariants are not looked at for a while: for ablations, whose damage others are to see."""
    moments: list[list[Any]] = [
        EVERY_STEP_LAWS,
        ON_CHANGE_LAWS,
        EVERY_STEP,
        ON_CHANGE,
        SAMPLED,
        ON_RESTART,
        *ON_ARRIVAL,
        ON_COMMIT,
        ON_TXN_COMMIT,
        ON_SHARE,
        ON_GENERATION,
        ON_TIMER,
        AT_THE_END,
    ]
    kept = [list(moment) for moment in moments]
    for moment in moments:
        moment[:] = [check for check in moment if check.__name__ not in names]
    try:
        yield
    finally:
        for moment, checks in zip(moments, kept, strict=True):
            moment[:] = checks


@invariant(ON_CHANGE)
def transitions_follow_the_table(shell: Shell, ledger: Ledger, group: Group) -> None:
    grown = min(1, group.generation - ledger.generation)  # after a restart it passes over those that were never settled
    assert (ledger.state, group.state, grown) in STEPS, (
        f"{ledger.state.value} to {group.state.value} from generation {ledger.generation} to {group.generation}"
    )


@invariant(ON_CHANGE, ON_RESTART)
def generation_never_falls(shell: Shell, ledger: Ledger, group: Group) -> None:
    assert group.generation >= ledger.told_generation, (
        f"generation {group.generation}, but a member has its share of {ledger.told_generation}"
    )


@invariant(ON_CHANGE)
def no_generation_is_handed_out_twice(shell: Shell, ledger: Ledger, group: Group) -> None:
    assert group.generation == ledger.generation or group.generation > ledger.heard_before_restart, (
        f"generation {group.generation} begins, but members have heard of {ledger.heard_before_restart} before the restart"
    )


@invariant(EVERY_STEP)
def each_request_is_answered_or_pending(shell: Shell, ledger: Ledger, group: Group) -> None:
    assert len(shell.waiting) == len(shell.core.groups.requests), (
        f"{len(shell.waiting)} requests wait, {len(shell.core.groups.requests)} are pending"
    )


@invariant(ON_CHANGE)
def a_phase_ends_by_its_deadline(shell: Shell, ledger: Ledger, group: Group) -> None:
    state = group.state
    if state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE):
        # Preparing may begin anew for the members' longest timeout once in each phase, never more.
        # Static members of whom none has rejoined are waited for until their sessions end.
        waited_ms, waits_on = (
            shell.now_ms - ledger.since_ms,
            state is GroupState.PREPARING_REBALANCE and group.instances,
        )
        longest_ms = MAX_REBALANCE_MS + (MAX_REBALANCE_MS + MAX_SESSION_MS if waits_on else 0)
        assert waited_ms <= longest_ms + LATE_MS or state is not ledger.state, (
            f"{state.value} for {waited_ms} ms, and no timeout is longer than {longest_ms} ms"
        )


@invariant(ON_CHANGE)
def a_generation_waits_for_pending_members(shell: Shell, ledger: Ledger, group: Group) -> None:
    """Until the rebalance timeout at most; without members it waits for none."""
    if group.generation > ledger.generation and group.members and shell.firing != "rebalance":
        awaited = [pending.member_id for pending in group.pending.values() if pending.awaited]
        assert not awaited, f"generation {group.generation} begins without {awaited}"


@invariant(ON_CHANGE)
def every_bound_holds(shell: Shell, ledger: Ledger, group: Group) -> None:
    members = sum(len(one.members) for one in shell.core.groups.values())
    assert len(shell.waiting) <= 3 * members, f"{len(shell.waiting)} requests of {members} members wait"
    pending = sum(len(one.pending) for one in shell.core.groups.values())
    assert len(shell.timers) <= 2 * members + pending + len(shell.core.groups) + 1, (
        f"{len(shell.timers)} timers for {members} members"
    )


@invariant()
def each_answer_is_the_first(shell: Shell, call: Call | None, token: int, response: Response) -> None:
    assert call is not None, f"a second answer to request {token}, or one to no request: {response}"
    assert type(response) is call.request.response, f"{call.kind.name} is answered by {type(response).__name__}"


_all_of = attrgetter(*(each.name for each in fields(Member)))
"""Of a member."""


class AtOnce:
    """A heartbeat that is decided at once, if it may be: which timers moved, and its member before and afterwards."""

    def __init__(self, core: GroupCore, call: Call, software: str, now_ms: int) -> None:
        self._core, self._request = core, cast("HeartbeatRequest", call.request)
        self.before = self.member()
        self.timers = core.renewed(self._request, software, now_ms)
        self.after = self.member()

    def member(self) -> Any:
        """All that is known of it; None if it is not there."""
        group = self._core.groups.get(self._request.group_id)
        member = None if group is None else group.members.get(self._request.member_id)
        return None if member is None else _all_of(member)


@invariant()
def what_is_decided_at_once_is_decided_alike(shell: Shell, call: Call, at_once: AtOnce, effects: Effects) -> None:
    if at_once.timers is None:
        assert at_once.after == at_once.before, "it was not decided at once, and its member is another"
    else:
        assert at_once.after == at_once.member(), "its member is not as it is when it is decided"
        assert effects.timers == at_once.timers, f"{at_once.timers} at once, {effects.timers} when it was decided"
        assert effects.given == [(call.token, CARRY_ON, None)], f"CARRY_ON at once, {effects.given} when it was decided"
        more = effects.records or effects.notes or effects.orders or effects.rest
        assert not more, f"more than a timer when it was decided: {more}"


@invariant(ON_ARRIVAL[HEARTBEAT])
def a_heartbeat_of_an_old_generation_is_refused(shell: Shell, call: Call, response: Response | None) -> None:
    if response is None or response.error_code == 0:  # type: ignore[attr-defined]
        speaks_for_the_generation(shell, call.request.group_id, call.request)  # type: ignore[attr-defined]


@invariant(ON_ARRIVAL[SYNC])
def a_sync_of_an_old_generation_is_refused(shell: Shell, call: Call, response: Response | None) -> None:
    if response is None or response.error_code == 0:  # type: ignore[attr-defined]
        speaks_for_the_generation(shell, call.request.group_id, call.request)  # type: ignore[attr-defined]


@invariant(ON_ARRIVAL[JOIN], ON_ARRIVAL[SYNC], ON_ARRIVAL[HEARTBEAT], ON_ARRIVAL[COMMIT])
def a_process_that_was_replaced_is_fenced(shell: Shell, call: Call, response: Response | None) -> None:
    request: Any = call.request
    if request.group_instance_id is not None and request.member_id:
        group = shell.core.groups.get(request.group_id)
        current = None if group is None else group.instances.get(request.group_instance_id)
        if current is not None and current != request.member_id:
            assert response is not None, f"a request of {request.member_id} waits, but {current} has taken its place"
            answer: Any = response
            code = answer.topics[0].partitions[0].error_code if call.kind == COMMIT else answer.error_code
            assert code == ErrorCode.FENCED_INSTANCE_ID, (
                f"{request.member_id} is told {code}, but {current} replaced it"
            )


def speaks_for_the_generation(shell: Shell, group_id: str, request: Any) -> None:
    """Of invariants: the request is that of a member, in the generation of its group."""
    group = shell.core.groups[group_id]
    assert request.member_id in group.members, f"{request.member_id} is no member"
    assert request.generation_id == group.generation, (
        f"{request.member_id} is served for generation {request.generation_id} in generation {group.generation}"
    )


@invariant(ON_COMMIT)
def only_members_commit(shell: Shell, call: Call, request: OffsetCommitRequest) -> None:
    group = shell.core.groups[request.group_id]
    if group.members:
        assert request.member_id in group.members, f"{request.member_id} commits, but is no member"
    else:
        assert request.generation_id < 0, f"{request.member_id} commits to an empty group"


@invariant(ON_COMMIT)
def a_commit_of_an_old_generation_is_refused(shell: Shell, call: Call, request: OffsetCommitRequest) -> None:
    group = shell.core.groups[request.group_id]
    assert not group.members or request.generation_id == group.generation, (
        f"{request.member_id} commits for generation {request.generation_id} in generation {group.generation}"
    )


@invariant(ON_COMMIT)
def committed_offsets_never_move_back(shell: Shell, call: Call, request: OffsetCommitRequest) -> None:
    """Except by a reset, or by the member that wrote the offset, in its generation: its requests may overtake each other."""
    partition = request.topics[0].partitions[0]
    offset, member_id, generation = call.ledger.committed.get(partition.partition_index, (0, "", -1))
    if partition.committed_offset < offset and not call.reset:
        assert (member_id, generation) == (request.member_id, request.generation_id), (
            f"partition {partition.partition_index}: {request.member_id} in generation {request.generation_id} moves the "
            f"offset from {offset} of {member_id} in generation {generation} to {partition.committed_offset}"
        )


@invariant(ON_SHARE)
def one_owner_of_a_partition_in_a_generation(shell: Shell, call: Call, request: SyncGroupRequest, share: bytes) -> None:
    ledger = call.ledger
    if request.generation_id == ledger.shares_generation:
        for partition in share:
            owner = ledger.shares.get(partition, request.member_id)
            taken_over = request.group_instance_id is not None and owner.startswith(f"{request.group_instance_id}-")
            assert owner == request.member_id or taken_over, (
                f"partition {partition} in generation {request.generation_id}: of {owner} and of {request.member_id}"
            )


@invariant(ON_SHARE)
def ownership_never_overlaps(shell: Shell, call: Call, request: SyncGroupRequest, share: bytes) -> None:
    """See ``ledger`` for what begins and ends ownership. A member that the coordinator has removed owns nothing."""
    members = shell.core.groups[request.group_id].members
    owners = call.ledger.owners
    for partition in share:
        owner, generation = owners.get(partition, (request.member_id, 0))
        assert owner == request.member_id or owner not in members, (
            f"partition {partition} goes to {request.member_id} in generation {request.generation_id}, but {owner} "
            f"has it since generation {generation} and has neither joined again nor left"
        )


@invariant(ON_GENERATION)
def a_generation_is_told_while_it_lasts(shell: Shell, call: Call, response: JoinGroupResponse) -> None:
    """Also when it takes many slices to tell all members: nothing else is decided about the group meanwhile."""
    group = shell.core.groups[call.ledger.group_id]
    assert group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE), (
        f"{response.member_id} is told of generation {response.generation_id} in {group.state.value}"
    )
    assert response.generation_id == group.generation, (
        f"{response.member_id} is told of generation {response.generation_id} in generation {group.generation}"
    )


@invariant(ON_SHARE)
def a_share_is_told_while_the_group_is_stable(
    shell: Shell, call: Call, request: SyncGroupRequest, share: bytes
) -> None:
    group = shell.core.groups[request.group_id]
    assert group.state is GroupState.STABLE, f"{request.member_id} is told its share in {group.state.value}"


@invariant(ON_TIMER)
def a_timer_that_moved_does_nothing(shell: Shell, name: TimerName, deadline_ms: int | None, effects: Effects) -> None:
    if deadline_ms is None or shell.now_ms < deadline_ms:
        assert not effects.records, f"{name} is not due but writes"
        assert not effects.replies, f"{name} is not due but answers"
        assert not effects.notes, f"{name} is not due: {effects.notes}"
        assert deadline_ms is None or name in shell.timers, f"{name} was not due and is not set again"


@invariant(ON_TIMER)
def a_due_timer_takes_effect(shell: Shell, name: TimerName, deadline_ms: int | None, effects: Effects) -> None:
    if deadline_ms is not None and shell.now_ms >= deadline_ms:
        if name == EXPIRY_TIMER:
            assert name in shell.timers, "no look for expired offsets comes any more"
            return
        if name[0] == "pending":
            left = shell.core.groups.get(name[1])
            assert left is None or name[2] not in left.pending, f"{name[2]} was given out too long ago, but stays good"
            return
        group = shell.core.groups[name[1]]
        if name[0] == "session":
            assert name[2] not in group.members, f"the session of {name[2]} is over, but it is still a member"
        elif name[0] == "heartbeat":
            assert effects.replies, f"the heartbeat of {name[2]} has waited long enough, but is not answered"
        elif name[0] == "rebalance":
            waits_on = (not group.joined_members and group.instances) or group.initial is not None
            again = waits_on and name in shell.timers
            assert group.rebalance_deadline_ms is None or again, "the rebalance timeout is over, but not the rebalance"


@invariant(SAMPLED)
def replay_equals_live_state(shell: Shell) -> None:
    assert shell.replayed().durable_state() == shell.core.durable_state()


@invariant(SAMPLED)
def offsets_are_what_was_accepted(shell: Shell) -> None:
    for ledger in shell.ledgers:
        group = shell.core.groups.get(ledger.group_id)
        live = {} if group is None else group.offsets.get(TOPIC, {})
        assert {partition: offset for partition, (offset, _, _) in ledger.committed.items()} == {
            partition: committed[0] for partition, committed in live.items()
        }


@invariant(SAMPLED)
def what_waits_is_pending(shell: Shell) -> None:
    held = laws.pending_tokens(shell.core)
    assert held == set(shell.waiting)
    assert held == set(shell.core.groups.requests)


@invariant(SAMPLED)
def timers_are_as_the_groups_say(shell: Shell) -> None:
    for group in shell.core.groups.values():
        laws.timers_stand_as_the_group_says(group, shell.timers)


@invariant(SAMPLED)
def no_member_outlives_its_session(shell: Shell) -> None:
    for group in shell.core.groups.values():
        for member in group.members.values():
            deadline_ms = member.session_deadline_ms
            assert deadline_ms is None or deadline_ms + LATE_MS >= shell.now_ms, (
                f"the session of {member.member_id} is over since {shell.now_ms - (deadline_ms or 0)} ms"
            )


@invariant()
def what_is_given_up_parks_nothing(shell: Shell, token: int, effects: Effects) -> None:
    assert token not in shell.core.groups.requests
    assert all(reply.token != token for reply in effects.replies), "an answer to a request that was given up"


@invariant()
def no_phase_waits_for_a_connection_that_closed(shell: Shell, connection: int) -> None:
    for group in shell.core.groups.values():
        for pending in group.pending.values():
            assert pending.connection != connection or not pending.awaited, f"{pending.member_id} is still waited for"


@invariant()
def unloading_answers_every_request(shell: Shell) -> None:
    assert not shell.waiting, f"{len(shell.waiting)} requests are never answered"
    assert not shell.timers, f"timers stay behind: {list(shell.timers)}"


@invariant(AT_THE_END)
def after_the_last_fault_every_group_settles(shell: Shell) -> None:
    """Stable, each living client with its share, all partitions owned; or Empty, when no client lives."""
    unsettled = list(shell.unsettled())
    assert not unsettled, "; ".join(unsettled)


@invariant()
def nothing_stays_when_every_client_is_gone(shell: Shell) -> None:
    """Each group Empty, no request waiting and no timer set."""
    for ledger in shell.ledgers:
        group = shell.core.groups.get(ledger.group_id)
        assert group is None or group.state is GroupState.EMPTY, f"{ledger.group_id} still has {list(group.members)}"
    assert not shell.waiting
    assert not shell.timers.keys() - {EXPIRY_TIMER}


INVARIANTS.update({law.__name__: law for law in laws.GROUP_LAWS})

assert PARTITIONS <= 256, "a share is one byte a partition"
