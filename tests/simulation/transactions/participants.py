"""Where transactions write: leaders of partitions, and a shard of groups. Both are entered by the real ``Admission``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coordinator.groups.config import AnyTopic, GroupConfig
from coordinator.groups.core import GroupCore
from coordinator.groups.records import decode_record, encode_record
from coordinator.log.transactions import OpenTransaction, OpenTransactions
from coordinator.runtime.admission import Admission, TransactionalWrite
from coordinator.runtime.effects import Effects, Instant, RequestContext, Step
from coordinator.runtime.kept_epochs import KeptEpochWrite
from coordinator.runtime.participants import ParticipantKey, TransactionName
from coordinator.transactions.orders import MarkerOutcome
from coordinator.transactions.records import Identity
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, TxnOffsetCommitRequest
from tests.simulation.transactions.facts import violated
from tests.simulation.transactions.nodes import Node

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

Ends = Sequence[tuple[int, int, bool]]
Report = Callable[..., None]
Value = tuple[int, object, str]

OFFSETS: Final[ParticipantKey] = ("__consumer_offsets", "id-offsets", 0)


class Data(NamedTuple):
    """A batch of one record."""

    writer: Identity
    sequence: int
    value: Value
    kept: Identity | None = None
    """As a producer that keeps its epoch names itself."""


class Marks(NamedTuple):
    """A control batch."""

    ends: tuple[tuple[int, int, bool], ...]


class _Timer:
    def __init__(self) -> None:
        self.wanted = True

    def cancel(self) -> None:
        self.wanted = False


class Participant(Node):
    """What partitions and groups have in common: admission, and the way to the coordinator."""

    def __init__(self, world: World, name: str, key: ParticipantKey) -> None:
        super().__init__(world, name)
        self.key = key
        self.full_until_ms = 0
        self.admission = Admission(self, self._call_later)
        self.boot()

    def lose(self, keep: int) -> None:
        """What waited for the coordinator is lost with the process."""
        super().lose(keep)
        self.admission = Admission(self, self._call_later)

    def add(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        """Asks the coordinator, over a network."""
        life, world = self.life, self.world

        def answered(response: Any) -> None:
            if life == self.life:
                done(response)

        def deliver(asked: Request) -> None:
            world.coordinator.deliver(asked, lambda response: world.send(answered, response))

        world.send(deliver, request)

    def open_epoch(self, producer_id: int) -> int | None:
        """See ``admission.Participant``."""
        raise AssertionError("each kind has its own")

    def may_be_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction is open here, or will be if the coordinator's answer says so."""
        return self.open_epoch(producer_id) == epoch or self.admission.awaits(self.key, producer_id, epoch)

    @property
    def is_full(self) -> bool:
        """Whether its disk takes nothing."""
        return not self.world.calm and self.world.now_ms < self.full_until_ms

    def marker(self, what: tuple[Ends, Report]) -> None:
        """An end marker arrives: the admission hears of it first."""
        ends, report = what
        if self.is_full:
            report(MarkerOutcome.REFUSED, "the disk is full")
            return
        self.admission.marker(self.key, ends)
        self.end(ends)
        report(MarkerOutcome.TAKEN)
        self.when_synced(partial(report, MarkerOutcome.DONE))

    def end(self, ends: Ends) -> None:
        """Ends what is open here with that epoch."""

    def enter(
        self,
        name: TransactionName,
        sequence: int,
        proceed: Callable[[], None],
        refuse: Callable[[ErrorCode, str], None],
    ) -> None:
        """A write arrives."""
        self.admission.enter(name, [TransactionalWrite(self.key, self, sequence, proceed, refuse)])

    def enter_under_kept_epoch(
        self, name: TransactionName, proceed: Callable[[int, int], None], refuse: Callable[[ErrorCode, str], None]
    ) -> None:
        """A write of a producer that keeps its epoch arrives."""
        self.admission.enter_under_kept_epoch(name, [KeptEpochWrite(self.key, self, proceed, refuse)])

    def _call_later(self, delay_s: float, happens: Callable[[], None]) -> _Timer:
        timer, life = _Timer(), self.life

        def fire(_: None) -> None:
            if timer.wanted and life == self.life:
                happens()

        self.world.later(int(delay_s * 1000), fire, None)
        return timer


class Leader(Participant):
    """The leader of one partition. Its readers have read_committed and keep up with the last stable offset."""

    def __init__(self, world: World, number: int) -> None:
        self.writers: dict[int, tuple[OpenTransaction, int]] = {}
        self.open = OpenTransactions()
        self.aborted: dict[int, list[tuple[int, int]]] = {}
        """First offset and marker's offset of each aborted transaction, by producer id."""
        self.stable = 0
        self.numbered: dict[Identity, int] = {}
        """The next sequence of producers that keep their epoch."""
        super().__init__(world, f"P{number}", ("orders", f"id-{number}", number))

    def produce(
        self,
        name: TransactionName,
        sequence: int,
        value: Value,
        answer: Callable[[ErrorCode], None],
        keeps_epoch: bool = False,
    ) -> None:
        """A Produce with one batch."""
        named = Identity(name.producer_id, name.producer_epoch)
        if keeps_epoch:

            def proceed(*transaction: int) -> None:
                self._write(Data(Identity(*transaction), sequence, value, named), answer)

            self.enter_under_kept_epoch(name, proceed, lambda code, _: answer(code))
            return
        write = Data(named, sequence, value)
        self.enter(name, sequence, partial(self._write, write, answer), lambda code, _: answer(code))

    def open_epoch(self, producer_id: int) -> int | None:
        """See ``admission.Participant``."""
        found = self.writers.get(producer_id)
        return None if found is None else found[0].epoch

    def end(self, ends: Ends) -> None:
        """Appends a control batch if one of the transactions is open here."""
        live = tuple(
            (pid, epoch, commits)
            for pid, epoch, commits in ends
            if pid in self.writers and self.writers[pid][0].epoch == epoch
        )
        if live:
            self.append(Marks(live))
            self._apply(len(self.log) - 1)

    def boot(self) -> None:
        """Recovers what is open from the log."""
        self.writers.clear()
        self.open = OpenTransactions()
        self.aborted.clear()
        self.numbered.clear()
        for offset in range(len(self.log)):
            self._apply(offset)
        self.open.settle(self.synced)
        self.open.acknowledge(self.synced)
        self._read()

    def refuse_writes(self) -> None:
        """The disk refuses what was not synced: the log takes it back, and those who wait are not answered."""
        self.world.tell(f"{self.name} takes back {len(self.log) - self.synced} entries")
        self.open.undo()
        kept = self.open
        self.lose(self.synced)
        self.boot()
        if kept.open() != self.open.open() or kept.first_offset != self.open.first_offset:
            violated(
                "recovered_logs_know_the_same_transactions", f"{kept.open()} after undo, {self.open.open()} in the log"
            )

    def on_synced(self, first: int, end: int) -> None:
        """Readers go on."""
        if end == len(self.log) or end > first:
            self.open.settle(end)
            self.open.acknowledge(end)
            self._read()

    def _write(self, write: Data, answer: Callable[[ErrorCode], None]) -> None:
        found = self.writers.get(write.writer.producer_id)
        following = 0 if found is None else found[1]
        if write.kept is not None:
            following = self.numbered.get(write.kept, 0)
        if self.is_full:
            answer(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        if write.sequence > following:
            answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            return
        if write.sequence == following:
            if found is None:
                self.world.facts.opened(write.writer, (self.key[1], self.key[2]))
            self.append(write)
            self._apply(len(self.log) - 1)
        self.when_synced(partial(answer, ErrorCode.NONE))

    def _apply(self, offset: int) -> None:
        entry = self.log[offset]
        if isinstance(entry, Data):
            if entry.kept is not None:
                self.numbered[entry.kept] = entry.sequence + 1
            pid, epoch = entry.writer
            found = self.writers.get(pid)
            if found is None:
                opened = OpenTransaction(pid, epoch, offset, 0)
                self.open.note(opened)
                self.writers[pid] = opened, entry.sequence + 1
            else:
                self.writers[pid] = found[0], entry.sequence + 1
        else:
            for pid, _, commits in entry.ends:
                opened = self.writers.pop(pid)[0]
                self.open.end(opened, offset)
                if not commits:
                    self.aborted.setdefault(pid, []).append((opened.first_offset, offset))

    def _read(self) -> None:
        stable = self.open.last_stable_offset(self.synced)
        if stable < self.stable:
            violated("the_stable_end_never_falls", f"{self.name} goes back from {self.stable} to {stable}")
        for offset in range(self.stable, stable):
            entry = self.log[offset]
            if isinstance(entry, Data) and not self._is_aborted(entry.writer.producer_id, offset):
                self.world.facts.read(entry.writer, (entry.value,))
                self.world.read[self.name].append(offset)
        self.stable = stable

    def _is_aborted(self, producer_id: int, offset: int) -> bool:
        return any(first <= offset < end for first, end in self.aborted.get(producer_id, ()))

    def check_what_was_read(self) -> None:
        """A reader that begins anew reads the same."""
        again = [
            offset
            for offset in range(self.stable)
            if isinstance(self.log[offset], Data) and not self._is_aborted(self.log[offset].writer.producer_id, offset)
        ]
        if again != self.world.read[self.name]:
            violated("what_was_read_stays", f"{self.name}: {self.world.read[self.name]} were read, now {again}")


class GroupShard(Participant):
    """A partition of ``__consumer_offsets`` with the real group core."""

    def __init__(self, world: World) -> None:
        self.config = GroupConfig()
        self.tokens = 0
        self.answers: dict[int, Callable[[Response], None]] = {}
        super().__init__(world, "G", OFFSETS)

    def boot(self) -> None:
        """A new core reads the log."""
        self.core = self.replayed()
        self.answers.clear()
        for _ in self.core.loaded(self._step()):
            pass

    def replayed(self) -> GroupCore:
        """A core that has read the log so far."""
        core = GroupCore(self.config, str, AnyTopic())
        for entry in self.log:
            record = decode_record(*encode_record(entry))
            assert record is not None
            core.apply(record)
        return core

    def open_epoch(self, producer_id: int) -> int | None:
        """See ``admission.Participant``."""
        return self.core.open_epoch(producer_id)

    def end(self, ends: Ends) -> None:
        """Pending offsets become committed ones, or are gone."""
        self._obey(self.core.end_transactions(ends, self._step()))

    def ask(self, request: Request, answer: Callable[[Response], None]) -> None:
        """A request of a client; TxnOffsetCommit is admitted first."""
        if isinstance(request, TxnOffsetCommitRequest) and request.keeps_epoch:
            kept = TransactionName(request.transactional_id, request.producer_id, request.producer_epoch)
            self.enter_under_kept_epoch(
                kept,
                lambda pid, epoch: self._commit(replace(request, producer_id=pid, producer_epoch=epoch), answer),
                lambda code, message: answer(self.core.refusal(request, code, message)),
            )
        elif isinstance(request, TxnOffsetCommitRequest):
            name = TransactionName(request.transactional_id, request.producer_id, request.producer_epoch)
            self.enter(
                name,
                0,
                partial(self._commit, request, answer),
                lambda code, message: answer(self.core.refusal(request, code, message)),
            )
        else:
            self._decide(request, answer)

    def sample(self) -> None:
        """Checks what costs."""
        if self.replayed().durable_state() != self.core.durable_state():
            violated("replay_equals_live_state", "the group core's state is another after a replay")
        self.compact(encode_record)

    def _commit(self, request: TxnOffsetCommitRequest, answer: Callable[[Response], None]) -> None:
        if self.core.open_epoch(request.producer_id) is None:
            self.world.facts.opened(Identity(request.producer_id, request.producer_epoch), (self.key[1], self.key[2]))
        self._decide(request, answer)

    def _decide(self, request: Request, answer: Callable[[Response], None]) -> None:
        self.tokens += 1
        self.answers[self.tokens] = answer
        self._obey(self.core.decide(request, self._step(self.tokens)))

    def _step(self, token: int = 0) -> Step[GroupConfig]:
        now_ms = self.world.now_ms
        now = Instant(now_ms, now_ms + self.world.wall_offset_ms)
        return Step(now, self.config, RequestContext(token, "client", "host"))

    def _obey(self, effects: Effects) -> None:
        for record in effects.records:
            self.core.apply(record)
            self.append(record)
        assert effects.rest is None, "a group without members needs no slices"
        for token, response in effects.replies:
            self.when_synced(partial(self.answers.pop(token), response))
