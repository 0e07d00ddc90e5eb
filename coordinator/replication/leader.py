"""The leader's side of a partition in one leader epoch: who has what, what is committed, who is in sync.

The shell calls it whenever something has changed: a follower's fetch, an append, a flush, a delta of the metadata. The rules
are those of Kafka's leader; what differs is named where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from coordinator.log.leader_epochs import EpochEnd
from coordinator.replication.fetch import FetchAnswer, FetchError, FetchPartition
from coordinator.replication.log import Log
from coordinator.replication.partition import Incarnation, LiveNode, PartitionRegistration, ReplicationConfig

MAX_PENDING: Final = 4
"""So many different sets of in-sync replicas may be under way; then the one that holds is proposed again, to settle them."""


@dataclass(slots=True)
class FollowerState:
    """What the leader knows of a follower since its epoch began."""

    broker_epoch: int
    offset: int
    """It has everything below on disk (its match)."""
    log_start_offset: int
    caught_up_ms: int
    """When it last had everything that was in the leader's log."""
    fetched_ms: int
    end_when_fetched: int


class Proposal(NamedTuple):
    """A change of the in-sync replicas, as a conditional transaction.

    It takes effect if the partition's key is still of ``partition_epoch``, the leader's live key of its broker epoch, and
    the live key of each that joins of its own, unchanged since it was made (KIP-841, KIP-903).
    """

    registration: PartitionRegistration
    partition_epoch: int
    leader: Incarnation
    joining: tuple[Incarnation, ...]


class Leader:
    """Leads from the moment on when its log has begun the epoch (``Log.begin_epoch``)."""

    def __init__(
        self,
        me: Incarnation,
        registration: PartitionRegistration,
        partition_epoch: int,
        log: Log,
        config: ReplicationConfig,
        now_ms: int,
        *,
        high_watermark: int = 0,
    ) -> None:
        assert registration.leads(me)
        self.leader_epoch = registration.leader_epoch
        self.start_offset = log.end_offset
        """Where this epoch begins: what lies below may have been committed by another leader."""
        self.high_watermark = min(high_watermark, log.end_offset)
        self._me = me
        self._log = log
        self._config = config
        self._registration = registration
        self._partition_epoch = partition_epoch
        self._followers: dict[int, FollowerState] = {}
        self._began_ms = now_ms
        self._pending: list[dict[int, int]] = []
        """Sets of in-sync replicas that were proposed and may hold already, or later."""
        self._proposing = False
        self._deleted_until = log.start_offset
        """What lies below was deleted for good; who joins must not bring it back."""
        self._needed = self._maximal_isr()
        self.advance()

    @property
    def isr(self) -> Mapping[int, int]:
        """The in-sync replicas as the metadata has them, with the broker epochs of their joining."""
        return self._registration.isr

    @property
    def readable_end(self) -> int:
        """How far followers may read: what is written, also before it is on disk. A refused write takes offsets back."""
        return self._log.written_offset

    @property
    def knows_high_watermark(self) -> bool:
        """Whether nothing above the high watermark was ever committed; until then readers are told OFFSET_NOT_AVAILABLE."""
        return self.high_watermark >= self.start_offset

    # Followers

    def fetch(self, request: FetchPartition, live: Mapping[int, LiveNode], now_ms: int) -> FetchAnswer:
        """As ``acknowledged``, with an answer also to what was taken. It has no records yet."""
        return self.acknowledged(request, live, now_ms) or self.answer(request)

    def acknowledged(self, request: FetchPartition, live: Mapping[int, LiveNode], now_ms: int) -> FetchAnswer | None:
        """Takes a follower's acknowledgement; returns how it is refused where it is: an error, or that the logs differ.

        ``live`` is what the leader's picture of the metadata says. The checks come in an order: nothing is believed of a
        follower of another epoch, and its offset only counts once its log is known to be a part of this one.
        """
        error = self._refusal(request, live)
        if error is not FetchError.NONE:
            return self.answer(request)._replace(error_code=error)
        if self._is_before_start(request):
            return self.answer(request)._replace(error_code=FetchError.OFFSET_OUT_OF_RANGE)
        divergence = self._divergence(request)
        if divergence is not None:
            return self.answer(request)._replace(diverging_epoch=divergence.epoch, diverging_end=divergence.end)
        if request.fetch_offset > self.readable_end:
            return self.answer(request)._replace(error_code=FetchError.OFFSET_OUT_OF_RANGE)
        self._note(request, now_ms)
        self.advance()
        return None

    def _refusal(self, request: FetchPartition, live: Mapping[int, LiveNode]) -> FetchError:
        if self._is_stale(request, live):
            return FetchError.STALE_BROKER_EPOCH
        if request.leader_epoch != self.leader_epoch:
            # Equality, not order: a follower two epochs behind may agree with this leader by chance, see the script.
            behind = request.leader_epoch < self.leader_epoch
            return FetchError.FENCED_LEADER_EPOCH if behind else FetchError.UNKNOWN_LEADER_EPOCH
        if not self._registration.has(request.follower.node):
            return FetchError.UNKNOWN_TOPIC_OR_PARTITION
        return FetchError.NONE

    def _is_stale(self, request: FetchPartition, live: Mapping[int, LiveNode]) -> bool:
        """Whether it comes from an incarnation that is not registered, or from one before another that was heard."""
        node, broker_epoch = request.follower
        known = live.get(node)
        state = self._followers.get(node)
        return (
            known is None
            or known.broker_epoch != broker_epoch
            or broker_epoch < self.isr.get(node, 0)
            or (state is not None and broker_epoch < state.broker_epoch)
        )

    def _is_before_start(self, request: FetchPartition) -> bool:
        """Whether a follower has to begin anew where this log does.

        Also when its last record is of an epoch before all that this log still has. At the very start it may agree or not,
        and nothing here tells any more; what it has below is to be deleted anyway.
        """
        log = self._log
        return request.fetch_offset < log.start_offset or 0 <= request.last_epoch < log.epochs.earliest

    def _divergence(self, request: FetchPartition) -> EpochEnd | None:
        if request.last_epoch < 0:
            return None
        found = self._log.epochs.end_of(request.last_epoch, self.readable_end)
        return None if found.epoch == request.last_epoch and found.end >= request.fetch_offset else found

    def _note(self, request: FetchPartition, now_ms: int) -> None:
        node, broker_epoch = request.follower
        offset, end = request.fetch_offset, self._log.end_offset
        state = self._followers.get(node)
        if state is None or state.broker_epoch != broker_epoch:
            caught_up_ms = state.caught_up_ms if state is not None else self._began_ms
            state = FollowerState(broker_epoch, offset, request.log_start_offset, caught_up_ms, now_ms, end)
            self._followers[node] = state
        elif offset >= state.end_when_fetched:
            state.caught_up_ms = state.fetched_ms
        if offset >= end:
            state.caught_up_ms = now_ms
        state.offset, state.log_start_offset = offset, request.log_start_offset
        state.fetched_ms, state.end_when_fetched = now_ms, end

    def answer(self, request: FetchPartition) -> FetchAnswer:
        """An answer to a fetch that was taken, without records; also later, when there are some.

        Meanwhile records may have been deleted beyond what the follower has: then it has an error.
        """
        log = self._log
        gone = request.fetch_offset < log.start_offset
        return FetchAnswer(
            request.leader_epoch,
            request.follower.broker_epoch,
            request.fetch_offset,
            request.last_epoch,
            FetchError.OFFSET_OUT_OF_RANGE if gone else FetchError.NONE,
            high_watermark=self.high_watermark if self.knows_high_watermark else -1,
            log_start_offset=log.start_offset,
            clean_until=log.clean_until,
        )

    def appended(self, before: int, now_ms: int) -> None:
        """Records were appended where the log ended ``before``: who had everything until then lags from now on only.

        A follower that has all is not heard until there is more, so that the time of its last fetch tells nothing.
        """
        for state in self._followers.values():
            if state.offset >= before:
                state.caught_up_ms = now_ms

    # What is committed

    def advance(self) -> bool:
        """Raises the high watermark to where every in-sync replica is; returns whether it has moved.

        It stays while they are fewer than ``min_isr``. Those of proposals under way count too, as they may hold already.
        """
        if len(self.isr) < self._registration.min_isr:
            return False
        lowest = self._own_offset()
        for node, broker_epoch in self._needed.items():
            if node != self._me.node:
                state = self._followers.get(node)
                if state is None or state.broker_epoch < broker_epoch:
                    return False
                lowest = min(lowest, state.offset)
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True

    def _own_offset(self) -> int:
        return self._log.flushed_offset

    def _maximal_isr(self) -> dict[int, int]:
        """In-sync replicas and all that may be (KIP-497), each with the highest broker epoch it may have joined with."""
        needed = dict(self.isr)
        for isr in self._pending:
            for node, broker_epoch in isr.items():
                needed[node] = max(broker_epoch, needed.get(node, 0))
        return needed

    def has_enough_in_sync(self, live: Mapping[int, LiveNode], now_ms: int) -> bool:
        """Whether a Produce with acks=all has a chance; else it is refused before it is appended: NOT_ENOUGH_REPLICAS."""
        in_sync = sum(node == self._me.node or not self._is_behind(node, live, now_ms) for node in self.isr)
        return in_sync >= self._registration.min_isr

    # Deleted records

    def low_watermark(self) -> int:
        """Where every log that may lead begins, at least."""
        lowest = self._log.start_offset
        for node, broker_epoch in self._needed.items():
            if node != self._me.node:
                state = self._followers.get(node)
                known = state is not None and state.broker_epoch >= broker_epoch
                lowest = min(lowest, state.log_start_offset if state is not None and known else 0)
        return lowest

    def is_deleted(self, offset: int) -> bool:
        """Whether DeleteRecords up to ``offset`` is done: no later leader brings them back, also none that joins later."""
        if self.low_watermark() < offset:
            return False
        self._deleted_until = max(self._deleted_until, offset)
        return True

    # Who is in sync

    def observe(self, registration: PartitionRegistration, partition_epoch: int) -> None:
        """The metadata says something else about the partition, in this leader epoch."""
        assert registration.leader_epoch == self.leader_epoch
        if partition_epoch <= self._partition_epoch:
            return
        self._registration, self._partition_epoch = registration, partition_epoch
        self._pending.clear()  # each of them was to be compared with a partition epoch that is over
        self._needed = self._maximal_isr()
        self.advance()

    def propose(self, live: Mapping[int, LiveNode], now_ms: int) -> Proposal | None:
        """The next change of the in-sync replicas; None if none is due. ``proposal_ended`` has to follow."""
        if self._proposing:
            return None
        isr = self._wanted_isr(live, now_ms)
        if isr == self.isr and not self._pending:
            return None
        if isr not in self._pending:
            if len(self._pending) >= MAX_PENDING:
                isr = dict(self.isr)
            else:
                self._pending.append(isr)
        self._needed = self._maximal_isr()
        self._proposing = True
        joining = tuple(Incarnation(node, epoch) for node, epoch in isr.items() if self.isr.get(node) != epoch)
        return Proposal(replace(self._registration, isr=isr), self._partition_epoch, self._me, joining)

    def proposal_ended(self) -> None:
        """A proposal was answered, refused, or nothing was heard of it. None of this settles it: only a delta does.

        Unless that comes, the next one is written with the same partition epoch, and at most one of them takes effect.
        """
        self._proposing = False

    def _wanted_isr(self, live: Mapping[int, LiveNode], now_ms: int) -> dict[int, int]:
        """Who caught up joins, who lags leaves, down to ``min_isr``: who stays has all that is committed (KIP-966)."""
        isr = dict(self.isr)
        joined = {node for node in self._followers if self._may_join(node, live)}
        for node in sorted(joined):
            isr[node] = live[node].broker_epoch
        lagging = [node for node in isr if node not in joined and node != self._me.node]
        lagging = [node for node in lagging if self._is_behind(node, live, now_ms)]
        lagging.sort(key=lambda node: (node in live, self._caught_up_ms(node), node))  # the dead first
        for node in lagging[: max(0, len(isr) - self._registration.min_isr)]:
            del isr[node]
        return isr

    def _may_join(self, node: int, live: Mapping[int, LiveNode]) -> bool:
        state, known = self._followers[node], live.get(node)
        return (
            known is not None
            and known.accepting
            and known.broker_epoch == state.broker_epoch
            and self.isr.get(node) != state.broker_epoch
            and self._registration.has(node)
            and state.offset >= self._join_offset()
            and state.log_start_offset >= self._deleted_until
        )

    def _join_offset(self) -> int:
        """What lies below the start of the epoch may be committed, even while the high watermark does not show it."""
        return max(self.high_watermark, self.start_offset)

    def _is_behind(self, node: int, live: Mapping[int, LiveNode], now_ms: int) -> bool:
        known, state = live.get(node), self._followers.get(node)
        if known is None or known.broker_epoch != self.isr.get(node):
            return True
        if state is not None and state.broker_epoch == known.broker_epoch and state.offset >= self._log.end_offset:
            return False
        return now_ms - self._caught_up_ms(node) >= self._config.replica_lag_time_max_ms

    def _caught_up_ms(self, node: int) -> int:
        state = self._followers.get(node)
        return self._began_ms if state is None else state.caught_up_ms
