"""Record batches to lists of ``ConsumerRecord``, without a Python-level step a record."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat
from typing import Any, Final

from client.consumer.settings import Deserializer
from client.errors import CorruptMessageError, RecordDeserializationError, UnsupportedCompressionTypeError
from client.record_columns import RecordColumns
from client.records import ConsumerRecord
from protocol.errors import ProtocolError
from protocol.record_batch import Attributes, BatchHeader, decode_columns
from protocol.subscription import TopicPartition

# What ConsumerRecord._make wraps, called straight from C for each record.
_NEW: Final[Callable[[type[ConsumerRecord], Iterable[Any]], ConsumerRecord]] = tuple.__new__

# Plain numbers: an operation with an IntFlag takes a microsecond.
_CONTROL: Final = int(Attributes.CONTROL)
_LOG_APPEND_TIME: Final = int(Attributes.LOG_APPEND_TIME)


class BatchDecoder:
    """Decodes batches, putting keys and values through the deserializers there are."""

    def __init__(self, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None) -> None:
        self._key = key_deserializer
        self._value = value_deserializer

    def records(
        self, tp: TopicPartition, buffer: bytes, position: int, header: BatchHeader, from_offset: int
    ) -> tuple[list[ConsumerRecord], int]:
        """The batch's records at or above ``from_offset``, none for a control batch, and the offset at which to go on.

        That is the end of the batch, or the offset of a record that a deserializer does not take: the records before it are
        returned. When there are none, raises ``RecordDeserializationError``. Raises ``CorruptMessageError`` when the batch
        is damaged.
        """
        if header.attributes & _CONTROL or not header.record_count:
            return [], header.next_offset
        topic, partition = tp
        try:
            columns = decode_columns(buffer, position, header)
            keys, values, headers = columns.keys(), columns.values(), columns.headers()
        except ProtocolError as error:
            raise _damaged(tp, header, error) from error
        except ModuleNotFoundError as error:
            raise _not_inflatable(tp, header) from error
        base = header.base_offset
        offsets: Sequence[int] = range(base, base + header.record_count)
        if columns.flags.offset_deltas:
            offsets = [base + delta for delta in columns.offset_deltas()]
        timestamps: Iterable[int] = columns.timestamps_ms()
        if base < from_offset:  # the deserializers see only what is handed out
            skipped = bisect_left(offsets, from_offset)
            offsets, keys, values, headers = offsets[skipped:], keys[skipped:], values[skipped:], headers[skipped:]
            timestamps = islice(timestamps, skipped, None)
        if header.attributes & _LOG_APPEND_TIME:
            timestamps = repeat(header.max_timestamp, header.record_count)
        next_offset = header.next_offset
        for what, deserializer, column in (
            ("key_deserializer", self._key, keys),
            ("value_deserializer", self._value, values),
        ):
            if deserializer is None:
                continue
            failed = _deserialize(deserializer, column)
            if failed is not None:
                if not column:
                    raise RecordDeserializationError(what, topic, partition, offsets[0]) from failed
                next_offset = offsets[len(column)]
                offsets = offsets[: len(column)]
                del keys[len(offsets) :], values[len(offsets) :]
        records = zip(repeat(topic), repeat(partition), offsets, timestamps, keys, values, headers)
        return list(map(_NEW, repeat(ConsumerRecord), records)), next_offset

    def columns(
        self, tp: TopicPartition, buffer: bytes, position: int, header: BatchHeader, from_offset: int
    ) -> RecordColumns | None:
        """The batch's records at or above ``from_offset``, as columns; ``None`` when there are none.

        Raises ``CorruptMessageError`` when the batch is damaged.
        """
        if header.attributes & _CONTROL or not header.record_count:
            return None
        try:
            columns = RecordColumns(tp, header, decode_columns(buffer, position, header))
        except ProtocolError as error:
            raise _damaged(tp, header, error) from error
        except ModuleNotFoundError as error:
            raise _not_inflatable(tp, header) from error
        if header.base_offset < from_offset:
            columns = columns.since(from_offset)
        return columns if len(columns) else None


def _damaged(tp: TopicPartition, header: BatchHeader, error: ProtocolError) -> CorruptMessageError:
    return CorruptMessageError(
        f"the batch at offset {header.base_offset} of {tp.topic}-{tp.partition} is damaged: {error}. "
        f"seek(tp, {header.next_offset}) passes over it"
    )


def _not_inflatable(tp: TopicPartition, header: BatchHeader) -> UnsupportedCompressionTypeError:
    return UnsupportedCompressionTypeError(
        f"the batch at offset {header.base_offset} of {tp.topic}-{tp.partition} is compressed with zstd, which this program "
        f"cannot inflate: pip install 'cohort[zstd]'. seek(tp, {header.next_offset}) passes over the batch"
    )


def _deserialize(deserializer: Deserializer, column: list[Any]) -> Exception | None:
    """Replaces the items of ``column``; on a failure cuts it off before the item that failed and returns the error."""
    done: list[Any] = []
    try:
        done.extend(None if item is None else deserializer(item) for item in column)
    except Exception as error:  # list.extend keeps what came before the failure, so its length says which item failed
        column[:] = done
        return error
    column[:] = done
    return None
