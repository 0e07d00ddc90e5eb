"""Which partition a record goes to.

The order of choice is Kafka's: an explicit partition; a custom partitioner; the hash of the key, over *all* partitions of
the topic, so that a key stays where it is while leaders come and go; and for records without a key the sticky choice,
which fills one partition with a batch's worth of bytes before it draws another (KIP-480, KIP-794).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from protocol.hashing import partition_for_key

Partitioner = Callable[[str, bytes | None, bytes | None, Sequence[int], Sequence[int]], int | None]
"""``(topic, key, value, partitions, available) -> int | None``.

``key`` and ``value`` are bytes as they will be stored. ``partitions`` are all partitions of the topic, ``available`` those
that have a leader at the moment. ``None`` leaves the record to the default choice. It is called once a record.
"""

_REMEMBERED_KEYS: Final = 65_536


class KeyPartitions(dict[bytes, int]):
    """The partition of each key of one topic: ``keys[key]`` is murmur2's choice, and recent answers are remembered.

    Hashing costs microseconds in Python and real keys repeat. ``partitions`` is the number of partitions of the topic; at
    most 65,536 keys are remembered, after which the memory starts afresh.
    """

    __slots__ = ("partitions",)

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self.partitions = partitions

    def __missing__(self, key: bytes) -> int:
        if len(self) >= _REMEMBERED_KEYS:
            self.clear()
        self[key] = partition = partition_for_key(key, self.partitions)
        return partition


class StickyPartitioner:
    """The choice for records without a key, in one topic.

    It stays on a partition until the next record does not fit into ``batch_size`` bytes any more, and then draws another
    one that has a leader, each as likely as any: partitions get equal shares of bytes, and batches are full. While no
    partition has a leader, all of them may be drawn. ``update`` names the partitions before the first choice. ``random``
    is injected so that a simulation can repeat its draws.
    """

    __slots__ = ("_batch_size", "_candidates", "_current", "_produced", "_random")

    def __init__(self, random: Random, batch_size: int) -> None:
        self._random = random
        self._batch_size = batch_size
        self._produced = 0
        self._current = -1
        self._candidates: tuple[int, ...] = ()

    def update(self, partitions: Sequence[int], available: Sequence[int]) -> None:
        """Takes note of the partitions of the topic and of those that have a leader."""
        self._candidates = tuple(available or partitions)
        if self._current not in self._candidates:
            self._draw()

    def partition_for(self, size: int) -> int:
        """The partition of the next record, which has ``size`` bytes."""
        if self._produced and self._produced + size > self._batch_size:
            self._draw()
        return self._current

    @property
    def room(self) -> int:
        """Bytes that this partition still takes before another one is drawn."""
        return max(0, self._batch_size - self._produced)

    def produced(self, size: int) -> None:
        """Counts ``size`` bytes that were produced to the partition."""
        self._produced += size

    def _draw(self) -> None:
        others = [partition for partition in self._candidates if partition != self._current]
        if others:
            self._current = others[self._random.randrange(len(others))]
        self._produced = 0
