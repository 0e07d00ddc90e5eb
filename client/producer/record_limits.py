"""How large batches and records of a producer may be: its settings, and what the daemon says it takes."""

from __future__ import annotations

from client.errors import RecordTooLargeError
from client.producer.accumulator import BulkRecords
from client.producer.batch import BATCH_OVERHEAD_BYTES, BULK_RECORD_MEMORY_BYTES, HEADER_MEMORY_BYTES
from client.producer.buffer_pool import BufferPool
from client.producer.config import ProducerSettings
from client.producer.produce_request import room_for_batches


class RecordLimits:
    """The bounds of one producer. ``pool`` is its buffer.

    ``batch_bytes`` bounds a batch, ``record_bytes`` a single record with its overhead in a batch.
    """

    __slots__ = ("_max_request_bytes", "_pool", "_record_bytes_set", "batch_bytes", "record_bytes")

    def __init__(self, settings: ProducerSettings, pool: BufferPool) -> None:
        self.batch_bytes = settings.batch_bytes
        self.record_bytes = self._record_bytes_set = settings.max_record_bytes
        self._max_request_bytes = settings.max_request_bytes
        self._pool = pool

    def heed(self, taken: int, client_id: str) -> None:
        """Takes note of how large a request the daemon takes, perhaps less than ``max_request_bytes``; 0: not said."""
        if taken:
            room = room_for_batches(self._max_request_bytes, taken, client_id)
            self.batch_bytes = min(self.batch_bytes, room)
            self.record_bytes = min(self._record_bytes_set, room - BATCH_OVERHEAD_BYTES)

    def check_many(self, topic: str, records: BulkRecords) -> None:
        """Raises when one of these records is too large, or its headers take more memory than the buffer has."""
        largest = max(records.sizes)
        if largest > self.record_bytes:
            raise self.too_large(topic, largest)
        room = self._pool.capacity - BULK_RECORD_MEMORY_BYTES
        for size, headers in zip(records.sizes, records.headers or (), strict=False):
            if size + len(headers) * HEADER_MEMORY_BYTES > room:
                raise self.too_large(topic, size)

    def too_large(self, topic: str, size: int) -> RecordTooLargeError:
        """Why a record of ``size`` bytes is not sent, and what to raise."""
        if self.record_bytes < self._record_bytes_set:
            return RecordTooLargeError(
                f"a record of {size} bytes for topic {topic!r} is above the {self.record_bytes} that the daemon takes: "
                "raise its max_frame_bytes, and the topic's max.message.bytes"
            )
        return RecordTooLargeError(
            f"a record of {size} bytes for topic {topic!r} is above the {self.record_bytes} that this producer can "
            "send: raise max_request_bytes and buffer_bytes, and the topic's max.message.bytes"
        )
