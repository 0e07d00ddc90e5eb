"""The shell around one core: it carries out effects, keeps timers and log, and lets the invariants look at each step.

Records are durable once flushed; an answer leaves when everything before it is on disk. A crash takes the soft state and any
part of what was not flushed, whole decisions at a time. The log is compacted now and then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappush
from random import Random
from typing import Any, Final

from coordinator.groups.core import GroupCore
from coordinator.groups.expiry import EXPIRY_TIMER
from coordinator.groups.group import Group
from coordinator.groups.pending_offsets import End
from coordinator.groups.records import (
    CoordinatorRecord,
    OffsetCommitRecord,
    OffsetCommitTombstone,
    decode_record,
    encode_record,
)
from coordinator.groups.refusals import error_response
from coordinator.runtime.effects import Effects, Instant, ReplyToken, RequestContext, Step, TimerName
from coordinator.runtime.unfinished import UnfinishedDecisions
from protocol.errors import ErrorCode
from protocol.messages.api import Response
from protocol.messages.groups import CARRY_ON
from protocol.messages.offsets import OffsetCommitRequest
from tests.coordinator.groups.steps import FewTopics, load, step_of
from tests.simulation.core.bookkeeping import FENCED, note
from tests.simulation.core.call import HEARTBEAT, JOIN, TXN_COMMIT, Call
from tests.simulation.core.client import PARTITIONS
from tests.simulation.core.invariants import (
    EVERY_STEP,
    EVERY_STEP_LAWS,
    FIRED_LATE_MS,
    ON_ARRIVAL,
    ON_CHANGE,
    ON_CHANGE_LAWS,
    ON_RESTART,
    ON_TIMER,
    SAMPLED,
    AtOnce,
    each_answer_is_the_first,
    no_phase_waits_for_a_connection_that_closed,
    unloading_answers_every_request,
    what_is_decided_at_once_is_decided_alike,
    what_is_given_up_parks_nothing,
)
from tests.simulation.core.journal import Journal
from tests.simulation.core.ledger import Ledger
from tests.simulation.core.plan import EXPIRY_MS, Plan, config_of
from tests.simulation.core.trace import of_answer, of_request
from tests.simulation.core.transactions import Transaction, Transactions

SAMPLE_STEPS: Final = 128
"""The costly invariants are checked after each so many steps."""

MAX_FLUSH_MS: Final = 1_500
"""How long a slow disk takes at most."""

MAX_SLICE_MS: Final = 3
"""What lies between two slices of a decision at most."""

START_WALL_MS: Final = 1_700_000_000_000


_NOBODY: Final = OffsetCommitRequest("", -1, "", None, ())
"""Told an offset that no transaction was to commit which ends; invariants will say so."""

_tuple: Final = tuple.__new__
"""Makes a NamedTuple of its fields, at half the cost of calling its class."""

Happening = Callable[[Any], None]


class Shell(ABC):
    """One core with its timers, its log and the requests that wait."""

    def __init__(self, plan: Plan, trace: list[str] | None) -> None:
        self.plan = plan
        self.trace = trace
        # Streams of their own, so that one more draw in one does not reshuffle the others.
        self.disk = Random(f"disk {plan.seed}").random
        self.config = config_of(plan)
        self.heap: list[tuple[int, int, Happening, Any]] = []
        self.order = 0
        self.now_ms = 0
        self.wall_offset_ms = START_WALL_MS
        self.steps, self.firing = 0, ""
        self.calm = False
        self.epoch = 0
        self.waiting: dict[int, Call] = {}
        self.made: list[tuple[Callable[[Any], Response], Any, Response]] = []
        """Answers that are made when they leave: of what, by what, and what they are now."""
        self.timers: dict[TimerName, int] = {}
        self.journal = Journal()
        self.ledgers = [Ledger(f"group-{number}") for number in range(plan.groups)]
        self._ledger_of = {ledger.group_id: ledger for ledger in self.ledgers}
        self._late_timers = "late timers" in plan.behaviours
        self._stale_timers = "stale timers" in plan.behaviours
        self._slow_disk = "slow disk" in plan.behaviours
        self._queued: dict[TimerName, int] = {}
        self._marking: list[Transaction] = []
        """The transactions whose end is being decided."""
        self._outbox: list[tuple[Call, Response]] = []
        self._fired: dict[str, str] = {}
        """The kind of timer that began a decision of which slices are left, by group."""
        self._unfinished = UnfinishedDecisions(self._carry_out, self._in_turns, self._on_fault)
        self._tokens = 0
        self._own_answer: Any = None
        self._ids = 0
        self._next_sample = SAMPLE_STEPS
        self.transactions = Transactions(self)
        self._connect(GroupCore(self.config, self._new_member_id, _TOPICS))
        self._start_expiry()

    def later(self, delay_ms: int, happens: Happening, what: object) -> None:
        """Something happens in so many ms."""
        self.order += 1
        heappush(self.heap, (self.now_ms + delay_ms, self.order, happens, what))

    @abstractmethod
    def release(self, call: Call, response: Response) -> None:
        """An answer leaves the coordinator."""

    @abstractmethod
    def unsettled(self) -> Iterator[str]:
        """What is not as it should be once the faults are over."""

    def deliver(self, call: Call) -> None:
        """A request arrives."""
        about = self.core.request_is_about(call.request)
        if about in self._unfinished:
            self._unfinished.hold(about, partial(self._deliver, call))
        else:
            self._deliver(call)

    def _deliver(self, call: Call) -> None:
        """A step: a request is decided."""
        if call.epoch != self.epoch:
            return  # its connection died with the coordinator
        if call.kind == TXN_COMMIT and (code := self.transactions.refusal(call)) is not None:
            self.tell(f"{call.client.name} sends {of_request(call.request)}, refused with {code.name}")
            self.release(call, error_response(call.request, code, "of the coordinator of transactions"))
            return
        self.steps += 1
        self._tokens = call.token = token = self._tokens + 1
        self.waiting[token] = call
        kind = call.kind
        now_ms = self.now_ms
        software = "it 1.0" if call.connection % 2 else ""  # one that was upgraded says another from then on
        of_kafka = call.connection % 3 == 0  # and some come back as members of the other kind
        context = _tuple(RequestContext, (token, call.client.name, "host", call.connection, software, of_kafka))
        now = _tuple(Instant, (now_ms, now_ms + self.wall_offset_ms))
        at_once = AtOnce(self.core, call, software, now_ms) if kind == HEARTBEAT else None
        effects = self.core.decide(call.request, Step(now, self.config, context))
        if at_once is not None:
            what_is_decided_at_once_is_decided_alike(self, call, at_once, effects)
        if self.trace is not None:
            self.tell(f"{call.client.name} sends {of_request(call.request)}")
        self._own_answer = None
        self._obey(effects, call)
        answer = self._own_answer
        for check in ON_ARRIVAL[kind]:
            check(self, call, answer)
        if kind == JOIN and (answer is None or answer.error_code in (0, *FENCED)):
            call.ledger.gives_up(call.request.member_id)  # type: ignore[attr-defined]
        self._checked(call.ledger)
        if call.closed and token in self.waiting:
            self.later(5, self.abandon, token)

    def fire(self, named: tuple[TimerName, int]) -> None:
        """A timer fires, late perhaps, or, if that may happen, though it was moved or taken away meanwhile."""
        about = self.core.timer_is_about(named[0])
        if about in self._unfinished:
            self._unfinished.hold(about, partial(self._fire, named))
        else:
            self._fire(named)

    def _fire(self, named: tuple[TimerName, int]) -> None:
        """A step: the core decides what a timer brings about."""
        name, queued_ms = named
        if self._queued.get(name) != queued_ms:
            return
        del self._queued[name]
        deadline_ms = self.timers.get(name)
        if deadline_ms is None or deadline_ms > self.now_ms:
            if deadline_ms is not None:
                self._queue(name, deadline_ms)
            if not self._stale_timers or self.calm:
                return
        else:
            del self.timers[name]
        self.steps += 1
        now = _tuple(Instant, (self.now_ms, self.now_ms + self.wall_offset_ms))
        effects = self.core.on_timer(name, step_of(self.core, now))
        if self.trace is not None:
            self.tell(f"timer {' '.join(name)} fires{' though it was moved' if name in self.timers else ''}")
        self._obey(effects, None)
        for check in ON_TIMER:
            check(self, name, deadline_ms, effects)
        self.firing = name[0]
        for ledger in self.ledgers if name == EXPIRY_TIMER else (self._ledger_of[name[1]],):
            ledger.begins_without_the_late(name[0], self.core.groups.get(ledger.group_id))
            self._checked(ledger)
        self.firing = ""
        if len(name) > 1 and self._unfinished.in_slices(name[1]):
            self._fired[name[1]] = name[0]

    def abandon(self, token: int) -> None:
        """The connection of a request closes."""
        call = self.waiting.get(token)
        if call is not None and call.ledger.group_id in self._unfinished:
            self._unfinished.hold(call.ledger.group_id, partial(self._abandon, token))
        else:
            self._abandon(token)

    def _abandon(self, token: int) -> None:
        """A step: the core decides that a request waits no longer."""
        call = self.waiting.pop(token, None)
        if call is None:
            return
        self.steps += 1
        effects = self.core.abandon(token, step_of(self.core, Instant(self.now_ms, self.now_ms + self.wall_offset_ms)))
        if self.trace is not None:
            self.tell(f"the connection over which {call.client.name} sent {of_request(call.request)} closes")
        what_is_given_up_parks_nothing(self, token, effects)
        self._obey(effects, None)
        self._look_closely(call.ledger)
        self._checked(call.ledger)

    def close_connection(self, connection: int) -> None:
        """A step: the coordinator learns that a connection has closed."""
        if self.core.gave_ids_over(connection):
            self.steps += 1
            self.tell(f"connection {connection} closes")
            now = Instant(self.now_ms, self.now_ms + self.wall_offset_ms)
            self._obey(self.core.close_connection(connection, step_of(self.core, now)), None)
            no_phase_waits_for_a_connection_that_closed(self, connection)
            for ledger in self.ledgers:
                self._checked(ledger)

    def mark(self, ends: list[End], transactions: list[Transaction]) -> None:
        """A step: end markers of transactions arrive."""
        self.steps += 1
        if self.trace is not None:
            told = [f"{pid} epoch {epoch} {'commits' if committed else 'aborts'}" for pid, epoch, committed in ends]
            self.tell(f"markers: {', '.join(told)}")
        now = Instant(self.now_ms, self.now_ms + self.wall_offset_ms)
        self._marking = transactions
        self._obey(self.core.end_transactions(ends, step_of(self.core, now)), None)
        self._marking = []
        for ledger in self.ledgers:
            self._checked(ledger)

    def flush(self, _: None) -> None:
        """What was written is on disk now; the answers that waited for it leave."""
        self.journal.flush()
        self.transactions.flushed()
        outbox, self._outbox = self._outbox, []
        for call, response in outbox:
            self.release(call, response)

    def crash(self) -> None:
        """A step: the process is gone, and with it all soft state, what was not on disk and every connection."""
        self.steps += 1
        self.epoch += 1
        if self.trace is not None:
            self.tell(
                f"the coordinator crashes, {len(self.journal.entries) - self.journal.flushed} records are not on disk"
            )
        self._outbox.clear()
        self.waiting.clear()
        self._fired.clear()
        self._unfinished.give_up()  # what was held back came over connections that are gone
        self._restart()

    def drop(self) -> None:
        """A step: a write fails, and the shard is built anew from its log; connections stay, and who waits is told."""
        self.steps += 1
        if self.trace is not None:
            self.tell(
                f"the shard is dropped, {len(self.journal.entries) - self.journal.flushed} records are not on disk"
            )
        refused = [call for call, _ in self._outbox]
        self._outbox.clear()
        effects = self.core.unload(step_of(self.core, Instant(self.now_ms, self.now_ms + self.wall_offset_ms)))
        for token, response in effects.replies:
            call = self.waiting.pop(token, None)
            each_answer_is_the_first(self, call, token, response)
            assert call is not None
            refused.append(call)
        effects.replies.clear()
        self._obey(effects, None)
        unloading_answers_every_request(self)
        self._restart()
        self._fired.clear()
        self._unfinished.give_up()  # what was held back finds the groups as the log has them
        for call in refused:
            self.release(
                call,
                error_response(call.request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator could not write"),
            )

    def replayed(self) -> GroupCore:
        """A core that has read the log so far."""
        core = GroupCore(self.config, self._new_member_id, _TOPICS)
        for entry in self.journal.entries:
            core.apply(entry.record)
        return core

    def sample(self) -> None:
        """Checks what costs."""
        self._next_sample = self.steps + SAMPLE_STEPS
        for check in SAMPLED:
            check(self)
        for ledger in self.ledgers:
            self._look_closely(ledger)
        if self.journal.at_rest:
            self.journal.compact()

    def tell(self, line: str) -> None:
        """Adds a line to the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now_ms / 1000:8.3f} s  {line}")

    def _obey(self, effects: Effects, call: Call | None) -> None:
        if effects.records:
            self._write(effects.records, call)
        if effects.timers:
            timers, queued = self.timers, self._queued
            for name, deadline_ms in effects.timers.items():
                if deadline_ms is None:
                    timers.pop(name, None)
                else:
                    timers[name] = deadline_ms
                    queued_ms = queued.get(name)
                    if queued_ms is None or deadline_ms < queued_ms:
                        self._queue(name, deadline_ms)
        for token, about, make in effects.given:
            if make is None:
                self._answer(token, about)
            else:
                response = make(about)
                self.made.append((make, about, response))
                self._answer(token, response)
        if effects.records:
            for entry in self.journal.entries[-len(effects.records) :]:
                entry.ledger.reads(entry, self._tokens)
        if effects.rest is not None:
            self._unfinished.add(effects.rest)

    def _carry_out(self, effects: Effects) -> None:
        self._obey(effects, None)

    def _in_turns(self, about: str, work: Callable[[], bool]) -> None:
        self.later(int(self.disk() * MAX_SLICE_MS), self._turn, (about, work))

    def _turn(self, what: tuple[str, Callable[[], bool]]) -> None:
        """A slice of a decision, or what was held back meanwhile."""
        about, work = what
        if work():
            self._in_turns(about, work)
        if not self._unfinished.in_slices(about):
            self.firing = self._fired.pop(about, "")
            self._checked(self._ledger_of[about])
            self.firing = ""

    def _on_fault(self, error: Exception) -> None:
        raise error

    def _answer(self, token: ReplyToken, response: Response) -> None:
        call = self.waiting.pop(token, None)
        each_answer_is_the_first(self, call, token, response)
        assert call is not None
        if token == self._tokens:
            self._own_answer = response
        if self.trace is not None:
            self.tell(f"    {call.client.name} is answered {of_answer(response)}")
        if response is not CARRY_ON:
            note(self, call, response)
        call.written = self.journal.written
        if not self.journal.at_rest:
            self._outbox.append((call, response))
        else:
            self.release(call, response)

    def _write(self, records: list[CoordinatorRecord], call: Call | None) -> None:
        request: Any = None if call is None else call.request
        journal = self.journal
        for record in records:
            self.core.apply(record)
            ledger = self._ledger_of[record.group_id]
            if isinstance(record, OffsetCommitRecord):
                writer = request or self._writer(record)
                journal.add(record, ledger, writer.member_id, writer.generation_id)
            else:
                journal.add(record, ledger, "", -1)
        if not self._slow_disk or self.calm:
            journal.flush()
            if self.transactions.enabled:
                self.transactions.flushed()
        else:
            if journal.at_rest:
                self.later(1 + int(self.disk() ** 3 * MAX_FLUSH_MS), self.flush, None)
            journal.decided()
        for record in records if call is None else ():
            if isinstance(record, OffsetCommitTombstone):
                self.transactions.moved(record.group_id, record.partition, 0)  # it has expired

    def _writer(self, record: OffsetCommitRecord) -> Any:
        """What told the offset that the end of a transaction commits."""
        wrote = (
            one.request
            for one in self._marking
            if one.ledger.group_id == record.group_id and one.reads.get(record.partition, (0, -1))[1] == record.offset
        )
        return next(wrote, _NOBODY)

    def _queue(self, name: TimerName, deadline_ms: int) -> None:
        self._queued[name] = deadline_ms
        due_ms = max(self.now_ms, deadline_ms)
        if self._late_timers:
            due_ms += int(self.disk() * FIRED_LATE_MS)
        self.order += 1
        heappush(self.heap, (due_ms, self.order, self.fire, (name, deadline_ms)))

    def _checked(self, ledger: Ledger) -> None:
        """The end of each step; a decision of which slices are left has not ended."""
        group = self.core.groups.get(ledger.group_id)
        if group is not None and not self._unfinished.in_slices(ledger.group_id):
            for law in EVERY_STEP_LAWS:
                law(group)
            for check in EVERY_STEP:
                check(self, ledger, group)
            if group.state is not ledger.state or group.generation != ledger.generation:
                self._look_closely(ledger)
                if self.trace is not None:
                    self.tell(f"    {ledger} -> {group.state.value}, generation {group.generation}")
                ledger.state = group.state
                ledger.generation = group.generation
                ledger.since_ms = self.now_ms
        if self.steps >= self._next_sample:
            self.sample()

    def _look_closely(self, ledger: Ledger) -> None:
        group = self.core.groups.get(ledger.group_id)
        if group is not None and not self._unfinished.in_slices(ledger.group_id):
            for law in ON_CHANGE_LAWS:
                law(group)
            for check in ON_CHANGE:
                check(self, ledger, group)

    def _restart(self) -> None:
        """Comes back from the log, as far as the disk has it: all that was flushed, and perhaps more."""
        self.transactions.lost()
        self.journal.crash(self.disk())
        self.timers.clear()
        self._connect(GroupCore(self.config, self._new_member_id, _TOPICS))
        for ledger in self.ledgers:
            ledger.committed.clear()
        for entry in self.journal.entries:
            decoded = decode_record(*encode_record(entry.record))
            assert decoded is not None
            self.core.apply(decoded)
            entry.ledger.reads(entry, self._tokens)
        now = Instant(self.now_ms, self.now_ms + self.wall_offset_ms)
        effects = load(self.core, now)
        for ledger in self.ledgers:
            group: Group | None = self.core.groups.get(ledger.group_id)
            for check in ON_RESTART if group is not None else ():
                check(self, ledger, group)  # type: ignore[arg-type]
            ledger.restart(group, self.now_ms)
        self._obey(effects, None)
        self._start_expiry()
        self.sample()

    def _start_expiry(self) -> None:
        if "expiry" in self.plan.behaviours:
            now = Instant(self.now_ms, self.now_ms + self.wall_offset_ms)
            self._obey(self.core.start_expiry(step_of(self.core, now), EXPIRY_MS), None)

    def _connect(self, core: GroupCore) -> None:
        self.core = core

    def _new_member_id(self, client_id: str) -> str:
        self._ids += 1
        return f"{client_id}-{self._ids}"


_TOPICS: Final = FewTopics(lambda _, partition: partition < PARTITIONS)
