"""A leader's and a follower's log: what the one holds is carried to the other."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from coordinator.log import PartitionLog
from coordinator.log.compaction import tail_of
from coordinator.log.following import replicated_batches
from protocol.record_batch import HEADER_BYTES, Attributes, encode_batch, fingerprint, iter_batches, read_header
from tests.coordinator.log.logs import outcome


async def fetched(leader: PartitionLog, offset: int, max_bytes: int) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """What a leader answers from ``offset`` on: batches, the first one cut to begin there, and their epochs."""
    data = await leader.read(offset, max_bytes)
    if not data:
        return b"", ()
    first = read_header(data)
    if first.base_offset < offset:
        data = tail_of(data[: first.length], offset) + data[first.length :]
    *_, (_, last) = iter_batches(data)
    return data, leader.epochs.within(offset, last.next_offset)


async def follow(leader: PartitionLog, copy: PartitionLog, max_bytes: int = 1 << 20, rounds: int = 1000) -> None:
    """Copies what the leader has until the copy has it, or so many times."""
    for _ in range(rounds):
        data, epochs = await fetched(leader, copy.end_offset, max_bytes)
        if not data:
            return
        copy.append_as_follower(replicated_batches(data), epochs)
        assert await outcome(copy) is None


async def fingerprints(log: PartitionLog) -> list[tuple[int, bytes]]:
    """Of each batch its base offset and what copies of it have in common."""
    found = []
    offset = log.start_offset
    while data := await log.read(offset, 1 << 20):
        for position, header in iter_batches(data):
            found.append((header.base_offset, fingerprint(data[position : position + header.length])))
            offset = header.next_offset
    return found


def known_producers(log: PartitionLog) -> dict[int, object]:
    """What a log remembers of its producers, but for the times."""
    return {
        producer_id: (state.epoch, state.batches, state.transaction and state.transaction[:3])
        for producer_id, state in log.producers
    }


class Writer:
    """Appends to a leader's log what producers of all kinds may send, by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._written = 0

    def write(self, log: PartitionLog) -> None:
        """One step: a plain batch, one of a producer or a transaction, or the end of one or two."""
        match self.random.choice(("plain", "numbered", "transactional", "transactional", "end")):
            case "plain":
                self._append(log, -1, False)
            case "numbered":
                self._append(log, 9, False)
            case "transactional":
                self._append(log, self.random.choice((1, 2, 3)), True)
            case _:
                some = [(known.producer_id, known.epoch) for known in log.open_transactions()][:2]
                log.end_transactions([(*known, self.random.random() < 0.5) for known in some], 3, self._written)

    def _append(self, log: PartitionLog, producer_id: int, in_transaction: bool) -> None:
        count = self.random.randint(1, 4)
        values = [b"%d" % (self._written + number) * self.random.randint(1, 9) for number in range(count)]
        self._written += count
        known = log.producers.get(producer_id)
        sequence = -1 if producer_id < 0 else 0
        if known is not None and (known.transaction is not None or not in_transaction):
            sequence = known.batches[-1].last_sequence + 1
        batch = encode_batch(
            values,
            [b"k%d" % (len(value) % 3) for value in values],
            timestamps_ms=[self._written] * count,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            compression=self.random.choice((None, None, "gzip")),
        )
        header = read_header(batch)
        if in_transaction:
            header = replace(header, attributes=header.attributes | Attributes.TRANSACTIONAL)
        log.append(header.pack() + batch[HEADER_BYTES:], header, self._written)
