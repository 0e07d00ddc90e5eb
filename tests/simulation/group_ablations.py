"""Safeguards of groups in particular: cooperative and static members, handlers, expiry, deletion. See ``ablations``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any
from unittest.mock import patch

import client.assignors.cooperative_sticky
import coordinator.groups.deletion
import coordinator.groups.join
import coordinator.groups.refusals
import coordinator.groups.static
from client.assignors import CooperativeStickyAssignor
from client.assignors.assignor import Racks
from client.assignors.plan import Plan
from client.consumer.assignment import Assignment
from client.consumer.error_policy import DeadLetters
from client.consumer.leader_assignor import withhold_what_is_held
from client.consumer.offsets_in_work import OffsetsInWork
from client.consumer.rebalance import ConsumerParticipant
from client.consumer.subscription import TopicSelection
from client.consumer.workers import Workers
from client.group.membership import Membership
from coordinator.groups.expiry import _Pass
from coordinator.groups.refusals import Refusal
from coordinator.metadata.catalog import Catalog
from coordinator.runtime.timers import Timers
from protocol.errors import ErrorCode
from protocol.subscription import TopicPartition
from tests.simulation.safeguards import safeguard

_COMING_AND_GOING = ("producing", "consuming", "coming_and_going")


@safeguard(
    "what a cooperative member has given up is not handed out any more",
    "no_two_clients_act_as_owner",
    workloads=_COMING_AND_GOING,
    assignor="cooperative-sticky",
)
def revoking_before_handing_over() -> Iterator[None]:
    original = ConsumerParticipant._give_up

    def keeping(participant: ConsumerParticipant, tps: Any, why: str) -> None:
        assignment = participant._assignment
        kept = {tp: assignment.states[tp] for tp in tps if tp in assignment.states}
        original(participant, tps, why)

        def take_back() -> None:
            for tp, state in kept.items():
                assignment.states.setdefault(tp, state).frozen = False
            assignment._turn = list(assignment.states.values())

        asyncio.get_running_loop().call_later(0.02, take_back)  # when the next join is on its way

    with patch.object(ConsumerParticipant, "_give_up", keeping):
        yield


@safeguard(
    "a partition is withheld until its owner has given it up",
    "ownership_never_overlaps",
    "no_two_clients_act_as_owner",
    workloads=_COMING_AND_GOING,
    assignor="cooperative-sticky",
)
def withholding() -> Iterator[None]:
    with patch.object(client.assignors.cooperative_sticky, "_held_back", lambda *_: set()):
        yield


@safeguard(
    "a plan moves no more than it must",
    "cooperative_groups_converge",
    workloads=_COMING_AND_GOING,
    faults=("client_is_killed", "client_stalls"),
    assignor="cooperative-sticky",
)
def sticking() -> Iterator[None]:
    original = CooperativeStickyAssignor.plan
    turns = count()

    def turning(assignor: Any, partitions: Mapping[str, int], members: Mapping[str, Any], racks: Racks) -> Plan:
        shares = original(assignor, partitions, members, racks).partitions()
        names, turn = sorted(members), next(turns)
        turned = {name: shares[names[(place + turn) % len(names)]] for place, name in enumerate(names)}
        withheld = withhold_what_is_held(turned, members)
        return Plan(names, [], [list(withheld[name]) for name in names])

    with patch.object(CooperativeStickyAssignor, "plan", turning):
        yield


@safeguard(
    "a process that was replaced is fenced",
    "groups_settle_after_the_last_fault",
    workloads=("restarting_static_members",),
)
def static_fencing() -> Iterator[None]:
    original = coordinator.groups.refusals.identity_fault

    def by_member_id_only(group: Any, member_id: str, _: Any) -> Any:
        return original(group, member_id, None)

    def unknown(*_: Any) -> Refusal:
        return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, "join again")

    with (
        patch.object(coordinator.groups.refusals, "identity_fault", by_member_id_only),
        patch.object(coordinator.groups.join, "identity_fault", by_member_id_only),
        patch.object(coordinator.groups.static, "fenced", unknown),
    ):
        yield


@safeguard(
    "a static member that comes back as it was makes no rebalance",
    "static_members_come_back_without_a_rebalance",
    workloads=("restarting_static_members",),
)
def static_places() -> Iterator[None]:
    with patch.object(coordinator.groups.static, "_cause", lambda *_: "somebody was started again"):
        yield


@safeguard(
    "partitions are given up when their handlers have ended",
    "handlers_end_before_their_partition_goes",
    workloads=("producing", "handling", "growing_topics"),
)
def waiting_for_handlers() -> Iterator[None]:
    async def at_once(workers: Workers, tps: Any, deadline: Any) -> None:
        await asyncio.sleep(0)

    with patch.object(Workers, "wind_down", at_once):
        yield


@safeguard(
    "a record that failed is done when its dead letter is on disk",
    "commits_cover_finished_records_only",
    "consumers_skip_nothing",
    "every_acknowledged_record_is_read",
    workloads=("producing", "handling"),
)
def commits_of_kept_records() -> Iterator[None]:
    async def forget(*_: object) -> None:
        """Says that the letter is written."""

    with patch.object(DeadLetters, "write", forget):
        yield


@safeguard(
    "a record is done when its handler has ended",
    "commits_cover_finished_records_only",
    workloads=("producing", "handling"),
)
def commits_of_finished_records() -> Iterator[None]:
    original = Assignment.take_for_work

    def hasty(assignment: Assignment, state: Any) -> Any:
        record = original(assignment, state)
        if record is not None:
            state.done = state.position
        return record

    with patch.object(Assignment, "take_for_work", hasty):
        yield


@safeguard(
    "what is committed has no record in work below it",
    "commits_cover_finished_records_only",
    "every_acknowledged_record_is_read",
    workloads=("producing", "handling"),
)
def commits_without_gaps() -> Iterator[None]:
    def highest(work: OffsetsInWork, offset: int) -> None:
        while work.first is not None and work.first <= offset:
            work._taken.popleft()

    with patch.object(OffsetsInWork, "finish", highest):
        yield


@safeguard(
    "a pause can be ended while its partition is given up",
    "groups_settle_after_the_last_fault",
    workloads=("producing", "pausing", "growing_topics"),
    assignor="range",
)
def pauses_of_what_was_given_up() -> Iterator[None]:
    def of_assigned(assignment: Assignment) -> list[TopicPartition]:
        return [tp for tp, state in assignment.states.items() if state.paused]

    with patch.object(Assignment, "paused", property(of_assigned)):
        yield


@safeguard(
    "what appears while a consumer reads is new to it",
    "what_appears_later_is_read_from_its_beginning",
    "groups_settle_after_the_last_fault",
    workloads=("following_new_topics",),
)
def newness_of_partitions() -> Iterator[None]:
    with patch.object(TopicSelection, "is_new", lambda *_: False):
        yield


@safeguard(
    "offsets that somebody needs do not expire",
    "offsets_expire_by_the_rules_only",
    workloads=("producing", "consuming"),
)
def expiry_by_the_rules() -> Iterator[None]:
    with patch.object(_Pass, "_may_expire", lambda *_: True), patch.object(_Pass, "_in_use", lambda *_: False):
        yield


@safeguard(
    "the offsets of a deleted group are erased",
    "what_was_deleted_stays_deleted",
    workloads=("administering_groups",),
)
def deletion_of_offsets() -> Iterator[None]:
    original = coordinator.groups.deletion._delete

    def leaving_offsets(group: Any, step: Any) -> None:
        records = step.effects.records
        before = len(records)
        original(group, step)
        records[before:] = records[before + sum(map(len, group.offsets.values())) :]

    with patch.object(coordinator.groups.deletion, "_delete", leaving_offsets):
        yield


@safeguard(
    "an offset counts for the topic that it was committed for",
    "offsets_hold_for_their_topic_only",
    faults=("write_errors", "full_disk", "daemon_is_restarted"),
    fault_pause_s=0.3,
    fault_s=15.0,
    workloads=("recreating_topics",),
)
def topic_ids_of_offsets() -> Iterator[None]:
    def by_name(catalog: Catalog, topic: str, _: str) -> bool:
        return topic not in catalog.topics

    with patch.object(Catalog, "is_gone", by_name):
        yield


@safeguard(
    "a stall of the daemon puts off what ends its patience with members",
    "members_that_beat_in_time_stay",
    faults=("daemon_stalls",),
    workloads=("beating",),
)
def stalls_put_off_deadlines() -> Iterator[None]:
    with patch.object(Timers, "_put_off", lambda *_: None):
        yield


@safeguard(
    "a member that was suspended is fenced by the clock, before it is told",
    "no_two_clients_act_as_owner",
    faults=("client_stalls",),
    workloads=("sharing_work",),
)
def members_are_fenced_by_the_clock() -> Iterator[None]:
    def state(membership: Membership) -> str:
        is_told = membership.session is not None and membership.session.ended is not None
        return "fenced" if is_told and membership._state in ("stable", "rebalancing") else membership._state

    with patch.object(Membership, "state", property(state)):
        yield
