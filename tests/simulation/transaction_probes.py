"""Looks at transactions in the running daemon and on its disk, by other means than the daemon's own."""

from __future__ import annotations

from coordinator.kafka.calls import KafkaCall
from coordinator.runtime.shard import ShardState
from protocol.control_batch import decode_control_batch
from protocol.errors import ProtocolError
from protocol.hashing import TRANSACTION_PARTITIONS
from protocol.kafka.messages.end_txn_request import EndTxnRequest
from protocol.kafka.messages.produce_request import ProduceRequest
from protocol.kafka.messages.txn_offset_commit_request import TxnOffsetCommitRequest
from protocol.record_batch import Attributes, decode_columns, iter_batches
from tests.simulation.consumers import TOPIC
from tests.simulation.history import CallFact
from tests.simulation.inspection import led, shards, transaction_shards
from tests.simulation.record_facts import Partition
from tests.simulation.transaction_facts import TRANSACTIONAL, Kept
from tests.simulation.world import World

Rows = list[tuple[int, str]]

_OF_WHICHEVER_IS_OPEN = (ProduceRequest, TxnOffsetCommitRequest, EndTxnRequest)
"""What does something to the transaction that is open when it comes."""
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


def note_kept(world: World, call: KafkaCall, fact: CallFact) -> None:
    """A request of a producer that keeps its epoch came, and may have been meant for a transaction that is over."""
    kept = Kept.of(call.client_id or "") if isinstance(call.message, _OF_WHICHEVER_IS_OPEN) else None
    if kept is not None:
        world.history.transactions.arrives(kept, fact)


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
    facts = world.history.transactions
    for group, topic in facts.transforming.items():
        certain = facts.is_exactly_once(group)
        if certain and not wrong and not any(name in (TOPIC, topic) for name, _ in world.history.damaged):
            wrong = _unanswered(world, group, topic)
    return wrong


def _unanswered(world: World, group: str, topic: str) -> list[str]:
    """Inputs without a copy, and partitions whose end a group that transforms has not committed."""
    wrong = []
    copies = sum(len(rows) for rows in _committed(world, topic).values())
    inputs = sum(len(rows) for rows in _committed(world, TOPIC).values())
    if copies < inputs:
        wrong.append(f"{group} have answered {copies} of {inputs} records")
    groups = [shard.core.groups.get(group) for shard in shards(world)]
    offsets = next((each.offsets.get(TOPIC, {}) for each in groups if each is not None), {})
    return wrong + [
        f"{TOPIC}-{index} ends at {log.end_offset}, {group} have committed {offsets.get(index, (0,))[0]}"
        for (name, index), (_, log) in led(world).items()
        if name == TOPIC and log.end_offset > offsets.get(index, (0,))[0]
    ]


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
