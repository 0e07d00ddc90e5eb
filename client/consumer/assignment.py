"""The partitions a consumer reads, and the handing out of their records. Pure but for one event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from client.consumer.decoding import BatchDecoder
from client.consumer.partition import FetchedBatch, PartitionState, Pending
from client.errors import IllegalStateError, RecordDeserializationError
from client.garbage import without_garbage_collection
from client.types.columns import RecordColumns
from client.types.records import ConsumerRecord
from protocol.subscription import TopicPartition

Taken = TypeVar("Taken")


class Assignment:
    """Partition states by partition, served in turn.

    Taking records and freezing partitions are plain calls: nothing can come between a look at the buffer and the moment
    its records are the program's. ``owned`` says whether the assignment still holds; nothing is handed out when not.
    """

    def __init__(self, decoder: BatchDecoder) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self.owned: Callable[[], bool] = lambda: True
        self.came_back = asyncio.Event()
        self.freed = False  # whether buffer room came free since the fetcher was told
        self._decoder = decoder
        self._turn: list[PartitionState] = []
        self._handed: dict[TopicPartition, PartitionState] = {}
        self._missed: dict[TopicPartition, None] = {}
        self._failing: dict[PartitionState, None] = {}
        self._paused_before: dict[TopicPartition, None] = {}  # paused when they were given up in a rebalance

    def state(self, tp: TopicPartition) -> PartitionState:
        """The state of an assigned partition. Raises ``IllegalStateError`` for any other."""
        state = self.states.get(tp)
        if state is None:
            owned = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(self.states)) or "none"
            raise IllegalStateError(f"{tp[0]}-{tp[1]} is not assigned to this consumer; assigned are: {owned}")
        return state

    def add(self, tps: Iterable[TopicPartition], pending: Pending, *, frozen: bool = False) -> list[PartitionState]:
        """Adds partitions that are not there yet; returns their states."""
        added = []
        for topic, partition in tps:
            tp = TopicPartition(topic, partition)
            if tp not in self.states:
                state = self.states[tp] = PartitionState(tp, pending, self._failing)
                state.frozen = frozen
                state.paused = tp in self._paused_before
                self._paused_before.pop(tp, None)
                added.append(state)
        self._turn = list(self.states.values())
        return added

    def remove(self, tps: Iterable[TopicPartition], *, taken_away: bool = False) -> None:
        """Forgets partitions and all that was buffered of them.

        ``taken_away`` keeps in mind those whose records the program has in hand.
        """
        for tp in tps:
            if taken_away and tp in self._handed:
                self._missed[tp] = None
            state = self.states.pop(tp, None)
            if state is not None:
                state.claim, state.frozen = None, True
                self._failing.pop(state, None)
            self._handed.pop(tp, None)
        self._turn = list(self.states.values())

    def renew(self, tps: Iterable[TopicPartition]) -> None:
        """Forgets where partitions are and what was handed out of them: the log is another one. Paused ones stay so."""
        for tp in tps:
            before = self.states[tp]
            frozen, paused = before.frozen, before.paused
            self.remove([tp], taken_away=True)
            (state,) = self.add([tp], "reset", frozen=frozen)
            state.paused, state.of_another_log = paused, True

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Hands out nothing of these until ``resume``. Raises as ``state``, before it changes anything."""
        for state in [self.state(tp) for tp in tps]:
            state.paused = True

    @property
    def paused(self) -> list[TopicPartition]:
        """What the program has paused: of what is assigned, and of what was given up and may come back."""
        return [*(tp for tp, state in self.states.items() if state.paused), *self._paused_before]

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Ends pauses, of partitions that were given up meanwhile too. Raises as ``state``, before it changes anything."""
        wanted = list(tps)
        for tp in wanted:
            if tp not in self._paused_before:
                self.state(tp)
        for tp in wanted:
            self._paused_before.pop(tp, None)
            if tp in self.states:
                self.states[tp].paused = False

    def remember_pauses(self, tps: Iterable[TopicPartition]) -> None:
        """These are about to be given up: those that are paused will be paused when they are added again."""
        self._paused_before |= dict.fromkeys(tp for tp in tps if tp in self.states and self.states[tp].paused)

    def forget_pauses(self, *, but: Iterable[TopicPartition] = ()) -> None:
        """Partitions that were given up and are not among ``but`` do not come back to this member with their pause."""
        kept = frozenset(but)
        self._paused_before = {tp: None for tp in self._paused_before if tp in kept}

    def split_off(self, tps: Iterable[TopicPartition], *, taken_away: bool = False) -> Assignment:
        """Removes partitions and returns them as an assignment of their own, which can be committed and given up."""
        apart = Assignment(self._decoder)
        for tp in tps:
            state = self.states.get(tp)
            if state is not None:
                apart.states[tp] = state
        apart._turn = list(apart.states.values())
        self.remove(apart.states, taken_away=taken_away)
        return apart

    def freeze(self, tps: Iterable[TopicPartition], frozen: bool = True) -> None:
        """From now on no record of these partitions is handed out or fetched; or again."""
        for tp in tps:
            state = self.states.get(tp)
            if state is not None:
                state.frozen = frozen

    def rotation(self) -> list[PartitionState]:
        """All partitions, those that waited longest for their turn first."""
        return self._turn

    def begin_poll(self) -> None:
        """The program comes back: what earlier polls handed out is done."""
        if self._handed:
            for state in self._handed.values():
                state.done = state.position
            self._handed.clear()
        self._missed.clear()
        self.came_back.set()

    def in_hand_of(self, tps: Iterable[TopicPartition]) -> bool:
        """Whether the program holds records of one of these partitions, and has not come back since."""
        return any(tp in self._handed for tp in tps)

    @property
    def missed(self) -> list[TopicPartition]:
        """Partitions that were taken away since the last poll while the program had records of them in hand."""
        return list(self._missed)

    def settle(self, tp: TopicPartition, offset: int) -> None:
        """``offset`` is committed: everything below it is done."""
        state = self.states.get(tp)
        if state is None:
            return
        state.committed = offset
        state.say_done(offset)
        if offset >= state.position >= 0:
            self._handed.pop(tp, None)
            self.came_back.set()

    def raise_error(self) -> None:
        """Raises the error of a readable partition, if one has any, and clears it so that the next poll tries again."""
        if not self._failing:
            return  # asked for each record: a thousand partitions must not be looked at each time
        for state in self._turn:
            if state.error is not None and state.readable:
                error, state.error = state.error, None
                raise error

    def take(self, limit: int, wanted: Collection[TopicPartition]) -> dict[TopicPartition, list[ConsumerRecord]]:
        """At most ``limit`` records of the ``wanted`` partitions (all when empty), beginning where the last take ended."""
        with without_garbage_collection():
            return self._serve(limit, wanted, lambda state, limit: state.take(limit, self._decoder))

    def take_columns(self, limit: int, wanted: Collection[TopicPartition]) -> dict[TopicPartition, list[RecordColumns]]:
        """As ``take``, in columns: one ``RecordColumns`` for each batch, or the part of it that is handed out."""
        return self._serve(
            limit,
            wanted,
            lambda state, limit: state.take_columns(limit, self._decoder),
            lambda taken: sum(map(len, taken)),
        )

    def _serve(
        self,
        limit: int,
        wanted: Collection[TopicPartition],
        take: Callable[[PartitionState, int], list[Taken]],
        count: Callable[[list[Taken]], int] = len,
    ) -> dict[TopicPartition, list[Taken]]:
        result: dict[TopicPartition, list[Taken]] = {}
        if not self.owned():
            return result
        served = 0
        for state in self._turn:
            if limit <= 0:
                break
            served += 1
            if not state.buffered_bytes or not state.readable or (wanted and state.tp not in wanted):
                continue
            held = state.buffered_bytes
            taken = take(state, limit)
            self.freed |= state.buffered_bytes != held
            if taken:
                result[state.tp] = taken
                self._handed[state.tp] = state
                limit -= count(taken)
        self._turn = self._turn[served:] + self._turn[:served]
        return result

    def take_for_work(self, state: PartitionState) -> ConsumerRecord | None:
        """The next record of one partition, for a handler; ``finish`` or ``give_back`` of ``state`` ends its work."""
        if not state.buffered_bytes or state.paused or state.frozen or not self.owned():
            return None
        held = state.buffered_bytes
        record = state.take_for_work(self._decoder)
        self.freed |= state.buffered_bytes != held
        if record is None and state.error is None:
            state.pass_over()
        return record

    def take_many_for_work(self, state: PartitionState, limit: int) -> tuple[list[ConsumerRecord], list[FetchedBatch]]:
        """As ``take_for_work``, up to ``limit`` records that one handler gets at once, and the batches they came from."""
        if not self._has_work(state):
            return [], []
        held = state.buffered_bytes
        with without_garbage_collection():
            records, origins = state.take_many_for_work(limit, self._decoder)
        self.freed |= state.buffered_bytes != held
        if not records and state.error is None:
            state.pass_over()
        return records, origins

    def next_key(self, state: PartitionState) -> bytes | None:
        """The key of what ``take_for_work`` would give, as it is stored; None without one, or without a record."""
        return state.next_key(self._decoder) if self._has_work(state) else None

    def decoded_anew(
        self, state: PartitionState, record: ConsumerRecord, origin: FetchedBatch
    ) -> tuple[ConsumerRecord, RecordDeserializationError | None]:
        """See ``PartitionState.decoded_anew``."""
        return state.decoded_anew(record, origin, self._decoder)

    def _has_work(self, state: PartitionState) -> bool:
        return bool(state.buffered_bytes) and state.readable and self.owned()

    def take_one(self, wanted: Collection[TopicPartition]) -> ConsumerRecord | None:
        """The next record; goes on with one partition's batch before it turns to the next partition."""
        if not self.owned():
            return None
        for index, state in enumerate(self._turn):
            if not state.buffered_bytes or not state.readable or (wanted and state.tp not in wanted):
                continue
            held = state.buffered_bytes
            record = state.take_one(self._decoder)
            emptied = state.buffered_bytes != held
            self.freed |= emptied
            if record is None:
                continue
            self._handed[state.tp] = state
            turned = index + 1 if emptied else index
            if turned:
                self._turn = self._turn[turned:] + self._turn[:turned]
            return record
        return None
