"""One partition of a coordinator's internal topic: a pure core over a log.

Law 2 in code: a request is decided against the state and yields effects; records are applied and queued; a reply leaves,
and an order to others is carried out, once everything queued before it is on disk. Records of one loop iteration travel in
one batch, and the log covers all batches that arrived during one fdatasync by the next. What a decision about ten thousand
members leaves to do is spread over turns of the loop: its records are encoded in the next one, its timers are set and its
answers leave bit by bit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, Generic

from coordinator.log.errors import LogDamagedError, LogError, LogWriteError
from coordinator.log.partition import PartitionLog
from coordinator.log_output import get_logger
from coordinator.runtime.answer_deadline import AnswerDeadline
from coordinator.runtime.clocks import Clocks
from coordinator.runtime.core import AnyCore, MovesTimers
from coordinator.runtime.effects import (
    NO_REQUEST,
    Effects,
    ReplyToken,
    RequestContext,
    Step,
    TimerName,
)
from coordinator.runtime.fair_queue import PER_TURN, FairQueue
from coordinator.runtime.pending_replies import PendingReplies
from coordinator.runtime.record_batches import batches_of, replay_log
from coordinator.runtime.timers import CoordinatorTimers, ShardTimers
from coordinator.runtime.unfinished import UnfinishedDecisions
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.record_batch import encode_in_pieces

log = get_logger()

_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 5.0
_UNCOMMITTED: Final = (
    "what the coordinator decided is not committed yet, as its followers do not have it; it may be later, try again"
)
_FAULT: Final = "the coordinator failed unexpectedly and reads its log again; the daemon's log has the cause"


class ShardState(Enum):
    """LOADING: reading its log. ACTIVE: serving. FAILED: its log is damaged, which no second look mends; in a cluster
    another replica is to lead. RESIGNED: its partition is not led here any more. CLOSED: the daemon stops."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    RESIGNED = "resigned"
    CLOSED = "closed"


_REFUSALS: Final = {
    ShardState.LOADING: (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator is reading its log; try again"),
    ShardState.FAILED: (
        ErrorCode.NOT_COORDINATOR,
        "the log of this coordinator is damaged; see the daemon's log",
    ),
    ShardState.RESIGNED: (ErrorCode.NOT_COORDINATOR, "the coordinator has moved to another node; find it again"),
    ShardState.CLOSED: (ErrorCode.NOT_COORDINATOR, "this coordinator is stopping; find it again"),
}


@dataclass(frozen=True, slots=True)
class Services:
    """What the shards of a coordinator share. ``fair_queue`` is for work in slices: loads and large decisions."""

    replies: PendingReplies
    timers: CoordinatorTimers
    fair_queue: FairQueue
    clocks: Clocks


CarryOut = Callable[["CoordinatorShard[AnyCore]", Any], None]


def no_orders(shard: CoordinatorShard[AnyCore], order: object) -> None:
    """What carries out the orders of a core that gives none."""
    raise TypeError(f"{shard.topic} gives no orders, and this is one: {order!r}")


class CoordinatorShard(Generic[AnyCore]):
    """Runs the core of one partition over its log."""

    def __init__(
        self,
        topic: str,
        partition: int,
        partition_log: PartitionLog,
        new_core: Callable[[int], AnyCore],
        services: Services,
        on_active: Callable[[CoordinatorShard[AnyCore]], None],
        carry_out: CarryOut[AnyCore] = no_orders,
        leader_epoch: int = 0,
        *,
        is_replicated: bool = False,
        on_unreadable: Callable[[CoordinatorShard[AnyCore], str], None] = lambda shard, why: None,
    ) -> None:
        """``on_active`` is called whenever the log has been read and the shard serves, ``carry_out`` with each order of the
        core, see ``Effects.order``. It must not ask the shard anything before it has returned.

        ``leader_epoch`` is that of the partition. With ``is_replicated`` its followers have to have what it decides: nothing
        is served before they have what the log holds, and an answer that waits for them is given up after a while.
        ``on_unreadable`` is told why the log cannot be read, whether that is tried again or not.
        """
        self.topic, self.partition, self.leader_epoch = topic, partition, leader_epoch
        self.state = ShardState.LOADING
        self.core = new_core(partition)
        self._log = partition_log
        self._new_core = new_core
        self._replies = services.replies
        self._timers = ShardTimers(services.timers, topic, partition)
        self._fair_queue = services.fair_queue
        self._now, self._wall_ms = services.clocks.now, services.clocks.wall_ms
        self._on_active, self._on_unreadable = on_active, on_unreadable
        self._carry_out = carry_out
        self._where = {"shard": f"{topic}-{partition}"}
        """The field of every log event of the shard."""
        self._drops = 0
        """How often the shard was dropped since a write of it succeeded."""
        self._load_began_s = 0.0
        self._obstacle = ""
        """Why the shard was dropped the last time or could not read its log; "" once a write has succeeded since."""
        self._pausing = False
        self._settled = asyncio.Event()
        """Set unless the log is being read: the shard serves, has failed, or pauses before it reads."""
        self._loop = asyncio.get_running_loop()
        self._open_records: list[Any] = []
        self._open_effects: list[Effects] = []
        self._in_flight: deque[list[Effects]] = deque()
        """What has answers or orders that wait to be committed, by the append they wait for."""
        self._deadline = AnswerDeadline(self._waiting, self._give_up_answers) if is_replicated else None
        self._held_up: list[Effects] | None = None
        """What waited for the longest when answers were given up the last time."""
        self._appending: Iterator[None] | None = None
        """What is left to do of the append that is going on; its effects are the last in flight."""
        self._awaited: object | None = None
        """What has to be on disk elsewhere before anything is appended, see ``submit_ahead``; None when nothing has."""
        self._loading: asyncio.Task[None] | None = None
        self._unfinished = UnfinishedDecisions(self._perform, self._in_turns, self._on_fault)

    @property
    def retry_pause_s(self) -> float:
        """How long work that no request waits for is put off, as the last writes failed; 0 when they did not."""
        return self._pause_s(self._drops) if self._drops else 0.0

    def start_loading(self) -> None:
        """Reads the log in a task of its own, then serves; ``loaded`` waits for it.

        A shard that is dropped again and again, because the disk is full or the core has a fault, is loaded at growing
        intervals.
        """
        self._settled.clear()
        self._loading = self._loop.create_task(self._load(), name=f"cohort-load-{self.topic}-{self.partition}")

    async def loaded(self) -> None:
        """Returns once the log has been read, well or not: see ``state``."""
        if self._loading is not None:
            await asyncio.wait((self._loading,))

    async def loaded_or_held_up(self) -> str:
        """Returns "" once the log has been read, well or not, and the reason as soon as the shard pauses before it reads.

        A read is waited for, as it takes as long as the log is large. A pause is not: it ends when the disk has room, and
        the client is to know.
        """
        while self.state is ShardState.LOADING and not self._pausing:
            await self._settled.wait()
        return self._obstacle if self.state is ShardState.LOADING else ""

    async def _load(self) -> None:
        """Replays the log. A damaged one makes the shard FAILED; a read that fails is tried again at growing intervals."""
        pause_s = _RETRY_S
        if self._drops > 1:
            await self._pause(self._load_began_s + self._pause_s(self._drops - 1) - self._loop.time())
        self._load_began_s = self._loop.time()
        while self.state is ShardState.LOADING:
            try:
                core, records = await self._replayed()
                effects = await self._with_soft_state(core)
            except LogDamagedError as error:
                log.error("coordinator_load_failed", error=str(error), **self._where)
                self._fail(error)
            except (OSError, LogError) as error:
                log.warning("coordinator_log_not_readable", error=str(error), **self._where)
                self._obstacle = f"the coordinator could not read its log ({error}) and tries again soon"
                if isinstance(
                    error, OSError
                ):  # any other refusal comes from what is done to the log, not from the disk
                    self._on_unreadable(self, str(error))
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, _MAX_RETRY_S)
            except Exception as error:
                log.exception("coordinator_load_failed", error=str(error), **self._where)
                self._fail(error)
            else:
                self._serve(core, records, effects)
                return  # another load may have begun
        self._settled.set()

    def _fail(self, error: Exception) -> None:
        self.state = ShardState.FAILED
        self._obstacle = f"the log of {self.topic}-{self.partition} cannot be read: {error}"
        self._on_unreadable(self, str(error))

    async def _pause(self, seconds: float) -> None:
        """Waits before the log is read, while clients that ask for this shard are told why."""
        self._pausing = True
        self._settled.set()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._pausing = False
            self._settled.clear()

    @staticmethod
    def _pause_s(drops: int) -> float:
        """The pause before what the last ``drops`` drops may have been about is tried again."""
        return min(_RETRY_S * 2.0 ** min(drops - 1, 10), _MAX_RETRY_S)

    async def _replayed(self) -> tuple[AnyCore, int]:
        core = self._new_core(self.partition)
        try:
            await self._log.flush()  # what was decided before a drop and is still on its way to the disk counts
        except LogWriteError as error:
            log.debug("coordinator_write_refused", error=str(error), **self._where)
        turn = partial(self._fair_queue.acquire, (self.topic, self.partition))
        records = await replay_log(core, self._log, turn)
        if self._deadline is not None:
            await self._until_committed(self._log.flushed_offset)
        return core, records

    async def _until_committed(self, offset: int) -> None:
        """Returns once the followers have what the log holds: of what was read, nothing may be taken back any more."""
        obstacle, self._obstacle = self._obstacle, "the coordinator waits until its followers have what its log holds"
        await self._log.wait_committed(offset)
        self._obstacle = obstacle

    async def _with_soft_state(self, core: AnyCore) -> Effects:
        step = self._step(core)
        for _ in core.loaded(step):
            await self._fair_queue.acquire((self.topic, self.partition))
        return step.effects

    def _serve(self, core: AnyCore, records: int, effects: Effects) -> None:
        if self.state is not ShardState.LOADING:
            return  # closed meanwhile
        self.core = core
        self.state = ShardState.ACTIVE
        self._settled.set()
        if records:
            log.info("coordinator_loaded", records=records, **self._where)
        self._perform(effects)
        if self.state is ShardState.ACTIVE:
            self._on_active(self)

    def _step(self, core: AnyCore, context: RequestContext = NO_REQUEST) -> Step[Any]:
        return Step(self._now(), core.config, context)

    def submit(self, request: Request, context: RequestContext, was_held: bool = False) -> None:
        """Decides one request. While the shard is not active, the request is refused with the reason.

        ``was_held`` is for one that was held back by a decision in slices, whose turn it is now.
        """
        core = self.core
        if (
            self._unfinished.decisions
            and not was_held
            and (about := core.request_is_about(request)) in self._unfinished
        ):
            self._unfinished.hold(about, partial(self.submit, request, context, was_held=True))
        elif self.state is ShardState.ACTIVE:
            try:
                effects = core.decide(request, Step(self._now(), core.config, context))
            except Exception as error:
                self._on_fault(error, [context.token])
            else:
                self._perform(effects)
        elif self.state is ShardState.LOADING and (late := core.while_loading(request)) is not None:
            self._loop.call_later(late.wait_ms / 1000, self._replies.send, context.token, late.response)
        else:
            code, message = _REFUSALS[self.state]
            if self.state in (ShardState.LOADING, ShardState.FAILED) and self._obstacle:
                message = self._obstacle
            self._replies.send(context.token, core.refusal(request, code, message))

    def move_timers(self, decide: MovesTimers[AnyCore], request: Any, software: str) -> bool:
        """Decides what only moves timers. Else, or if its answer would have to wait, or after a fault: False, submit it."""
        moved = None
        try:
            if self.at_rest and (moved := decide(self.core, request, software, self._now().ms)) is not None:
                self._timers.change(moved)
        except Exception as error:
            self._on_fault(error)
            return False
        return moved is not None

    @property
    def at_rest(self) -> bool:
        """Whether it serves, and nothing that was decided waits for the disk."""
        active = self.state is ShardState.ACTIVE and self._awaited is None
        return active and not (self._open_records or self._in_flight or self._unfinished.decisions)

    def submit_ahead(self, request: Request, context: RequestContext) -> Callable[[str], None]:
        """Decides a request before what it depends on is on disk: a commit before its records are.

        Returns what has to be called, once: with "" when that is on disk, or with the reason why it will not be. Until then
        nothing is written, whatever is decided: the core may have parked the request, and decide it any time. If it will
        not be, all that was decided since is void, as after a write that failed. Only for a shard ``at_rest``: what others
        have decided is not to wait.
        """
        assert self.at_rest, "what was decided before does not wait"
        awaited = self._awaited = object()
        self.submit(request, context)
        return partial(self._write_awaited, awaited)

    def _write_awaited(self, awaited: object, why_not: str) -> None:
        if awaited is not self._awaited:
            return  # the shard was dropped meanwhile, or closed
        self._awaited = None
        if why_not:
            self._on_write_error(LogWriteError(why_not))
        elif self._appending is not None:
            self._append_next(self._appending)

    def decide(self, about: str, event: Callable[[AnyCore, Step[Any]], Effects]) -> None:
        """Decides an event that is no request, such as a connection that closed. Nothing happens while the shard is not
        active. ``about`` is what it is about, see ``Core.request_is_about``."""
        if about in self._unfinished:
            self._unfinished.hold(about, partial(self._decide, event))
        else:
            self._decide(event)

    def is_unfinished(self, about: str) -> bool:
        """Whether a decision about this is being carried out in slices: the core must not be asked about it."""
        return self._unfinished.in_slices(about)

    @property
    def has_unfinished(self) -> bool:
        """Whether anything waits behind decisions that are carried out in slices."""
        return bool(self._unfinished.decisions)

    def when_finished(self, about: str, work: Callable[[], object]) -> None:
        """Does ``work`` when the decision about this is carried out, or given up, and what was held back before."""
        self._unfinished.hold(about, work)

    def on_timer(self, name: TimerName) -> None:
        """Decides a timer that fired: an event like any other (law 4)."""
        if self._unfinished.decisions and (about := self.core.timer_is_about(name)) in self._unfinished:
            self._unfinished.hold(about, partial(self._on_timer, name))
        else:
            self._on_timer(name)

    def _on_timer(self, name: TimerName) -> None:
        if self.state is ShardState.ACTIVE:
            self._timers.fired(name)
            self._decide(lambda core, step: core.on_timer(name, step))

    def abandon(self, request: Request, token: ReplyToken) -> None:
        """The connection of a request that was submitted and has no answer yet closed."""
        self.decide(self.core.request_is_about(request), lambda core, step: core.abandon(token, step))

    def _decide(self, event: Callable[[AnyCore, Step[Any]], Effects]) -> None:
        if self.state is not ShardState.ACTIVE:
            return
        try:
            effects = event(self.core, self._step(self.core))
        except Exception as error:
            self._on_fault(error)
        else:
            self._perform(effects)

    def _on_fault(self, error: Exception, waiting: Iterable[ReplyToken] = ()) -> None:
        """A fault of ours in the core: what it left behind cannot be trusted, the log can. ``waiting`` are told, too."""
        log.exception("coordinator_fault", error=repr(error), **self._where)
        self._drop(_FAULT, waiting)

    async def close(self) -> None:
        """Answers all pending requests, then waits until what was decided is on disk."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        if self._deadline is not None:
            self.resign()  # what this node has decided alone is for the next coordinator to find
        if self._awaited is not None:  # looked at here, as commits are decided ahead until now
            self._drop("the coordinator stops before the records of a transaction are on disk; commit again")
            if self._loading is not None:
                self._loading.cancel()  # before it begins
        if self.state is ShardState.ACTIVE:
            self._perform(self.core.unload(self._step(self.core)))
            self._append_all()
        self.state = ShardState.CLOSED
        self._unfinished.give_up()
        self._settled.set()
        self._timers.cancel_all()
        try:
            await self._log.flush()
        except LogError as error:
            log.error("coordinator_flush_failed", error=str(error), **self._where)

    def resign(self) -> None:
        """Another node is to lead the partition: all that wait are told to find their coordinator again, at once, and what
        was decided and is not committed is for the next one to find in the log. Nothing more is appended."""
        if self.state in (ShardState.RESIGNED, ShardState.CLOSED):
            return
        if self._loading is not None:
            self._loading.cancel()
        was_serving, self.state = self.state is ShardState.ACTIVE, ShardState.RESIGNED
        code, message = _REFUSALS[self.state]
        self._refuse(self._void(), message, code)
        if was_serving:
            try:
                self._replies.send_all(self.core.unload(self._step(self.core)).given)
            except Exception:  # what the core held has no answer until the client's deadline
                log.exception("coordinator_unload_failed", **self._where)
        self._timers.cancel_all()
        self._unfinished.give_up()
        self._settled.set()
        log.info("coordinator_resigned", leader_epoch=self.leader_epoch, **self._where)

    def _perform(self, effects: Effects) -> None:
        try:
            for event, fields in effects.notes:
                log.info(event, **fields, **self._where)
            for record in effects.records:
                self.core.apply(record)
            if effects.records:
                if not self._open_records:
                    self._loop.call_soon(self._append_open)
                self._open_records.extend(effects.records)
            if effects.timers:
                self._timers.change(effects.timers)
        except Exception as error:  # some of it may have been applied, and none of it will be written
            self._on_fault(error, effects.replies.tokens())
        else:
            if effects.rest is not None:
                self._unfinished.add(effects.rest)
            self._conclude(effects)

    def _in_turns(self, about: str, work: Callable[[], bool]) -> None:
        """Slices of decisions, one in a turn: the shards and their groups take turns."""
        self._fair_queue.put((self.topic, self.partition, about), work, PER_TURN)

    def _conclude(self, effects: Effects) -> None:
        if not effects.given and effects.orders is None:
            return
        if self._open_records:
            self._open_effects.append(effects)
        elif self._in_flight:
            self._in_flight[-1].append(effects)
        elif effects.orders is None:
            self._replies.send_all(effects.given)  # as heartbeats are answered
            return
        else:
            self._release(effects)
            return
        if self._deadline is not None:
            self._deadline.begin(effects)

    def _waiting(self) -> Iterator[list[Effects]]:
        yield from self._in_flight
        yield self._open_effects

    def _give_up_answers(self, tokens: list[ReplyToken]) -> None:
        """What these wait for may be committed later; the state stays."""
        oldest = next(self._waiting())
        if oldest is not self._held_up:  # else it was said before that nothing gets on
            log.warning("coordinator_answers_given_up", answers=len(tokens), **self._where)
            self._held_up = oldest
        self._refuse(tokens, _UNCOMMITTED)

    def _release(self, effects: Effects) -> None:
        """Everything queued before is on disk: has the orders carried out, and sends the answers."""
        for order in effects.orders or ():
            if self.state is not ShardState.ACTIVE:
                break  # dropped or closed meanwhile: the orders are void
            try:
                self._carry_out(self, order)
            except Exception as error:  # of ours; what is loaded anew gives the order again
                self._on_fault(error)
        self._replies.send_all(effects.given)

    def _append_open(self) -> None:
        """Begins to encode what was decided since the last time and to hand it to the log, unless that is going on.

        What is decided meanwhile is appended after it. Answers and orders wait for the last batch.
        """
        if not self._open_records or self._appending is not None or self.state is not ShardState.ACTIVE:
            return
        records, effects = self._open_records, self._open_effects
        self._open_records, self._open_effects = [], []
        self._in_flight.append(effects)
        self._appending = self._append(records)
        self._append_next(self._appending)

    def _append(self, records: list[Any]) -> Iterator[None]:
        for content in batches_of(self.core.encode(records)):
            if content is None:
                yield
                continue
            keys, values = content
            batch = encode_in_pieces(values, keys, timestamps_ms=[self._wall_ms()] * len(keys))
            encoded = b"".join(batch.pieces())
            while self._awaited is not None:
                yield
            self._log.append(encoded, batch.header)

    def _append_next(self, steps: Iterator[None]) -> None:
        if steps is not self._appending:
            return  # the shard was dropped meanwhile, or closed
        try:
            for _ in steps:
                if self._awaited is None:  # or else it goes on when that is on disk
                    self._loop.call_soon(self._append_next, steps)
                return
            self._appending = None
        except (LogError, ValueError) as error:  # ValueError: a record too large for any batch
            self._on_write_error(error)
        except Exception as error:
            self._on_fault(error)
        else:
            self._log.when_committed(self._log.end_offset, self._on_committed)
            if self._open_records:
                self._loop.call_soon(self._append_open)

    def _append_all(self) -> None:
        """Hands everything that was decided to the log, at once."""
        self._finish_appending()
        self._append_open()
        self._finish_appending()

    def _finish_appending(self) -> None:
        while self._appending is not None:
            self._append_next(self._appending)

    def _on_committed(self, error: Exception | None) -> None:
        if not self._in_flight:
            return  # the shard was dropped meanwhile; its replies are answered
        if error is not None:
            self._on_write_error(error)
            return
        self._drops = 0
        self._obstacle = ""
        for effects in self._in_flight.popleft():
            self._release(effects)

    def _on_write_error(self, error: Exception) -> None:
        log.error("coordinator_write_failed", error=str(error), **self._where)
        changed = "nothing was changed" if self._deadline is None else "it reads its log to see what holds"
        self._drop(f"the coordinator could not write its log ({error}); {changed}, try again")

    def _drop(self, message: str, asking: Iterable[ReplyToken] = ()) -> None:
        """What was decided since the last write is void, also its orders. All that wait are told, and the log says what is
        true."""
        waiting = [*self._void(), *asking]
        serving = self.state is ShardState.ACTIVE
        if serving:
            self._drops += 1
            self._obstacle = message
            self.state = ShardState.LOADING
            try:
                waiting += self.core.unload(self._step(self.core)).replies.tokens()
            except Exception:  # what the core held has no answer until the client's deadline
                log.exception("coordinator_unload_failed", **self._where)
        self._timers.cancel_all()
        self._refuse(waiting, message)
        self._unfinished.give_up()
        if serving:
            self.start_loading()

    def _void(self) -> list[ReplyToken]:
        """Nothing that was decided and is not committed is written, carried out or answered; returns who waits for it."""
        waiting = [token for some in self._waiting() for effects in some for token, _, _ in effects.given]
        self._in_flight.clear()
        self._appending = self._awaited = None
        self._open_records, self._open_effects = [], []
        return waiting

    def _refuse(
        self, tokens: list[ReplyToken], message: str, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE
    ) -> None:
        for token in tokens:
            request = self._replies.request(token)
            if request is not None:
                self._replies.send(token, self.core.refusal(request, code, message))
