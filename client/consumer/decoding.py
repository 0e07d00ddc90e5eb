"""Record batches to lists of ``ConsumerRecord``, without a Python-level step a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final

from client.consumer.settings import Deserializer
from client.errors import CorruptMessageError
from client.records import ConsumerRecord
from protocol.errors import ProtocolError
from protocol.record_batch import Attributes, BatchHeader, decode_columns
from protocol.subscription import TopicPartition

# The constructor that ConsumerRecord._make wraps, called straight from C.
_RECORD: Final[Callable[[Iterable[Any]], ConsumerRecord]] = partial(tuple.__new__, ConsumerRecord)


class BatchDecoder:
    """Decodes batches, putting keys and values through the deserializers there are."""

    def __init__(self, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None) -> None:
        self._key = key_deserializer
        self._value = value_deserializer

    def records(
        self, tp: TopicPartition, buffer: bytes, position: int, header: BatchHeader, from_offset: int
    ) -> list[ConsumerRecord]:
        """The batch's records at or above ``from_offset``; none for a control batch.

        Raises ``CorruptMessageError`` when the batch is damaged. What a deserializer raises passes through, with a note
        that says where the record is.
        """
        if header.attributes & Attributes.CONTROL or not header.record_count:
            return []
        topic, partition = tp
        try:
            columns = decode_columns(buffer, position, header)
            keys, values, headers = columns.keys(), columns.values(), columns.headers()
        except ProtocolError as error:
            raise CorruptMessageError(
                f"the batch at offset {header.base_offset} of {topic}-{partition} is damaged: {error}. "
                f"seek(tp, {header.next_offset}) passes over it"
            ) from error
        base = header.base_offset
        offsets: Sequence[int] = range(base, base + header.record_count)
        if columns.flags.offset_deltas:
            offsets = [base + delta for delta in columns.offset_deltas()]
        timestamps: Iterable[int] = columns.timestamps_ms()
        if header.attributes & Attributes.LOG_APPEND_TIME:
            timestamps = repeat(header.max_timestamp, header.record_count)
        if self._key is not None:
            keys = _deserialized(self._key, keys, tp, offsets, "key")
        if self._value is not None:
            values = _deserialized(self._value, values, tp, offsets, "value")
        records = list(map(_RECORD, zip(repeat(topic), repeat(partition), offsets, timestamps, keys, values, headers)))
        if base < from_offset:
            return [record for record in records if record.offset >= from_offset]
        return records


def _deserialized(
    deserializer: Deserializer, column: list[bytes | None], tp: TopicPartition, offsets: Sequence[int], what: str
) -> list[Any]:
    done: list[Any] = []
    try:
        done.extend(None if item is None else deserializer(item) for item in column)
    except Exception as error:
        # list.extend keeps what came before the failure, so its length says which record failed.
        error.add_note(f"in the {what}_deserializer, at offset {offsets[len(done)]} of {tp.topic}-{tp.partition}")
        raise
    return done
