"""What a producer keeps of one topic: its partitions, their queues, and how records are spread over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random

from client.errors import CohortError, UnknownTopicOrPartitionError, copy_of
from client.producer.batch import BATCH_OVERHEAD_BYTES, ProducerBatch
from client.producer.partition_queue import PartitionQueue
from client.producer.partitioner import KeyPartitions, Partitioner, StickyPartitioner
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.metadata import Address, Topology
from protocol.subscription import TopicPartition


class LeaderAvailability:
    """Notes of each leader when something was ready to be sent to it, and when something went.

    ``timeout_s`` is for how long, in seconds, nothing may have gone to a leader while something was ready; 0 never minds.
    """

    __slots__ = ("_ready_and_went", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._ready_and_went: dict[Address, tuple[float, float]] = {}

    @property
    def matters(self) -> bool:
        """Whether there is a timeout, so that it is asked for."""
        return self._timeout_s > 0

    def went(self, leader: Address, now: float) -> None:
        """Something is sent to it."""
        self._ready_and_went[leader] = (now, now)

    def held_up(self, leader: Address, now: float) -> None:
        """Something is ready for it, and has to wait for what was sent before."""
        self._ready_and_went[leader] = (now, self._ready_and_went.get(leader, (now, now))[1])

    def is_slow(self, leader: Address | None) -> bool:
        """Whether nothing has gone to it for longer than the timeout. A node that leads nothing is not slow."""
        ready, went = self._ready_and_went.get(leader, (0.0, 0.0)) if leader is not None else (0.0, 0.0)
        return 0 < self._timeout_s < ready - went


class ProducedTopic:
    """A topic that is being produced to, at the cluster's latest picture.

    ``queue_of`` gives the queue of a partition. ``partitioner`` is the user's, if there is one. ``batch_size`` is what a
    batch takes, in bytes. ``is_slow`` says that a partition's leader does not keep up at all; None: records without keys are
    spread evenly, whichever leaders keep up.
    """

    __slots__ = (
        "_batch_size", "_is_slow", "_partitioner", "_queue_of", "available", "keys", "name", "partitions", "queues",
        "sticky",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        topology: Topology,
        *,
        queue_of: Callable[[TopicPartition], PartitionQueue[ProducerBatch]],
        partitioner: Partitioner | None,
        random: Random,
        batch_size: int,
        is_slow: Callable[[TopicPartition], bool] | None = None,
    ) -> None:
        self.name = name
        self._batch_size = batch_size
        self._is_slow = is_slow
        self._queue_of = queue_of
        self._partitioner = partitioner
        self.queues: list[PartitionQueue[ProducerBatch]] = []
        self.partitions: list[int] = []
        self.available: list[int] = []
        self.keys = KeyPartitions(0)
        self.sticky = StickyPartitioner(
            random, batch_size - BATCH_OVERHEAD_BYTES, None if is_slow is None else self._backlog
        )
        self.update(topology)

    def update(self, topology: Topology) -> None:
        """Takes note of new partitions and of leaders that came or went."""
        count = topology.partitions(self.name)
        all_of_it = [TopicPartition(self.name, index) for index in range(count)]
        if count != len(self.partitions):
            self.partitions = list(range(count))
            # None is taken away: a call that chose it when it was there learns of it by the outcome of its record.
            self.queues += [self._queue_of(partition) for partition in all_of_it[len(self.queues) :]]
            self.keys = KeyPartitions(count)
        self.available = [partition.partition for partition in all_of_it if topology.leader(partition) is not None]
        self.sticky.update(self.partitions, self.available)

    @property
    def spreads_evenly(self) -> bool:
        """Whether a record without key and partition goes to the sticky partition, for want of a partitioner."""
        return self._partitioner is None

    def choose(self, key: bytes | None, value: bytes | None, size: int) -> int:
        """The partition of a record for which none was given.

        Raises ``ValueError`` or ``TypeError`` when the user's partitioner gives something else than a partition or None.
        """
        if self._partitioner is not None:
            chosen = self._partitioner(self.name, key, value, self.partitions, self.available)
            if chosen is not None:
                return self._checked_choice(chosen)
        if key is not None:
            return self.keys[key]
        sticky = self.sticky
        batch = self.queues[sticky.current].open
        if batch is None or batch.size + size > self._batch_size:
            partition = sticky.partition_for_next(is_full=True)
        else:  # as most records find it
            partition = sticky.current
        sticky.produced(size)
        return partition

    def sticky_partition(self, size: int) -> int:
        """Where the next record of ``size`` bytes without key goes; ``sticky.produced`` is told when it went there."""
        batch = self.queues[self.sticky.current].open
        return self.sticky.partition_for_next(batch is None or batch.size + size > self._batch_size)

    def _backlog(self) -> list[int | None]:
        assert self._is_slow is not None
        return [
            None if backlog and self._is_slow(queue.partition) else backlog
            for queue in self.queues
            for backlog in (queue.backlog,)  # a leader for which nothing waits cannot show that it keeps up again
        ]

    def by_partition(
        self,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        sizes: Sequence[int],
        block: range,
    ) -> dict[int, list[int]]:
        """Where the records at ``block`` go: partition to ascending indexes. Chooses as ``choose`` does, in order."""
        part = slice(block.start, block.stop)
        chosen: Iterable[int]
        if self._partitioner is None and keys is not None and None not in keys[part]:
            chosen = map(self.keys.__getitem__, keys[part])  # type: ignore[arg-type]
        else:
            block_keys = [None] * len(block) if keys is None else keys[part]
            chosen = map(self.choose, block_keys, values[part], sizes[part])
        grouped: dict[int, list[int]] = {}
        for index, partition in zip(block, chosen, strict=True):
            grouped.setdefault(partition, []).append(index)
        return grouped

    def checked(self, partition: object) -> int:
        """An explicit partition. Raises ``UnknownTopicOrPartitionError`` naming the valid range when there is none such."""
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise TypeError(f"partition must be a whole number or None, not {partition!r}")
        if not 0 <= partition < len(self.partitions):
            raise UnknownTopicOrPartitionError(f"topic {self.name!r} has partitions {self._range()}, not {partition}")
        return partition

    def _checked_choice(self, chosen: object) -> int:
        if not isinstance(chosen, int) or isinstance(chosen, bool):
            raise TypeError(f"the partitioner gave {chosen!r} for topic {self.name!r}: it must give an int or None")
        if not 0 <= chosen < len(self.partitions):
            raise ValueError(f"the partitioner gave {chosen} for topic {self.name!r}, which has {self._range()}")
        return chosen

    def _range(self) -> str:
        return f"0 to {len(self.partitions) - 1}"


class TopicLookups:
    """Questions about topics that are produced to for the first time, each one for all calls that wait for its answer."""

    def __init__(self, cluster: Cluster, timeout_ms: float) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._under_way: dict[str, asyncio.Task[int]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._under_way)

    async def wait_for(self, topic: str) -> None:
        """Returns when the topic is in the cluster's picture; raises why it is not. Calls go on in the order they came.

        Returns also after ``cancel``.
        """
        lookup = self._under_way.get(topic)
        if lookup is None:
            deadline = Deadline(self._timeout_ms)
            lookup = self._under_way[topic] = asyncio.create_task(self._cluster.topic_partitions(topic, deadline))
            lookup.add_done_callback(partial(self._ended, topic))
        await asyncio.wait((lookup,))
        if not self._closed and (error := lookup.exception()) is not None:
            raise copy_of(error) if isinstance(error, CohortError) else error

    def cancel(self) -> None:
        """Ends those that are under way, for good; ``ended`` waits for that."""
        self._closed = True
        for lookup in self._under_way.values():
            lookup.cancel()

    async def ended(self) -> None:
        """Returns when none is under way."""
        if self._under_way:
            await asyncio.wait(self._under_way.values())

    def _ended(self, topic: str, lookup: asyncio.Task[int]) -> None:
        del self._under_way[topic]
        if not lookup.cancelled():
            lookup.exception()  # it may be that no call waits for it any more
