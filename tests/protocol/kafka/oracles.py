"""Two other codecs of Kafka's protocol, behind one face: those of kafka-python and kio, which know nothing of our tables."""

from __future__ import annotations

import datetime
import functools
import io
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from kio.index import load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from protocol.kafka.schema import Array, Message, Primitive, Structure, covers
from tests.protocol.kafka.message_modules import snake_case

with warnings.catch_warnings(
    action="ignore", category=DeprecationWarning
):  # it reads its schemas in a way of Python 3.8
    from kafka.protocol.api_data import ApiData, JsonSchemaData
    from kafka.protocol.api_message import ApiMessage, ApiMessageData

S = TypeVar("S", bound=Structure)

UNKNOWN_TO_THEM: Final = {
    ("ApiVersionsRequest", 5),
    ("ApiVersionsResponse", 5),
    ("DeleteGroupsRequest", 3),
    ("DeleteGroupsResponse", 3),
    ("TxnOffsetCommitRequest", 6),
    ("TxnOffsetCommitResponse", 6),
}
"""What Kafka 4.4 has added to the schemas that both were made of. ``test_latest_versions`` has their bytes."""


class Oracle(NamedTuple):
    """A codec to compare ours with."""

    decode: Callable[[type[Message], int, bytes], Any]
    """Their message."""
    encode: Callable[[type[Message], int, Any], bytes]
    """Of their message."""


def _names(ours: str) -> tuple[str, ...]:
    """What a field is called by them: kio leaves units away, and Kafka 4.4 has given one another name."""
    return ours, ours.removesuffix("_ms"), ours.removesuffix("_or_member_epoch")


def as_ours(kind: type[S], version: int, theirs: Any) -> S:
    """Their message as ours: the fields that the version has, by their names."""
    values = {}
    for field in kind.FIELDS:
        if not covers(field.versions, version):
            continue
        value = getattr(theirs, next(name for name in _names(field.name) if hasattr(theirs, name)))
        inner = field.type.item if isinstance(field.type, Array) else field.type
        convert = functools.partial(_value_as_ours, inner, version, field.name)
        values[field.name] = [convert(each) for each in value] if isinstance(value, list | tuple) else convert(value)
        if isinstance(field.type, type) and field.tag >= 0 and values[field.name] == field.type():
            values[field.name] = None  # theirs of a structure that was not sent
    return kind(**values)


def _value_as_ours(inner: Any, version: int, name: str, value: Any) -> Any:
    if isinstance(inner, type) and value is not None:
        assert issubclass(inner, Structure)
        return as_ours(inner, version, value)
    if inner is Primitive.UUID:
        return bytes(16) if value is None else value.bytes
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(milliseconds=1)
    if value is None and name.endswith("_ms"):
        return -1
    return value


@functools.cache
def _kafka_python_class(name: str) -> Any:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        if name.startswith("ConsumerProtocol"):
            return JsonSchemaData(name, (ApiData,), {})
        return ApiMessageData(name, (ApiMessage,), {})


def _decode_by_kafka_python(kind: type[Message], version: int, data: bytes) -> Any:
    options = {"header": False} if kind.API_KEY < 0 else {}
    return _kafka_python_class(kind.__name__).decode(data, version=version, **options)


def _encode_by_kafka_python(kind: type[Message], version: int, message: Any) -> bytes:
    options = {"header": False} if kind.API_KEY < 0 else {}
    message._header = None  # missing in what it has decoded
    return bytes(message.encode(version=version, **options))


@functools.cache
def _kio_class(name: str, version: int) -> Any:
    if name.endswith("Request"):
        return load_entity_schema(snake_case(name.removesuffix("Request")), version, EntityType.request)
    if name.endswith("Response"):
        return load_entity_schema(snake_case(name.removesuffix("Response")), version, EntityType.response)
    return load_entity_schema(snake_case(name), version, EntityType.data)


def _decode_by_kio(kind: type[Message], version: int, data: bytes) -> Any:
    message, size = entity_reader(_kio_class(kind.__name__, version))(data, 0)
    assert size == len(data)
    return message


def _encode_by_kio(kind: type[Message], version: int, message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(_kio_class(kind.__name__, version))(buffer, message)
    return buffer.getvalue()


ORACLES: Final = {
    "kafka-python": Oracle(_decode_by_kafka_python, _encode_by_kafka_python),
    "kio": Oracle(_decode_by_kio, _encode_by_kio),
}
