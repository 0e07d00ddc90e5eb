"""What administrators do to partitions and nodes: reassignments, elections, nodes that are forgotten. On any node.

A reassignment is noted here and carried out by the controller. Elections are conditional writes of their own: they compare
the partition and that its new leader lives, as the controller's do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from coordinator.controller.core import (
    PartitionUpdate,
    PartitionView,
    candidates,
    elect,
    elect_unclean,
    has_leader,
    prefer,
)
from coordinator.controller.topics import MAX_REPLICATION_FACTOR, ClusterTopics, room_left
from coordinator.log_output import get_logger
from coordinator.metadata.authority import Compare, Delete, Operation, Put
from coordinator.metadata.catalog import Catalog, Topic, TopicError
from coordinator.metadata.keys import (
    NODES,
    encode_partition,
    live_key,
    node_key,
    partition_key,
    reassignment_key,
    topic_key,
)
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError
from protocol.errors import ErrorCode

log = get_logger()

Partition = tuple[str, int]
"""Topic name and number."""
Ends = Callable[[str, int, Sequence[int]], Awaitable[Mapping[int, tuple[int, int]]]]
"""Asks nodes for the last leader epoch and the end of their logs of a partition (topic id, number); of those that answer."""

_AT_ONCE: Final = 50
"""Partitions of a transaction: each has two conditions at most."""
_ATTEMPTS: Final = 5


class Outcome(NamedTuple):
    """What became of what was asked for one partition."""

    partition: Partition
    code: ErrorCode = ErrorCode.NONE
    message: str = ""


class Reassignment(NamedTuple):
    """A partition that is being reassigned: its replicas of now, those that come, those that go."""

    partition: Partition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class _Change(NamedTuple):
    partition: Partition
    compare: tuple[Compare, ...]
    operation: Operation


class Administration:
    """See the module text. Every method raises ``MetadataUnavailableError`` and, where the store is a disk, ``OSError``."""

    def __init__(self, store: MetadataStore, catalog: Catalog, ends: Ends | None = None) -> None:
        """``ends`` is asked by unclean elections among several nodes; a node that is alone needs none."""
        self._store = store
        self._catalog = catalog
        self._ends = ends

    def room_left(self) -> Mapping[int, int]:
        """How many logs the live nodes may still be given, of those that say how many they may open."""
        return room_left(self._catalog)

    # Reassignments

    async def reassign(
        self,
        wanted: Sequence[tuple[Partition, tuple[int, ...] | None]],
        *,
        may_change_replication_factor: bool = True,
    ) -> list[Outcome]:
        """Notes the replicas that partitions are to have; None cancels what is under way. An outcome for each, in order."""
        targets = dict(wanted)
        full = self._too_full(targets)

        async def decide(partition: Partition) -> _Change | None:
            return self._noted(partition, targets[partition], may_change_replication_factor, full)

        outcomes = await self._carried_out(list(targets), decide)
        return [outcomes[partition] for partition, _ in wanted]

    def _too_full(self, targets: Mapping[Partition, tuple[int, ...] | None]) -> dict[int, str]:
        """The nodes that may not open as many logs as are asked for, and why."""
        asked: Counter[int] = Counter()
        for (name, index), target in targets.items():
            topic = self._catalog.topics.get(name)
            if topic is not None and not topic.internal and 0 <= index < len(topic.partitions):
                before = self._catalog.reassignment(topic.topic_id, index) or ()
                present = topic.partitions[index]
                asked.update(node for node in target or () if not present.has(node) and node not in before)
        return {
            node: f"node {node} may open {room} more logs (max_partitions), and {asked[node]} are asked for"
            for node, room in self.room_left().items()
            if asked[node] > room
        }

    def _noted(
        self, partition: Partition, target: tuple[int, ...] | None, may_change: bool, full: Mapping[int, str]
    ) -> _Change | None:
        """None when nothing is to be written. Raises ``TopicError``."""
        topic, index = self._topic(partition)
        key = reassignment_key(topic.topic_id, index)
        known = self._store.get(key)
        exists = self._store.get(topic_key(topic.name))
        assert exists is not None, "the catalog has it"
        compare = (
            Compare(topic_key(topic.name), "create", exists.create_revision),
            Compare(key, "mod", 0 if known is None else known.mod_revision),
        )
        if target is None:
            if known is None:
                raise TopicError(
                    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                    f"partition {index} of {topic.name!r} is not being reassigned",
                )
            return _Change(partition, compare, Delete(key))
        self._check_target(topic, index, target, may_change)
        state = topic.partitions[index]
        if known is None and not state.adding and target == state.replicas:
            return None
        if known is not None and tuple(known.value["target"]) == target:
            return None
        for node in target:
            if node in full and not state.has(node):
                raise TopicError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {index} of {topic.name!r}: {full[node]}"
                )
        return _Change(partition, compare, Put(key, {"target": list(target)}))

    def _check_target(self, topic: Topic, index: int, target: tuple[int, ...], may_change: bool) -> None:
        present = topic.partitions[index].replicas
        nodes = self._catalog.nodes
        unknown = [node for node in target if node not in present and (node not in nodes or not nodes[node].accepting)]
        name = f"partition {index} of {topic.name!r}"
        if not 1 <= len(target) <= MAX_REPLICATION_FACTOR or len(set(target)) < len(target):
            raise TopicError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{name} cannot have the replicas {_listed(target)}: from 1 to {MAX_REPLICATION_FACTOR} nodes, each once",
            )
        if unknown:
            raise TopicError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{name} cannot have replicas on {_listed(unknown)}: the nodes that accept replicas are "
                f"{_listed(sorted(node for node in nodes if nodes[node].accepting))}",
            )
        if len(target) != len(present) and not may_change:
            raise TopicError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{name} has {len(present)} replicas, and the request does not allow for another number",
            )

    def reassignments(self, partitions: Sequence[Partition] | None = None) -> list[Reassignment]:
        """The partitions that are being reassigned, of those that are asked for, or of all; sorted."""
        moving = set(self._catalog.reassignments())
        if partitions is None:
            for topic in self._catalog.topics.values():
                moving.update((topic.topic_id, index) for index, state in enumerate(topic.partitions) if state.adding)
        found = []
        for topic_id, index in moving:
            known = self._catalog.with_id(topic_id)
            if known is not None and index < len(known.partitions):
                found.append(self._reassignment(known, index))
        wanted = None if partitions is None else set(partitions)
        return sorted(entry for entry in found if wanted is None or entry.partition in wanted)

    def _reassignment(self, topic: Topic, index: int) -> Reassignment:
        state = topic.partitions[index]
        target = self._catalog.reassignment(topic.topic_id, index) or state.replicas
        adding = tuple(node for node in (*target, *state.adding) if node not in state.replicas)
        removing = tuple(node for node in (*state.replicas, *state.adding) if node not in target)
        return Reassignment((topic.name, index), state.replicas, tuple(dict.fromkeys(adding)), removing)

    # Elections

    async def elect_preferred(self, partitions: Sequence[Partition] | None = None) -> list[Outcome]:
        """Has the first of the replicas lead. An outcome for each partition, in order; without ``partitions`` for each of
        all whose leader is another."""

        async def decide(partition: Partition) -> _Change | None:
            return self._preferred(partition)

        return await self._elected(partitions, decide)

    async def elect_unclean(self, partitions: Sequence[Partition] | None = None) -> list[Outcome]:
        """Has a live replica lead that is not in sync, where no other can: acknowledged records that it lacks are lost.

        An outcome for each partition, in order; without ``partitions`` for each of all that have no leader.
        """
        return await self._elected(partitions, self._unclean)

    async def _elected(
        self, partitions: Sequence[Partition] | None, decide: Callable[[Partition], Awaitable[_Change | None]]
    ) -> list[Outcome]:
        asked = self._to_elect() if partitions is None else list(partitions)
        outcomes = await self._carried_out(list(dict.fromkeys(asked)), decide)
        found = [outcomes[partition] for partition in asked]
        if partitions is None:
            return [outcome for outcome in found if outcome.code != ErrorCode.ELECTION_NOT_NEEDED]
        return found

    def _to_elect(self) -> list[Partition]:
        """The partitions that may need an election."""
        live = self._catalog.live
        return [
            (topic.name, index)
            for topic in self._catalog.topics.values()
            for index, state in enumerate(topic.partitions)
            if state.leader != state.replicas[0] or state.leader not in live
        ]

    def _preferred(self, partition: Partition) -> _Change:
        topic, index = self._topic(partition)
        view = self._view(topic, index)
        first, known = view.registration.replicas[0], view.registration
        if known.leader is not None and known.leader.node == first and has_leader(known, self._catalog.live):
            raise TopicError(ErrorCode.ELECTION_NOT_NEEDED, f"node {first} leads it already")
        update = prefer(partition, view, self._catalog.live)
        if update is None:
            raise TopicError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"node {first} is not in sync, not alive, about to stop, or about to give the partition away",
            )
        return self._election(topic, update)

    async def _unclean(self, partition: Partition) -> _Change:
        topic, index = self._topic(partition)
        view, live = self._view(topic, index), self._catalog.live
        known = view.registration
        if has_leader(known, live):
            raise TopicError(ErrorCode.ELECTION_NOT_NEEDED, "it has a leader")
        elected = elect(known, live, candidates(known, live))
        if elected is None:
            nodes = [node for node in known.replicas if node in live]
            ends: Mapping[int, tuple[int, int]] = {nodes[0]: (0, 0)} if len(nodes) == 1 else {}
            if len(nodes) > 1 and self._ends is not None:
                ends = await self._ends(topic.topic_id, index, nodes)
            elected = elect_unclean(known, self._catalog.live, ends)
            if elected is not None:
                log.warning("unclean_election", topic=topic.name, partition=index, leader=elected.leader, ends=ends)
        if elected is None:
            raise TopicError(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"none of the nodes {_listed(known.replicas)} is there"
            )
        update = PartitionUpdate(partition, elected, view.partition_epoch, elected.leader, "asked for")
        return self._election(topic, update)

    def _election(self, topic: Topic, update: PartitionUpdate[Partition]) -> _Change:
        key = partition_key(topic.topic_id, update.partition[1])
        assert update.elected is not None
        compare = (
            Compare(key, "mod", update.partition_epoch),
            Compare(live_key(update.elected.node), "create", update.elected.broker_epoch),
        )
        return _Change(update.partition, compare, Put(key, encode_partition(update.registration)))

    def _view(self, topic: Topic, index: int) -> PartitionView:
        state = topic.partitions[index]
        target = self._catalog.reassignment(topic.topic_id, index)
        return PartitionView(state.registration, state.partition_epoch, target)

    def _topic(self, partition: Partition) -> tuple[Topic, int]:
        name, index = partition
        topic = self._catalog.topic(name)
        if not 0 <= index < len(topic.partitions):
            raise TopicError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name!r} has {len(topic.partitions)} partitions, no {index}",
            )
        return topic, index

    # Writing

    async def _carried_out(
        self, partitions: Sequence[Partition], decide: Callable[[Partition], Awaitable[_Change | None]]
    ) -> dict[Partition, Outcome]:
        """Decides about each and writes that, anew where a condition did not hold or an answer was lost."""
        outcomes: dict[Partition, Outcome] = {}
        left = list(partitions)
        for attempt in range(_ATTEMPTS):
            at_once = 1 if attempt else _AT_ONCE  # one that moved refuses all of its transaction
            tried, left = left, []
            for start in range(0, len(tried), at_once):
                some = tried[start : start + at_once]
                decided = [await _decided(partition, decide, again=attempt > 0) for partition in some]
                changes = [change for change in decided if isinstance(change, _Change)]
                outcomes.update((done.partition, done) for done in decided if isinstance(done, Outcome))
                if not changes or await self._written(changes):
                    outcomes.update((change.partition, Outcome(change.partition)) for change in changes)
                else:
                    left += [change.partition for change in changes]
            if not left:
                return outcomes
            await self._store.catch_up()
        late = "it changed again and again meanwhile: try again"
        outcomes.update((partition, Outcome(partition, ErrorCode.REQUEST_TIMED_OUT, late)) for partition in left)
        return outcomes

    async def _written(self, changes: Sequence[_Change]) -> bool:
        compare = dict.fromkeys(condition for change in changes for condition in change.compare)
        try:
            return await self._store.transaction(list(compare), [change.operation for change in changes]) is not None
        except MetadataUnavailableError as error:
            if error.outcome == "none":
                raise
            log.warning("metadata_transaction_in_doubt", error=str(error))
            return False

    # Nodes

    def known_nodes(self) -> dict[int, str]:
        """The racks of all nodes that were ever registered and not forgotten, by node id."""
        return {int(known.key.removeprefix(NODES)): str(known.value["rack"]) for known in self._store.range(NODES)}

    async def remove_node(self, node: int, topics: ClusterTopics | None) -> None:
        """Forgets a node, and takes it out of the notes of deleted topics, whose logs it cannot remove any more.

        Done again after a failure it ends what was begun: a node that only such notes know is no error. Without ``topics``
        there are no notes. Raises ``TopicError`` as ``forget_node``.
        """
        try:
            await self.forget_node(node)
        except TopicError as error:
            if (
                error.code != ErrorCode.BROKER_ID_NOT_REGISTERED
                or topics is None
                or not self._catalog.deletions_of(node)
            ):
                raise
        if topics is not None:
            await topics.deletion_done([topic_id for topic_id, _, _ in self._catalog.deletions_of(node)], node)

    async def forget_node(self, node: int) -> None:
        """Forgets a node that will not come back. Raises ``TopicError``."""
        for _ in range(_ATTEMPTS):
            if node in self._catalog.nodes:
                raise TopicError(ErrorCode.INVALID_REQUEST, f"node {node} is alive: stop it first")
            known = self._store.get(node_key(node))
            if known is None:
                raise TopicError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no node {node}")
            partitions = sum(1 for _ in self._catalog.partitions_of(node))
            if partitions:
                raise TopicError(
                    ErrorCode.INVALID_REQUEST,
                    f"node {node} has replicas of {partitions} partitions: reassign them to other nodes first",
                )
            compare = [Compare(node_key(node), "mod", known.mod_revision), Compare(live_key(node), "create", 0)]
            try:
                if await self._store.transaction(compare, [Delete(node_key(node))]) is not None:
                    log.info("node_forgotten", node=node)
                    return
            except MetadataUnavailableError as error:
                if error.outcome == "none":
                    raise
            await self._store.catch_up()
            if self._store.get(node_key(node)) is None:
                return
        raise TopicError(ErrorCode.REQUEST_TIMED_OUT, f"node {node} changed again and again meanwhile: try again")


async def _decided(
    partition: Partition, decide: Callable[[Partition], Awaitable[_Change | None]], *, again: bool
) -> _Change | Outcome:
    """What is to be written, or what there is to say; ``again`` when the answer to an earlier attempt may be lost."""
    try:
        return await decide(partition) or Outcome(partition)
    except TopicError as error:
        if again and error.code in (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
            return Outcome(partition)
        return Outcome(partition, error.code, str(error))


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
