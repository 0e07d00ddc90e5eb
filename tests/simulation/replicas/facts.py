"""What an observer of all nodes and of the metadata knows about one topic's partition, and what must hold of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from coordinator.replication.leader import Leader
from coordinator.replication.partition import Incarnation, PartitionRegistration
from tests.simulation.replicas.log import SimLog
from tests.simulation.rings import ViolationError

if TYPE_CHECKING:
    from tests.simulation.replicas.node import Node

INVARIANTS: Final = frozenset(
    {
        "followers_agree_below_the_high_watermark",
        "acknowledged_records_survive",
        "no_offset_is_acknowledged_twice",
        "one_leader_per_epoch",
        "logs_match",
        "the_leader_is_in_sync",
        "the_high_watermark_is_bounded",
        "metadata_is_written_with_a_fence",
        "logs_never_begin_earlier",
        "logs_have_no_gaps",
        "a_deleted_key_stays_deleted",
        "everything_settles_after_the_calm",
    }
)

Stored = tuple[int, int, int | None]
"""Leader epoch, key and value of a record."""


def violated(invariant: str, message: str) -> NoReturn:
    """Ends the history."""
    assert invariant in INVARIANTS, invariant
    raise ViolationError(invariant, message)


class Facts:
    """The observer's book of one topic."""

    def __init__(self, flush_at_acknowledgement: bool, compacted: bool) -> None:
        self.acknowledged: dict[int, Stored] = {}
        self.last_of_key: dict[int, int] = {}
        """The last acknowledged offset of each key."""
        self.delete_requested = 0
        self.deleted_until = 0
        self._on_disk = flush_at_acknowledgement
        self._compacted = compacted
        self._written: dict[tuple[int, int], tuple[int, int | None]] = {}
        self._previous: dict[tuple[int, int], int] = {}
        self._leaders: dict[int, Incarnation] = {}
        self._starts: dict[int, int] = {}
        self._shown: dict[int, int] = {}
        """The highest high watermark that each epoch's leader has shown."""

    # Logs

    def appended(self, log: SimLog, first: int) -> None:
        """Records from offset ``first`` on are new in a log."""
        batches = log.batches
        place = len(batches)
        while place and batches[place - 1].next_offset > first:
            place -= 1
        expected = max(first, log.start_offset)
        for batch in batches[place:]:
            if batch.base_offset > expected:
                violated(
                    "logs_have_no_gaps", f"a batch begins at {batch.base_offset}, the one before ends at {expected}"
                )
            expected = batch.next_offset
            for offset, key, value in batch.records:
                self._check_match(log, offset, batch.leader_epoch, (key, value))

    def _check_match(self, log: SimLog, offset: int, leader_epoch: int, content: tuple[int, int | None]) -> None:
        name = (offset, leader_epoch)
        if self._written.setdefault(name, content) != content:
            violated("logs_match", f"offset {offset} of epoch {leader_epoch} is {content} and {self._written[name]}")
        if not self._compacted:
            before = log.records.get(offset - 1)
            if before is not None and self._previous.setdefault(name, before[0]) != before[0]:
                violated(
                    "logs_match",
                    f"offset {offset} of epoch {leader_epoch} follows epochs {before[0]} and {self._previous[name]}",
                )

    # Leaders

    def epoch_began(self, leader: Incarnation, replica: Leader, log: SimLog) -> None:
        """A leader has begun its epoch."""
        epoch = replica.leader_epoch
        if self._leaders.setdefault(epoch, leader) != leader:
            violated("one_leader_per_epoch", f"epoch {epoch} is led by {leader} and {self._leaders[epoch]}")
        for earlier, shown in self._shown.items():
            if earlier < epoch and shown > replica.start_offset:
                violated(
                    "the_high_watermark_is_bounded",
                    f"epoch {epoch} begins at {replica.start_offset}, epoch {earlier} has shown {shown}",
                )
        self._starts[epoch] = replica.start_offset
        if log.start_offset < self.deleted_until:
            violated(
                "logs_never_begin_earlier",
                f"epoch {epoch} begins with a log from {log.start_offset}, what is below {self.deleted_until} was deleted",
            )

    def advanced(self, replica: Leader, log: SimLog, before: int) -> None:
        """A leader's high watermark has moved: what lies below is acknowledged."""
        epoch, now = replica.leader_epoch, replica.high_watermark
        if now > log.end_offset:
            violated("the_high_watermark_is_bounded", f"epoch {epoch} shows {now}, its log ends at {log.end_offset}")
        for later, start in self._starts.items():
            if later > epoch and start < now:
                violated("the_high_watermark_is_bounded", f"epoch {epoch} shows {now}, epoch {later} began at {start}")
        self._shown[epoch] = max(now, self._shown.get(epoch, 0))
        for offset in range(before, now):
            record = log.records.get(offset)
            known = self.acknowledged.get(offset)
            if record is None:
                if known is None and offset >= log.start_offset and not self._compacted:
                    violated("no_offset_is_acknowledged_twice", f"offset {offset} is acknowledged and not there")
            elif known is None:
                self.acknowledged[offset] = record
                self.last_of_key[record[1]] = max(offset, self.last_of_key.get(record[1], -1))
            elif known != record:
                violated("no_offset_is_acknowledged_twice", f"offset {offset} is acknowledged as {known} and {record}")

    def follower_advanced(self, node: Node, high_watermark: int) -> None:
        """A follower takes what lies below for committed: it compacts it, and a leader may begin there."""
        if high_watermark > node.log.end_offset:
            violated(
                "the_high_watermark_is_bounded", f"{node.id} shows {high_watermark}, it ends at {node.log.end_offset}"
            )
        found, known = node.log.records.get(high_watermark - 1), self.acknowledged.get(high_watermark - 1)
        if found is not None and found != known:
            violated(
                "followers_agree_below_the_high_watermark",
                f"node {node.id} shows {high_watermark}, it has {found} before it, acknowledged was {known}",
            )

    def deleted(self, offset: int) -> None:
        """DeleteRecords was answered."""
        self.deleted_until = max(self.deleted_until, offset)

    # In-sync replicas

    def check_member(self, node: Node, registration: PartitionRegistration, first: int = 0) -> None:
        """A clean in-sync replica has everything that was acknowledged, from offset ``first`` on."""
        log, records = node.log, node.log.records
        if log.start_offset > max(self.delete_requested, 0) and log.start_offset > 0:
            violated(
                "acknowledged_records_survive", f"the log of {node.id} begins at {log.start_offset}, none asked for it"
            )
        for offset, record in self.acknowledged.items():
            if offset < first or offset < log.start_offset:
                continue
            found = records.get(offset)
            if found is None:
                if self._compacted and self._is_superseded(offset, record):
                    continue
                violated(
                    "acknowledged_records_survive",
                    f"node {node.id} of {dict(registration.isr)} has not offset {offset}, {record}",
                )
            elif found != record:
                violated(
                    "followers_agree_below_the_high_watermark",
                    f"node {node.id} has {found} at offset {offset}, acknowledged was {record}",
                )
            if self._on_disk and offset >= log.flushed_offset:
                violated("acknowledged_records_survive", f"node {node.id} has not on disk offset {offset}, {record}")
        if self._compacted:
            self._check_deleted_keys(node)

    def _is_superseded(self, offset: int, record: Stored) -> bool:
        return self.last_of_key[record[1]] > offset or record[2] is None

    def _check_deleted_keys(self, node: Node) -> None:
        """What readers take for a key's last value is so: a tombstone that is gone has taken along what was before it."""
        seen: dict[int, int] = {}
        for offset, (_, key, _value) in node.log.records.items():
            if self.acknowledged.get(offset) is not None:
                seen[key] = max(offset, seen.get(key, -1))
        for key, offset in seen.items():
            last = self.last_of_key[key]
            if offset < last and self.acknowledged[last][2] is None and last < node.log.end_offset:
                violated(
                    "a_deleted_key_stays_deleted",
                    f"key {key} was deleted at offset {last}, node {node.id} has the record at {offset} and no tombstone",
                )


def check_write(before: PartitionRegistration | None, after: PartitionRegistration) -> None:
    """What a write of the partition's key may do."""
    if after.leader is not None and after.leader.node not in after.isr:
        violated("the_leader_is_in_sync", f"{after.leader} leads, in sync are {dict(after.isr)}")
    if len(after.isr) < min(after.min_isr, len(after.replicas)):
        violated("the_leader_is_in_sync", f"only {dict(after.isr)} are in sync, at least {after.min_isr} have to be")
    if before is None:
        return
    if after.leader_epoch < before.leader_epoch:
        violated("one_leader_per_epoch", f"the leader epoch falls from {before.leader_epoch} to {after.leader_epoch}")
    if after.leader_epoch == before.leader_epoch and after.leader not in (before.leader, None):
        violated(
            "one_leader_per_epoch", f"epoch {after.leader_epoch} is led by {before.leader}, then by {after.leader}"
        )
