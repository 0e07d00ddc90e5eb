"""Nodes with a log: what is synced survives a crash, of the rest any prefix does. The coordinator is one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from coordinator.runtime.effects import Effects, Instant, RequestContext, Step, TimerName
from coordinator.runtime.unfinished import UnfinishedDecisions
from coordinator.transactions.core import TransactionCore
from coordinator.transactions.orders import FindOpen, MarkerOutcome, MarkerPartition, TransactionName, WriteMarkers
from coordinator.transactions.records import Identity, IdentityRecord, decode_record, encode_record
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.transactions import EndTxnRequest
from tests.simulation.transactions.facts import violated
from tests.simulation.transactions.plan import EXPIRY, EXPIRY_CHECK_MS

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

MAX_SLOW_MS: Final = 800
"""How long a slow disk takes at most."""

RESEND_MS: Final = 400
"""A marker whose outcome is not known leaves again after this."""

BOUND_SLACK_MS: Final = 3 * MAX_SLOW_MS
"""What disks may add to the bound of a parked request."""

Reply = Callable[[Response], None]


class Node:
    """A log, and what waits for it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.log: list[Any] = []
        self.synced = 0
        self.life = 0
        self._compacted = 0
        self._waits: deque[tuple[int, Callable[[], None]]] = deque()
        self._syncing = False

    def append(self, entry: Any) -> None:
        """Adds an entry; it is synced in a while."""
        self.log.append(entry)
        if not self._syncing:
            self._sync()

    def when_synced(self, happens: Callable[[], None]) -> None:
        """Calls back once everything in the log so far is synced."""
        if self.synced == len(self.log):
            happens()
        else:
            self._waits.append((len(self.log), happens))

    def _sync(self) -> None:
        self._syncing = True
        world = self.world
        slow = world.disturbs("slow disks") and world.random() < 0.1
        delay_ms = int(world.random() * MAX_SLOW_MS) if slow else int(world.random() * 4)
        # What arrives while the disk is busy waits for the next round, as in a group commit.
        world.later(delay_ms, self._is_synced, (self.life, len(self.log)))

    def _is_synced(self, what: tuple[int, int]) -> None:
        life, end = what
        if life != self.life:
            return
        self._syncing = False
        first, self.synced = self.synced, end
        self.on_synced(first, end)
        while self._waits and self._waits[0][0] <= self.synced and life == self.life:
            self._waits.popleft()[1]()
        if life == self.life and not self._syncing and self.synced < len(self.log):
            self._sync()

    def on_synced(self, first: int, end: int) -> None:
        """Entries have got onto the disk."""

    def lose(self, keep: int) -> None:
        """The node begins another life with the first ``keep`` entries."""
        self.life += 1
        first = self.synced
        del self.log[keep:]
        self.synced = keep
        self._compacted = min(self._compacted, keep)
        self._waits.clear()
        self._syncing = False
        self.on_synced(first, keep)

    def crash(self) -> None:
        """The process is gone; of what was not synced, any prefix is on disk."""
        world = self.world
        world.tell(f"{self.name} crashes with {len(self.log) - self.synced} entries not synced")
        self.lose(self.synced + int(world.random() * (len(self.log) - self.synced + 1)))
        self.boot()

    def boot(self) -> None:
        """Makes the state anew from the log."""

    def compact(self, encode: Callable[[Any], tuple[bytes, bytes | None]]) -> None:
        """Keeps the latest record of each key when all are synced, and tombstones that no compaction has seen yet."""
        if self.synced < len(self.log) or self._syncing:
            return
        latest: dict[bytes, Any] = {}
        for place, entry in enumerate(self.log):
            key, value = encode(entry)
            latest.pop(key, None)  # the latest keeps its place behind the others
            if value is not None or place >= self._compacted:
                latest[key] = entry
        self.log[:] = latest.values()
        self.synced = self._compacted = len(self.log)


class Coordinator(Node):
    """The transaction core with its log, timers and what delivers markers."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "C")
        self.config = world.plan.config
        self.core = self._new_core()
        self.timers: dict[TimerName, int] = {}
        self.waiting: dict[int, tuple[Request, Reply, int]] = {}
        """Requests without an answer: what, where the answer goes, since when."""
        self.sent: dict[tuple[TransactionName, MarkerPartition], WriteMarkers] = {}
        """Markers whose outcome is not known."""
        self._tokens = 0
        self._ended: list[tuple[Identity, Request]] = []
        self._unfinished = UnfinishedDecisions(self._obey, self._in_turns, self._on_fault)

    def deliver(self, request: Request, reply: Reply) -> None:
        """A request arrives."""
        about = self.core.request_is_about(request)
        if about in self._unfinished:
            self._unfinished.hold(about, partial(self._decide, request, reply))
        else:
            self._decide(request, reply)

    def marked(self, name: TransactionName, place: MarkerPartition, outcome: MarkerOutcome, reason: str = "") -> None:
        """A leader says what became of a marker."""
        if outcome in (MarkerOutcome.DONE, MarkerOutcome.GONE):
            self.sent.pop((name, place), None)
        decide = partial(self._marked, name, place, outcome, reason)
        if name.transactional_id in self._unfinished:
            self._unfinished.hold(name.transactional_id, decide)
        else:
            decide()

    def drop(self) -> None:
        """A write failed: the shard is made anew from its log, and those who wait are told."""
        self.world.tell(f"the shard is dropped with {len(self.log) - self.synced} entries not synced")
        self._obey(self.core.unload(self._step()))
        waiting = list(self.waiting.values())
        self.crash()
        for request, reply, _ in waiting:
            reply(self.core.refusal(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator could not write"))

    def boot(self) -> None:
        """A new core reads the log."""
        self.waiting.clear()
        self.timers.clear()
        self.sent.clear()
        self._unfinished.decisions.clear()
        self.core = self.replayed()
        step = self._step()
        for _ in self.core.loaded(step):
            pass
        self._obey(step.effects)
        self.start_expiry()

    def start_expiry(self) -> None:
        """Ids that are not used are looked for from now on."""
        if EXPIRY in self.world.plan.behaviours:
            self._obey(self.core.start_expiry(self._step(), EXPIRY_CHECK_MS))

    def replayed(self) -> TransactionCore:
        """A core that has read the log so far."""
        core = self._new_core()
        for entry in self.log:
            record = decode_record(*encode_record(entry))
            assert record is not None
            core.apply(record)
        return core

    def on_synced(self, first: int, end: int) -> None:
        """Tells the observer."""
        for entry in self.log[first:end]:
            self.world.facts.on_disk(entry)

    def sample(self) -> None:
        """Checks what costs."""
        if self.replayed().durable_state() != self.core.durable_state():
            violated("replay_equals_live_state", "the core's state is another after a replay")
        for state in self.core.transactions.values():
            if state.parked and not state.markers and state.transactional_id not in self._unfinished:
                violated("parked_requests_go_on_with_their_markers", f"{state.parked} wait for no marker")
        bound_ms = self.config.max_wait_ms + BOUND_SLACK_MS
        for request, _, since_ms in self.waiting.values():
            if self.world.now_ms - since_ms > bound_ms:
                violated("no_request_waits_beyond_its_bound", f"{request} waits since {since_ms}")
        self.compact(encode_record)

    def _new_core(self) -> TransactionCore:
        return TransactionCore(self.config, self.world.next_producer_id)

    def _step(self, token: int = 0) -> Step[Any]:
        world = self.world
        now = Instant(world.now_ms, world.now_ms + world.wall_offset_ms)
        return Step(now, self.config, RequestContext(token, "client", "host"))

    def _decide(self, request: Request, reply: Reply) -> None:
        self.world.steps += 1
        self._tokens += 1
        self.waiting[self._tokens] = (request, reply, self.world.now_ms)
        effects = self.core.decide(request, self._step(self._tokens))
        if self.world.trace is not None:
            self.world.tell(f"C gets {request}")
        if isinstance(request, EndTxnRequest):
            self._look_at_end(request, effects)
        self._obey(effects)

    def _look_at_end(self, request: EndTxnRequest, effects: Effects) -> None:
        for record in effects.records:
            if isinstance(record, IdentityRecord) and record.transactional_id == request.transactional_id:
                identity = self.core.transactions[request.transactional_id].identity
                ended = identity.identity
                of_kept = request.keeps_epoch and identity.kept == (request.producer_id, request.producer_epoch)
                if not of_kept and ended not in (record.identity, (request.producer_id, request.producer_epoch)):
                    violated("a_late_end_ends_its_own_transaction", f"{request} ends {ended}")

    def _marked(self, name: TransactionName, place: MarkerPartition, outcome: MarkerOutcome, reason: str) -> None:
        self.world.steps += 1
        self._obey(self.core.marked(name, place.topic_id, place.partition, outcome, reason, self._step()))

    def _obey(self, effects: Effects) -> None:
        for record in effects.records:
            self.core.apply(record)
            self.append(record)
            if self.world.trace is not None:
                self.world.tell(f"    C writes {record}")
        for name, deadline_ms in effects.timers.items():
            if deadline_ms is None:
                self.timers.pop(name, None)
            else:
                self.timers[name] = deadline_ms
                self.world.later(max(0, deadline_ms - self.world.now_ms), self._fire, (self.life, name))
        if effects.rest is not None:
            self._unfinished.add(effects.rest)
        if effects.given or effects.orders:
            self.when_synced(partial(self._conclude, effects))

    def _conclude(self, effects: Effects) -> None:
        for token, response in effects.replies:
            found = self.waiting.pop(token, None)
            if found is None:
                violated("each_request_is_answered_once", f"{response} answers no request, or one for the second time")
            if self.world.trace is not None:
                self.world.tell(f"    C answers {response}")
            found[1](response)
        for order in effects.orders or ():
            self.carry_out(order)

    def carry_out(self, order: Any) -> None:
        """Markers leave, or questions whether something is open."""
        if isinstance(order, FindOpen):
            self._ask_what_is_open((order, set(), self.life))
            return
        for place in order.partitions:
            self.sent[order.transaction, place] = order
            self._send(((order.transaction, place), self.life))

    def _send(self, what: tuple[tuple[TransactionName, MarkerPartition], int]) -> None:
        key, life = what
        order = self.sent.get(key)
        if order is None or life != self.life:
            return
        name, place = key
        if not self._is_awaited(name, place):
            del self.sent[key]
            return
        world = self.world

        def report(outcome: MarkerOutcome, reason: str = "") -> None:
            world.send(self._hear, (life, name, place, outcome, reason))

        world.send(world.participants[place.topic_id].marker, (order.ends(place), report))
        world.later(RESEND_MS, self._send, what)

    def _ask_what_is_open(self, what: tuple[FindOpen, set[MarkerPartition], int]) -> None:
        """Asks those who have not said yet that it is not open there, until all have or the core knows by itself."""
        order, closed, life = what
        if life != self.life or not self.core.is_unsure(order.transaction):
            return
        for place in order.partitions:
            if place not in closed:
                self._ask_whether_open(order, closed, place)
        self.world.later(RESEND_MS, self._ask_what_is_open, what)

    def _ask_whether_open(self, order: FindOpen, closed: set[MarkerPartition], place: MarkerPartition) -> None:
        world, life = self.world, self.life

        def hear(_: None) -> None:
            closed.add(place)
            if life == self.life and len(closed) == len(order.partitions):
                self._found_closed(order)

        def asked(_: None) -> None:
            if not world.participants[place.topic_id].may_be_open(order.producer_id, order.producer_epoch):
                world.send(hear, None)

        world.send(asked, None)

    def _found_closed(self, order: FindOpen) -> None:
        if order.transactional_id in self._unfinished:
            self._unfinished.hold(order.transactional_id, partial(self._found_closed, order))
        else:
            self.world.steps += 1
            self._obey(self.core.not_open(order.transaction, self._step()))

    def _is_awaited(self, name: TransactionName, place: MarkerPartition) -> bool:
        """Whether the core still waits for a marker; else none is sent again."""
        state = self.core.transactions.get(name.transactional_id)
        decided = None if state is None else state.identity.completing
        if state is None or decided is None or decided.identity != name[1:]:
            return False
        return (place.topic_id, place.partition) in state.markers

    def _hear(self, what: tuple[int, TransactionName, MarkerPartition, MarkerOutcome, str]) -> None:
        life, name, place, outcome, reason = what
        if life == self.life:
            self.marked(name, place, outcome, reason)

    def _fire(self, what: tuple[int, TimerName]) -> None:
        if what[0] != self.life:
            return
        about = self.core.timer_is_about(what[1])
        if about in self._unfinished:
            self._unfinished.hold(about, partial(self._fired, what[1]))
        else:
            self._fired(what[1])

    def _fired(self, name: TimerName) -> None:
        deadline_ms = self.timers.get(name)
        if deadline_ms is None or deadline_ms > self.world.now_ms:
            return
        del self.timers[name]
        self.world.steps += 1
        self._obey(self.core.on_timer(name, self._step()))

    def _in_turns(self, about: str, work: Callable[[], bool]) -> None:
        self.world.later(int(self.world.random() * 3), self._turn, (about, work))

    def _turn(self, what: tuple[str, Callable[[], bool]]) -> None:
        about, work = what
        self.world.steps += 1
        if work():
            self._in_turns(about, work)

    def _on_fault(self, error: Exception) -> None:
        raise error
