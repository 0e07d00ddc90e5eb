"""Resetting offsets: from what is asked for to a plan that says what becomes of each partition, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from client.admin.arguments import checked_partition
from client.admin.failures import raise_failures
from client.admin.group_reports import committed_offsets, describe_group
from client.admin.groups import DEAD, members_text, unknown_group
from client.errors import CohortError, UnknownTopicOrPartitionError
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.list_offsets import list_offsets
from client.transport.metadata import Topology
from client.types.records import OffsetAndMetadata
from protocol.messages.records import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from protocol.subscription import TopicPartition

ResetTarget = Literal["earliest", "latest"] | int | datetime
"""Where a group is to go on: an end of the log, an offset, or the first record at or after a point in time."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MAX_OFFSET: Final = 2**63


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """One partition of a plan.

    ``current`` is the committed offset, ``None`` when there is none. ``new`` is the one to be committed, ``None`` when
    nothing is: ``note`` says why then, and also where ``new`` is not what was asked for; it is empty otherwise.
    """

    topic: str
    partition: int
    current: int | None
    new: int | None
    note: str = ""

    @property
    def difference(self) -> int | None:
        """``new`` less ``current``: how many records are read again (negative) or passed over (positive)."""
        return None if self.new is None or self.current is None else self.new - self.current


@dataclass(frozen=True, slots=True)
class OffsetResetPlan:
    """What a reset does, partition by partition, sorted; ``executed`` tells whether it was done.

    ``state`` is the group's ("Dead" for one that does not exist yet). ``blocked`` is empty, or says why the plan cannot be
    executed at the moment: the group has members, which it names.
    """

    group_id: str
    state: str
    partitions: tuple[PartitionReset, ...]
    blocked: str = ""
    executed: bool = False

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is committed when the plan is executed."""
        return {
            TopicPartition(row.topic, row.partition): OffsetAndMetadata(row.new)
            for row in self.partitions
            if row.new is not None
        }


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """What a log holds: the first offset still there, the one after the last, and the first at or after a time (or -1)."""

    first: int
    end: int
    at_time: int = -1


@dataclass(frozen=True, slots=True)
class Reset:
    """What is asked for: one of the two is set."""

    to: ResetTarget | Mapping[TopicPartition, int] | None
    shift_by: int | None

    @staticmethod
    def checked(to: ResetTarget | Mapping[TopicPartition, int] | None, shift_by: int | None) -> Reset:
        """Raises ``ValueError`` or ``TypeError`` unless exactly one of the two is there and makes sense."""
        if (to is None) == (shift_by is None):
            raise ValueError(
                "give either to= or shift_by=: where to reset the offsets, or by how many records to move them"
            )
        if shift_by is not None:
            if not isinstance(shift_by, int) or isinstance(shift_by, bool):
                raise TypeError(f"shift_by must be a whole number, not {shift_by!r}")
        elif isinstance(to, Mapping):
            to = {checked_partition("reset_offsets", tp): _checked(tp, offset) for tp, offset in to.items()}
        elif isinstance(to, bool) or not isinstance(to, str | int | datetime):
            raise TypeError(
                f'to must be "earliest", "latest", an offset, a datetime or offsets by partition, not {to!r}'
            )
        elif isinstance(to, str) and to not in ("earliest", "latest"):
            raise ValueError(f'to must be "earliest", "latest", an offset or a datetime, not {to!r}')
        elif isinstance(to, int) and not 0 <= to < _MAX_OFFSET:
            raise ValueError(f"offset {to} must be from 0 and below 2**63; shift_by moves offsets back")
        return Reset(to, shift_by)

    @property
    def timestamp_ms(self) -> int | None:
        """The point in time asked for, in milliseconds since 1970 and rounded up; ``None`` when it is none."""
        return epoch_ms(self.to) if isinstance(self.to, datetime) else None

    def decide(self, tp: TopicPartition, current: int | None, log: PartitionLog) -> tuple[int | None, str]:
        """The new offset of one partition and a note about it, see ``PartitionReset``."""
        if isinstance(self.to, Mapping):
            return _within(self.to[tp], log)
        if self.to == "earliest":
            return log.first, ""
        if self.to == "latest":
            return log.end, ""
        if isinstance(self.to, datetime):
            if log.at_time < 0:
                return log.end, "no record is that new: the end of the log"
            return _within(log.at_time, log)
        if self.shift_by is None:
            assert isinstance(self.to, int), "checked() lets nothing else through"
            return _within(self.to, log)
        if current is None:
            return None, "left out: there is no committed offset to shift"
        return _within(current + self.shift_by, log)


def _checked(tp: TopicPartition, offset: object) -> int:
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < _MAX_OFFSET:
        raise ValueError(f"offset {offset!r} of {tp[0]}-{tp[1]} must be a whole number from 0 and below 2**63")
    return offset


def epoch_ms(point: datetime) -> int:
    """Milliseconds since 1970, rounded up and not below 0. A naive ``point`` is in the local time zone.

    Raises ``ValueError`` for one at the very edge of the calendar.
    """
    try:
        since = point.astimezone(UTC) - _EPOCH
    except (OverflowError, OSError) as error:
        raise ValueError(f"{point.isoformat()} is outside the calendar in UTC") from error
    return max(0, -(-since // _MILLISECOND))


async def plan_reset(
    cluster: Cluster, group_id: str, targets: Iterable[TopicPartition | str], reset: Reset, deadline: Deadline
) -> OffsetResetPlan:
    """What ``reset`` makes of the offsets of ``targets``, see ``Admin.reset_offsets``. Changes nothing."""
    group, committed = await asyncio.gather(
        describe_group(cluster, group_id, deadline), committed_offsets(cluster, group_id, deadline)
    )
    wanted = list(targets)
    if not wanted and group.state == DEAD:
        raise unknown_group(group_id)
    topics = {target if isinstance(target, str) else target[0] for target in wanted or committed}
    cluster.track(topics)
    topology = await cluster.refresh(deadline)
    if wanted:
        partitions = _existing(wanted, topology)
    else:
        there = sorted(topic for topic in topics if topic in topology.topics)
        partitions = _existing(there, topology)
    logs = await _logs(cluster, partitions, reset.timestamp_ms, deadline)
    rows = [_row(tp, committed, *reset.decide(tp, _offset(committed, tp), logs[tp])) for tp in partitions]
    if not wanted:
        gone = [tp for tp in committed if tp.topic not in topology.topics]
        rows += [_row(tp, committed, None, "left out: the topic does not exist any more") for tp in gone]
    rows.sort(key=lambda row: (row.topic, row.partition))
    blocked = (
        f"the offsets of group {group_id!r} cannot be reset while it has {members_text(group.members)}. "
        "Stop its members first, or take them out with remove_members (cohort groups remove-member)"
        if group.members
        else ""
    )
    return OffsetResetPlan(group_id, group.state, tuple(rows), blocked)


def _existing(targets: Iterable[TopicPartition | str], topology: Topology) -> list[TopicPartition]:
    """The partitions that are meant, sorted. Raises ``UnknownTopicOrPartitionError`` naming all that do not exist."""
    found: set[TopicPartition] = set()
    failures: dict[TopicPartition | str, CohortError] = {}
    for target in targets:
        topic = target if isinstance(target, str) else target[0]
        known = topology.topics.get(topic)
        if known is None:
            failures[target] = _missing(f"topic {topic!r} does not exist; 'cohort topics list' shows those that do")
        elif isinstance(target, str):
            found.update(TopicPartition(topic, index) for index in range(len(known.partitions)))
        elif 0 <= target[1] < len(known.partitions):
            found.add(TopicPartition(*target))
        else:
            last = len(known.partitions) - 1
            failures[target] = _missing(f"topic {topic!r} has no partition {target[1]}; they are numbered 0 to {last}")
    raise_failures(failures)
    return sorted(found)


def _missing(text: str) -> UnknownTopicOrPartitionError:
    error = UnknownTopicOrPartitionError(text)
    error.retriable = False  # the daemon was asked: waiting does not help
    return error


async def _logs(
    cluster: Cluster, partitions: list[TopicPartition], timestamp_ms: int | None, deadline: Deadline
) -> dict[TopicPartition, PartitionLog]:
    if not partitions:
        return {}
    asked = [EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, *([] if timestamp_ms is None else [timestamp_ms])]
    found = await asyncio.gather(
        *(list_offsets(cluster, dict.fromkeys(partitions, timestamp), deadline) for timestamp in asked)
    )
    return {tp: PartitionLog(*(listed[tp].offset for listed in found)) for tp in partitions}


def _row(
    tp: TopicPartition, committed: Mapping[TopicPartition, OffsetAndMetadata], new: int | None, note: str
) -> PartitionReset:
    return PartitionReset(tp.topic, tp.partition, _offset(committed, tp), new, note)


def _offset(committed: Mapping[TopicPartition, OffsetAndMetadata], tp: TopicPartition) -> int | None:
    return committed[tp].offset if tp in committed else None


def _within(offset: int, log: PartitionLog) -> tuple[int, str]:
    if offset < log.first:
        return log.first, f"{offset} is before the log, which begins here"
    if offset > log.end:
        return log.end, f"{offset} is after the log, which ends here"
    return offset, ""
