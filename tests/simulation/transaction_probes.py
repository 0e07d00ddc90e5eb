"""Looks at transactions in the running daemon and on its disk, by other means than the daemon's own."""

from __future__ import annotations

from coordinator.runtime.shard import ShardState
from protocol.control_batch import decode_control_batch
from protocol.errors import ProtocolError
from protocol.hashing import TRANSACTION_PARTITIONS
from protocol.record_batch import Attributes, decode_columns, iter_batches
from tests.simulation.consumers import TOPIC
from tests.simulation.inspection import led, shards, transaction_shards
from tests.simulation.record_facts import Partition
from tests.simulation.transaction_facts import COPIES, TRANSACTIONAL, TRANSFORMERS
from tests.simulation.world import World

Rows = list[tuple[int, str]]

_CONTROL = int(Attributes.CONTROL)
_TRANSACTIONAL = int(Attributes.TRANSACTIONAL)


def decided(segments: list[bytes], end: int) -> tuple[Rows, int]:
    """What is committed below ``end``, in the order of offsets, and the first offset that is not decided, -1 for none.

    A list of its own for each producer id: nothing of how a log keeps its transactions is used.
    """
    rows: Rows = []
    open_rows: dict[int, Rows] = {}
    first: dict[int, int] = {}
    for content in segments:
        for position, header in iter_batches(content):
            if header.base_offset >= end:
                continue
            if header.attributes & _CONTROL:
                for marker in decode_control_batch(content, position, header):
                    rows += open_rows.pop(marker.producer_id, []) if marker.committed else []
                    open_rows.pop(marker.producer_id, None)
                    first.pop(marker.producer_id, None)
                continue
            columns = decode_columns(content, position, header)
            found = [
                (header.base_offset + number, bytes(value or b"").decode("latin-1"))
                for number, value in enumerate(columns.values())
            ]
            if header.attributes & _TRANSACTIONAL:
                first.setdefault(header.producer_id, header.base_offset)
                open_rows.setdefault(header.producer_id, []).extend(found)
            else:
                rows += found
    return sorted(rows), min(first.values(), default=-1)


def look_at_coordinators(world: World) -> None:
    """What is open in a log is known to its coordinator."""
    facts, at = world.history.transactions, f"at {world.loop.time():.3f} s"
    coordinators = transaction_shards(world)
    whole = world.history.nodes == 1 or len(coordinators) == TRANSACTION_PARTITIONS
    if coordinators and whole and all(shard.state is ShardState.ACTIVE for shard in coordinators):
        known = {
            (member, name.epoch)
            for shard in coordinators
            for state in shard.core.transactions.values()
            for name, members in state.transactions.items()
            for member in members
        }
        for (topic, index), (_, log) in led(world).items():
            for each in log.open_transactions():
                if (each.producer_id, each.epoch) not in known and (topic, index) not in world.history.damaged:
                    facts.unknown.append(f"{at} {topic}-{index} has {each}, which no coordinator knows")


def note_stable_offsets(world: World) -> None:
    """The last stable offset of every log as it is now."""
    for partition, (node, log) in led(world).items():
        life = world.hosts[node.name].process.life
        world.history.transactions.stable.append((life, partition, log.last_stable_offset, log.high_watermark))


def what_is_undecided(world: World) -> list[str]:
    """Logs with open transactions, and what transformers have not answered; empty when all is well."""
    # A transaction that wrote to a damaged log waits for its marker there, and the next of its id waits for that.
    damaged = any(topic in TRANSACTIONAL for topic, _ in world.history.damaged)
    wrong = [
        f"{topic}-{index} is stable up to {log.last_stable_offset} only, it ends at {log.end_offset}"
        for (topic, index), (_, log) in led(world).items()
        if log.last_stable_offset < log.end_offset and not damaged
    ]
    if world.history.transactions.transforming and not wrong and not _damaged(world):
        copies = sum(len(rows) for rows in _committed(world, COPIES).values())
        inputs = sum(len(rows) for rows in _committed(world, TOPIC).values())
        if copies < inputs:
            wrong.append(f"transformers have answered {copies} of {inputs} records")
        wrong += _uncommitted(world)
    return wrong


def _uncommitted(world: World) -> list[str]:
    """Partitions whose end the transformers have not committed."""
    groups = [shard.core.groups.get(TRANSFORMERS) for shard in shards(world)]
    offsets = next((group.offsets.get(TOPIC, {}) for group in groups if group is not None), {})
    return [
        f"{TOPIC}-{index} ends at {log.end_offset}, transformers have committed {offsets.get(index, (0,))[0]}"
        for (topic, index), (_, log) in led(world).items()
        if topic == TOPIC and log.end_offset > offsets.get(index, (0,))[0]
    ]


def _damaged(world: World) -> bool:
    return any(topic in (TOPIC, COPIES) for topic, _ in world.history.damaged)


def _committed(world: World, topic: str) -> dict[Partition, Rows]:
    return {
        partition: decided(there.segments(), there.log.high_watermark)[0]
        for partition, there in led(world).items()
        if partition[0] == topic
    }


def read_what_is_decided(world: World) -> None:
    """Notes what every transactional topic holds at the end."""
    facts, history = world.history.transactions, world.history
    for partition, there in led(world).items():
        if partition[0] not in TRANSACTIONAL or partition in history.damaged:
            continue
        try:
            rows, first_open = decided(there.segments(), there.log.high_watermark)
        except ProtocolError as error:
            history.unexpected.append(f"the log of {partition} cannot be read at the end: {error}")
            continue
        facts.committed[partition] = rows
        if first_open >= 0:
            facts.undecided.append((partition, first_open, there.log.end_offset))
