"""Fetches records ahead of the program: long polls to each leader, into bounded buffers, in fair turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Final

from client.consumer.assignment import Assignment
from client.consumer.config import ConsumerSettings
from client.consumer.partition import FetchedBatch, PartitionState
from client.consumer.positions import Positions
from client.consumer.transaction_watch import TransactionWatch
from client.errors import CohortError, CorruptMessageError, error_for
from client.log import get_logger
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.metadata import Address, Topology
from client.types.metrics import ConsumerMetrics, MemberMetrics
from protocol.errors import ErrorCode, ProtocolError
from protocol.limits import max_request_elements
from protocol.messages import ApiKey
from protocol.messages.records import (
    READ_COMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from protocol.record_batch import iter_batches
from protocol.subscription import TopicPartition

_PARALLEL: Final = 4
"""Fetches under way to one leader that are waited for; beyond them the oldest are superseded."""
_UNANSWERED: Final = 16
"""Fetches under way to one leader in all, superseded ones included."""
_ONE_FETCH_BYTES: Final = 16 * 1024 * 1024
_MANY_IDLE: Final = 32
"""Partitions at their end that get a long poll of their own beside those that are behind."""
_MOST_PARTITIONS: Final = (max_request_elements(ApiKey.FETCH) - 32) // 10
"""Partitions of one fetch: an array of five numbers each, and each with a topic of its own at worst."""
_ANSWER_MARGIN_S: Final = 10.0
_LONGEST_ANSWER_S: Final = 300.0
"""For an answer that goes on coming over a slow line: asked for again, it would take as long again."""
_LEADER_ELSEWHERE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_LAST_FETCH_SEQ: Final = attrgetter("last_fetch_seq")

log = get_logger()


class _Fetch:
    """One fetch under way: whom it asks for which partitions, from which offsets."""

    __slots__ = ("asked", "beyond", "bytes", "leader", "reads", "task")

    def __init__(self, leader: Address, asked: Sequence[PartitionState], limit: int) -> None:
        self.leader = leader
        self.asked = {state.tp: (state, state.fetch_offset) for state in asked}
        self.bytes = limit
        self.beyond = False  # whether there was no room for it
        self.reads = any(state.behind for state in asked)  # records are there already
        self.task: asyncio.Task[None] | None = None
        for state in asked:
            state.claim = self
            state.asked_leader = leader


class Fetcher:
    """Keeps the buffers of all readable partitions filled while it runs.

    ``fetch_max_bytes`` bounds what is buffered and asked for ahead. Beyond it, readable partitions with an empty buffer may
    still fetch while a poll of the program has come back with nothing: records that it does not take (of paused partitions,
    or of partitions it does not ask for) must not starve the others. So may they while only long polls reserve what is left.
    Such a fetch asks for ``max_partition_fetch_bytes`` (or ``fetch_max_bytes`` if that is less) in all. So a program that
    does not poll, or takes what there is, holds ``fetch_max_bytes`` and one such answer, any other at most one for each
    partition; a batch that is larger comes whole (KIP-74).
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        positions: Positions,
        settings: ConsumerSettings,
        news: asyncio.Event,
    ) -> None:
        self._cluster = cluster
        self._assignment = assignment
        self._positions = positions
        self._settings = settings
        self._news = news
        self._transactions = TransactionWatch(cluster, settings)
        self._woken = asyncio.Event()
        self._fetches: dict[Address, list[_Fetch]] = {}
        self._topology = cluster.topology
        self._starving = False  # whether a poll found nothing since records came last
        self._shut_out: set[PartitionState] = set()  # partitions that had no room beside what is buffered
        self.fetched_batches = self.fetched_bytes = 0
        self._fetch_seq = 0  # how often a partition got records
        self._refresh: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def metrics(self, member: MemberMetrics | None) -> ConsumerMetrics:
        """What was fetched, and how far the program is behind it."""
        states, paused = self._assignment.states, self._assignment.paused
        known = {tp: state for tp, state in states.items() if state.readable_end >= 0 <= state.position}
        lag = {tp: max(0, state.readable_end - state.position) for tp, state in known.items()}
        return ConsumerMetrics(
            member=member,
            assigned_partitions=len(states),
            paused_partitions=sum(tp in states for tp in paused),
            fetched_batches=self.fetched_batches,
            fetched_bytes=self.fetched_bytes,
            buffered_bytes=sum(state.buffered_bytes for state in states.values()),
            lag_records=MappingProxyType(lag),
        )

    def start(self) -> None:
        """Begins; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name=f"cohort-fetcher-{self._settings.client_id}")

    async def stop(self) -> None:
        """Ends all fetches at once."""
        tasks = [fetch.task for fetches in self._fetches.values() for fetch in fetches]
        under_way = [task for task in (self._task, self._refresh, *tasks) if task is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        self._task = self._refresh = None
        await self._transactions.stop()

    def wake(self) -> None:
        """Something changed: partitions, positions, room in the buffers, leaders."""
        self._woken.set()

    def room_came_free(self) -> None:
        """The program took records: there is room in the buffers."""
        self._assignment.freed = False
        self._shut_out.clear()
        self._woken.set()

    def starving(self) -> None:
        """A poll found nothing that it wants in the buffers, whatever else there is."""
        if not self._starving:
            self._starving = True
            self._woken.set()

    def may_bring_more(self, state: PartitionState) -> bool:
        """Whether more of a partition with buffered records may come before the program takes some of what is buffered."""
        return state.claim is not None or (self._wants(state) and state not in self._shut_out)

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                delay_s = self._dispatch()
            except Exception as error:
                delay_s = self._surface(self._assignment.rotation(), error)
            try:
                async with asyncio.timeout(delay_s):
                    await self._woken.wait()
            except TimeoutError:
                continue  # a partition that failed may be tried again

    def _dispatch(self) -> float | None:
        """Sends what should be under way; returns in how many seconds a failed partition wants another try."""
        now_s = asyncio.get_running_loop().time()
        next_s: float | None = None
        by_leader: dict[Address, list[PartitionState]] = {}
        topology = self._cluster.topology
        if topology is not self._topology:
            self._topology = topology
            self._drop_moved(topology)
        if self._shut_out:
            self._shut_out.intersection_update(self._assignment.states.values())  # a buffer goes with its partition
        for state in self._assignment.rotation():
            if state.claim is not None or not self._wants(state):
                continue
            leader = topology.leader(state.tp)
            moved = leader is not None and leader != state.asked_leader
            if state.retry_at_s > now_s and not moved:
                next_s = min(next_s or state.retry_at_s, state.retry_at_s)
                continue
            if leader is None:
                state.asked_leader = None
                self._try_later(state, "its leader is not known")
                next_s = min(next_s or state.retry_at_s, state.retry_at_s)
            else:
                by_leader.setdefault(leader, []).append(state)
        for leader, states in by_leader.items():
            states.sort(key=_LAST_FETCH_SEQ)  # a partition that always has more must not come first each time
            for part in self._parts(leader, states):
                for start in range(0, len(part), _MOST_PARTITIONS):
                    self._send(leader, part[start : start + _MOST_PARTITIONS])
        return None if next_s is None else max(0.0, next_s - now_s)

    def _drop_moved(self, topology: Topology) -> None:
        """What has moved is asked of its new leader, whether or not the old one still answers."""
        for state in self._assignment.rotation():
            if state.claim is not None and topology.leader(state.tp) not in (None, state.asked_leader):
                state.claim = None

    def _parts(self, leader: Address, states: list[PartitionState]) -> list[list[PartitionState]]:
        """Two fetches where there is more to be had than one brings: the daemon reads for one while the other is taken in.

        Long polls stay one; but many partitions that are at their end are not asked about again with each fetch of the few
        that are not: that would cost more than the records.
        """
        behind = [state for state in states if state.behind]
        idle = [state for state in states if not state.behind]
        if behind and len(idle) >= _MANY_IDLE:
            return [*self._halves(leader, behind, behind), idle]
        return self._halves(leader, states, behind)

    def _halves(
        self, leader: Address, states: list[PartitionState], behind: list[PartitionState]
    ) -> list[list[PartitionState]]:
        if len(behind) < 2 or any(fetch.reads for fetch in self._fetches.get(leader, ())):
            return [states]
        apart = frozenset(id(state) for state in behind[1::2])
        return [[state for state in states if (id(state) in apart) is second] for second in (False, True)]

    def _wants(self, state: PartitionState) -> bool:
        return (
            state.readable
            and state.error is None
            and state.fetch_offset >= 0
            and state.buffered_bytes < (1 if state.left_log else self._settings.max_partition_fetch_bytes)
        )

    def _room(self) -> tuple[int, int]:
        """How many bytes may be held beside what is buffered and asked for beyond the bound; how many no fetch asks for."""
        under_way = [fetch for fetches in self._fetches.values() for fetch in fetches]
        beyond = sum(fetch.bytes for fetch in under_way if fetch.beyond)
        left = self._settings.fetch_max_bytes - sum(state.buffered_bytes for state in self._assignment.states.values())
        return left - beyond, left - sum(fetch.bytes for fetch in under_way)

    def _send(self, leader: Address, states: list[PartitionState]) -> None:
        fetches = self._fetches.setdefault(leader, [])
        waiting = [fetch for fetch in fetches if any(state.claim is fetch for state, _ in fetch.asked.values())]
        requests_for_all = len(self._assignment.states) // _MOST_PARTITIONS
        if len(waiting) >= _PARALLEL + requests_for_all:
            if len(fetches) >= _UNANSWERED + requests_for_all:
                return  # one of them ends within fetch_max_wait_ms and wakes this up
            # Seeks and resumes have scattered the partitions over many long polls: gather them in one again.
            for fetch in waiting:
                fetch.bytes = 0
                states += [state for state, _ in fetch.asked.values() if state.claim is fetch and self._wants(state)]
            del states[_MOST_PARTITIONS:]
        partition_bytes = self._settings.max_partition_fetch_bytes
        (left, free), share = self._room(), min(partition_bytes, self._settings.fetch_max_bytes)
        room, wanted = free, states
        if room < share and (self._starving or left > 0):
            empty = [state for state in states if not state.buffered_bytes]
            states, room = (empty, share) if empty else (states, room)
        limit = min(room, len(states) * partition_bytes, _ONE_FETCH_BYTES)
        if left < share:
            self._shut_out_all(wanted if limit <= 0 else set(wanted).difference(states))
        if limit <= 0:
            return  # the program wakes this up when it takes records
        self._shut_out.difference_update(states)
        fetch = _Fetch(leader, states, limit)
        fetch.beyond = limit > free
        fetches.append(fetch)
        fetch.task = asyncio.create_task(self._fetch(fetch), name=f"cohort-fetch-{leader[0]}:{leader[1]}")

    def _shut_out_all(self, states: Iterable[PartitionState]) -> None:
        if not self._shut_out.issuperset(states):
            self._shut_out.update(states)
            self._news.set()  # who waits for more of them need not

    async def _fetch(self, fetch: _Fetch) -> None:
        wait_ms = self._settings.fetch_max_wait_ms
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=self._settings.fetch_min_bytes,
            max_bytes=fetch.bytes,
            topics=in_turn([self._asked(state, offset) for state, offset in fetch.asked.values()], self._topic_id),
            isolation_level=self._settings.isolation,
            kafka_batches=True,
        )
        try:
            connection = await self._cluster.connection_to(fetch.leader)
            response = await connection.request(
                request,
                FetchResponse,
                timeout_s=wait_ms / 1000 + _ANSWER_MARGIN_S,
                longest_s=_LONGEST_ANSWER_S,
                held_s=wait_ms / 1000,
            )
            self._receive(fetch, response)
        except CohortError as error:
            for state in self._still_asked(fetch):
                self._try_later(state, str(error))
                if not error.retriable:  # tried again all the same, but the program must know
                    state.error = error
            self._news.set()
        except Exception as error:
            self._surface(self._still_asked(fetch), error)
        finally:
            for state in self._still_asked(fetch):
                state.claim = None
            self._fetches[fetch.leader].remove(fetch)
            self._woken.set()

    def _asked(self, state: PartitionState, offset: int) -> tuple[str, FetchPartition]:
        tp, most = state.tp, self._settings.max_partition_fetch_bytes
        if not self._cluster.is_replicated(tp):
            return tp.topic, FetchPartition(tp.partition, offset, most)
        epoch = self._cluster.topology.leader_epoch(tp)
        return tp.topic, FetchPartition(tp.partition, offset, most, epoch, state.leader_epoch_before(offset))

    def _topic_id(self, topic: str) -> str:
        known = self._cluster.topology.topics.get(topic)
        return known.topic_id if known is not None and self._cluster.is_replicated(TopicPartition(topic, 0)) else ""

    def _still_asked(self, fetch: _Fetch) -> list[PartitionState]:
        return [state for state, _ in fetch.asked.values() if state.claim is fetch]

    def _receive(self, fetch: _Fetch, response: FetchResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code, f"fetching from {fetch.leader[0]}:{fetch.leader[1]}")
        if response.node_endpoints:
            self._cluster.learn_leaders(response)
        for topic in response.responses:
            for answer in topic.partitions:
                state, offset = fetch.asked.get(TopicPartition(topic.topic, answer.partition_index), (None, 0))
                # A position that was moved since, or a partition given up, has dropped its claim on this fetch.
                if state is not None and state.claim is fetch:
                    self._receive_partition(state, offset, answer)

    def _receive_partition(self, state: PartitionState, offset: int, answer: FetchedPartition) -> None:
        code = answer.error_code
        name = f"{state.tp.topic}-{state.tp.partition}"
        reason = answer.error_message.removeprefix(f"{name}: ")
        if code == ErrorCode.NONE and answer.diverging_end >= 0:
            self._positions.diverged(state, answer.diverging_epoch, answer.diverging_end)
        elif code == ErrorCode.NONE:
            state.failures = 0
            state.left_log = False
            self._buffer(state, answer)
            state.readable_end = self._readable_end(answer)
            state.behind = state.fetch_offset < state.readable_end
            self._transactions.saw(state, answer)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE and state.buffered_bytes:
            state.left_log = True  # what is buffered comes first; it is asked again then
            self._news.set()
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._positions.left_range(state, offset)
        elif code in _LEADER_ELSEWHERE:
            self._try_later(state, f"{error_for(code, answer.error_message)}")
        elif code == ErrorCode.CORRUPT_MESSAGE:
            state.error = CorruptMessageError(f"{name} at offset {offset}: {reason}")
        else:
            state.error = error_for(code, f"fetching {name} at offset {offset}: {reason}")
        if state.error is not None:
            # The program is told at each attempt; between them it gets the records of the other partitions.
            self._pause(state)
            self._news.set()

    def _readable_end(self, answer: FetchedPartition) -> int:
        """The offset up to which this consumer may read at the moment."""
        return answer.last_stable_offset if self._settings.isolation == READ_COMMITTED else answer.high_watermark

    def _buffer(self, state: PartitionState, answer: FetchedPartition) -> None:
        if not answer.records:
            return
        before = state.fetch_offset
        try:
            for position, header in iter_batches(answer.records):
                state.add(FetchedBatch(answer.records, position, header))
                self.fetched_batches += 1
                self.fetched_bytes += header.length
        except ProtocolError as error:
            if state.fetch_offset == before:
                state.error = CorruptMessageError(f"{state.tp.topic}-{state.tp.partition} at offset {before}: {error}")
        if state.fetch_offset > before:
            self._fetch_seq += 1
            self._starving = False
            state.last_fetch_seq = self._fetch_seq
            self._news.set()
        elif state.error is None:
            state.error = CorruptMessageError(
                f"{state.tp.topic}-{state.tp.partition} at offset {before}: the answer holds no whole batch"
            )

    def _try_later(self, state: PartitionState, why: str) -> None:
        state.claim = None
        self._pause(state)
        if state.failures in (3, 30, 300):
            log.warning("partition_unreadable", topic=state.tp.topic, partition=state.tp.partition, reason=why)
        if self._refresh is None or self._refresh.done():
            self._refresh = asyncio.create_task(self._look_again(), name="cohort-fetcher-refresh")

    def _pause(self, state: PartitionState) -> None:
        state.retry_at_s = asyncio.get_running_loop().time() + self._cluster.backoff.delay_s(state.failures)
        state.failures += 1

    def _surface(self, states: Sequence[PartitionState], error: Exception) -> float:
        """A fault of ours: the program's next poll raises it, and these partitions are tried again; returns in how many
        seconds."""
        log.error("fetch_broken", client_id=self._settings.client_id, exc_info=error)
        for state in states:
            state.error = error
            self._pause(state)
        self._news.set()
        return self._cluster.backoff.delay_s(min((state.failures for state in states), default=0))

    async def _look_again(self) -> None:
        try:
            await self._cluster.refresh(Deadline(self._settings.request_timeout_ms))
        except CohortError as error:
            log.debug("metadata_refresh_failed", client_id=self._settings.client_id, error=str(error))
        except Exception as error:
            log.error("metadata_refresh_broken", client_id=self._settings.client_id, exc_info=error)
        self._woken.set()


def in_turn(
    partitions: Iterable[tuple[str, FetchPartition]], topic_id: Callable[[str], str] = lambda topic: ""
) -> tuple[FetchTopic, ...]:
    """The partitions in this order, which a daemon serves them in: neighbours of one topic share an entry, no others.

    An idle partition, which is always among the first, must not put all others of its topic before other topics.
    """
    return tuple(
        FetchTopic(topic, tuple(asked for _, asked in neighbours), topic_id(topic))
        for topic, neighbours in groupby(partitions, key=itemgetter(0))
    )
