"""Commits that came before their writes were acknowledged, held until those are on disk.

A producer may send EndTxn in the same go as its last Produce. It says then what has to be on disk first: of each partition
the sequence that it sent last. A partition takes the sequences of a transaction in order and without gaps, so that one is in
the log only if all before it are. Once each is below the high watermark, the commit goes to the coordinator as if it had
come just then, which decides by what it knows at that moment. If that does not come about, the commit is refused and nothing
is decided: a write was refused, or could not be stored, or has not come within ``HOLD_S``, or the partition has another
leader, whose log cannot be seen from here. The producer then waits for its acknowledgements itself, and commits again.

Once all its writes are appended and on their way to the disk, a commit may be decided ahead: the coordinator decides, and
writes its decision when they are on disk, so that a decision is never there without what it is about. That is only done
while the coordinator is at rest, as what is decided after that waits as well. If a write fails then, the decision is void,
as if it had failed itself.

Pure but for the timer that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from coordinator.runtime.participants import CallLater, Timer
from protocol.messages.transactions import EndTxnRequest

HOLD_S: Final = 5.0
"""How long a commit waits for its writes."""

AHEAD_S: Final = 15.0
"""How long one that is decided ahead waits for the disk, from then on: all that its coordinator decided since is void after
that, so no producer may bring that about by writes that come just before ``HOLD_S`` is over."""

MAX_WRITES: Final = 256
"""Partitions that one commit may wait for: a look at each is some 5 µs."""

MAX_HELD: Final = 4
"""Commits of one transaction that wait: of its producer, and what comes again over other connections."""

Ahead = Callable[[], Callable[[str], None] | None]
"""Has the coordinator decide a commit whose writes are on their way to the disk. Returns what is told, once: "" when they
are there, or why they will not be; None when it was not decided."""

Transaction = tuple[int, int]
"""Producer id and epoch."""

Writes = Mapping[tuple[str, int], int]
"""The last sequence of a transaction by topic and partition."""


class Written(Protocol):
    """The last batch of a transaction in a log."""

    @property
    def last_sequence(self) -> int:
        """That of its last record."""

    @property
    def next_offset(self) -> int:
        """The offset behind it."""


class Log(Protocol):
    """The log of a partition, as its leader has it."""

    def last_written(self, producer_id: int, epoch: int) -> Written | None:
        """The last batch that was appended of this transaction; None when it is not open here."""

    def when_committed(self, offset: int, callback: Callable[[Exception | None], None], /) -> None:
        """Calls back once everything below ``offset`` is, perhaps at once; with the error that kept it from being so."""


class HeldCommit:
    """One commit: what it still waits for, and its two ways out, of which one is taken, once."""

    __slots__ = ("_ahead", "_go_on", "_refuse", "absent", "owner", "timer", "transaction", "unstored")

    def __init__(
        self,
        owner: HeldCommits,
        transaction: Transaction,
        writes: Writes,
        go_on: Callable[[], None],
        refuse: Callable[[str], None],
        ahead: Ahead | None = None,
    ) -> None:
        self.owner = owner
        self.transaction = transaction
        self.absent = dict(writes)
        """What has not been appended."""
        self.unstored = 0
        """In how many partitions all is appended and not known to be on disk."""
        self.timer: Timer | None = None
        self._go_on: Callable[[], None] | None = go_on
        self._refuse = refuse
        self._ahead = ahead

    @property
    def open(self) -> bool:
        """Whether it is held, or decided ahead and not written."""
        return self._go_on is not None

    def decide_ahead(self) -> bool:
        """Has it decided, if it may be and its writes are on their way to the disk; returns whether it was.

        Then only their fate counts: it is not dropped any more, nor refused for what becomes of other writes.
        """
        if self._ahead is None or self.absent or not self.open or (told := self._ahead()) is None:
            return False
        self._ahead, self._go_on, self._refuse = None, partial(told, ""), told
        self.owner.forget(self)
        self.owner.bound(self, AHEAD_S, f"its writes were not on disk within {AHEAD_S:.0f} s")
        return True

    def go_on_if_stored(self) -> None:
        """Lets it go to the coordinator when nothing is missing."""
        if not self.absent and not self.unstored and (go_on := self._end()) is not None:
            go_on()

    def refuse(self, why: str) -> None:
        """It cannot be decided here."""
        if self._end() is not None:
            self._refuse(why)

    def drop(self) -> None:
        """Nobody waits for it any more."""
        self._end()

    def _end(self) -> Callable[[], None] | None:
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            if self.timer is not None:
                self.timer.cancel()
            self.owner.forget(self)
        return go_on


class HeldCommits:
    """The commits that one node holds. ``log_of`` gives the log of a partition that this node can answer for."""

    def __init__(self, log_of: Callable[[str, int], Log | None], call_later: CallLater) -> None:
        self._log_of = log_of
        self._call_later = call_later
        self._held: dict[Transaction, list[HeldCommit]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def enter(
        self,
        request: EndTxnRequest,
        is_current: Callable[[], bool],
        go_on: Callable[[], None],
        refuse: Callable[[str], None],
        ahead: Ahead | None = None,
    ) -> HeldCommit | None:
        """Lets an EndTxn go to the coordinator, now or later, or refuses it; returns it while it is held.

        ``is_current`` says whether its transaction is the one that the id has now, as far as the coordinator is there to say
        so: of any other it knows the answer without the writes. An abort ends what is held of the same transaction.
        """
        transaction = request.producer_id, request.producer_epoch
        if not request.committed:
            self.give_up(transaction, "its producer wants the transaction aborted")
        elif request.unacknowledged and is_current():
            writes = {
                (topic.name, each.partition_index): each.sequence
                for topic in request.unacknowledged
                for each in topic.partitions
            }
            held = self.hold(transaction, writes, go_on, refuse, ahead)
            return held if held in self._held.get(transaction, ()) else None
        go_on()
        return None

    def hold(
        self,
        transaction: Transaction,
        writes: Writes,
        go_on: Callable[[], None],
        refuse: Callable[[str], None],
        ahead: Ahead | None = None,
    ) -> HeldCommit:
        """Calls ``go_on`` as soon as all of ``writes`` are on disk, or else ``refuse`` with the reason; perhaps at once.

        Instead of these ``ahead`` once they are on their way there, if that decides it.
        """
        held = HeldCommit(self, transaction, writes, go_on, refuse, ahead)
        if len(writes) > MAX_WRITES:
            held.refuse(f"a commit waits for at most {MAX_WRITES} partitions, and this one names {len(writes)}")
            return held
        if len(self._held.get(transaction, ())) >= MAX_HELD:
            held.refuse(f"{MAX_HELD} commits of it wait already")
            return held
        self._held.setdefault(transaction, []).append(held)
        self.bound(held, HOLD_S, f"its writes have not come within {HOLD_S:.0f} s")
        for place in writes:
            if held.open:
                self._look(held, place)
        held.go_on_if_stored()
        held.decide_ahead()
        return held

    def appended(self, transaction: Transaction, topic: str, partition: int) -> None:
        """A write of a transaction was appended to the log of a partition."""
        place = topic, partition
        for held in tuple(self._held.get(transaction, ())):
            if held.open and place in held.absent:
                self._look(held, place)
                held.decide_ahead()

    def give_up(self, transaction: Transaction, why: str) -> None:
        """A write of a transaction was refused, or its producer wants it aborted: no commit waits for it any more."""
        for held in tuple(self._held.get(transaction, ())):
            held.refuse(why)

    def bound(self, held: HeldCommit, seconds: float, why: str) -> None:
        """From now on it waits so long, and is refused for this reason then."""
        if held.timer is not None:
            held.timer.cancel()
        held.timer = self._call_later(seconds, partial(held.refuse, why))

    def forget(self, held: HeldCommit) -> None:
        """It is held no more."""
        others = self._held.get(held.transaction)
        if others is not None and held in others:
            others.remove(held)
            if not others:
                del self._held[held.transaction]

    def _look(self, held: HeldCommit, place: tuple[str, int]) -> None:
        name = f"{place[0]}-{place[1]}"
        log = self._log_of(*place)
        if log is None:
            held.refuse(f"what is written to {name} cannot be seen here")
            return
        written = log.last_written(*held.transaction)
        if written is not None and written.last_sequence == held.absent[place]:
            del held.absent[place]
            held.unstored += 1
            log.when_committed(written.next_offset, partial(self._stored, held, name))

    def _stored(self, held: HeldCommit, name: str, error: Exception | None) -> None:
        if error is not None:
            held.refuse(f"a write to {name} was not stored: {error}")
        else:
            held.unstored -= 1
            held.go_on_if_stored()
