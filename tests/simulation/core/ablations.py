"""Each safeguard of the core, switched off from the test side: then a named invariant has to fail, or it guards nothing.

An ablation replaces one function of the core for as long as it is on; production code knows nothing of it. Some blind an
invariant that watches the safeguard itself, to show that the damage is seen as well.

To add one: a function that makes the replacement from the original, and its entry in ``ABLATIONS``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from coordinator.groups import (
    core,
    deletion,
    expiry,
    group,
    join,
    offsets,
    pending_offsets,
    rebalance,
    refusals,
    session,
    static,
    sync,
)
from coordinator.groups.config import GroupStep
from coordinator.groups.core import GroupCore
from coordinator.groups.group import Group, Member
from coordinator.groups.records import OffsetCommitRecord
from coordinator.runtime.effects import Effects, Slices
from coordinator.runtime.unfinished import UnfinishedDecisions
from protocol.errors import ErrorCode
from tests.simulation import rings
from tests.simulation.core import invariants
from tests.simulation.core.history import run
from tests.simulation.core.plan import Plan, draw
from tests.simulation.rings import Verdict

MAX_SEEDS: Final = 300
STEPS: Final = 800

Original = Any
Replace = Callable[[Original], Any]


@dataclass(frozen=True, slots=True)
class Ablation(rings.Ablation):
    """A safeguard of the group core."""

    blind: tuple[str, ...] = ()
    """Invariants that do not look meanwhile."""


def _without(*codes: ErrorCode) -> Replace:
    """A check that lets pass what it refuses with one of ``codes``, where the group and its member are there."""

    def replace(original: Original) -> Any:
        def check(*arguments: Any) -> Any:
            fault = original(*arguments)
            return None if fault is not None and fault.code in codes and arguments[0] is not None else fault

        return check

    return replace


def _nothing(original: Original) -> Any:
    return lambda *_, **__: None


def _deaf_to_calls(original: Original) -> Any:
    """Carries on with members that are called to join."""

    def renewed(groups: Any, request: Any, software: str, now_ms: int) -> Any:
        timers, group = original(groups, request, software, now_ms), groups.get(request.group_id)
        if timers is None and group is not None and request.generation_id == group.generation:
            member = group.members.get(request.member_id)
            return None if member is None else {member.session_timer: now_ms + member.session_timeout_ms}
        return timers

    return renewed


def _half_renewed(original: Original) -> Any:
    """Moves the timer, and forgets that the member was heard of."""

    def renewed(groups: Any, request: Any, software: str, now_ms: int) -> Any:
        timers = original(groups, request, software, now_ms)
        if timers is not None:
            groups[request.group_id].members[request.member_id].session_deadline_ms = None
        return timers

    return renewed


def _no_timer(kind: str) -> Replace:
    def replace(original: Original) -> Any:
        def on_timer(groups: Any, name: Any, step: GroupStep) -> None:
            if name[0] != kind:
                original(groups, name, step)

        return on_timer

    return replace


def _complete_without_removing(original: Original) -> Any:
    def on_rebalance_timer(group: Group, step: GroupStep) -> None:
        rebalance._complete_join(group, step)

    return on_rebalance_timer


def _always_due(original: Original) -> Any:
    return lambda deadline_ms, *_: deadline_ms is not None


def _change_without_record(original: Original) -> Any:
    def decide(core: GroupCore, request: Any, step: GroupStep) -> Effects:
        effects: Effects = original(core, request, step)
        for record in effects.records:
            if isinstance(record, OffsetCommitRecord):
                if record.group_id in core.groups:
                    core.groups[record.group_id].offsets.setdefault(record.topic, {})[record.partition] = record[3:]
                effects.records = [kept for kept in effects.records if kept is not record]
        return effects

    return decide


def _forget_the_first(token: str) -> Replace:
    """A second request of a kind replaces the first, which is never answered."""

    def replace(original: Original) -> Any:
        def park(group: Group, member: Member, *arguments: Any) -> None:
            held = getattr(member, token)
            if held is not None:
                del group.requests[held]
                setattr(member, token, None)
            original(group, member, *arguments)

        return park

    return replace


def _same_generation(original: Original) -> Any:
    return lambda group: max(1, group.generation)


def _keep_new_members(original: Original) -> Any:
    def remove_and_rebalance(group: Group, kind: Any, member: Member, why: str, *arguments: Any) -> None:
        if not why.startswith("closed its connection"):
            original(group, kind, member, why, *arguments)

    return remove_and_rebalance


def _settle_without_record(original: Original) -> Any:
    def settle(group: Group, request: Any, step: GroupStep) -> Slices:
        slices = original(group, request, step)
        sent: Effects | None = None
        while True:
            try:
                slices.send(sent)
            except StopIteration:
                step.effects.records.clear()
                return
            step.effects.records.clear()
            sent = yield

    return settle


def _count_from_the_settled_one(original: Original) -> Any:
    """After a restart the log knows the last generation that was settled; Kafka counts on from there."""
    return lambda group: group.generation + 1


def _for_members_only(original: Original) -> Any:
    return lambda group: group.joined_members == len(group.members)


def _by_member_id_only(original: Original) -> Any:
    return lambda group, member_id, _: original(group, member_id, None)


def _value(value: int) -> Replace:
    return lambda _: value


def _of_the_group_as_it_is_then(original: Original) -> Any:
    def join_responses(group: Group, members: Any) -> Any:
        make = original(group, members)
        return lambda member_id: dataclasses.replace(make(member_id), generation_id=group.generation)

    return join_responses


def _value_of(value: object) -> Replace:
    return lambda _: lambda *_: value


def _once(original: Original) -> Any:
    def come_back(looks: Any, deadline_ms: int, step: GroupStep) -> None:
        if looks.deadline_ms is None:
            original(looks, deadline_ms, step)

    return come_back


def _none_if_there(original: Original) -> Any:
    return lambda group, group_id: original(group, group_id) if group is None else None


def _of_any_epoch(original: Original) -> Any:
    def end_transactions(groups: Any, ends: Any, step: GroupStep) -> None:
        epochs = {pid: next(iter(epochs.values())) for pid, epochs in groups.open_transactions.items()}
        original(groups, [(pid, epochs.get(pid, epoch), committed) for pid, epoch, committed in ends], step)

    return end_transactions


_FENCE: Final = _without(ErrorCode.ILLEGAL_GENERATION)

ABLATIONS: Final = (
    Ablation(
        "generation fence in commit",
        offsets, "_commit_fault", _FENCE,
        ("a_commit_of_an_old_generation_is_refused",),
    ),
    Ablation(
        "generation fence in commit, by its damage",
        offsets, "_commit_fault", _FENCE,
        ("committed_offsets_never_move_back",),
        blind=("a_commit_of_an_old_generation_is_refused",),
    ),
    Ablation(
        "generation fence in sync",
        sync, "member_fault", _FENCE,
        ("a_sync_of_an_old_generation_is_refused",),
    ),
    Ablation(
        "generation fence in heartbeat",
        session, "member_fault", _FENCE,
        ("a_heartbeat_of_an_old_generation_is_refused",),
    ),
    Ablation(
        "a closer look at what is decided at once",
        session, "renewed", _deaf_to_calls,
        ("what_is_decided_at_once_is_decided_alike",),
    ),
    Ablation(
        "all of a heartbeat at once, or nothing",
        session, "renewed", _half_renewed,
        ("what_is_decided_at_once_is_decided_alike",),
    ),
    Ablation(
        "unknown member check in commit",
        offsets, "_commit_fault", _without(ErrorCode.UNKNOWN_MEMBER_ID),
        ("only_members_commit",),
    ),
    Ablation("session expiry", session, "on_timer", _no_timer("session"), ("a_due_timer_takes_effect",)),
    Ablation(
        "session expiry, by its damage",
        session, "on_timer", _no_timer("session"),
        ("nothing_stays_when_every_client_is_gone",),
        blind=("a_due_timer_takes_effect", "timers_are_as_the_groups_say", "no_member_outlives_its_session"),
    ),
    Ablation(
        "rebalance timeout",
        session, "on_rebalance_timer", _nothing,
        ("a_due_timer_takes_effect",),
    ),
    Ablation(
        "rebalance timeout removes who is late",
        session, "on_rebalance_timer", _complete_without_removing,
        ("ownership_never_overlaps",),
    ),
    Ablation(
        "pending sync timer",
        session, "on_sync_timer", _nothing,
        ("a_phase_ends_by_its_deadline",),
        blind=("timers_are_as_the_groups_say",),
    ),
    Ablation(
        "generations count on from the last one told",
        Group, "next_generation", _count_from_the_settled_one,
        ("no_generation_is_handed_out_twice",),
    ),
    Ablation(
        "a settled generation that is written again is not the last one handed out",
        core, "later_generation", lambda _: lambda one, other: other,
        ("no_generation_is_handed_out_twice",),
        blind=("transitions_follow_the_table", "generation_never_falls"),
    ),
    Ablation(
        "pending members are waited for",
        rebalance, "_all_joined", _for_members_only,
        ("a_generation_waits_for_pending_members",),
    ),
    Ablation(
        "no phase waits for a member whose connection has closed",
        join, "stop_awaiting", _nothing,
        ("no_phase_waits_for_a_connection_that_closed",),
    ),
    Ablation("ids that no member joins with expire", session, "on_pending_timer", _nothing, ("a_due_timer_takes_effect",)),
    Ablation("static fencing", refusals, "identity_fault", _by_member_id_only, ("a_process_that_was_replaced_is_fenced",)),
    Ablation(
        "what a replaced process waits for is answered",
        static, "answer_all", _nothing,
        ("unloading_answers_every_request",),
        blind=("a_due_timer_takes_effect", "every_bound_holds"),
    ),
    Ablation(
        "the id of a new static process is written",
        static, "_write", _nothing,
        ("stable_means_a_share_for_each_member",),
    ),
    Ablation("timer override check", session, "_is_due", _always_due, ("a_timer_that_moved_does_nothing",)),
    Ablation(
        "one apply path",
        GroupCore, "decide", _change_without_record,
        ("replay_equals_live_state",),
        blind=("offsets_go_with_their_outputs",),
    ),
    Ablation(
        "a second JoinGroup answers the first",
        join, "hold_join", _forget_the_first("join_token"),
        ("each_request_is_answered_or_pending",),
    ),
    Ablation(
        "a second SyncGroup answers the first",
        sync, "hold_sync", _forget_the_first("sync_token"),
        ("each_request_is_answered_or_pending",),
    ),
    Ablation(
        "a second Heartbeat answers the first",
        session,
        "hold_heartbeat", _forget_the_first("heartbeat_token"),
        ("each_request_is_answered_or_pending",),
    ),
    Ablation(
        "a rebalance fails pending SyncGroups",
        rebalance, "refuse_syncs", _nothing,
        ("a_pending_request_will_be_answered",),
    ),
    Ablation(
        "a rebalance answers pending Heartbeats",
        rebalance, "answer_heartbeats", _nothing,
        ("a_pending_request_will_be_answered",),
    ),
    Ablation("generation increment", Group, "next_generation", _same_generation, ("transitions_follow_the_table",)),
    Ablation(
        "generation increment, by its damage",
        Group, "next_generation", _same_generation,
        ("one_owner_of_a_partition_in_a_generation",),
        blind=("transitions_follow_the_table", "stable_means_a_share_for_each_member"),
    ),
    Ablation(
        "a first join given up removes its member",
        session, "remove_and_rebalance", _keep_new_members,
        ("a_pending_request_will_be_answered",),
    ),
    Ablation(
        "an assignment is written before it is told",
        sync, "_settle", _settle_without_record,
        ("stable_means_a_share_for_each_member",),
    ),
    Ablation(
        "sessions start when the log is loaded",
        core, "renew_session", _nothing,
        ("a_session_runs_unless_a_request_is_held",),
    ),
    Ablation(
        "who waits is told when the shard goes",
        core, "answer_all", _nothing,
        ("the_core_keeps_its_assertions",),
    ),
    Ablation("few causes of a rebalance are kept", group, "MAX_CAUSES", _value(1_000), ("what_people_read_is_bounded",)),
    Ablation("a group keeps its size", join, "too_many", _nothing, ("no_generation_is_larger_than_it_may_be",)),
    Ablation("initial delay", join, "begin_initial_delay", _nothing, ("the_first_generation_waits_for_more",)),
    Ablation(
        "offsets expire in groups at rest only",
        expiry._Pass, "_may_expire", _value_of(True),
        ("offsets_expire_by_the_rules_only",),
    ),
    Ablation(
        "topics in use keep their offsets",
        expiry._Pass, "_in_use", _value_of(False),
        ("offsets_expire_by_the_rules_only",),
    ),
    Ablation("the next look for expired offsets", expiry.Expiry, "_come_back", _once, ("a_due_timer_takes_effect",)),
    Ablation(
        "groups with members are not deleted",
        deletion, "_delete_fault", _none_if_there,
        ("the_core_keeps_its_assertions",),
    ),
    Ablation("offsets in use are not deleted", deletion, "_offset_fault", _nothing, ("offsets_in_use_are_not_deleted",)),
    Ablation("a deletion is written", deletion, "erase", _nothing, ("only_empty_groups_are_deleted",)),
    Ablation(
        "an answer made late depends on nothing that changes",
        rebalance, "join_responses", _of_the_group_as_it_is_then,
        ("an_answer_made_late_is_the_same",),
    ),
    Ablation(
        "what is about a group waits for the slices of a decision",
        UnfinishedDecisions, "__contains__", _value_of(False),
        ("the_core_keeps_its_assertions",),
    ),
    Ablation(
        "require_stable",
        offsets, "pending_places", _value_of(frozenset()),
        ("undecided_offsets_are_waited_for",),
    ),
    Ablation(
        "require_stable, by its damage",
        offsets, "pending_places", _value_of(frozenset()),
        ("each_input_is_answered_once",),
        blind=("undecided_offsets_are_waited_for", "offsets_go_with_their_outputs"),
    ),
    Ablation(
        "generation fence in TxnOffsetCommit",
        pending_offsets, "_fault", _FENCE,
        ("transactions_of_an_old_generation_commit_nothing",),
    ),
    Ablation(
        "generation fence in TxnOffsetCommit, by its damage",
        pending_offsets, "_fault", _FENCE,
        ("each_input_is_answered_once",),
        blind=("transactions_of_an_old_generation_commit_nothing", "offsets_go_with_their_outputs"),
    ),
    Ablation(
        "a plain commit overtakes what is pending",
        offsets, "overtake", _nothing,
        ("offsets_go_with_their_outputs",),
        blind=("undecided_offsets_are_waited_for",),
    ),
    Ablation(
        "of two transactions the one that was told later counts",
        pending_offsets, "_is_earlier", _value_of(False),
        ("offsets_go_with_their_outputs",),
    ),
    Ablation(
        "what comes twice is told once",
        pending_offsets, "_says_the_same", _value_of(False),
        ("offsets_go_with_their_outputs",),
        blind=("undecided_offsets_are_waited_for",),
    ),
    Ablation(
        "a marker ends the transaction of its own epoch",
        pending_offsets, "end_transactions", _of_any_epoch,
        ("offsets_go_with_their_outputs",),
        blind=("undecided_offsets_are_waited_for",),
    ),
    Ablation(
        "undecided offsets and their groups do not expire",
        expiry, "pending_places", _value_of(frozenset()),
        ("offsets_expire_by_the_rules_only",),
    ),
    Ablation("few departed members are kept", group, "MAX_DEPARTED", _value(10_000), ("what_people_read_is_bounded",)),
)  # fmt: skip


@contextmanager
def switched_off(ablation: Ablation) -> Iterator[None]:
    """Runs the core without a safeguard, and without the invariants that are not to see it."""
    with rings.switched_off(ablation), invariants.blind(ablation.blind):
        yield


def first_failure(ablation: Ablation) -> tuple[int, Verdict[Plan]] | None:
    """How many seeds it takes until an invariant fails, and the verdict; None if none fails."""
    with invariants.blind(ablation.blind):
        return rings.first_failure(ablation, (draw(seed, STEPS) for seed in range(MAX_SEEDS)), run)
