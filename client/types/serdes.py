"""What makes bytes of keys and values and keys and values of bytes: the seam for formats and schema registries.

A plain function of the key or value (``str.encode``, ``bytes.decode``) is enough where the bytes alone tell. An object with
``serialize(value, context)`` or ``deserialize(data, context)`` sees the topic, whether it has a key or a value, and the
headers of the record. ``JsonSerde`` and ``MsgspecSerde`` have both methods and serve at either end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args, overload

from protocol.columns import Headers

if TYPE_CHECKING:
    # A type that is not said is Any, so that Consumer and ConsumerRecord stay what they are in programs without types
    # (PEP 696). Checkers know this module wherever they run; nothing imports it at run time.
    from typing_extensions import TypeVar as DefaultTypeVar

    K = DefaultTypeVar("K", default=Any)
    V = DefaultTypeVar("V", default=Any)
else:
    K = TypeVar("K")
    V = TypeVar("V")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

Field = Literal["key", "value"]
Format = Literal["json", "msgpack"]


class SerializationContext(NamedTuple):
    """What is being serialized or deserialized: the ``field`` ("key" or "value") of a record of ``topic``.

    ``headers`` are those of the record, ``(name, value)`` pairs in the order in which they were sent.
    """

    topic: str
    field: Field
    headers: Headers = ()


class Serializer(Protocol[T_contra]):
    """Makes bytes of keys or values of one type, for ``Producer(key_serializer=..., value_serializer=...)``."""

    def serialize(self, value: T_contra, context: SerializationContext, /) -> bytes | None:
        """The bytes of ``value``, which is never None: that is stored as null without a call.

        Called on the event loop by ``send``, so it must not block: a schema that has to be asked for is asked for before.
        What it raises, ``send`` raises, and nothing is sent.
        """
        ...


class Deserializer(Protocol[T_co]):
    """Makes keys or values of one type of bytes, for ``Consumer(key_deserializer=..., value_deserializer=...)``."""

    def deserialize(self, data: bytes, context: SerializationContext, /) -> T_co:
        """What the program gets for ``data``. Null stays None without a call.

        Called on the event loop when the record is handed out, so it must not block. What it raises becomes the cause of
        ``RecordDeserializationError``, for which ``on_error`` of ``process`` is asked.
        """
        ...


AnySerializer = Serializer[T] | Callable[[T], bytes | None]
AnyDeserializer = Deserializer[T] | Callable[[bytes], T]

BoundSerializer = Callable[[Any, str, Headers], bytes | None]
"""A serializer of either kind, of a key or value, the topic and the headers."""


def bound_serializer(serializer: AnySerializer[Any] | None, field: Field) -> BoundSerializer | None:
    """``serializer`` as it is called for ``field``. Raises ``TypeError`` for what is none."""
    if serializer is None:
        return None
    serialize = getattr(serializer, "serialize", None)
    if callable(serialize):
        return lambda value, topic, headers: serialize(value, SerializationContext(topic, field, headers))
    if not callable(serializer):
        raise TypeError(_neither(f"{field}_serializer", serializer, f"the {field}", "serialize"))
    return lambda value, _topic, _headers: serializer(value)


def sees_context(deserializer: AnyDeserializer[Any] | None) -> bool:
    """Whether it is an object that sees topic and headers, and no function of the bytes."""
    return callable(getattr(deserializer, "deserialize", None))


def check_deserializer(name: str, deserializer: object) -> None:
    """Raises ``TypeError`` for what is neither a function nor an object with ``deserialize``, nor None."""
    if not (deserializer is None or callable(deserializer) or callable(getattr(deserializer, "deserialize", None))):
        raise TypeError(_neither(name, deserializer, "bytes", "deserialize"))


def _neither(name: str, given: object, argument: str, method: str) -> str:
    return f"{name} is {given!r}; it must be a function of {argument}, or an object with {method}(..., context)"


class JsonSerde:
    """Keys or values as JSON in UTF-8, without spaces.

    ``NaN`` and infinities raise ``ValueError``, as JSON has none. What is read may be any type that ``json.loads`` makes.
    """

    def serialize(self, value: Any, context: SerializationContext, /) -> bytes:
        """See ``Serializer``. Raises ``TypeError`` for what JSON does not have, naming the topic."""
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            error.add_note(f"raised by JsonSerde for the {context.field} of a record for {context.topic!r}")
            raise

    def deserialize(self, data: bytes, context: SerializationContext, /) -> Any:
        """See ``Deserializer``."""
        return json.loads(data)


class MsgspecSerde(Generic[T]):
    """Keys or values of one type, checked against it: ``MsgspecSerde(Order)``. Needs the extra ``aiocohort[msgspec]``.

    ``of`` is what msgspec takes as a type: a ``msgspec.Struct``, a dataclass, a ``TypedDict``, ``list[Order]`` and so on;
    what is no class has to be said twice: ``serde: MsgspecSerde[Order | None] = MsgspecSerde(Order | None)``.
    ``format`` is "json" (the default) or "msgpack". Data that does not fit the type raises ``msgspec.ValidationError``,
    which names the path. Raises ``ImportError`` without msgspec, ``ValueError`` for another format.
    """

    @overload
    def __init__(self, of: type[T], *, format: Format = "json") -> None: ...

    @overload
    def __init__(self, of: Any, *, format: Format = "json") -> None: ...

    def __init__(self, of: Any, *, format: Format = "json") -> None:  # noqa: A002 - its name
        try:
            import msgspec
        except ImportError as error:
            raise ImportError("MsgspecSerde needs msgspec: pip install 'aiocohort[msgspec]'") from error
        if format not in get_args(Format):
            raise ValueError(f"format is {format!r}; it can be 'json' or 'msgpack'")
        codec = getattr(msgspec, format)
        self._encode: Callable[[T], bytes] = codec.Encoder().encode
        self._decode: Callable[[bytes], T] = codec.Decoder(of).decode

    def serialize(self, value: T, context: SerializationContext, /) -> bytes:
        """See ``Serializer``. Its type is not looked at: that is the type checker's work."""
        return self._encode(value)

    def deserialize(self, data: bytes, context: SerializationContext, /) -> T:
        """See ``Deserializer``."""
        return self._decode(data)
