"""Keys with revisions, conditional transactions and leases, as etcd has them; pure.

It is what decides in a store that lives in one process, and what a simulation has for etcd. Times are given, in ms of a
clock that does not jump.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

MAX_OPERATIONS: Final = 120
"""Of a transaction. etcd takes 128 by default, conditions counted apart."""
MIN_TTL_MS: Final = 2_000
FIRST_REVISION: Final = 1


class KeyValue(NamedTuple):
    """A key as it stands. ``version`` counts its changes since ``create_revision``; ``lease`` is 0 without one."""

    key: str
    value: Any
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


class Compare(NamedTuple):
    """A condition: the named number of a key has this value. A key that does not exist has 0 in all three."""

    key: str
    what: Literal["mod", "create", "version"]
    revision: int


class Put(NamedTuple):
    """Sets a key. It goes with its lease, and no longer with one that it had before."""

    key: str
    value: Any
    lease: int = 0


class Delete(NamedTuple):
    """Removes a key; no error when it is not there."""

    key: str


class DeletePrefix(NamedTuple):
    """Removes all keys that begin with ``prefix``."""

    prefix: str


Operation = Put | Delete | DeletePrefix


class Change(NamedTuple):
    """What became of one key; None where it does not exist."""

    key: str
    before: KeyValue | None
    after: KeyValue | None


class Delta(NamedTuple):
    """All that happened at one revision, sorted by key; it is never split."""

    revision: int
    changes: tuple[Change, ...]


class CompactedError(Exception):
    """Deltas were asked for that are forgotten: list all keys and go on from there."""

    def __init__(self, revision: int, compacted: int) -> None:
        super().__init__(f"revision {revision} is not followed any more, what came before {compacted} is compacted")
        self.compacted = compacted


class TransactionError(ValueError):
    """A transaction that makes no sense: nothing of it was done."""


def check(compare: Sequence[Compare], operations: Sequence[Operation], most: int = MAX_OPERATIONS) -> None:
    """Whether a transaction makes sense, whatever the keys are: etcd looks at this first, and so does everybody else.

    Raises ``TransactionError`` for too many conditions or operations, and for a put beside another operation about its key.
    """
    if max(len(compare), len(operations)) > most:
        raise TransactionError(
            f"{len(operations)} operations and {len(compare)} conditions in a transaction, at most {most} of each"
        )
    puts: set[str] = set()
    for operation in operations:
        if isinstance(operation, Put):
            if operation.key in puts:
                raise TransactionError(f"two operations of a transaction are about the key {operation.key}")
            puts.add(operation.key)
    for operation in operations:
        if isinstance(operation, Delete) and operation.key in puts:
            raise TransactionError(f"two operations of a transaction are about the key {operation.key}")
        if isinstance(operation, DeletePrefix):
            for key in puts:
                if key.startswith(operation.prefix):
                    raise TransactionError(f"two operations of a transaction are about the key {key}")


@dataclass(slots=True)
class _Lease:
    ttl_ms: int
    deadline_ms: int
    keys: set[str] = field(default_factory=set)


class Authority:
    """See the module text. ``revision`` rises by one with each transaction that changes something."""

    def __init__(
        self,
        keys: Iterable[KeyValue] = (),
        revision: int | None = None,
        *,
        max_operations: int = MAX_OPERATIONS,
    ) -> None:
        """``keys`` are what there was at ``revision``, of which the past is not known; there is none without a revision.

        Leases that keys have are due.
        """
        self.revision = FIRST_REVISION if revision is None else revision
        self.compacted = revision or 0
        self._max_operations = max_operations
        self._keys: dict[str, KeyValue] = {known.key: known for known in keys}
        self._order: list[str] = sorted(self._keys)
        self._deltas: deque[Delta] = deque()
        self._leases: dict[int, _Lease] = {}
        for known in self._keys.values():
            if known.lease:
                self._leases.setdefault(known.lease, _Lease(MIN_TTL_MS, 0)).keys.add(known.key)
        self._next_lease = max(self._leases, default=0) + 1

    # Reading

    def get(self, key: str) -> KeyValue | None:
        """What a key holds, None when it does not exist."""
        return self._keys.get(key)

    def range(self, prefix: str) -> list[KeyValue]:
        """Every key that begins with ``prefix``, sorted."""
        return [self._keys[key] for key in self._with_prefix(prefix)]

    def since(self, revision: int) -> Iterator[Delta]:
        """What happened after ``revision``, in order. Raises ``CompactedError``, now and not later."""
        if revision < self.compacted:
            raise CompactedError(revision, self.compacted)
        first = self._deltas[0].revision if self._deltas else self.revision + 1
        return (self._deltas[place] for place in range(max(0, revision + 1 - first), len(self._deltas)))

    def _with_prefix(self, prefix: str) -> list[str]:
        found = []
        for place in range(bisect_left(self._order, prefix), len(self._order)):
            if not self._order[place].startswith(prefix):
                break
            found.append(self._order[place])
        return found

    # Writing

    def transaction(self, compare: Sequence[Compare], operations: Sequence[Operation]) -> Delta | None:
        """Carries out all operations at one revision, if every condition holds; None if one does not.

        One that changes nothing has no changes and the revision of before. Raises ``TransactionError`` for too many
        operations, for two of them about one key, and for a lease that is over.
        """
        delta = self.decide(compare, operations)
        if delta is not None:
            self.take(delta)
        return delta

    def decide(self, compare: Sequence[Compare], operations: Sequence[Operation]) -> Delta | None:
        """What ``transaction`` would do, without doing it: who writes it down first calls ``take`` then."""
        check(compare, operations, self._max_operations)
        if not all(self._holds(condition) for condition in compare):
            return None
        changes = {key: self._change(key, put) for operation in operations for key, put in self._touched(operation)}
        return self._delta(changes)

    def _holds(self, condition: Compare) -> bool:
        known = self._keys.get(condition.key)
        if known is None:
            return condition.revision == 0
        if condition.what == "mod":
            return known.mod_revision == condition.revision
        if condition.what == "create":
            return known.create_revision == condition.revision
        return known.version == condition.revision

    def _touched(self, operation: Operation) -> list[tuple[str, Put | None]]:
        if isinstance(operation, Put):
            if operation.lease and operation.lease not in self._leases:
                raise TransactionError(f"the key {operation.key} is to go with lease {operation.lease}, which is over")
            return [(operation.key, operation)]
        if isinstance(operation, Delete):
            return [(operation.key, None)] if operation.key in self._keys else []
        return [(key, None) for key in self._with_prefix(operation.prefix)]

    def _change(self, key: str, put: Put | None) -> Change:
        before = self._keys.get(key)
        if put is None:
            return Change(key, before, None)
        revision = self.revision + 1
        created, version = (revision, 1) if before is None else (before.create_revision, before.version + 1)
        return Change(key, before, KeyValue(key, put.value, created, revision, version, put.lease))

    def _delta(self, changes: dict[str, Change]) -> Delta:
        return Delta(self.revision + bool(changes), tuple(changes[key] for key in sorted(changes)))

    def take(self, delta: Delta) -> None:
        """Makes what was decided true; nothing else may have been taken since."""
        if not delta.changes:
            return
        assert delta.revision == self.revision + 1
        self.revision = delta.revision
        for key, before, after in delta.changes:
            if before is None:
                insort(self._order, key)
            elif before.lease:
                self._leases[before.lease].keys.discard(key)
            if after is None:
                del self._keys[key]
                del self._order[bisect_left(self._order, key)]
            else:
                self._keys[key] = after
                if after.lease:
                    self._leases[after.lease].keys.add(key)
        self._deltas.append(delta)

    def compact(self, revision: int) -> None:
        """Forgets what happened up to ``revision``; keys stay as they are."""
        self.compacted = max(self.compacted, min(revision, self.revision))
        while self._deltas and self._deltas[0].revision <= self.compacted:
            self._deltas.popleft()

    # Leases

    def grant(self, ttl_ms: int, now_ms: int) -> int:
        """A lease, which ends when it was not renewed for ``ttl_ms``, two seconds at least."""
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        ttl_ms = max(ttl_ms, MIN_TTL_MS)
        self._leases[lease] = _Lease(ttl_ms, now_ms + ttl_ms)
        return lease

    def renew(self, lease: int, now_ms: int) -> bool:
        """Begins its time anew; False when it is over."""
        known = self._leases.get(lease)
        if known is None:
            return False
        known.deadline_ms = now_ms + known.ttl_ms
        return True

    def revoke(self, lease: int) -> Delta:
        """Ends a lease: all of its keys are gone at one revision. Nothing happens when it is over."""
        delta = self.end(lease)
        self.take(delta)
        self._leases.pop(lease, None)
        return delta

    def end(self, lease: int) -> Delta:
        """What ``revoke`` would do to keys, without doing it."""
        known = self._leases.get(lease)
        return self._delta({} if known is None else {key: self._change(key, None) for key in known.keys})

    def expire(self, now_ms: int) -> list[Delta]:
        """Ends the leases whose time is over."""
        return [delta for lease in self.due(now_ms) if (delta := self.revoke(lease)).changes]

    def due(self, now_ms: int) -> list[int]:
        """The leases whose time is over, the oldest first."""
        due = sorted((known.deadline_ms, lease) for lease, known in self._leases.items() if known.deadline_ms <= now_ms)
        return [lease for _, lease in due]

    def restart_leases(self, now_ms: int) -> None:
        """Another member leads the store: every lease has all of its time again."""
        for known in self._leases.values():
            known.deadline_ms = now_ms + known.ttl_ms
