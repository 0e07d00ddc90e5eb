"""Each safeguard of replication, switched off from the test side: then a named invariant has to fail, or it guards nothing.

An ablation replaces one attribute for as long as it is on; production code knows nothing of it. To add one: a function that
makes the replacement from the original, and its entry in ``ABLATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from coordinator.controller import core
from coordinator.metadata.authority import Authority
from coordinator.nodes import cleanliness
from coordinator.replication import proposals
from coordinator.replication.follower import Follower
from coordinator.replication.leader import Leader
from coordinator.replication.partition import PartitionRegistration
from tests.simulation import rings
from tests.simulation.replicas.history import run
from tests.simulation.replicas.log import SimLog
from tests.simulation.replicas.plan import Plan, draw
from tests.simulation.replicas.reconciler import Reconciler
from tests.simulation.rings import Ablation, Verdict

MAX_SEEDS: Final = 3_000
STEPS: Final = 500

_LOST: Final = (
    "acknowledged_records_survive",
    "followers_agree_below_the_high_watermark",
    "no_offset_is_acknowledged_twice",
    "the_high_watermark_is_bounded",
)
"""Something that was acknowledged is not what it was."""

_UNTIDY: Final = ("the_core_keeps_its_assertions", "everything_settles_after_the_calm")
"""A log would have to be cut within a batch, or never becomes the leader's."""


def _value_of(value: object) -> Callable[[Any], Any]:
    return lambda original: property(lambda _: value) if isinstance(original, property) else lambda *_, **__: value


def _only_what_holds(original: Any) -> Any:
    return lambda leader: dict(leader.isr)


def _written(original: Any) -> Any:
    return lambda leader: leader._log.written_offset


def _all_of_the_log(original: Any) -> Any:
    return lambda follower: follower._log.end_offset


def _unwritten(original: Any) -> Any:
    return property(lambda leader: leader._log.end_offset)


def _without_last_epoch(original: Any) -> Any:
    def is_current(follower: Follower, answer: Any) -> bool:
        return bool(original(follower, answer._replace(last_epoch=follower._last_epoch())))

    return is_current


def _to_high_watermark(original: Any) -> Any:
    return lambda follower, diverging_end, own_end: min(follower.high_watermark, diverging_end, own_end)


def _high_watermark(original: Any) -> Any:
    return lambda leader: leader.high_watermark


def _by_node(original: Any) -> Any:
    return lambda registration, me: registration.leader is not None and registration.leader.node == me.node


def _any_live(original: Any) -> Any:
    def candidates(known: PartitionRegistration, live: Any) -> list[int]:
        return [node for node in known.replicas if node in live]

    return candidates


def _in_sync_though_unclean(original: Any) -> Any:
    return lambda known, node, live: node in known.isr and node in live


def _whatever_the_partition_epoch(original: Any) -> Any:
    def holds(authority: Authority, condition: Any) -> bool:
        return condition.what == "mod" or bool(original(authority, condition))

    return holds


def _unconditionally(original: Any) -> Any:
    return lambda *arguments: [one for one in original(*arguments) if one.what != "mod"]


def _epochs_of_batches(original: Any) -> Any:
    """What a follower would know by the headers of batches alone."""

    def answered(follower: Follower, answer: Any, now_ms: int) -> Any:
        epochs: list[tuple[int, int]] = []
        for batch in answer.records:
            if not epochs or epochs[-1][0] < batch.leader_epoch:
                epochs.append((batch.leader_epoch, batch.base_offset))
        return original(follower, answer._replace(epochs=tuple(epochs)), now_ms)

    return answered


def _whole_batches(original: Any) -> Any:
    return staticmethod(lambda batch, offset: batch)


def _by_the_leader_alone(original: Any) -> Any:
    return lambda leader: leader._log.start_offset


def _any_directory(original: Any) -> Any:
    return lambda partition, directory_of, inventory: "made" if directory_of is None else "opened"


def _no_inventory(original: Any) -> Any:
    return lambda partition, directory_of, inventory: original(partition, directory_of, ())


def _without_a_list(original: Any) -> Any:
    """A watch that goes on with what is left of the deltas."""

    def list_all(self: Reconciler, node: Any) -> bool:
        authority = self._cluster.authority
        left = next(authority.since(authority.compacted), None)
        if left is None or not node.mirror.apply(left):
            return False
        node.take(left.changes)
        return True

    return list_all


def _without_a_new_epoch(original: Any) -> Any:
    return lambda known, replicas, adding: replace(known, replicas=replicas, adding=adding)


ABLATIONS: Final = (
    Ablation(
        "proposals under way count for the high watermark",
        Leader, "_maximal_isr", _only_what_holds, _LOST, ("unknown outcomes",),
    ),
    Ablation("the leader's own disk counts for the high watermark", Leader, "_own_offset", _written, _LOST, ("power cuts",)),
    Ablation(
        "a follower acknowledges what is on its disk",
        Follower, "_acknowledged", _all_of_the_log, _LOST, ("power cuts",),
    ),
    Ablation(
        "followers read what is written",
        Leader, "readable_end", _unwritten, ("logs_match", *_LOST), ("refused writes",),
    ),
    Ablation(
        "an answer counts only for the last epoch it was given for",
        Follower, "is_current", _without_last_epoch, (*_LOST, *_UNTIDY), ("doubled", "early lease loss"),
    ),
    Ablation("logs are compared before an offset counts", Leader, "_divergence", _value_of(None), ("logs_match", *_LOST)),
    Ablation(
        "a follower truncates to where logs differ",
        Follower, "_truncation_offset", _to_high_watermark, _LOST, ("kills", "early lease loss"),
    ),
    Ablation("who joins has what is below the start of the epoch", Leader, "_join_offset", _high_watermark, _LOST),
    Ablation(
        "a node that starts again does not lead on",
        PartitionRegistration, "leads", _by_node, ("logs_match", "one_leader_per_epoch", *_LOST), ("power cuts",),
    ),
    Ablation(
        "only in-sync replicas are elected",
        core, "candidates", _any_live, ("the_leader_is_in_sync", "logs_never_begin_earlier", *_LOST), ("kills",),
    ),
    Ablation("only clean replicas are elected", core, "is_eligible", _in_sync_though_unclean, _LOST, ("lossy disks",)),
    Ablation("a loss makes a node unclean", cleanliness, "_reason", _value_of(""), _LOST, ("lossy disks",)),
    Ablation(
        "an old image makes a node unclean",
        cleanliness, "is_another_directory", _value_of(False), (*_LOST, "logs_never_begin_earlier"), ("old images", "kills"),
    ),
    Ablation(
        "without syncs a start of the machine makes a node unclean",
        cleanliness, "is_kept_by_machine", _value_of(True), _LOST, ("os flush", "power cuts"),
    ),
    Ablation("a missing log makes a node unclean", cleanliness, "opening", _no_inventory, _LOST, ("lossy disks",)),
    Ablation(
        "a directory of another topic id is set aside",
        cleanliness, "opening", _any_directory, (*_LOST, "logs_match", "the_core_keeps_its_assertions"),
        ("new topics", "kills"),
    ),
    Ablation(
        "proposals are compared with the partition epoch",
        Authority, "_holds", _whatever_the_partition_epoch, ("one_leader_per_epoch", "the_leader_is_in_sync", *_LOST),
    ),
    Ablation(
        "proposals say what they are compared with",
        proposals, "conditions", _unconditionally, ("metadata_is_written_with_a_fence",),
    ),
    Ablation(
        "DeleteRecords waits for the in-sync replicas",
        Leader, "low_watermark", _by_the_leader_alone, ("logs_never_begin_earlier",), ("deletions", "kills"),
    ),
    Ablation(
        "joined batches are cut for followers",
        SimLog, "tail_of", _whole_batches, ("everything_settles_after_the_calm", "logs_have_no_gaps"), ("compaction",),
    ),
    Ablation(
        "who may have missed tombstones begins anew",
        Follower, "_misses_tombstones", _value_of(False), ("a_deleted_key_stays_deleted",), ("compaction", "pauses"),
    ),
    Ablation(
        "answers bring the leader's epochs",
        Follower, "answered", _epochs_of_batches, (*_UNTIDY, *_LOST), ("compaction", "kills"),
    ),
    Ablation(
        "where deltas are missing all keys are listed",
        Reconciler, "list_all", _without_a_list, ("everything_settles_after_the_calm", "the_core_keeps_its_assertions"),
        ("compacted metadata", "kills"),
    ),
    Ablation(
        "an epoch begins when a replica goes",
        core, "with_replicas", _without_a_new_epoch, _LOST, ("reassignments", "stale mirrors"),
    ),
)  # fmt: skip


def plans(ablation: Ablation) -> Iterator[Plan]:
    """The histories in which an ablation is looked for: with all that seeds draw, or with what it names and little else."""
    for seed in range(MAX_SEEDS):
        plan = draw(seed, STEPS)
        if ablation.behaviours:
            gap = 15 + seed % 3 * 15
            plan = replace(plan, behaviours=ablation.behaviours, event_gap=gap, loss=0.3, lag_ms=600)
        yield plan


def first_failure(ablation: Ablation) -> tuple[int, Verdict[Plan]] | None:
    """How many histories it takes until an invariant fails, and the verdict; None if none fails."""
    return rings.first_failure(ablation, plans(ablation), run)
