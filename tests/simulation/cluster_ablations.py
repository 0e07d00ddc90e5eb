"""Safeguards of several nodes, each with a way to switch it off; most of them are those of the ring of replicas.

Here they are missed by the whole system: real logs, sessions between nodes, an etcd, clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import patch

import coordinator.controller.topics
import coordinator.log.following
import coordinator.replication.isr_changes
import coordinator.replication.proposals
import coordinator.replication.replica_logs
from coordinator.controller.runner import Controller
from coordinator.log.acknowledged import Acknowledged
from coordinator.metadata.authority import Delta
from coordinator.metadata.etcd import watching
from coordinator.nodes.cleanliness import Opening, opening
from coordinator.nodes.identity import NodeIdentity
from coordinator.nodes.registration import Registration
from coordinator.replication.following import Following
from coordinator.replication.leading import Leading
from coordinator.replication.replica import Replica
from coordinator.runtime.shard import CoordinatorShard
from tests.simulation.replicas.ablations import ABLATIONS as OF_REPLICAS
from tests.simulation.rings import switched_off
from tests.simulation.safeguards import safeguard

_LOST: Final = (
    "acknowledged_records_survive",
    "followers_agree_below_the_high_watermark",
    "no_offset_is_acknowledged_twice",
    "the_high_watermark_is_bounded",
)
"""Something that was acknowledged is not what it was."""
_BY_SAFEGUARD: Final = {ablation.safeguard: ablation for ablation in OF_REPLICAS}


def _of_replicas(name: str, what: str, *invariants: str, **changes: Any) -> None:
    """Registers what the ring of replicas switches off too."""

    def off() -> Iterator[None]:
        with switched_off(_BY_SAFEGUARD[what]):
            yield

    off.__name__ = name
    safeguard(
        what, *(invariants or _LOST), **{"nodes": 3, "workloads": ("producing_in_bursts", "producing"), **changes}
    )(off)


_of_replicas(
    "comparison_of_logs", "logs are compared before an offset counts", "logs_match", *_LOST,
    workloads=("producing_for_the_leader", "producing"), faults=("node_is_killed", "node_is_cut_from_nodes"),
)  # fmt: skip
_of_replicas(
    "election_of_those_in_sync", "only in-sync replicas are elected", "the_leader_is_in_sync", *_LOST,
    faults=("node_is_cut_from_nodes", "node_is_killed", "node_is_paused"),
)  # fmt: skip
_of_replicas(
    "election_of_those_that_lost_nothing", "only clean replicas are elected", "only_clean_replicas_lead", *_LOST,
    faults=("power_takes_a_disk_with_it",), fault_pause_s=4.0,
)  # fmt: skip
_of_replicas(
    "doubts_about_old_images", "an old image makes a node unclean", "only_clean_replicas_lead", *_LOST,
    faults=("power_takes_a_disk_with_it",),
    workloads=("producing",), fault_pause_s=4.0, records=200,
)  # fmt: skip

_of_replicas(
    "deletions_wait_for_replicas", "DeleteRecords waits for the in-sync replicas", "logs_never_begin_earlier",
    workloads=("keeping_little",), faults=("node_is_killed", "node_is_cut_from_nodes"), fault_pause_s=1.0,
)  # fmt: skip


@safeguard(
    "a follower checks what it takes over",
    "one_value_per_offset",
    "damage_is_never_taken_for_a_torn_tail",
    *_LOST,
    "logs_match",
    nodes=3,
    workloads=("producing_in_bursts", "consuming", "reassigning"),
    faults=("bit_flips_on_a_replica",),
    fault_pause_s=0.5,
    segment_bytes=1024,
)
def checks_of_followers() -> Iterator[None]:
    with patch.object(coordinator.log.following, "check_body", lambda *_: None):
        yield


@safeguard(
    "a leader whose disk is full hands over",
    "leaders_that_cannot_serve_hand_over",
    nodes=3,
    workloads=("producing",),
    faults=("disk_of_a_leader_is_full",),
    fault_s=20.0,
    fault_pause_s=10.0,
    records=400,
    producers=2,
)
def full_disks_hand_over() -> Iterator[None]:
    with patch.object(Replica, "_others_are_enough", lambda replica: False):
        yield


@safeguard(
    "a leader whose log is damaged hands over",
    "leaders_that_cannot_serve_hand_over",
    nodes=3,
    workloads=("producing",),
    faults=("leader_reads_damage",),
    fault_s=20.0,
    fault_pause_s=3.0,
    segment_bytes=1024,
    records=400,
    producers=2,
)
def damaged_logs_hand_over() -> Iterator[None]:
    with patch.object(Replica, "_others_are_enough", lambda replica: False):
        yield


@safeguard(
    "a coordinator that cannot read its log is known to the replica that leads",
    "leaders_that_cannot_serve_hand_over",
    nodes=3,
    workloads=("asking_for_commits",),
    faults=("coordinators_cannot_read_their_logs",),
    fault_pause_s=10.0,
)
def unreadable_coordinators_hand_over() -> Iterator[None]:
    with patch.object(Replica, "readable", lambda replica, epoch, why_not: None):
        yield


@safeguard(
    "producers that wait for replicas are told when too few are in sync",
    "producers_are_told_at_once_that_too_few_are_in_sync",
    first=3,
    nodes=3,
    workloads=("producing_in_bursts",),
    faults=("followers_are_lost",),
    fault_pause_s=4.0,
    records=200,
    producers=2,
)
def news_of_too_few_replicas() -> Iterator[None]:
    with patch.object(Leading, "_give_up_waiting", lambda leading: None):
        yield


@safeguard(
    "reassignments go with their topic, or are tidied away later",
    "no_reassignment_outlives_its_topic",
    nodes=3,
    workloads=("deleting_what_is_moved",),
    faults=("node_is_killed",),
)
def end_of_reassignments() -> Iterator[None]:
    async def left(controller: Controller) -> None:
        """They stay."""

    with (
        patch.object(coordinator.controller.topics, "reassignments_prefix", lambda topic_id: f"nothing/{topic_id}/"),
        patch.object(Controller, "_tidy_reassignments", left),
    ):
        yield


@safeguard(
    "a follower that begins anew is told the producers that wrote below",
    "replicas_remember_the_same_producers",
    first=3,
    nodes=3,
    workloads=("keeping_little",),
    faults=("disk_is_replaced", "client_is_killed"),
    fault_pause_s=1.0,
)
def producers_below_the_beginning() -> Iterator[None]:
    with patch.object(Replica, "producers_below", lambda replica, offset, max_bytes: b""):
        yield


@safeguard(
    "proposals say what they are compared with",
    "metadata_is_written_with_a_fence",
    nodes=3,
    workloads=("producing",),
    faults=("node_is_killed",),
)
def fence_of_isr_changes() -> Iterator[None]:
    original = coordinator.replication.proposals.conditions

    def only_lives(*args: Any) -> Any:
        return [condition for condition in original(*args) if condition.what != "mod"]

    with patch.object(coordinator.replication.isr_changes, "conditions", only_lives):
        yield


@safeguard(
    "a follower acknowledges what is on its disk",
    *_LOST,
    first=48,
    nodes=3,
    workloads=("producing_in_bursts", "producing"),
    faults=("replica_is_slow", "all_nodes_lose_power"),
    fault_s=15.0,
    fault_pause_s=2.0,
    records=300,
    producers=2,
)
def acknowledgement_of_followers() -> Iterator[None]:
    async def at_once(following: Following) -> None:
        """The next fetch says that it has everything."""

    with (
        switched_off(_BY_SAFEGUARD["a follower acknowledges what is on its disk"]),
        patch.object(Following, "_flushed", at_once),
    ):
        yield


@safeguard(
    "who asks a node is answered while its lease is certain to hold",
    "ends_are_not_stale",
    nodes=3,
    workloads=("producing", "asking_for_ends"),
    faults=("node_is_paused",),  # else the timer comes first
    fault_s=15.0,
    fault_pause_s=2.0,
    partitions=3,
    records=200,
    producers=2,
)
def question_for_the_lease() -> Iterator[None]:
    with patch.object(Registration, "valid", lambda registration: registration._registered):
        yield


@safeguard(
    "a node leads while its lease is certain to hold",
    "ends_are_not_stale",
    nodes=3,
    workloads=("producing", "asking_for_ends"),
    faults=("network_splits",),
    fault_s=15.0,
    fault_pause_s=4.0,
    partitions=3,
    records=200,
    producers=2,
)
def end_of_the_lease() -> Iterator[None]:
    with (
        patch.object(Registration, "valid", lambda registration: registration._registered),
        patch.object(Registration, "_expired", lambda registration: None),
    ):
        yield


@safeguard(
    "a coordinator answers when what it decided is committed",
    "commits_are_not_stale",
    nodes=3,
    workloads=("asking_for_commits",),
    faults=("node_is_killed", "replica_is_slow"),
    fault_s=15.0,
    fault_pause_s=1.0,
)
def commit_of_decisions() -> Iterator[None]:
    original = Acknowledged.when_committed

    def on_this_disk(log: Acknowledged, offset: int, callback: Any, may_give_up: bool = False) -> None:
        decided = getattr(callback, "__func__", None) is CoordinatorShard._on_committed
        return log.when_durable(offset, callback) if decided else original(log, offset, callback, may_give_up)

    with patch.object(Acknowledged, "when_committed", on_this_disk):
        yield


@safeguard(
    "a coordinator serves when what it has read is committed",
    "commits_are_not_stale",
    nodes=3,
    workloads=("asking_for_commits",),
    faults=("leaders_fall_in_turn",),
    fault_s=15.0,
    fault_pause_s=3.0,
)
def commit_of_what_was_read() -> Iterator[None]:
    async def at_once(shard: CoordinatorShard[Any], offset: int) -> None:
        """What the log holds counts."""

    with patch.object(CoordinatorShard, "_until_committed", at_once):
        yield


@safeguard(
    "a watch that cannot go on begins with a list of all keys",
    "groups_settle_after_the_last_fault",
    nodes=3,
    workloads=("producing", "reassigning"),
    faults=("etcd_compacts", "node_is_cut_from_etcd"),
    fault_s=15.0,
    fault_pause_s=1.0,
)
def list_after_compaction() -> Iterator[None]:
    original = watching.Following._list

    async def skipped(following: watching.Following, timeout_ms: int) -> None:
        if following._task is None:
            return await original(following, timeout_ms)
        following.mirror.apply(Delta(await following.now(timeout_ms), ()))
        return following._reached()

    with patch.object(watching.Following, "_list", skipped):
        yield


@safeguard(
    "a missing log makes a node unclean",
    "only_clean_replicas_lead",
    *_LOST,
    nodes=3,
    workloads=("producing",),
    faults=("power_takes_a_log_with_it",),
    fault_s=15.0,
    fault_pause_s=4.0,
    records=200,
)
def inventory_of_logs() -> Iterator[None]:
    def nothing_known(partition: tuple[str, int], directory_of: str | None, inventory: Any) -> Opening:
        return opening(partition, directory_of, ())

    with patch.object(coordinator.replication.replica_logs, "opening", nothing_known):
        yield


@safeguard(
    "the note of a registration that a disk refuses is tried again",
    "groups_settle_after_the_last_fault",
    first=12,
    nodes=3,
    workloads=("producing",),
    faults=("write_errors", "node_is_restarted"),
    fault_s=15.0,
    fault_pause_s=0.5,
)
def registrations_are_noted_in_the_end() -> Iterator[None]:
    async def given_up(identity: NodeIdentity) -> None:
        """What the disk has refused once is not there."""

    with patch.object(NodeIdentity, "keep_noting", given_up):
        yield
