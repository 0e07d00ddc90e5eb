"""What the coordinator knows of each transactional id.

Durable: its identity and the members of its transactions, which ``TransactionCore.apply`` alone changes. Soft: markers that
are not written yet, requests that are parked, the transaction timeout.

A decided transaction is *completing* while the next one is *current* and may be open. Transactions are named by producer id
and epoch and never by the id and an epoch: epochs begin again with each new producer id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from coordinator.runtime.effects import ReplyToken, RequestContext, TimerName
from coordinator.transactions.config import TransactionStep
from coordinator.transactions.orders import MarkerPartition
from coordinator.transactions.records import NO_PRODUCER, Ended, Identity, IdentityRecord, MemberRecord, unknown_id
from protocol.messages import Request
from protocol.messages.transactions import NO_VERSION, TransactionTopic
from protocol.names import clipped

TIMEOUT: Final = "timeout"
"""The kind of the timer that aborts a transaction which nobody ends. Named by the transactional id, as ``PARKED`` is."""

PARKED: Final = "parked"
"""The kind of the timer that answers requests which have been parked for too long."""

COMPLETIONS_TIMER: Final[TimerName] = ("completions",)
"""The timer that writes which transactions are complete, when no other record has been written since."""

MarkerKey = tuple[str, int]
"""Names a partition among the markers of a transaction: topic id and number."""


class Members(dict[int, MemberRecord]):
    """The members of one transaction by their producer ids, and who of them writes where."""

    __slots__ = ("writers", "writes")

    def __init__(self) -> None:
        super().__init__()
        self.writers: dict[MarkerPartition, list[int]] = {}
        """By partition: also members that have left the log, as their markers are on their way."""
        self.writes = 0
        """Pairs of a member and a partition it writes to."""

    def take(self, record: MemberRecord) -> None:
        """A member is new, or writes in more partitions than before."""
        before = self.get(record.producer_id)
        self[record.producer_id] = record
        known = frozenset(_places(before)) if before is not None and before.topics else ()
        writers = self.writers
        for place in _places(record):
            if place not in known:
                found = writers.get(place)
                if found is None:
                    writers[place] = [record.producer_id]
                else:
                    found.append(record.producer_id)
                self.writes += 1


def _places(record: MemberRecord) -> Iterator[MarkerPartition]:
    return (
        MarkerPartition(topic.name, topic.topic_id, partition)
        for topic in record.topics
        for partition in topic.partitions
    )


class Waits(NamedTuple):
    """What a request waits for: the marker of the transaction before in one partition, or, with None, all of them."""

    state: TransactionalId
    behind: MarkerKey | None = None


class Parked(NamedTuple):
    """A request that waits until end markers of the transaction before are written."""

    request: Request
    context: RequestContext
    deadline_ms: int
    behind: MarkerKey | None


class Marker:
    """A marker that is not known to be on disk: where, whether the leader has it, and why it was refused the last time."""

    __slots__ = ("partition", "reason", "taken")

    def __init__(self, partition: MarkerPartition) -> None:
        self.partition = partition
        self.taken = False
        self.reason = ""

    def __str__(self) -> str:
        return f"{self.partition}" + (f" ({self.reason})" if self.reason else "")


NO_MEMBERS: Final = Members()


class TransactionalId:
    """One transactional id."""

    __slots__ = (
        "behind",
        "carried",
        "deadline_ms",
        "identity",
        "markers",
        "names",
        "open_since_wall_ms",
        "overdue",
        "parked",
        "touched",
        "transactional_id",
        "transactions",
    )

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.identity: IdentityRecord = unknown_id(transactional_id)
        self.transactions: dict[Identity, Members] = {}
        """Members by the transaction: of the current one, and of the one that is completing."""

        self.names: dict[tuple[Identity, str], int] = {}
        """The producer ids of members that have a name, by transaction and name."""

        self.markers: dict[MarkerKey, Marker] = {}
        """The markers of the completing transaction that are not known to be on disk, by topic id and partition."""

        self.parked: dict[ReplyToken, Parked] = {}
        """In the order they came, and of their deadlines."""

        self.behind: dict[MarkerKey, dict[ReplyToken, None]] = {}
        """Those that wait for one marker, by that marker."""

        self.deadline_ms: int | None = None
        """When the open transaction is aborted, or what is carried is given up."""

        self.carried = False
        """Whether the current transaction has partitions of the one before and nothing is written in it yet (see
        ``carrying``): it counts as not open."""

        self.touched: set[tuple[str, int]] = set()
        """Where the current transaction writes, by topic id and partition, as far as it is known and may be carried."""

        self.open_since_wall_ms = -1
        """Since when the open transaction is open, if its members do not say."""

        self.overdue = False
        """Whether the timeout has passed, and the decision waits for the markers of the transaction before."""

    @property
    def is_known(self) -> bool:
        """Whether a record of its identity has been applied."""
        return self.identity.producer_id != NO_PRODUCER

    @property
    def is_durable(self) -> bool:
        """Whether the log has anything about it."""
        return self.is_known or bool(self.transactions)

    @property
    def current_members(self) -> Members:
        """The members of the current transaction, also of one that is not open: with partitions that are carried."""
        return self.transactions.get(self.identity.identity, NO_MEMBERS)

    @property
    def open_members(self) -> Members:
        """The members of the current transaction; none when nothing is open."""
        return NO_MEMBERS if self.carried else self.current_members

    @property
    def open_version(self) -> int:
        """The version that the open transaction was joined for; -1 for an ordinary one, or when nothing is open."""
        return next((member.version for member in self.open_members.values()), NO_VERSION)

    @property
    def is_decidable(self) -> bool:
        """Whether the current transaction may be decided: all markers of the one before are on disk."""
        return not self.markers

    @property
    def is_finished(self) -> bool:
        """Whether all markers of a decided transaction are on disk, and the log does not say so yet."""
        return self.identity.completing is not None and not self.markers

    def meant(self, named: Identity, keeps_epoch: bool) -> Identity:
        """The transaction that a producer names, which may be one that keeps its epoch from transaction to transaction."""
        return self.identity.identity if keeps_epoch and named == self.identity.kept else named

    @property
    def shown(self) -> str:
        """The id in a sentence."""
        return clipped(self.transactional_id)

    def waits_in(self, topics: Iterable[TransactionTopic]) -> MarkerKey | None:
        """Of which of these partitions the leader may not have the marker of the transaction before yet.

        The last of them: markers are written in order, so that who waits for several is not asked again at each.
        """
        if not self.markers:
            return None
        found = None
        for topic in topics:
            for partition in topic.partitions:
                marker = self.markers.get((topic.topic_id, partition))
                if marker is not None and not marker.taken:
                    found = topic.topic_id, partition
        return found

    def in_the_way(self) -> str:
        """Which partition's marker is waited for, in a sentence."""
        return next((str(marker) for marker in self.markers.values()), "no partition")


class Transactions(dict[str, TransactionalId]):
    """All transactional ids of one partition of ``__transaction_state``."""

    def __init__(self, next_producer_id: Callable[[], int | None], ended: Counter[Ended] | None = None) -> None:
        """``next_producer_id`` gives an id that no producer has had, or None when there is none at hand."""
        super().__init__()
        self.ended: Counter[Ended] = Counter() if ended is None else ended
        """How many transactions have been decided, by how they ended."""
        self.next_producer_id = next_producer_id
        self.requests: dict[ReplyToken, TransactionalId] = {}
        """The ids whose requests are parked, by the request."""

        self.finished: dict[str, None] = {}
        """Ids of transactions that are complete, which the log does not say yet."""

    def add(self, transactional_id: str) -> TransactionalId:
        """A new id, of which no record has been applied yet."""
        state = self[transactional_id] = TransactionalId(transactional_id)
        return state

    def known(self, transactional_id: str) -> TransactionalId | None:
        """The state of an id that has an identity."""
        state = self.get(transactional_id)
        return state if state is not None and state.is_known else None

    def park(self, waits: Waits, request: Request, step: TransactionStep) -> None:
        """The request waits for markers, for ``max_wait_ms`` at most."""
        state, behind = waits
        deadline_ms = step.now.ms + step.config.max_wait_ms
        if not state.parked:
            step.effects.timers[PARKED, state.transactional_id] = deadline_ms
        token = step.context.token
        state.parked[token] = Parked(request, step.context, deadline_ms, behind)
        self.requests[token] = state
        if behind is not None:
            state.behind.setdefault(behind, {})[token] = None

    def park_again(self, waits: Waits, token: ReplyToken) -> None:
        """A request that was asked again has to wait on, perhaps for another marker; its bound stays."""
        state, behind = waits
        self._come_forth(state, token)
        state.parked[token] = state.parked[token]._replace(behind=behind)
        if behind is not None:
            state.behind.setdefault(behind, {})[token] = None

    def unpark(self, state: TransactionalId, token: ReplyToken, step: TransactionStep) -> None:
        """The request waits no longer."""
        self._come_forth(state, token)
        del state.parked[token], self.requests[token]
        first = next(iter(state.parked.values()), None)
        step.effects.timers[PARKED, state.transactional_id] = None if first is None else first.deadline_ms

    def _come_forth(self, state: TransactionalId, token: ReplyToken) -> None:
        behind = state.parked[token].behind
        if behind is not None:
            others = state.behind[behind]
            del others[token]
            if not others:
                del state.behind[behind]


def start_timeout(state: TransactionalId, wait_ms: int, step: TransactionStep) -> None:
    """The open transaction is aborted in ``wait_ms`` if it is not ended."""
    state.deadline_ms = step.effects.timers[TIMEOUT, state.transactional_id] = step.now.ms + wait_ms
    state.overdue = False


def stop_timeout(state: TransactionalId, step: TransactionStep) -> None:
    """Nothing is open any more."""
    if state.deadline_ms is not None:
        step.effects.timers[TIMEOUT, state.transactional_id] = None
    state.deadline_ms = None
    state.overdue = False
