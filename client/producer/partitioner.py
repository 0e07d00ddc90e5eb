"""Which partition a record goes to.

The order of choice is Kafka's: an explicit partition; a custom partitioner; the hash of the key, over *all* partitions of
the topic, so that a key stays where it is while leaders come and go; and for records without a key the sticky choice,
which fills one partition with a batch's worth of bytes before it draws another, seldom one that lags (KIP-480, KIP-794).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Final

from protocol.hashing import partition_for_key

Partitioner = Callable[[str, bytes | None, bytes | None, Sequence[int], Sequence[int]], int | None]
"""``(topic, key, value, partitions, available) -> int | None``.

``key`` and ``value`` are bytes as they will be stored. ``partitions`` are all partitions of the topic, ``available`` those
that have a leader at the moment. ``None`` leaves the record to the default choice. It is called once a record.
"""

_REMEMBERED_KEYS: Final = 65_536
_REMEMBERED_BYTES: Final = 16 * 1024 * 1024


class KeyPartitions(dict[bytes, int]):
    """The partition of each key of one topic: ``keys[key]`` is murmur2's choice, and recent answers are remembered.

    Hashing costs microseconds in Python and real keys repeat. ``partitions`` is the number of partitions of the topic; at
    most 65,536 keys or 16 MB of them are remembered, after which the memory starts afresh.
    """

    __slots__ = ("_bytes", "partitions")

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self.partitions = partitions
        self._bytes = 0

    def __missing__(self, key: bytes) -> int:
        if len(self) >= _REMEMBERED_KEYS or self._bytes >= _REMEMBERED_BYTES:
            self.clear()
            self._bytes = 0
        self._bytes += len(key)
        self[key] = partition = partition_for_key(key, self.partitions)
        return partition


class StickyPartitioner:
    """The choice for records without a key, in one topic.

    It stays on a partition until ``batch_size`` bytes went there and its batch is full, or twice as many bytes in any case,
    and then draws another: partitions get their shares in bytes and batches are full (KIP-794). ``backlog`` tells how many
    batches each partition has that are not acknowledged yet, None for a partition that is to get nothing; a partition with
    more of them is drawn less often, so a slow leader gets what it can take. Without it, or while all have as many, each
    partition that has a leader is as likely as any other. While no partition has a leader, all of them may be drawn.

    ``update`` names the partitions before the first choice. ``random`` is injected so that a simulation can repeat its
    draws.
    """

    __slots__ = ("_backlog", "_batch_size", "_candidates", "_produced", "_random", "current")

    def __init__(
        self, random: Random, batch_size: int, backlog: Callable[[], Sequence[int | None]] | None = None
    ) -> None:
        self._random = random
        self._batch_size = batch_size
        self._backlog = backlog
        self._produced = 0
        self._candidates: tuple[int, ...] = ()
        self.current = -1

    def update(self, partitions: Sequence[int], available: Sequence[int]) -> None:
        """Takes note of the partitions of the topic and of those that have a leader."""
        self._candidates = tuple(available or partitions)
        if self.current not in self._candidates:
            self._draw()

    def partition_for_next(self, is_full: bool) -> int:
        """The partition of the next record; ``is_full`` says that the batch of ``current`` takes no more of it."""
        if is_full and self._produced >= self._batch_size:
            self._draw()
        return self.current

    @property
    def room(self) -> int:
        """Bytes that this partition takes at most before another one is drawn."""
        return max(0, 2 * self._batch_size - self._produced)

    def produced(self, size: int) -> None:
        """Counts ``size`` bytes that were produced to the partition."""
        self._produced += size
        if self._produced >= 2 * self._batch_size:
            self._draw()

    def _draw(self) -> None:
        self._produced = 0
        loads = self._loads()
        if loads:
            peak = max(loads.values())
            running = list(accumulate(peak + 1 - load for load in loads.values()))
            drawn = bisect_right(running, self._random.randrange(running[-1]))
            self.current = list(loads)[drawn]
            return
        others = [partition for partition in self._candidates if partition != self.current]
        if others:
            self.current = others[self._random.randrange(len(others))]

    def _loads(self) -> dict[int, int]:
        """Batches not acknowledged by partition; empty when all candidates are to be as likely."""
        if self._backlog is None:
            return {}
        backlog = self._backlog()
        loads = {index: load for index in self._candidates if (load := backlog[index]) is not None}
        return loads if len(loads) < len(self._candidates) or len(set(loads.values())) > 1 else {}
