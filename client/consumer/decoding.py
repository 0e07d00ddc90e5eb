"""Record batches to lists of ``ConsumerRecord``, without a Python-level step a record."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat
from typing import Any, Final

from client.consumer.config import Deserializer
from client.errors import CorruptMessageError, RecordDeserializationError, UnsupportedCompressionTypeError
from client.types.columns import RecordColumns
from client.types.records import ConsumerRecord
from client.types.serdes import Field, SerializationContext, sees_context
from protocol.columns import Headers
from protocol.errors import ProtocolError
from protocol.record_batch import Attributes, BatchHeader, decode_columns, what_to_install
from protocol.subscription import TopicPartition

# What ConsumerRecord._make wraps, called straight from C for each record.
_NEW: Final[Callable[[type[ConsumerRecord], Iterable[Any]], ConsumerRecord]] = tuple.__new__

_FIELDS: Final[tuple[Field, Field]] = ("key", "value")

# Plain numbers: an operation with an IntFlag takes a microsecond.
_CONTROL: Final = int(Attributes.CONTROL)
_LOG_APPEND_TIME: Final = int(Attributes.LOG_APPEND_TIME)


class DecodedBatch:
    """The records of a batch that are not handed out yet. Deserializers see each one when it is handed out, not before.

    ``place`` is the index of the next one in ``offsets``, ``end`` that of none.
    """

    __slots__ = (
        "_headers",
        "_keys",
        "_ready",
        "_timestamps",
        "_tp",
        "_values",
        "deserializers",
        "end",
        "offsets",
        "place",
    )

    def __init__(
        self,
        tp: TopicPartition,
        offsets: Sequence[int],
        timestamps: Iterable[int],
        keys: list[Any],
        values: list[Any],
        headers: Sequence[Any],
        deserializers: tuple[Deserializer | None, Deserializer | None] = (None, None),
    ) -> None:
        self.offsets = offsets
        self.place, self.end = 0, len(offsets)
        self.deserializers = deserializers
        self._tp = tp
        self._ready: list[ConsumerRecord] | None = None
        if deserializers == (None, None):
            self._ready = _records(tp, offsets, timestamps, keys, values, headers)
        else:
            self._timestamps, self._keys, self._values, self._headers = list(timestamps), keys, values, headers

    def take(self, limit: int) -> list[ConsumerRecord]:
        """The next records, ``limit`` at most, and fewer when a deserializer does not take one that is not the first.

        Raises ``RecordDeserializationError`` when it does not take the first.
        """
        start = self.place
        if self._ready is not None:
            records = self._ready[start : start + limit] if start or limit < len(self._ready) else self._ready
            self.place += len(records)
            return records
        part = slice(start, start + limit)
        columns = [self._keys[part], self._values[part]]
        for field, deserializer, column in zip(_FIELDS, self.deserializers, columns, strict=True):
            if deserializer is None:
                continue
            failed = self._deserialize_column(field, deserializer, column)
            if failed is not None:
                if not column:
                    raise self._failed(field, start) from failed
                columns[-1] = columns[-1][: len(column)]  # those behind it are not looked at
        records = _records(self._tp, self.offsets[part], self._timestamps[part], *columns, self._headers[part])
        self.place += len(records)
        return records

    def take_one(self) -> ConsumerRecord:
        """The next record; raises as ``take``."""
        place = self.place
        record = self._ready[place] if self._ready is not None else self._deserialized(place)
        self.place = place + 1
        return record

    def stored_key(self) -> bytes | None:
        """The key of the next record as it is stored."""
        if self._ready is None:
            key: bytes | None = self._keys[self.place]
            return key
        return self._ready[self.place].key  # type: ignore[no-any-return]

    def _deserialized(self, place: int) -> ConsumerRecord:
        both = [self._keys[place], self._values[place]]
        for index, deserializer in enumerate(self.deserializers):
            if deserializer is not None and both[index] is not None:
                try:
                    both[index] = self._call(_FIELDS[index], deserializer)(both[index], self._headers[place])
                except Exception as error:
                    raise self._failed(_FIELDS[index], place) from error
        fields = (*self._tp, self.offsets[place], self._timestamps[place], *both, self._headers[place])
        return _NEW(ConsumerRecord, fields)

    def _failed(self, field: Field, place: int) -> RecordDeserializationError:
        return RecordDeserializationError(f"{field}_deserializer", *self._tp, self.offsets[place])

    def _call(self, field: Field, deserializer: Deserializer) -> Callable[[bytes, Headers], Any]:
        """``deserializer``, of either kind, as a function of bytes and headers."""
        topic, deserialize = self._tp.topic, getattr(deserializer, "deserialize", None)
        if not sees_context(deserializer):
            return lambda data, _: deserializer(data)  # type: ignore[operator]
        assert deserialize is not None
        return lambda data, headers: deserialize(data, SerializationContext(topic, field, headers))

    def _deserialize_column(self, field: Field, deserializer: Deserializer, column: list[Any]) -> Exception | None:
        """Replaces the items of ``column``; on a failure cuts it off before that which failed and returns the error."""
        done: list[Any] = []
        try:
            if sees_context(deserializer):
                call = self._call(field, deserializer)
                headers = self._headers[self.place : self.place + len(column)]
                done.extend(
                    None if item is None else call(item, each) for item, each in zip(column, headers, strict=True)
                )
            else:
                plain: Callable[[bytes], Any] = deserializer  # type: ignore[assignment]
                done.extend(None if item is None else plain(item) for item in column)
        except Exception as error:  # list.extend keeps what came before the failure: its length says which item failed
            column[:] = done
            return error
        column[:] = done
        return None


class BatchDecoder:
    """Decodes batches; keys and values go through the deserializers there are when they are handed out."""

    def __init__(self, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None) -> None:
        self._deserializers = key_deserializer, value_deserializer

    def records(
        self, tp: TopicPartition, buffer: bytes, position: int, header: BatchHeader, from_offset: int
    ) -> DecodedBatch | None:
        """The batch's records at or above ``from_offset``; ``None`` when there are none, as in a control batch.

        Raises ``CorruptMessageError`` when the batch is damaged.
        """
        if header.attributes & _CONTROL or not header.record_count:
            return None
        try:
            columns = decode_columns(buffer, position, header)
            keys, values, headers = columns.keys(), columns.values(), columns.headers()
        except ProtocolError as error:
            raise _damaged(tp, header, error) from error
        except ModuleNotFoundError as error:
            raise _not_inflatable(tp, header, error) from error
        base = header.base_offset
        offsets: Sequence[int] = range(base, base + header.record_count)
        if columns.flags.offset_deltas:
            offsets = [base + delta for delta in columns.offset_deltas()]
        timestamps: Iterable[int] = columns.timestamps_ms()
        if base < from_offset:
            skipped = bisect_left(offsets, from_offset)
            offsets, keys, values, headers = offsets[skipped:], keys[skipped:], values[skipped:], headers[skipped:]
            timestamps = islice(timestamps, skipped, None)
        if header.attributes & _LOG_APPEND_TIME:
            timestamps = repeat(header.max_timestamp, len(offsets))
        return DecodedBatch(tp, offsets, timestamps, keys, values, headers, self._deserializers) if offsets else None

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
            raise _not_inflatable(tp, header, error) from error
        if header.base_offset < from_offset:
            columns = columns.since(from_offset)
        return columns if len(columns) else None


def _records(tp: TopicPartition, *columns: Iterable[Any]) -> list[ConsumerRecord]:
    """Records of columns of offsets, timestamps, keys, values and headers; as many as the shortest has."""
    topic, partition = tp
    return list(map(_NEW, repeat(ConsumerRecord), zip(repeat(topic), repeat(partition), *columns)))


def _damaged(tp: TopicPartition, header: BatchHeader, error: ProtocolError) -> CorruptMessageError:
    return CorruptMessageError(
        f"the batch at offset {header.base_offset} of {tp.topic}-{tp.partition} is damaged: {error}. "
        f"seek(tp, {header.next_offset}) passes over it"
    )


def _not_inflatable(
    tp: TopicPartition, header: BatchHeader, error: ModuleNotFoundError
) -> UnsupportedCompressionTypeError:
    return UnsupportedCompressionTypeError(
        f"the batch at offset {header.base_offset} of {tp.topic}-{tp.partition} cannot be read: {what_to_install(error)}. "
        f"seek(tp, {header.next_offset}) passes over the batch"
    )
