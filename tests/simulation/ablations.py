"""Safeguards, each with a way to switch it off and the invariants that must then fail.

A simulator that catches nothing is worth nothing. The switches reach into production from here, by replacing one function
for the time of a history; production knows nothing of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

import coordinator.groups.offsets
import coordinator.log.checkpoints
import coordinator.log.cleaner
import coordinator.log.recovery
import coordinator.log.scan
import coordinator.metadata.local
import protocol.record_batch
from client.consumer.assignment import Assignment
from client.consumer.offset_commits import OffsetCommits
from client.group.heartbeat import Heartbeats
from client.group.member import _Share
from client.producer.partition_queue import PartitionQueue
from client.transport.cluster import Cluster
from coordinator.groups import join, rebalance, session
from coordinator.groups.core import GroupCore
from coordinator.log.checkpoints import Checkpoint
from coordinator.log.group_commit import Appender, Chunk, GroupCommit
from coordinator.logs.log_manager import LogManager
from coordinator.logs.maintenance import LogMaintenance
from coordinator.metadata.encoding import Metadata, replay
from coordinator.metadata.local import _Files
from coordinator.nodes.identity import NodeFile, NodeIdentity
from coordinator.runtime.pending_replies import PendingReplies
from coordinator.runtime.shard import CoordinatorShard
from coordinator.runtime.timers import Timers
from coordinator.server.server_connection import ServerConnection
from protocol.messages.groups import LeaveGroupRequest
from tests.simulation import (
    cluster_ablations,
    group_ablations,
    kafka_ablations,
    record_ablations,
    transaction_ablations,
)
from tests.simulation.disk import SimStorage
from tests.simulation.record_ablations import swap_by_removing_first
from tests.simulation.safeguards import ABLATIONS, Ablation, safeguard

__all__ = ["ABLATIONS", "Ablation"]

_REGISTERED = (cluster_ablations, group_ablations, kafka_ablations, record_ablations, transaction_ablations)


@safeguard(
    "the write is synced before the answer",
    "acknowledged_records_survive",
    "acknowledged_commits_survive",
    faults=("daemon_loses_power",),
    workloads=("producing", "committing_alone"),
)
def fsync_before_answer() -> Iterator[None]:
    original = Appender._group_commit

    def unsynced(appender: Appender, chunk: Chunk) -> GroupCommit:
        return replace(original(appender, chunk), sync=False)

    with patch.object(Appender, "_group_commit", unsynced):
        yield


@safeguard(
    "a new file's name is synced",
    "acknowledged_records_survive",
    "acknowledged_commits_survive",
    faults=("daemon_loses_power",),
    workloads=("producing", "committing_alone"),
)
def directory_sync() -> Iterator[None]:
    with patch.object(SimStorage, "sync_directory", lambda storage, path: storage.step()):
        yield


@safeguard(
    "commits of old generations are refused",
    "old_generations_commit_nothing",
    workloads=("producing", "consuming", "coming_and_going"),
)
def generation_fence() -> Iterator[None]:
    original = coordinator.groups.offsets._commit_fault

    def lenient(group: Any, request: Any, step: Any) -> Any:
        if group is not None and request.generation_id >= 0:
            request = replace(request, generation_id=group.generation)
        return original(group, request, step)

    with patch.object(coordinator.groups.offsets, "_commit_fault", lenient):
        yield


@safeguard(
    "damage is told from a torn tail by the durable gap",
    "damage_is_never_taken_for_a_torn_tail",
    faults=("bit_flip", "daemon_is_killed"),
    workloads=("producing", "producing_in_bursts"),
    segment_bytes=16_384,
    checkpoint_ms=60_000,  # what a checkpoint or a closed segment has noted is missed without the gap as well
)
def torn_tail_check() -> Iterator[None]:
    with patch.object(coordinator.log.recovery, "proof_of_damage", lambda *_: None):
        yield


@safeguard(
    "checksums of batches are checked",
    "one_value_per_offset",
    "nothing_fails_unexpectedly",
    faults=("bit_flip", "daemon_is_killed", "daemon_is_restarted"),
    workloads=("producing", "consuming"),
)
def crc_check() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (coordinator.log.scan, protocol.record_batch):
            stack.enter_context(patch.object(module, "check_body", lambda *_: None))
        yield


@safeguard(
    "only apply changes durable state",
    "replay_equals_live_state",
    workloads=("producing", "consuming", "coming_and_going"),
)
def one_apply_path() -> Iterator[None]:
    original = GroupCore.decide

    def leave_and_forget(core: GroupCore, request: Any, step: Any) -> Any:
        effects = original(core, request, step)
        if isinstance(request, LeaveGroupRequest):
            group = core.groups.get(request.group_id)
            if group is not None and group.durable is not None:
                group.durable = replace(group.durable, members=())
        return effects

    with patch.object(GroupCore, "decide", leave_and_forget):
        yield


@safeguard(
    "answers without records wait for earlier records of their group",
    "what_was_shown_survives",
    "generation_never_falls",
    faults=("daemon_loses_power_while_it_writes", "slow_disk"),
    fault_pause_s=0.3,
    fault_s=15.0,
    workloads=("restarting_static_members", "rolling_restart"),
)
def waiting_of_recordless_replies() -> Iterator[None]:
    original = CoordinatorShard._perform

    def hasty(shard: CoordinatorShard[GroupCore], effects: Any) -> None:
        if not effects.records:
            for token, response in effects.replies:
                shard._replies.send(token, response)
            effects.replies.clear()
        original(shard, effects)

    with patch.object(CoordinatorShard, "_perform", hasty):
        yield


@safeguard(
    "a timer that was set again does not fire for the first time",
    "no_two_clients_act_as_owner",
    faults=("client_stalls", "one_way_cut", "partition"),
    workloads=("sharing_work",),
)
def timer_override_check() -> Iterator[None]:
    original = Timers.set

    def first_deadline_counts(timers: Timers[Any], name: Any, deadline_ms: int) -> None:
        if name not in timers._deadlines:
            original(timers, name, deadline_ms)

    with (
        patch.object(Timers, "set", first_deadline_counts),
        patch.object(session, "_is_due", lambda deadline_ms, *_: deadline_ms is not None),
    ):
        yield


@safeguard("a generation waits for every member to give up its share", "ownership_never_overlaps")
def waiting_for_all_members() -> Iterator[None]:
    original = rebalance.maybe_complete_join

    def impatient(group: Any, step: Any) -> None:
        if group.causes is not None and group.joined_members:
            rebalance._complete_join(group, step)
        else:
            original(group, step)

    with ExitStack() as stack:
        for module in (rebalance, join, session):
            stack.enter_context(patch.object(module, "maybe_complete_join", impatient))
        yield


@safeguard(
    "automatic commits cover finished records only",
    "consumers_skip_nothing",
    "every_acknowledged_record_is_read",
    faults=("client_is_killed", "client_loses_power", "connections_reset"),
    fault_pause_s=0.5,
    workloads=("producing", "consuming", "coming_and_going"),
    consumers=3,
    records=80,
    auto_commit=True,
)
def commit_of_handed_out_records_only() -> Iterator[None]:
    original = Assignment.begin_poll

    def eager(assignment: Assignment) -> None:
        original(assignment)
        for state in assignment.states.values():
            state.done = state.fetch_offset

    with patch.object(Assignment, "begin_poll", eager):
        yield


@safeguard(
    "commits of one consumer take effect in turn",
    "commits_never_move_back",
    faults=("daemon_is_killed", "connections_reset"),
    workloads=("producing", "consuming", "changing_subscriptions"),
)
def commits_in_turn() -> Iterator[None]:
    @asynccontextmanager
    async def at_once(commits: OffsetCommits, deadline: Any) -> AsyncIterator[None]:
        yield

    with patch.object(OffsetCommits, "_in_turn", at_once):
        yield


@safeguard(
    "a commit counts as done, in the middle of a poll too",
    "commits_never_move_back",
    workloads=("producing", "consuming"),
)
def settled_commits_are_done() -> Iterator[None]:
    def settle(assignment: Assignment, tp: Any, offset: int) -> None:
        state = assignment.states.get(tp)
        if state is not None:
            state.committed = offset

    async def commit(commits: OffsetCommits, offsets: Any, deadline: Any) -> None:
        commits._check_group()
        states = commits._owned_states(offsets)
        async with commits._in_turn(deadline):
            await commits._store(offsets, states, deadline)

    with patch.object(Assignment, "settle", settle), patch.object(OffsetCommits, "commit", commit):
        yield


@safeguard(
    "a commit is not tried again once its session is over",
    "commits_never_move_back",
    faults=("daemon_is_killed", "daemon_stalls"),
    fault_pause_s=0.3,
    fault_s=15.0,
    workloads=("producing", "rolling_restart"),
    session_ms=1500,
    auto_commit=True,
)
def commits_end_with_their_session() -> Iterator[None]:
    original = Cluster.call_coordinator

    async def stubborn(cluster: Cluster, *args: Any, **options: Any) -> Any:
        options.pop("before_attempt", None)
        return await original(cluster, *args, **options)

    with patch.object(Cluster, "call_coordinator", stubborn):
        yield


@safeguard(
    "a client gives up its share when its session is over by its own clock",
    "no_two_clients_act_as_owner",
    faults=("one_way_cut", "partition"),
    workloads=("sharing_work",),
)
def fencing_at_session_loss() -> Iterator[None]:
    original = Heartbeats._lost

    def hopeful(heartbeats: Heartbeats, session: Any, reason: str) -> None:
        if not reason.startswith("no heartbeat"):
            original(heartbeats, session, reason)

    with patch.object(Heartbeats, "_lost", hopeful):
        yield


@safeguard(
    "and does so on time, whatever it waits for",
    "no_two_clients_act_as_owner",
    faults=("client_stalls", "one_way_cut", "partition"),
    workloads=("sharing_work",),
)
def sessions_end_on_time() -> Iterator[None]:
    original = Heartbeats._lost

    def late(heartbeats: Heartbeats, session: Any, reason: str) -> None:
        delay_s = 0.5 if reason.startswith("no heartbeat") else 0.0
        asyncio.get_running_loop().call_later(delay_s, original, heartbeats, session, reason)

    with patch.object(Heartbeats, "_lost", late):
        yield


@safeguard(
    "an assignment that was revoked is not handed out any more",
    "no_two_clients_act_as_owner",
    workloads=("sharing_work",),
)
def no_stale_assignments() -> Iterator[None]:
    original = _Share.lose

    async def keeping(share: _Share, reason: str) -> None:
        kept = list(share.assignments)
        await original(share, reason)
        share.assignments.extend(kept)

    with patch.object(_Share, "lose", keeping):
        yield


@safeguard(
    "a start is noted before the node serves",
    "a_node_that_lost_nothing_is_clean",
    faults=("daemon_is_killed", "daemon_loses_power"),
    workloads=("producing",),
)
def starts_are_noted() -> Iterator[None]:
    original = NodeIdentity._written

    def late(identity: NodeIdentity, content: NodeFile) -> bool:
        return content.record.stopped_cleanly and original(identity, content)

    with patch.object(NodeIdentity, "_written", late):
        yield


@safeguard(
    "a snapshot of the metadata is replaced in one step",
    "nothing_fails_unexpectedly",
    faults=("daemon_loses_power_while_it_writes", "daemon_is_killed_while_it_writes"),
    workloads=("growing_topics",),
)
def atomic_metadata_swap() -> Iterator[None]:
    def in_place(storage: SimStorage, path: str, data: bytes) -> None:
        file = storage.open(path, create=True)
        file.truncate(0)
        half = len(data) // 2
        file.append([data[:half]])
        file.append([data[half:]])
        file.sync()
        storage.sync_directory(path.rpartition("/")[0])

    with patch.object(SimStorage, "write_file", in_place), patch.object(_Files, "_is_due", lambda files, line: True):
        yield


@safeguard(
    "a line that was cut short goes from the log of the metadata",
    "nothing_fails_unexpectedly",
    faults=("daemon_loses_power_while_it_writes", "daemon_is_killed_while_it_writes"),
    workloads=("growing_topics",),
)
def torn_lines_are_cut() -> Iterator[None]:
    def kept(content: bytes, metadata: Metadata) -> int:
        replay(content, metadata)
        return len(content)

    with patch.object(coordinator.metadata.local, "replay", kept):
        yield


@safeguard(
    "a compacted segment is in place before the old ones go",
    "acknowledged_commits_survive",
    "groups_settle_after_the_last_fault",
    faults=("daemon_ends_while_it_compacts",),
    workloads=("producing", "consuming", "committing_alone"),
)
def atomic_compaction_swap() -> Iterator[None]:
    with swap_by_removing_first():
        yield


@safeguard(
    "batches that are tried again go before later ones, without numbers that the daemon could tell",
    "records_keep_their_order",
    workloads=("producing_without_numbers",),
    faults=("connections_reset", "requests_go_astray"),
)
def order_through_retries() -> Iterator[None]:
    def behind(queue: PartitionQueue[Any], again: Any) -> None:
        queue.batches.extend(again)

    with patch.object(PartitionQueue, "put_back", behind):
        yield


@safeguard(
    "the end of a log is written down while it grows",
    "lost_ends_are_noticed",
    faults=("active_segment_loses_its_end",),
    workloads=("producing",),
)
def checkpoints_between() -> Iterator[None]:
    async def nothing(maintenance: LogMaintenance) -> None:
        await asyncio.sleep(0)

    with patch.object(LogMaintenance, "note_ends", nothing):
        yield


@safeguard(
    "a recovery can do without its checkpoint",
    "a_full_disk_keeps_no_daemon_from_starting",
    faults=("full_disk", "daemon_is_killed"),
    workloads=("producing",),
)
def start_on_a_full_disk() -> Iterator[None]:
    def renew(storage: Any, directory: str, recovered: Any) -> None:
        active = recovered.segments[-1]
        checkpoint = Checkpoint(recovered.start_offset, active.base_offset, active.size, active.next_offset)
        if checkpoint != recovered.checkpoint:
            coordinator.log.checkpoints.write_checkpoint(storage, directory, checkpoint)

    with (
        patch.object(coordinator.log.recovery, "_renew_checkpoint", renew),
        patch.object(LogManager, "_open_if_possible", LogManager.open_one),
    ):
        yield


@safeguard("every request is answered", "each_request_has_one_answer")
def every_answer_leaves() -> Iterator[None]:
    original = PendingReplies.send
    sent = count(1)

    def forgetful(replies: PendingReplies, token: int, response: Any) -> None:
        if next(sent) % 40:
            original(replies, token, response)
        else:
            replies._pending.pop(token, None)

    with patch.object(PendingReplies, "send", forgetful):
        yield


@safeguard(
    "a connection is not read while it holds as many requests as it may",
    "bounds_hold",
    workloads=("producing_in_bursts", "consuming"),
    faults=("slow_disk",),
)
def bounded_requests_under_way() -> Iterator[None]:
    with patch.object(ServerConnection, "has_room", lambda connection: True):
        yield
