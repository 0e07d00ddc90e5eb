"""Where to begin reading: the group's committed offsets, the reset policy, the ends of the logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from client.consumer.assignment import Assignment
from client.consumer.config import ConsumerSettings
from client.consumer.partition import PartitionState, Pending
from client.errors import (
    CohortError,
    LogTruncatedError,
    NoOffsetForPartitionError,
    RequestTimedOutError,
    UnstableOffsetCommitError,
)
from client.log import get_logger
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.group_offsets import fetch_committed
from client.transport.list_offsets import list_offsets
from client.types.records import OffsetAndMetadata
from protocol.messages.records import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListedOffset
from protocol.subscription import TopicPartition

T = TypeVar("T")

_ENDS: Final[Mapping[str | None, int]] = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}

_NAMED: Final = 20
_ATTEMPTS_UNTOLD: Final = 5
"""A leader that is not there for half a second is not worth a line."""
_ATTEMPTS_A_WARNING: Final = 30
"""At one attempt a second, as the pauses have become by then."""

log = get_logger()


class Positions:
    """Finds the position of every partition that lacks one, again and again until it is found; moves them by ``seek``.

    ``is_new`` tells whether a partition has appeared since this consumer reads its topic: "latest" does not skip its
    records. ``before_committed`` is waited for before committed offsets are read: commits of partitions that this consumer
    has dropped may be under way.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        settings: ConsumerSettings,
        news: asyncio.Event,
        *,
        is_new: Callable[[TopicPartition], bool],
        before_committed: Callable[[], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._assignment = assignment
        self._settings = settings
        self._news = news
        self.on_found: Callable[[], None] = lambda: None
        """Called when positions were found: there is something to fetch."""
        self._is_new = is_new
        self._before_committed = before_committed
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name=f"cohort-positions-{self._settings.client_id}")

    async def stop(self) -> None:
        """Ends at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def wake(self) -> None:
        """There may be partitions without a position."""
        self._woken.set()

    def changed(self) -> None:
        """The program or the group has changed what is read: look for positions, fetch, and hand out from there."""
        self.wake()
        self.on_found()
        self._news.set()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """See ``Consumer.seek``."""
        self._assignment.state(tp).move_to(offset)
        self.changed()

    async def seek_to(self, where: Pending, tps: Iterable[TopicPartition]) -> None:
        """Moves to the ends of the logs or to the committed offsets, all assigned partitions when ``tps`` names none."""
        states = [self._assignment.state(tp) for tp in tps] or list(self._assignment.states.values())
        for state in states:
            state.look_up(where)
        await self._find(states)

    async def position(self, tp: TopicPartition) -> int:
        """See ``Consumer.position``."""
        state = self._assignment.state(tp)
        if state.pending is not None:
            await self._find([state])
        return state.position

    async def committed(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets of ``tps``; partitions without one are left out."""
        group_id = self._settings.group_id
        await self._before_committed()
        if group_id is None or not tps:
            return {}
        deadline = self._deadline()

        async def once() -> dict[TopicPartition, OffsetAndMetadata]:
            undecided: dict[TopicPartition, CohortError] = {}
            found = await fetch_committed(self._cluster, group_id, tps, deadline, undecided)
            for error in undecided.values():
                raise error
            return found

        return await self._once_decided(once, deadline)

    async def offsets_at(self, timestamps: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, ListedOffset]:
        """What the leaders list for times, or for ``EARLIEST_TIMESTAMP`` and ``LATEST_TIMESTAMP``; assigned or not."""
        if not timestamps:
            return {}
        return await list_offsets(self._cluster, timestamps, self._deadline(), isolation_level=self._settings.isolation)

    async def lag(self) -> dict[TopicPartition, int]:
        """See ``Consumer.lag``."""
        states = list(self._assignment.states.values())
        await self._find(states)
        positions = {state.tp: state.position for state in states}
        ends = await self.offsets_at(dict.fromkeys(positions, LATEST_TIMESTAMP))
        for state in states:
            if state.pending is None:  # it counts where reading stands now, unless that is being looked up anew
                positions[state.tp] = state.position
        return {tp: max(0, ends[tp].offset - position) for tp, position in positions.items()}

    async def _find(self, states: Sequence[PartitionState]) -> None:
        """Returns when all of ``states`` have a position; raises what keeps one from having it."""
        deadline = self._deadline()
        while any(state.pending is not None for state in states):
            await self._once_decided(lambda: self.resolve(states, deadline), deadline)
            for state in states:
                if state.error is not None and state.pending is not None:
                    error, state.error = state.error, None
                    raise error
            if deadline.passed:
                raise RequestTimedOutError("the positions moved on while they were looked up; call again")
        self.changed()

    async def _once_decided(self, ask: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
        """What ``ask`` gives, asked again as long as a transaction is open that may change committed offsets."""
        attempt = 0
        while True:
            try:
                return await ask()
            except UnstableOffsetCommitError as error:
                delay_s = self._cluster.backoff.delay_s(attempt)
                if deadline.remaining_s() <= delay_s:
                    raise RequestTimedOutError(f"not decided within {deadline.timeout_ms:.0f} ms: {error}") from error
                if attempt == _ATTEMPTS_UNTOLD:
                    log.warning("positions_unknown", client_id=self._settings.client_id, error=str(error))
                attempt += 1
                await asyncio.sleep(delay_s)

    def _deadline(self) -> Deadline:
        return Deadline(self._settings.request_timeout_ms)

    def left_range(self, state: PartitionState, offset: int) -> None:
        """The log does not hold ``offset`` (any more, or yet): the reset policy decides where to go on."""
        state.look_up("reset")
        state.left_range_at = offset
        self.wake()

    def diverged(self, state: PartitionState, leader_epoch: int, offset: int) -> None:
        """The log is another one from ``offset`` on than the one that was read: leaders were lost with what they had.

        ``leader_epoch`` is that of the records before it. What was handed out of the rest is lost: the reset policy decides
        whether to go on behind what both logs have.
        """
        position, tp = state.position, state.tp
        if offset >= position:
            state.fetch_anew(leader_epoch)
            return
        if self._settings.auto_offset_reset == "none":
            state.error = LogTruncatedError(
                f"{tp.topic}-{tp.partition}: offsets {offset} to {position - 1} were read and are not in the log any more, "
                f"which was cut when its leader was lost: seek() to {offset}, or set auto_offset_reset to 'earliest' or "
                "'latest' to go on there",
                tp,
                position,
                offset,
            )
            return
        log.warning(
            "log_truncated",
            group=self._settings.group_id,
            topic=tp.topic,
            partition=tp.partition,
            lost=position - offset,
            offsets=f"{offset} to {position - 1}",
            position=offset,
            leader_epoch=leader_epoch,
        )
        state.move_to(offset, leader_epoch)

    async def resolve(self, states: Sequence[PartitionState], deadline: Deadline, *, patient: bool = True) -> None:
        """Finds the missing positions among ``states``; leaders are asked once unless ``patient``.

        A partition that has no position to be found gets its error set: without any offset under the policy "none", or one
        that does not exist. Raises the error of a request that did not succeed by the deadline; what was found by then is
        kept.
        """
        asked = {state.tp: (state, state.epoch) for state in states if state.pending == "committed"}
        undecided = await self._resolve_committed(asked, deadline) if asked else {}
        policy = self._settings.auto_offset_reset
        if policy == "none":
            self._refuse([state for state in states if state.pending == "reset"])
        ends = [(state, state.epoch, self._end_of(state)) for state in states]
        timestamps = {state.tp: _ENDS[end] for state, _, end in ends if end in _ENDS}
        skipping: dict[TopicPartition, int] = {}

        def settle(found: Mapping[TopicPartition, ListedOffset | CohortError]) -> None:
            for state, epoch, end in ends:
                answer = found.get(state.tp)
                if answer is None or state.epoch != epoch:
                    continue  # not asked about, or moved meanwhile
                if isinstance(answer, CohortError):
                    state.error = answer
                elif self._settle_at_end(state, answer, end):
                    skipping[state.tp] = answer.offset
            self._news.set()
            self.on_found()

        try:
            answers = await self._ends(timestamps, deadline, on_found=settle, patient=patient)
        except CohortError:
            await self._tell_skipped(skipping, deadline)
            raise
        unsettled = {tp: error for tp, error in answers.items() if isinstance(error, CohortError) and error.retriable}
        settle({tp: answer for tp, answer in answers.items() if tp not in unsettled})
        await self._tell_skipped(skipping, deadline)
        for error in (*undecided.values(), *unsettled.values()):
            raise error

    async def _ends(
        self,
        timestamps: Mapping[TopicPartition, int],
        deadline: Deadline,
        *,
        on_found: Callable[[Mapping[TopicPartition, ListedOffset]], None] = lambda found: None,
        patient: bool = True,
        refreshed: bool = False,
    ) -> Mapping[TopicPartition, ListedOffset | CohortError]:
        """What the leaders answer, and the error of each partition that has none.

        Raises a retriable error when all failed with it. Beside errors that asking again does not help there may be
        retriable ones: a leader that answered about one half may be gone when it is asked about the other.
        """
        if not timestamps:
            return {}
        try:
            return await list_offsets(
                self._cluster,
                timestamps,
                deadline,
                isolation_level=self._settings.isolation,
                on_found=on_found,
                patient=patient,
            )
        except CohortError as error:
            if error.retriable:
                raise
            if refreshed and len(timestamps) == 1:
                return dict.fromkeys(timestamps, error)
        # A partition may have been added since the metadata was read, which the failure has refreshed: each is asked about
        # again. And one that does not exist shall not keep the others from being read: halves find it in few requests.
        tps = sorted(timestamps)
        middle = len(tps) // 2
        halves = [{tp: timestamps[tp] for tp in half} for half in (tps[:middle], tps[middle:]) if half]
        asking = [self._ends(half, deadline, on_found=on_found, patient=patient, refreshed=True) for half in halves]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        found: dict[TopicPartition, ListedOffset | CohortError] = {}
        for half, answer in zip(halves, answers, strict=True):
            if isinstance(answer, CohortError):
                found |= dict.fromkeys(half, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found |= answer
        return found

    async def _resolve_committed(
        self, asked: Mapping[TopicPartition, tuple[PartitionState, int]], deadline: Deadline
    ) -> Mapping[TopicPartition, CohortError]:
        """Returns the errors of partitions whose offset an open transaction may change: they have no position yet."""
        group_id, committed = self._settings.group_id, dict[TopicPartition, OffsetAndMetadata]()
        undecided: dict[TopicPartition, CohortError] = {}
        await self._before_committed()
        if group_id:
            committed = await fetch_committed(self._cluster, group_id, list(asked), deadline, undecided)
        for tp, (state, epoch) in asked.items():
            if state.epoch != epoch or tp in undecided:
                continue  # moved meanwhile, by a seek; or to be asked about again
            found = committed.get(tp)
            if found is None and state.fallback >= 0:
                state.go_back(state.fallback)
            elif found is None:
                state.pending = "reset"
            else:
                state.move_to(found.offset, found.leader_epoch)
                state.committed = found.offset
        return undecided

    def _refuse(self, states: Iterable[PartitionState]) -> None:
        for state in states:
            name = f"{state.tp.topic}-{state.tp.partition}"
            if state.of_another_log:
                what = f"the topic of {name} was deleted and created anew"
            elif state.left_range_at is not None:
                what = f"offset {state.left_range_at} of {name} is outside the log"
            elif self._settings.group_id is not None:
                what = f"{name} has no committed offset in group {self._settings.group_id!r}"
            else:
                what = f"{name} has no position yet"
            state.error = NoOffsetForPartitionError(
                f"{what}, and auto_offset_reset is 'none': seek() somewhere, or set it to 'earliest' or 'latest'"
            )

    def _end_of(self, state: PartitionState) -> str | None:
        """Which end of its log a partition is to begin at, if at any."""
        if state.pending != "reset":
            return state.pending
        policy = self._settings.auto_offset_reset
        appeared = policy == "latest" and state.left_range_at is None and self._is_new(state.tp)
        return "earliest" if appeared else policy

    def _settle_at_end(self, state: PartitionState, listed: ListedOffset, end: str | None) -> bool:
        """Returns whether records are skipped without a word so far."""
        offset = listed.offset
        wanted, topic, partition = state.left_range_at, state.tp.topic, state.tp.partition
        by_policy = state.pending == "reset" and end == "latest"
        state.move_to(offset, listed.leader_epoch)
        if wanted is not None:
            log.warning(
                "offset_out_of_range",
                group=self._settings.group_id,
                topic=topic,
                partition=partition,
                wanted=wanted,
                position=offset,
                skipped=max(0, offset - wanted),
                auto_offset_reset=self._settings.auto_offset_reset,
            )
            return False
        return by_policy and offset > 0 and self._settings.group_id is not None

    async def _tell_skipped(self, ends: Mapping[TopicPartition, int], deadline: Deadline) -> None:
        if not ends:
            return
        try:
            starts = await self._ends(dict.fromkeys(ends, EARLIEST_TIMESTAMP), deadline)
        except CohortError:
            starts = {}  # it is told all the same, only less exactly
        skipped = {}
        for tp, end in sorted(ends.items()):
            start = starts.get(tp)
            skipped[tp] = range(start.offset if isinstance(start, ListedOffset) else 0, end)
        told = [f"{tp.topic}-{tp.partition} {each[0]} to {each[-1]}" for tp, each in skipped.items() if each]
        if not told:
            return
        more = [f"and {len(told) - _NAMED} more"] if len(told) > _NAMED else []
        log.warning(
            "records_skipped",
            reason="no committed offset, and auto_offset_reset is 'latest'",
            group=self._settings.group_id,
            skipped=sum(map(len, skipped.values())),
            offsets=", ".join(told[:_NAMED] + more),
        )

    async def _run(self) -> None:
        attempt = 0
        while True:
            lacking = self._lacking(self._assignment.states.values())
            if not lacking:
                self._woken.clear()
                await self._woken.wait()
                continue
            try:
                # One that cannot be read keeps the others waiting for one round, not until a deadline.
                await self.resolve(lacking, Deadline(self._settings.request_timeout_ms), patient=False)
            except CohortError as error:
                if not error.retriable:
                    self._fail(lacking, error)
                elif attempt % _ATTEMPTS_A_WARNING == _ATTEMPTS_UNTOLD:
                    log.warning("positions_unknown", client_id=self._settings.client_id, error=str(error))
            except Exception as error:  # a fault of ours; the next poll raises it, and this goes on trying
                log.error("positions_broken", client_id=self._settings.client_id, error=repr(error), exc_info=error)
                self._fail(lacking, error)
            if all(state.pending is None for state in lacking):
                attempt = 0
            else:
                await asyncio.sleep(self._cluster.backoff.delay_s(attempt))
                attempt += 1

    def _fail(self, states: Iterable[PartitionState], error: Exception) -> None:
        for state in states:
            if state.pending is not None:
                state.error = error
        self._news.set()

    @staticmethod
    def _lacking(states: Iterable[PartitionState]) -> list[PartitionState]:
        return [state for state in states if state.pending is not None and state.error is None]
