"""The consumer's calls about single partitions: where reading stands, where it is to go on, what the logs hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from operator import index
from typing import SupportsIndex

from client.consumer.assignment import Assignment
from client.consumer.config import ConsumerSettings
from client.consumer.fetcher import Fetcher
from client.consumer.offset_commits import Commits, fetch_committed
from client.consumer.partition import PartitionState, Pending
from client.consumer.positions import Positions
from client.errors import ClosedError, IllegalStateError, RequestTimedOutError
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.list_offsets import list_offsets
from client.types.records import OffsetAndMetadata, OffsetAndTimestamp
from protocol.messages.records import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from protocol.subscription import TopicPartition


class PartitionCalls:
    """Base of ``Consumer``. Every call that asks a daemon is bounded by ``request_timeout_ms``."""

    _settings: ConsumerSettings
    _cluster: Cluster
    _assignment: Assignment
    _positions: Positions
    _commits: Commits
    _fetcher: Fetcher
    _news: asyncio.Event
    _running: bool
    _closed: bool

    def _check_running(self) -> None:
        if self._closed and not self._running:  # until then listeners may ask and commit
            raise ClosedError("this consumer was stopped")
        if not self._running:
            raise ClosedError("this consumer is not started: 'await consumer.start()' or use it in 'async with'")

    def _check_not_stopped(self) -> None:
        if self._closed:
            self._check_running()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this consumer reads at the moment."""
        return frozenset(self._assignment.states)

    def pause(self, *tps: TopicPartition) -> None:
        """Hands out no records of these partitions until ``resume``.

        A pause outlasts rebalances: of a partition that stays, and of one that was given up and comes back with the next
        generation, as all do in a group that is not cooperative. It ends when the partition goes to another member, and with
        ``unsubscribe``. What was buffered is kept and handed out after ``resume``, unless the partition was given up
        meanwhile; then it is fetched again.

        Raises ``IllegalStateError`` for a partition that is not assigned, ``ClosedError`` after ``stop``.
        """
        self._check_not_stopped()
        for state in [self._assignment.state(tp) for tp in partitions_of(tps)]:
            state.paused = True

    def resume(self, *tps: TopicPartition) -> None:
        """Ends ``pause``; during a rebalance also of partitions that this consumer has given up and may get back.

        Raises as ``pause`` does, for a partition that is neither assigned nor ``paused``.
        """
        self._check_not_stopped()
        self._assignment.resume(partitions_of(tps))
        self._changed()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused.

        Between giving up its partitions and the next assignment a consumer has none, but the pauses of those that may come
        back are among these: ``resume(*paused())`` ends every pause at any time.
        """
        return frozenset(self._assignment.paused)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """The next record of ``tp`` handed out is the one at ``offset``, or the first after it.

        An offset outside the log is treated as ``auto_offset_reset`` says. Raises ``IllegalStateError`` when ``tp`` is not
        assigned, ``ValueError`` for a number that is no offset, ``TypeError`` for what is no whole number, and
        ``ClosedError`` after ``stop``.
        """
        self._check_not_stopped()
        self._assignment.state(partition_of(tp)).move_to(check_offset("the offset to seek", offset))
        self._changed()

    async def seek_to_beginning(self, *tps: TopicPartition) -> None:
        """Goes to the first offset still there, of all assigned partitions when none is named."""
        await self._seek_to("earliest", tps)

    async def seek_to_end(self, *tps: TopicPartition) -> None:
        """Goes to the end of the log as it is now, of all assigned partitions when none is named."""
        await self._seek_to("latest", tps)

    async def seek_to_committed(self, *tps: TopicPartition) -> None:
        """Goes back to the committed offsets; a partition without one goes where ``auto_offset_reset`` says."""
        if self._settings.group_id is None:
            raise IllegalStateError("without a group_id there are no committed offsets")
        await self._seek_to("committed", tps)

    async def position(self, tp: TopicPartition) -> int:
        """The offset of the next record of ``tp`` to be handed out, waiting until it is known.

        Raises ``IllegalStateError`` when it is not assigned, ``NoOffsetForPartitionError`` when there is no offset and no
        policy, ``RequestTimedOutError`` when no daemon answers.
        """
        self._check_running()
        state = self._assignment.state(partition_of(tp))
        if state.pending is not None:
            await self._resolve([state])
        return state.position

    async def committed(self, *tps: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None where there is none; of all assigned partitions when none is named."""
        self._check_running()
        group_id = self._settings.group_id
        if group_id is None:
            raise IllegalStateError("without a group_id there are no committed offsets")
        asked = partitions_of(tps or self._assignment.states)
        if self._positions.before_committed is not None:
            await self._positions.before_committed()
        found = await fetch_committed(self._cluster, group_id, asked, self._deadline()) if asked else {}
        return {tp: found.get(tp) for tp in asked}

    async def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset still there in each partition, assigned or not.

        Raises ``UnknownTopicOrPartitionError`` for one that does not exist, ``RequestTimedOutError`` when no daemon answers.
        """
        return await self._ends(tps, EARLIEST_TIMESTAMP)

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition, assigned or not; raises as ``beginning_offsets``."""
        return await self._ends(tps, LATEST_TIMESTAMP)

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in each partition; None where all records are older.

        Times are whole milliseconds since 1970 and not negative: ``ValueError`` and ``TypeError`` for others. Partitions
        need not be assigned. Records are looked at in the order of the log: one behind that which is found may be older.
        Raises ``UnknownTopicOrPartitionError`` and ``RequestTimedOutError`` as ``beginning_offsets``.
        """
        self._check_running()
        asked = {partition_of(tp): check_offset("a timestamp", time_ms) for tp, time_ms in timestamps_ms.items()}
        found = await list_offsets(self._cluster, asked, self._deadline()) if asked else {}
        return {
            tp: OffsetAndTimestamp(found[tp].offset, found[tp].timestamp) if found[tp].offset >= 0 else None
            for tp in asked
        }

    async def lag(self) -> dict[TopicPartition, int]:
        """How many offsets the position of each assigned partition is behind the end of its log.

        What compaction and DeleteRecords have removed is counted, what was fetched ahead too. Raises what ``position`` and
        ``end_offsets`` raise.
        """
        self._check_running()
        states = list(self._assignment.states.values())
        await self._resolve(states)
        positions = {state.tp: state.position for state in states}
        ends = await self.end_offsets(positions)
        for state in states:
            if state.pending is None:  # it counts where reading stands now, unless that is being looked up anew
                positions[state.tp] = state.position
        return {tp: max(0, ends[tp] - position) for tp, position in positions.items()}

    async def _ends(self, tps: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        self._check_running()
        asked = partitions_of(tps)
        found = await list_offsets(self._cluster, dict.fromkeys(asked, which), self._deadline()) if asked else {}
        return {tp: found[tp].offset for tp in asked}

    async def _seek_to(self, where: Pending, tps: Iterable[TopicPartition]) -> None:
        self._check_running()
        states = [self._assignment.state(tp) for tp in partitions_of(tps)] or list(self._assignment.states.values())
        for state in states:
            state.look_up(where)
        await self._resolve(states)

    async def _resolve(self, states: list[PartitionState]) -> None:
        deadline = self._deadline()
        while any(state.pending is not None for state in states):
            await self._positions.resolve(states, deadline)
            for state in states:
                if state.error is not None and state.pending is not None:
                    error, state.error = state.error, None
                    raise error
            if deadline.passed:
                raise RequestTimedOutError("the positions moved on while they were looked up; call again")
        self._changed()

    def _changed(self) -> None:
        self._positions.wake()
        self._fetcher.wake()
        self._news.set()  # what is buffered may be handed out from here on

    def _deadline(self) -> Deadline:
        return Deadline(self._settings.request_timeout_ms)


def check_offset(what: str, offset: int) -> int:
    """``offset``, or a time, as an ``int``: one of another kind of number, as columns have them, is taken too.

    Raises ``ValueError`` unless it fits a log, 64 bits with a sign and not below 0, and ``TypeError`` when it is no whole
    number.
    """
    if isinstance(offset, bool) or not isinstance(offset, SupportsIndex):
        raise TypeError(f"{what} is {offset!r}; it must be a whole number")
    number = index(offset)
    if not 0 <= number < 2**63:
        raise ValueError(
            f"{what} is {number}; it must be at least 0 and below 2**63. seek_to_beginning, seek_to_end, beginning_offsets "
            "and end_offsets find the ends"
        )
    return number


def partition_of(tp: TopicPartition) -> TopicPartition:
    """``tp``, which may be a plain pair. Raises ``TypeError`` when it is no topic's name and a number."""
    if isinstance(tp, tuple) and len(tp) == 2:
        topic, partition = tp
        if isinstance(topic, str) and isinstance(partition, SupportsIndex) and not isinstance(partition, bool):
            return TopicPartition(topic, index(partition))
    raise TypeError(f"{tp!r} is no partition; pass a TopicPartition(topic, partition)")


def partitions_of(tps: Iterable[TopicPartition]) -> list[TopicPartition]:
    """All of ``tps``; see ``partition_of``."""
    return [partition_of(tp) for tp in tps]
