"""Eyes on the replicas of a cluster: who appends as a leader, what each copy has, and what has not settled yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coordinator.daemon import Daemon
from coordinator.log.group_commit import Appender
from coordinator.log.partition import PartitionLog
from coordinator.nodes.identity import PATH as NODE_FILE
from protocol.errors import ErrorCode
from protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from protocol.messages.records import LATEST_TIMESTAMP, ListOffsetsRequest, ListOffsetsResponse, ProduceResponse
from tests.simulation.cluster_copies import CopyReader, differences, is_by_record, note_new
from tests.simulation.cluster_facts import PREFIX, Asked, Place, Registered, registered
from tests.simulation.history import name_of
from tests.simulation.inspection import Led, led
from tests.simulation.world import Node, World, here

TOO_FEW: Final = "tells a producer that too few replicas are in sync after the append"
"""What the story says of NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
_REASSIGNMENTS: Final = "reassignments/"
_TOLD_S: Final = 1.5
"""Within so long a leader has told all producers: it looks once a second which replicas lag."""
Wrap = Callable[[Any, str, Callable[..., Any]], None]


def install(wrap: Wrap) -> None:
    """Puts the wrappers in."""
    wrap(Appender, "append", _append)


def _append(original: Callable[..., int], appender: Appender, *args: Any) -> int:
    offset = original(appender, *args)
    found = here()
    if found is not None and found[0].history.nodes > 1 and found[1].node is not None:
        world, process = found
        place = _place(process.daemon, appender.directory)
        if place is not None:
            node = f"{process.node.name if process.node else ''}"
            world.history.cluster.note_append(place, appender.directory, appender.epochs.latest, node)
    return offset


def _place(daemon: Daemon | None, directory: str) -> Place | None:
    name, _, number = directory.rpartition("-")
    topic = daemon._partitions._catalog.topics.get(name) if daemon is not None and daemon._partitions else None
    return (topic.topic_id, int(number)) if topic is not None else None


def note_ends(world: World, request: ListOffsetsRequest, response: ListOffsetsResponse, asked_s: float) -> None:
    """The end of a partition is not below what was acknowledged before somebody asked for it."""
    if request.isolation_level:
        return  # what is not decided yet is behind the end then
    asked = {(topic.name, ask.partition_index): ask.timestamp for topic in request.topics for ask in topic.partitions}
    told = {
        (topic.name, found.partition_index): found.offset
        for topic in response.topics
        for found in topic.partitions
        if found.error_code == ErrorCode.NONE and asked.get((topic.name, found.partition_index)) == LATEST_TIMESTAMP
    }
    for value, ack in world.history.acknowledged.items():
        end = told.get(ack.partition)
        if end is not None and ack.at_s < asked_s and ack.offset >= end and ack.partition not in world.history.damaged:
            world.history.cluster.stale.append(
                f"at {world.loop.time():.3f} s {name_of(ack.partition)} ended at {end} for a client that asked at "
                f"{asked_s:.3f} s, although {value.strip()!r} was acknowledged at {ack.offset} at {ack.at_s:.3f} s"
            )


def note_commits(world: World, request: OffsetFetchRequest, response: OffsetFetchResponse, asked_s: float) -> None:
    """Offsets that somebody is told of who asked for them at ``asked_s``."""
    if response.error_code == ErrorCode.NONE:
        world.history.cluster.asked += [
            Asked(
                asked_s,
                world.loop.time(),
                request.group_id,
                (topic.name, found.partition_index),
                found.committed_offset,
            )
            for topic in response.topics
            for found in topic.partitions
            if found.error_code == ErrorCode.NONE
        ]


def note_produced(world: World, node: str, response: ProduceResponse) -> None:
    """Tells in the story of records that were appended, and then too few replicas were in sync."""
    for topic in response.responses:
        for found in topic.partition_responses:
            if found.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                world.history.say(node, f"{TOO_FEW} of {topic.name}-{found.index}")


# Looks


def logs_of(node: Node) -> dict[tuple[str, int], PartitionLog]:
    """Every log that a node has open, as leader or follower."""
    daemon = node.daemon
    return dict(daemon._partitions.logs) if daemon is not None and daemon._partitions is not None else {}


def look_at_replicas(world: World, copies: CopyReader) -> None:
    """Compares the copies on all disks, and what is shown of them."""
    if world.history.nodes == 1:
        return
    _look_for_lost_partitions(world)
    for node in world.serving():
        for (topic, index), log in logs_of(node).items():
            place = _place(node.daemon, log.directory)
            if place is not None and not world.history.cluster.is_harmed((topic, index), node.name):
                note_new(world.history, copies, node, log, place)
    for partition, there in led(world).items():
        _look_at_end(world, partition, there)
        _look_at_followers(world, partition, there)
        _look_at_producers(world, partition, there)


def _look_at_producers(world: World, partition: tuple[str, int], there: Led) -> None:
    """Who waits while too few are in sync, and wants to be told, is told: for how long each has not been."""
    facts, leadership, now_s = world.history.cluster, there.log.leadership, world.loop.time()
    process = world.hosts[there.node.name].process
    before = facts.waiting.pop(partition, [])
    if leadership is None or leadership.has_enough_in_sync() or process.held is not None:
        return
    found = facts.waiting[partition] = []
    for _, callback, may_give_up in there.log.committed._waiters:
        if may_give_up:
            since_s = next((since_s for known, since_s in before if known is callback), now_s)
            found.append((callback, since_s))
            if now_s - max(since_s, process.went_on_s) > _TOLD_S:
                facts.held_up[
                    f"{there.node.name} has not told a producer since {since_s:.3f} s that too few replicas of "
                    f"{name_of(partition)} are in sync"
                ] = None


def _look_for_lost_partitions(world: World) -> None:
    """With two replicas one may be in sync alone: when it loses its disk then, nobody has what was acknowledged."""
    facts = world.history.cluster
    if not facts.lost_disks:
        return
    catalog = next(
        (node.daemon._partitions._catalog for node in world.serving() if node.daemon and node.daemon._partitions), None
    )
    for topic in catalog.topics.values() if catalog is not None else ():
        for index in range(len(topic.partitions)):
            known = world.etcd.authority.get(f"{PREFIX}partitions/{topic.topic_id}/{index:07}")
            if known is not None and facts.has_no_clean_replica(registered(known.value)):
                if (topic.name, index) not in facts.lost:
                    world.history.say("everybody", f"has lost {topic.name}-{index}: {registered(known.value)}")
                facts.lost[topic.name, index] = world.history.damaged[topic.name, index] = None


def _look_at_end(world: World, partition: tuple[str, int], there: Led) -> None:
    facts, high_watermark, epoch = world.history.cluster, there.log.high_watermark, there.log.epochs.latest
    where = f"at {world.loop.time():.3f} s {there.node.name}"
    if high_watermark > there.log.end_offset:
        facts.falling[
            f"{where} shows {name_of(partition)} up to {high_watermark}, it ends at {there.log.end_offset}"
        ] = None
    place = _place(there.node.daemon, there.log.directory)
    if place is None:
        return
    start = next((offset for known, offset in there.log.epochs.entries if known == epoch), 0)
    before, earlier = facts.shown.get(place, (0, epoch))
    if epoch > earlier and high_watermark >= start and high_watermark < before:
        facts.falling[
            f"{where} shows {name_of(partition)} up to {high_watermark} in epoch {epoch}, "
            f"which was {before} in epoch {earlier}"
        ] = None
    if high_watermark >= before:
        facts.shown[place] = high_watermark, epoch


def _look_at_followers(world: World, partition: tuple[str, int], there: Led) -> None:
    """Who is in sync, and has not started anew since it joined, has all that the leader shows."""
    state = state_of(world, there)
    if state is None:
        return
    by_id = {node_id(node): node for node in world.serving()}
    for member, joined in zip(state.isr, state.joined, strict=True):
        node = by_id.get(member)
        log = logs_of(node).get(partition) if node is not None else None
        if node is None or log is None or joined != broker_epoch(world, member):
            continue
        if log.end_offset < there.log.high_watermark and state.leader_epoch == there.log.epochs.latest:
            world.history.cluster.lacking[
                f"{node.name} is in sync, but its copy of {name_of(partition)} ends at {log.end_offset}, and "
                f"{there.node.name} shows it up to {there.log.high_watermark} in epoch {state.leader_epoch}"
            ] = None


# What the metadata says, by its authority


def node_id(node: Node) -> int:
    """The number of a node that serves."""
    assert node.daemon is not None
    return node.daemon.settings.node_id


def is_noted(node: Node) -> bool:
    """Whether the disk has taken the last note of a node's start, registration or stop; a node that ends without may count
    as one that has lost everything."""
    return NODE_FILE not in node.disk.not_replaced


def broker_epoch(world: World, node: int) -> int:
    """Of a node that lives; -1 of one that does not."""
    known = world.etcd.authority.get(f"{PREFIX}live/{node}")
    return -1 if known is None else known.create_revision


def state_of(world: World, there: Led) -> Registered | None:
    """What is registered of the partition of a log."""
    place = _place(there.node.daemon, there.log.directory)
    known = world.etcd.authority.get(f"{PREFIX}partitions/{place[0]}/{place[1]:07}") if place is not None else None
    return None if known is None else registered(known.value)


def states(world: World) -> dict[str, Registered]:
    """What is registered of every partition, by its key."""
    return {
        known.key.removeprefix(PREFIX): registered(known.value)
        for known in world.etcd.authority.range(f"{PREFIX}partitions/")
    }


def all_in_sync(world: World) -> bool:
    """Whether each replica is in sync, as it is running now: a disk that is lost is one of several then."""
    live = {node: broker_epoch(world, node) for state in states(world).values() for node in state.replicas}
    return len(world.serving()) == len(world.nodes) and all(
        set(state.isr) == set(state.replicas)
        and all(live[member] == joined for member, joined in zip(state.isr, state.joined, strict=True))
        for state in states(world).values()
    )


def what_is_not_replicated(world: World) -> list[str]:
    """Partitions without a leader, replicas that are not in sync, nodes that know less than others."""
    if world.history.nodes == 1:
        return []
    wrong = []
    facts = world.history.cluster
    for key, state in states(world).items():
        if facts.has_no_clean_replica(state):
            continue
        if state.leader == -1:
            wrong.append(f"{key} has no leader")
        if set(state.isr) != set(state.replicas) and not _may_not_be_copied(world, key):
            wrong.append(f"of {key} {state.isr} are in sync, replicas are {state.replicas}")
    wrong += [*orphaned_reassignments(world), *_unfinished_reassignments(world)]
    served = led(world)
    written = {(known.key.removeprefix(PREFIX), known.mod_revision) for known in world.etcd.authority.range(PREFIX)}
    for node in world.serving():
        daemon = node.daemon
        store = daemon._metadata if daemon is not None else None
        if not is_noted(node):
            wrong.append(f"{node.name} has not noted its registration, which its disk refused once")
        if store is not None and store.revision < world.etcd.authority.revision:
            wrong.append(f"{node.name} knows revision {store.revision} of {world.etcd.authority.revision}")
        differ = set() if store is None else {(known.key, known.mod_revision) for known in store.range("")} ^ written
        if differ:
            wrong.append(f"{node.name} knows other keys than etcd has: {sorted(differ)[:3]}")
        for topic in daemon._partitions._catalog.topics.values() if daemon and daemon._partitions else ():
            for index in range(len(topic.partitions)):
                if (topic.name, index) not in served and (topic.name, index) not in facts.lost:
                    wrong.append(f"{topic.name}-{index} is served by no node")
    return wrong


def orphaned_reassignments(world: World) -> list[str]:
    """Reassignments of partitions that are gone."""
    there = states(world)
    keys = [known.key.removeprefix(PREFIX) for known in world.etcd.authority.range(f"{PREFIX}{_REASSIGNMENTS}")]
    return [f"{key} is left of a partition that is gone" for key in keys if _reassigned(key) not in there]


def _unfinished_reassignments(world: World) -> list[str]:
    """Reassignments that have not come to their end, although nothing keeps them from it."""
    there, facts = states(world), world.history.cluster
    return [
        f"{key} is under way: {there[partition]}"
        for known in world.etcd.authority.range(f"{PREFIX}{_REASSIGNMENTS}")
        if (partition := _reassigned(key := known.key.removeprefix(PREFIX))) in there
        if not facts.has_no_clean_replica(there[partition]) and not _may_not_be_copied(world, partition)
    ]


def _reassigned(key: str) -> str:
    """The key of the partition that a reassignment is about."""
    return f"partitions/{key.removeprefix(_REASSIGNMENTS)}"


def _may_not_be_copied(world: World, key: str) -> bool:
    """Whether a copy has a flipped bit: where it leads, nobody copies what lies behind that."""
    flipped = {topic for topic, _ in world.history.cluster.flipped}
    catalogs = [node.daemon._partitions._catalog for node in world.serving() if node.daemon and node.daemon._partitions]
    known = catalogs[0].topics.values() if catalogs else ()
    return any(topic.name in flipped and topic.topic_id == key.split("/")[1] for topic in known)


def compare_replicas(world: World, copies: CopyReader) -> None:
    """At the end: what is below the high watermark is the same on every disk."""
    if world.history.nodes == 1:
        return
    look_at_replicas(world, copies)
    world.history.cluster.orphaned += orphaned_reassignments(world)
    for partition, there in led(world).items():
        state = state_of(world, there)
        for node in world.serving():
            log = logs_of(node).get(partition)
            if state is None or log is None or node is there.node or node_id(node) not in state.isr:
                continue
            harmed = [world.history.cluster.is_harmed(partition, each.name) for each in (node, there.node)]
            if not any(harmed):
                for text in differences(world.history, there, (node, log)):
                    world.history.cluster.lacking[f"of {name_of(partition)} {node.name} {text}"] = None
                _compare_producers(world, partition, there, Led(node, log))


def _compare_producers(world: World, partition: tuple[str, int], there: Led, other: Led) -> None:
    """What two copies that end at one offset remember of producers: the epoch, and the last number.

    Where compaction may have removed what a producer wrote, a copy that was made later does not know it.
    """
    if there.log.end_offset != other.log.end_offset or is_by_record(world.history, there.log):
        return
    ours, theirs = (
        {producer_id: (state.epoch, state.batches[-1].last_sequence) for producer_id, state in log.producers}
        for log in (there.log, other.log)
    )
    for producer_id in sorted({*ours, *theirs}):
        if ours.get(producer_id) != theirs.get(producer_id):
            world.history.cluster.forgotten.append(
                f"of producer {producer_id} {there.node.name}, which leads {name_of(partition)}, knows epoch and last "
                f"number {ours.get(producer_id)}, {other.node.name} {theirs.get(producer_id)}"
            )
