"""A transaction core with a log, timers and a clock moved by hand, for tests that run it without the runtime."""

from __future__ import annotations

from itertools import count
from typing import TypeVar

from coordinator.runtime.effects import Effects, Instant, RequestContext, Step, TimerName
from coordinator.transactions.config import TransactionConfig, TransactionStep
from coordinator.transactions.core import TransactionCore
from coordinator.transactions.orders import FindOpen, MarkerOutcome, TransactionName, WriteMarkers
from coordinator.transactions.records import TransactionRecord, decode_record, encode_record
from protocol.messages import Request, Response
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import (
    NO_VERSION,
    AbortTransactionRequest,
    AbortTransactionResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    JoinTransactionRequest,
    JoinTransactionResponse,
    TransactionTopic,
)

START_WALL_MS = 1_700_000_000_000

Kind = TypeVar("Kind", bound=Response)


class Coordinator:
    """One core and what surrounds it. Records are on disk at once; orders wait until ``write_markers`` carries them out."""

    def __init__(self, config: TransactionConfig | None = None, first_producer_id: int = 1000) -> None:
        self.config = config or TransactionConfig()
        self.now_ms = 0
        self.wall_ms = START_WALL_MS
        self.log: dict[bytes, bytes | None] = {}
        self.written: list[TransactionRecord] = []
        self.timers: dict[TimerName, int] = {}
        self.orders: list[WriteMarkers] = []
        self.lookups: list[FindOpen] = []
        self.answers: dict[int, Response] = {}
        self.notes: list[str] = []
        self.ids = count(first_producer_id)
        self.has_producer_ids = True
        self.tokens = 0
        self.core = self.new_core()

    def new_core(self) -> TransactionCore:
        """A core that has read nothing yet."""
        return TransactionCore(self.config, lambda: next(self.ids) if self.has_producer_ids else None)

    def step(self, token: int = 0) -> TransactionStep:
        """What the core is given now."""
        return Step(Instant(self.now_ms, self.wall_ms), self.config, RequestContext(token, "client", "host"))

    def ask(self, request: Request) -> int:
        """Sends a request, and returns the token under which its answer lies in ``answers`` once there is one."""
        self.tokens += 1
        self.carry_out(self.core.decide(request, self.step(self.tokens)))
        return self.tokens

    def answered(self, request: Request, kind: type[Kind]) -> Kind:
        """The answer to a request that is answered at once."""
        answer = self.answers[self.ask(request)]
        assert isinstance(answer, kind)
        return answer

    def init(self, name: str = "t", pid: int = -1, epoch: int = -1, timeout_ms: int = 60_000) -> InitProducerIdResponse:
        """InitProducerId, answered at once."""
        return self.answered(InitProducerIdRequest(name, timeout_ms, pid, epoch), InitProducerIdResponse)

    def add(
        self, pid: int, epoch: int, *partitions: int, name: str = "t", verify: bool = False
    ) -> AddPartitionsToTxnResponse:
        """AddPartitionsToTxn of the topic ``orders``, answered at once."""
        return self.answered(adding(name, pid, epoch, *partitions, verify=verify), AddPartitionsToTxnResponse)

    def end(
        self,
        pid: int,
        epoch: int,
        committed: bool = True,
        *,
        name: str = "t",
        version: int = NO_VERSION,
        scope: str = "",
        members: tuple[int, ...] = (),
    ) -> EndTxnResponse:
        """EndTxn, answered at once."""
        return self.answered(EndTxnRequest(name, pid, epoch, committed, version, scope, members), EndTxnResponse)

    def join(
        self, version: int, member: str = "m", *, name: str = "t", scope: str = "query", timeout_ms: int = 60_000
    ) -> JoinTransactionResponse:
        """JoinTransaction, answered at once."""
        return self.answered(JoinTransactionRequest(name, scope, version, member, timeout_ms), JoinTransactionResponse)

    def abort(self, name: str = "t", *, fence: bool = False) -> AbortTransactionResponse:
        """AbortTransaction of an administrator, answered at once."""
        return self.answered(AbortTransactionRequest(name, fence), AbortTransactionResponse)

    def write_markers(self, outcome: MarkerOutcome = MarkerOutcome.DONE) -> list[WriteMarkers]:
        """Carries out all orders; returns them."""
        orders, self.orders = self.orders, []
        for order in orders:
            for partition in order.partitions:
                self.marked(order.transaction, partition.topic_id, partition.partition, outcome)
        return orders

    def marked(
        self, name: TransactionName, topic_id: str, partition: int, outcome: MarkerOutcome, reason: str = ""
    ) -> None:
        """Tells the core what became of one marker."""
        self.carry_out(self.core.marked(name, topic_id, partition, outcome, reason, self.step()))

    def found(self, *, is_open: bool = False) -> list[FindOpen]:
        """Those who are asked whether a transaction is open have looked; returns the questions."""
        lookups, self.lookups = self.lookups, []
        for order in lookups:
            if not is_open:
                self.carry_out(self.core.not_open(order.transaction, self.step()))
        return lookups

    def advance(self, by_ms: int) -> None:
        """Time passes on both clocks, and the timers that are due fire, each at its time."""
        end_ms = self.now_ms + by_ms
        while due := sorted((deadline_ms, name) for name, deadline_ms in self.timers.items() if deadline_ms <= end_ms):
            deadline_ms, name = due[0]
            self._move(max(self.now_ms, deadline_ms))
            del self.timers[name]
            self.carry_out(self.core.on_timer(name, self.step()))
        self._move(end_ms)

    def restart(self) -> None:
        """A crash: a new core reads the log; requests and orders that waited are lost."""
        self.core = self.new_core()
        for key, value in self.log.items():
            record = decode_record(key, value)
            assert record is not None
            self.core.apply(record)
        self.timers.clear()
        self.orders.clear()
        self.lookups.clear()
        step = self.step()
        for _ in self.core.loaded(step):
            pass
        self.carry_out(step.effects)

    def carry_out(self, effects: Effects) -> None:
        """Does what a decision says, and all its slices."""
        self._obey(effects)
        if effects.rest is not None:
            for later in effects.rest[1]:
                self._obey(later)

    def replayed(self) -> TransactionCore:
        """A core that has read the log so far."""
        core = self.new_core()
        for record in self.written:
            core.apply(record)
        return core

    def _obey(self, effects: Effects) -> None:
        for record in effects.records:
            self.core.apply(record)
            self.written.append(record)
            key, value = encode_record(record)
            self.log.pop(key, None)
            self.log[key] = value
        for name, deadline_ms in effects.timers.items():
            if deadline_ms is None:
                self.timers.pop(name, None)
            else:
                self.timers[name] = deadline_ms
        for token, response in effects.replies:
            assert token not in self.answers, f"a second answer to request {token}: {response}"
            self.answers[token] = response
        for order in effects.orders or ():
            if isinstance(order, FindOpen):
                self.lookups.append(order)
            else:
                assert isinstance(order, WriteMarkers)
                self.orders.append(order)
        self.notes += [note.event for note in effects.notes]

    def _move(self, to_ms: int) -> None:
        self.wall_ms += to_ms - self.now_ms
        self.now_ms = to_ms


def adding(
    name: str, pid: int, epoch: int, *partitions: int, verify: bool = False, topic: str = "orders"
) -> AddPartitionsToTxnRequest:
    """AddPartitionsToTxn of one topic, whose id is ``id-`` and its name."""
    return AddPartitionsToTxnRequest(name, pid, epoch, (TransactionTopic(topic, f"id-{topic}", partitions),), verify)
