"""Looks into the running daemons and their disks: bounds, replay against live state, what is unsettled, the final log."""

from __future__ import annotations

from typing import Final, NamedTuple

from coordinator.groups.config import GroupConfig
from coordinator.groups.core import GroupCore
from coordinator.groups.state import GroupState
from coordinator.log.partition import PartitionLog
from coordinator.log.segment import LOG_SUFFIX, base_offset_of
from coordinator.marker_delivery import TransactionShard
from coordinator.runtime.core import AnyCore
from coordinator.runtime.shard import CoordinatorShard, ShardState
from coordinator.server.connection import Connection
from coordinator.transactions.config import TransactionConfig
from coordinator.transactions.core import TransactionCore
from protocol.errors import ProtocolError
from protocol.record_batch import decode_columns, iter_batches
from tests.simulation.cluster_facts import RENEWED
from tests.simulation.disk import Directory, Inode, SimDisk
from tests.simulation.history import LETTERS, Partition, Served, name_of
from tests.simulation.ownership import ConsumingOwner
from tests.simulation.record_facts import TRIMMED
from tests.simulation.transaction_facts import TRANSACTIONAL
from tests.simulation.world import Node, World


class Led(NamedTuple):
    """A log at the node that serves it."""

    node: Node
    log: PartitionLog

    def segments(self) -> list[bytes]:
        """See ``segments_on_disk``."""
        return segments_on_disk(self.node.disk, self.log.directory)


def led(world: World) -> dict[Partition, Led]:
    """Every log that a running daemon serves. Where two take themselves for the leader, the one of the later epoch."""
    found: dict[Partition, Led] = {}
    for node in world.serving():
        daemon = node.daemon
        for partition, log in daemon._partitions.led.items() if daemon is not None and daemon._partitions else ():
            other = found.get(partition)
            if other is None or other.log.epochs.latest < log.epochs.latest:
                found[partition] = Led(node, log)
    return found


def shards(world: World) -> list[CoordinatorShard[GroupCore]]:
    """The shards of groups of the running daemons."""
    return [shard for node in world.serving() for shard in group_shards_of(node)]


def group_shards_of(node: Node) -> list[CoordinatorShard[GroupCore]]:
    """Those of one node."""
    groups = node.daemon._groups if node.daemon is not None else None
    return groups.shards() if groups is not None else []


def transaction_shards(world: World) -> list[TransactionShard]:
    """The shards of the running daemons that coordinate transactions."""
    return [shard for node in world.serving() for shard in transaction_shards_of(node)]


def transaction_shards_of(node: Node) -> list[TransactionShard]:
    """Those of one node."""
    transactions = node.daemon._transactions if node.daemon is not None else None
    return transactions.shards() if transactions is not None else []


def segments_on_disk(disk: SimDisk, directory: str) -> list[bytes]:
    """The contents of a log's segments, in order, as a program sees them."""
    return [bytes(file.live) for file in segment_files(disk, directory)]


def segment_files(disk: SimDisk, directory: str) -> list[Inode]:
    """The files of a log's segments, in order."""
    node = disk.root.live.get(directory)
    if not isinstance(node, Directory):
        return []
    found = [
        (base, file)
        for name, file in node.live.items()
        if isinstance(file, Inode) and (base := base_offset_of(name, LOG_SUFFIX)) is not None
    ]
    return [file for _, file in sorted(found, key=lambda entry: entry[0])]


def compare_replay(world: World) -> None:
    """For every shard at rest: a new core that applies the log has the durable state of the live one."""
    for node in world.serving():
        for shard in group_shards_of(node):
            _compare(world, node, shard, GroupCore(GroupConfig(), lambda client_id: client_id))
        for transactional in transaction_shards_of(node):
            _compare(world, node, transactional, TransactionCore(TransactionConfig(), lambda: None))


def _compare(world: World, node: Node, shard: CoordinatorShard[AnyCore], core: AnyCore) -> None:
    log = shard._log
    at_rest = not shard._open_records and not shard._in_flight and log.end_offset == log.high_watermark
    if shard.state is not ShardState.ACTIVE or not at_rest:
        return
    for content in segments_on_disk(node.disk, log.directory):
        for position, header in iter_batches(content):
            columns = decode_columns(content, position, header)
            for record in core.decode(
                (key or b"", value) for key, value in zip(columns.keys(), columns.values(), strict=True)
            ):
                if record is not None:
                    core.apply(record)
    live, replayed = shard.core.durable_state(), core.durable_state()
    if live != replayed:
        names = [name for name in sorted({*live, *replayed}) if live.get(name) != replayed.get(name)]
        world.history.mismatches.append(
            f"at {world.loop.time():.3f} s the log of {log.directory} replays to another state of {names}: "
            f"{[replayed.get(name) for name in names]} instead of {[live.get(name) for name in names]}"
        )


def note_high_watermarks(world: World) -> None:
    """Every log's high watermark as it is now."""
    for partition, (node, log) in led(world).items():
        life = world.hosts[node.name].process.life
        world.history.served.append(Served(life, partition, log.high_watermark, -1, looked_at=True))


_HELD: Final = {"MetadataRequest", "FetchRequest", "HeartbeatRequest"}
"""Requests that the daemon may hold for as long as they ask."""
ANSWER_S: Final = 12.0
"""Within so many seconds every other request is answered: no rebalance of a history takes longer."""


def note_unanswered(world: World) -> None:
    """Requests that a running daemon has owed an answer for too long, on connections that live."""
    history, running = world.history, {world.hosts[node.name].process.life for node in world.nodes}
    for call in history.calls:
        overdue = call.kind not in _HELD and world.loop.time() - call.at_s > ANSWER_S
        if overdue and call.daemon in running and call.expects_answer and not call.answers:
            connection = call.connection
            if isinstance(connection, Connection) and connection.transport is not None:
                history.unanswered.append(f"a {call.kind} of {connection.peer} at {call.at_s:.3f} s has no answer")


def check_bounds(world: World) -> None:
    """Requests under way, backlogs, buffers and timers against their bounds."""
    exceeded = world.history.exceeded
    listeners = [node.daemon._listener for node in world.serving() if node.daemon is not None]
    for connection in [each for listener in listeners if listener is not None for each in listener._connections]:
        if len(connection.wire.calls) > world.plan.max_in_flight:
            exceeded.append(f"{connection.peer} has {len(connection.wire.calls)} requests under way")
        if not connection.reads and connection.transport is not None and len(connection.wire.pending) > 10_000:
            exceeded.append(f"{connection.peer} has a backlog of {len(connection.wire.pending)} requests")
    for shard in shards(world):
        members = sum(len(group.members) for group in shard.core.groups.values())
        parked = len(shard.core.groups.requests)
        if parked > 3 * members:
            exceeded.append(f"shard {shard.partition} holds {parked} requests of {members} members")
        timers = len(shard._timers)
        if timers > 3 * members + 2 * len(shard.core.groups) + 200:
            exceeded.append(f"shard {shard.partition} has {timers} timers for {members} members")
    for owner in world.members:
        if isinstance(owner, ConsumingOwner) and not owner.process.dead:
            states = owner.consumer._assignment.states
            limit = 2 * owner.consumer._settings.max_partition_fetch_bytes
            for tp, state in states.items():
                if state.buffered_bytes > limit:
                    exceeded.append(f"{owner.process.name} buffers {state.buffered_bytes} bytes of {tp}")


def what_is_unsettled(world: World) -> list[str]:
    """Everything that is not yet as it must be when nothing is wrong any more; empty when all is well."""
    down = [f"{node.name} does not serve" for node in world.nodes if node.daemon is None]
    if down:
        return down
    wrong = [f"shard {shard.partition} is {shard.state.value}" for shard in shards(world) if not _serves(shard)]
    wrong += [f"{name} has not ended" for name in world.clients() if not name.startswith(_STAYING)]
    wrong += _groups(world)
    wrong += _unread(world)
    return wrong


_STAYING = (
    "transformer",
    "reader",
    "chooser",
    "worker",
    "static",
    "handler",
    "matcher",
    "upgrader",
    "pauser",
    "follower",
    "kafka-reader",
    "kafka-transformer",
)


def _serves(shard: CoordinatorShard[GroupCore]) -> bool:
    return shard.state is ShardState.ACTIVE


def _groups(world: World) -> list[str]:
    wrong: list[str] = []
    for shard in shards(world):
        for group in shard.core.groups.values():
            if group.state not in (GroupState.STABLE, GroupState.EMPTY):
                wrong.append(f"group {group.group_id} is {group.state.value}: {group.reason}")
            waiting = [member.member_id for member in group.members.values() if member.join_token or member.sync_token]
            if waiting:
                wrong.append(f"group {group.group_id} keeps {waiting} waiting")
    owners = [owner for owner in world.members if not owner.process.dead]
    for group_id in dict.fromkeys(owner.group for owner in owners):
        clients = [owner for owner in owners if owner.group == group_id]
        for owner in clients:
            client = owner.consumer if isinstance(owner, ConsumingOwner) else owner.member
            if client.state != "stable":
                wrong.append(f"{owner.process.name} is {client.state}")
        for partition in _to_own(world, group_id):
            holding = [owner.process.name for owner in clients if owner.believes_to_own(partition)]
            if len(holding) != 1:
                wrong.append(f"{name_of(partition)} of {group_id} is owned by {holding or 'nobody'}")
    return wrong


def _to_own(world: World, group_id: str) -> list[Partition]:
    if group_id == "workers":
        return [("shard", number) for number in range(4)]
    daemon = next((node.daemon for node in world.serving()), None)
    catalog = daemon._partitions._catalog if daemon is not None and daemon._partitions else None
    if catalog is None:
        return []
    topics = world.history.must_read.get(group_id, ())
    known = [(topic, catalog.topics.get(topic)) for topic in topics]
    return [(topic, index) for topic, there in known if there for index in range(len(there.partitions))]


def _unread(world: World) -> list[str]:
    history = world.history
    _note_dead_letters(world)
    read = history.read()
    missing: list[str] = []
    for group, topics in history.must_read.items():
        unread = [
            value
            for value, ack in history.acknowledged.items()
            if ack.partition[0] in topics
            and ack.partition not in history.damaged
            and (group, ack.partition, ack.offset) not in read
        ]
        if unread:
            missing.append(f"{group} has not read {len(unread)} acknowledged records, such as {unread[0]!r}")
    missing += [f"{name} has not been handed {value!r}" for name, value, _ in history.unfollowed()[:1]]
    return missing


def read_everything(world: World) -> None:
    """Notes the final log of every topic and the final offsets of every group."""
    history = world.history
    history.seen_s = world.loop.time()
    _note_dead_letters(world)
    for (topic, index), there in led(world).items():
        if topic.startswith("__") or topic in (*TRIMMED, *TRANSACTIONAL, LETTERS, RENEWED):
            continue
        whole = _unharmed(world, (topic, index), there)
        try:
            history.log[topic, index] = _records(whole.segments(), there.log.high_watermark)
        except ProtocolError as error:
            if (topic, index) not in history.damaged:
                history.unexpected.append(f"the log of {topic}-{index} cannot be read at the end: {error}")
    for shard in shards(world):
        for group_id, group in shard.core.groups.items():
            for topic, partitions in group.offsets.items():
                for index, committed in partitions.items():
                    history.final_offsets[group_id, (topic, index)] = committed[0]


def _unharmed(world: World, partition: Partition, there: Led) -> Led:
    """The copy of the leader, or another one where that has a flipped bit."""
    if world.history.cluster.flipped.get(partition) != there.node.name:
        return there
    for node in world.serving():
        daemon = node.daemon
        log = daemon._partitions.logs.get(partition) if daemon is not None and daemon._partitions is not None else None
        if node is not there.node and log is not None and log.end_offset >= there.log.high_watermark:
            return Led(node, log)
    return there


def _note_dead_letters(world: World) -> None:
    there = led(world).get((LETTERS, 0))
    if there is None or (LETTERS, 0) in world.history.damaged:
        return
    found = _records(there.segments(), there.log.high_watermark)
    world.history.dead_letters = dict.fromkeys(value for _, value in found)


def _records(segments: list[bytes], end: int) -> list[tuple[int, str]]:
    records: list[tuple[int, str]] = []
    for content in segments:
        for position, header in iter_batches(content):
            if header.base_offset < end:
                columns = decode_columns(content, position, header)
                for number, value in enumerate(columns.values()):
                    records.append((header.base_offset + number, bytes(value or b"").decode("latin-1")))
    return records
