"""The open transactions of a partition, in the order in which they began: pure.

A transaction is open in a partition from its first batch to its end marker. Everything below the *last stable offset*
is acknowledged and decided: it is the high watermark, or the first offset of the oldest transaction that is open, or
whose end marker is not below the high watermark yet. So an end counts for readers once it is on disk, and the last stable
offset never falls when a write is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

_NONE: Final = 2**63 - 1
"""Where the oldest transaction begins if there is none: behind every offset."""
_SPARE: Final = 64


class OpenTransaction(NamedTuple):
    """A transaction, named by producer id and epoch, in one partition.

    ``first_offset`` is that of its first record there. ``started_ms`` is the daemon's wall time of that append; after a
    crash the time of its first record, as the log has no other.
    """

    producer_id: int
    epoch: int
    first_offset: int
    started_ms: int


class OpenTransactions:
    """The transactions of one partition that hold the last stable offset.

    ``note`` and ``end`` say what is being appended; ``settle`` that it is written, and ``acknowledge`` that it is below the
    high watermark; ``undo`` takes back what has not been settled.
    """

    __slots__ = ("_ended", "_order", "_transactions", "_unacknowledged", "_unsettled", "first_offset")

    def __init__(self, transactions: Iterable[OpenTransaction] = ()) -> None:
        ordered = sorted(transactions, key=lambda transaction: transaction.first_offset)
        self._transactions = {transaction.first_offset: transaction for transaction in ordered}
        self._order = deque(self._transactions)
        """First offsets, some of settled ones too: to look for the first key of a dictionary passes over removed ones."""
        self._ended: set[int] = set()
        """First offsets of those whose end marker is being appended."""
        self._unsettled: deque[tuple[int, int]] = deque()
        """Where something is being appended, and the first offset of its transaction: the same if it opens that."""
        self._unacknowledged: deque[tuple[int, int]] = deque()
        """Where an end marker is written, and the first offset of its transaction."""
        self.first_offset = _NONE
        """The first offset of the oldest one; beyond every offset when there is none."""
        self._find_first()

    def __len__(self) -> int:
        """How many are open; those being ended are not."""
        return len(self._transactions) - len(self._ended)

    def open(self) -> list[OpenTransaction]:
        """Those that are open, in the order in which they began."""
        ended = self._ended
        return [transaction for first, transaction in self._transactions.items() if first not in ended]

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below it everything is acknowledged and decided."""
        return high_watermark if high_watermark < self.first_offset else self.first_offset

    def note(self, transaction: OpenTransaction) -> None:
        """A transaction begins with a batch that is being appended; no earlier one has a first offset as high."""
        first = transaction.first_offset
        self._transactions[first] = transaction
        self._order.append(first)
        self._unsettled.append((first, first))
        if first < self.first_offset:
            self.first_offset = first

    def end(self, transaction: OpenTransaction, offset: int) -> None:
        """The end marker of an open transaction is being appended at ``offset``, behind its first record."""
        self._ended.add(transaction.first_offset)
        self._unsettled.append((offset, transaction.first_offset))

    def settle(self, offset: int) -> None:
        """Everything below ``offset`` is written."""
        unsettled = self._unsettled
        while unsettled and unsettled[0][0] < offset:
            at, first = unsettled.popleft()
            if at != first:
                self._unacknowledged.append((at, first))

    @property
    def unacknowledged(self) -> bool:
        """Whether an end marker is written and not known to be below the high watermark."""
        return bool(self._unacknowledged)

    def acknowledge(self, high_watermark: int) -> None:
        """Everything below is acknowledged: what ended there is decided for readers, too."""
        unacknowledged = self._unacknowledged
        while unacknowledged and unacknowledged[0][0] < high_watermark:
            _, first = unacknowledged.popleft()
            del self._transactions[first]
            self._ended.discard(first)
        if len(self._order) > 2 * len(self._transactions) + _SPARE:  # behind one that stays open for long
            self._order = deque(self._transactions)
        self._find_first()

    def undo(self) -> None:
        """Takes back what has not been settled: it never got into the log."""
        while self._unsettled:
            at, first = self._unsettled.pop()
            if at == first:
                del self._transactions[first]
                self._order.pop()
            else:
                self._ended.discard(first)
        self._find_first()

    def _find_first(self) -> None:
        order = self._order
        while order and order[0] not in self._transactions:
            order.popleft()
        self.first_offset = order[0] if order else _NONE
