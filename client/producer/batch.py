"""A batch on its way: what the core of a producer knows of any batch, and the batch that records are added to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from typing import Final, Self, TypeVar

from client.producer.acknowledgements import (
    BatchSettled,
    BatchSlice,
    BulkAcknowledgement,
    Timestamps,
    Waiter,
    split_waiters,
)
from client.producer.sequences import BatchSequence
from protocol.columns import Headers
from protocol.compression import Compression
from protocol.record_batch import HEADER_BYTES, EncodedBatch, encode_in_pieces
from protocol.subscription import TopicPartition

RECORD_OVERHEAD_BYTES: Final = 17
"""What a record takes in a batch beside key, value and headers: two offsets, a timestamp, validity bits; rounded up."""
RECORD_MEMORY_BYTES: Final = 256
"""What a record of ``send`` takes in memory beside what it takes in a batch, measured: its future (155), the heads of the
objects that hold key and value (40 each), and its places in the columns."""
HEADER_MEMORY_BYTES: Final = 192
"""The same for each of its headers."""
BULK_RECORD_MEMORY_BYTES: Final = 64
"""The same for a record of ``send_many``, which has no future of its own."""
BATCH_OVERHEAD_BYTES: Final = HEADER_BYTES + 128
"""What a batch takes beside its records: the header and the padding of each column; rounded up."""

Place = tuple[int, ...]
"""Where a batch comes among those of its partition; halves of a batch have places within its own."""


class Batch(ABC):
    """Records of one partition that travel together.

    ``size`` estimates the encoded batch in bytes from above (before compression).
    ``created_at`` is the time in seconds when the first record came: linger and delivery timeout count from there.
    ``attempts`` counts requests that carried it, save those refused for what came before it; ``unanswered`` those that may
    have reached a daemon, or still may, with an outcome that is not known. A batch that is ``alone`` shares its request with
    no other batch of the partition. ``place`` orders the batches of a partition; ``sequence`` is what an idempotent producer
    calls it once it was sent, ``ordinal`` counts the batches that have one.
    """

    __slots__ = (
        "alone", "attempts", "created_at", "ordinal", "partition", "place", "sequence", "size", "unanswered",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, created_at: float, size: int, place: Place = ()) -> None:
        self.partition = partition
        self.created_at = created_at
        self.size = size
        self.place = place
        self.sequence: BatchSequence | None = None
        self.ordinal = 0
        self.attempts = 0
        self.unanswered = 0
        self.alone = False

    @property
    @abstractmethod
    def count(self) -> int:
        """How many records it holds."""

    @abstractmethod
    def encode(self) -> list[bytes]:
        """The pieces of the batch, with its sequence if it has one."""

    @abstractmethod
    def split(self) -> tuple[Self, Self]:
        """Two batches with half of the records each, without sequences, to be sent one by one: this one was too large."""


BatchT = TypeVar("BatchT", bound=Batch)


class ProducerBatch(Batch):
    """A batch as it grows: the records in columns, and the waiters that learn what became of them.

    ``keys`` and ``headers`` are None until a record has one. ``reserved`` is what its records take in memory, estimated from
    above as ``size`` is: so much was reserved in the buffer for them. ``settled`` is done once nothing is left to wait for.
    """

    __slots__ = (
        "_compression", "_encoded", "_memory", "headers", "keys", "settled", "timestamps_ms", "values", "waiters",
    )  # fmt: skip

    def __init__(
        self, partition: TopicPartition, created_at: float, compression: Compression | None = None, place: Place = ()
    ) -> None:
        super().__init__(partition, created_at, BATCH_OVERHEAD_BYTES, place)
        self._compression = compression
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.timestamps_ms = array("q")
        self.headers: list[Headers] | None = None
        self.waiters: list[Waiter] = []
        self._memory = 0  # beside what is told by size and by how many futures there are
        self.settled: BatchSettled | None = None
        self._encoded: EncodedBatch | None = None

    @property
    def reserved(self) -> int:
        """What was reserved in the buffer for its records, in bytes."""
        return self.size - BATCH_OVERHEAD_BYTES + len(self.waiters) * RECORD_MEMORY_BYTES + self._memory

    @property
    def count(self) -> int:
        """How many records it holds."""
        return len(self.values)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers,
        size: int,
        waiter: Waiter,
    ) -> None:
        """Adds one record of ``size`` bytes, ``RECORD_OVERHEAD_BYTES`` included."""
        if headers or self.headers is not None:
            if self.headers is None:
                self.headers = [()] * len(self.values)
            self.headers.append(headers)
            self._memory += len(headers) * HEADER_MEMORY_BYTES
        if key is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * len(self.values)
            self.keys.append(key)
        self.values.append(value)
        self.timestamps_ms.append(timestamp_ms)
        self.waiters.append(waiter)
        self.size += size

    def append_unheard(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers,
        size: int,
        acknowledgement: BulkAcknowledgement,
    ) -> None:
        """``append`` without a future: neighbours in a batch share one waiter, a slice of ``acknowledgement``."""
        last = self.waiters[-1] if self.waiters else None
        if isinstance(last, BatchSlice) and last.bulk is acknowledgement:
            last.indexes = range(len(last.indexes) + 1)
            self.append(key, value, timestamp_ms, headers, size, last)
            self.waiters.pop()
            self._memory += BULK_RECORD_MEMORY_BYTES
        else:
            self.append(key, value, timestamp_ms, headers, size, BatchSlice(acknowledgement, range(1), timestamp_ms))
            self._memory += BULK_RECORD_MEMORY_BYTES - RECORD_MEMORY_BYTES  # one waiter, and no future

    def extend(
        self,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        timestamp_ms: Timestamps,
        size: int,
        waiter: Waiter,
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Adds records, ``size`` bytes in all; ``keys`` and ``headers`` are None when none of them has any."""
        count = len(values)
        if headers is not None or self.headers is not None:
            if self.headers is None:
                self.headers = [()] * len(self.values)
            self.headers.extend([()] * count if headers is None else headers)
            self._memory += sum(map(len, headers or ())) * HEADER_MEMORY_BYTES
        if keys is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * len(self.values)
            self.keys.extend([None] * count if keys is None else keys)
        self.values.extend(values)
        self.timestamps_ms.extend(
            array("q", (timestamp_ms,)) * count if isinstance(timestamp_ms, int) else array("q", timestamp_ms)
        )
        self.waiters.append(waiter)
        self.size += size
        self._memory += count * BULK_RECORD_MEMORY_BYTES - RECORD_MEMORY_BYTES  # one waiter, and no future

    def encode(self) -> list[bytes]:
        """The pieces of the batch, with its sequence if it has one; the body is made once and kept for retries."""
        if self._encoded is None:
            self._encoded = encode_in_pieces(
                self.values,
                self.keys,
                timestamps_ms=self.timestamps_ms,
                headers=self.headers,
                compression=self._compression,
            )
        return self._encoded.pieces() if self.sequence is None else self._encoded.pieces(*self.sequence)

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Two batches with half of the records each, without sequences, to be sent one by one: this one was too large."""
        middle = self.count // 2
        halves = (
            ProducerBatch(self.partition, self.created_at, self._compression, (*self.place, 0)),
            ProducerBatch(self.partition, self.created_at, self._compression, (*self.place, 1)),
        )
        waiters = split_waiters(self.waiters, middle)
        records = self.size - BATCH_OVERHEAD_BYTES
        sizes = records // 2, records - records // 2
        reserved = self.reserved // 2, self.reserved - self.reserved // 2
        for half, part, own, size, memory in zip(
            halves, (slice(None, middle), slice(middle, None)), waiters, sizes, reserved, strict=True
        ):
            half.values = self.values[part]
            half.keys = None if self.keys is None else self.keys[part]
            half.timestamps_ms = self.timestamps_ms[part]
            half.headers = None if self.headers is None else self.headers[part]
            half.waiters = own
            half.size = BATCH_OVERHEAD_BYTES + size
            half._memory += memory - half.reserved
            half.alone = True
        halves[1].settled = self.settled  # a flush looks for the other half when this one is settled
        return halves
