"""Messages to msgpack arrays and back.

The messages know nothing of this module. A codec for a message class is derived once from its annotations: a body is the
list of its fields in order; a reader ignores extra trailing fields and gives missing ones their defaults, so that both
sides can grow. Every value is checked on the way in: a wrong type, an integer out of its range or invalid UTF-8 raises
``ProtocolError`` naming the field.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar

import msgpack

from protocol.errors import ProtocolError

MAX_STRING_BYTES: Final = 32767
"""Longest string on the wire, in bytes of UTF-8, as in Kafka."""

MAX_ARRAY_ITEMS: Final = 1_000_000
"""Most items in one array on the wire."""

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class IntRange:
    """Bounds of an integer field, both inclusive."""

    low: int
    high: int


Int8 = Annotated[int, IntRange(-(2**7), 2**7 - 1)]
Int16 = Annotated[int, IntRange(-(2**15), 2**15 - 1)]
Int32 = Annotated[int, IntRange(-(2**31), 2**31 - 1)]
Int64 = Annotated[int, IntRange(-(2**63), 2**63 - 1)]

_Decoder = Callable[[Any], Any]
_Encoder = Callable[[Any], Any]


_encoders: dict[type, _Encoder] = {}
_decoders: dict[type, _Decoder] = {}


class _WrongType(Exception):
    """Internal: carries what was expected up to where the field's name is known."""


def encode_message(message: object) -> list[Any]:
    """The body of a message: its fields in order, nested messages as nested sequences."""
    kind = type(message)
    encode = _encoders.get(kind)
    if encode is None:
        encode = _encoders[kind] = _encoder_of(kind)
    fields = encode(message)
    return fields if type(fields) is list else list(fields)


def decode_message(message_type: type[Message], body: Any) -> Message:
    """The message in ``body``, an unpacked msgpack array.

    Raises ``ProtocolError`` naming the message and the field when a value is missing, of the wrong type or out of range.
    """
    decode = _decoders.get(message_type)
    if decode is None:
        decode = _decoders[message_type] = _decoder_of(message_type)
    try:
        return decode(body)  # type: ignore[no-any-return]
    except _WrongType as error:
        raise ProtocolError(f"{message_type.__name__}: {error}") from None


def decode_message_in_steps(message_type: type[Message], body: Any, per_step: int) -> Generator[None, None, Message]:
    """As ``decode_message``; an array that is a field of its own and longer than ``per_step`` takes several steps."""
    if type(body) is not tuple:
        return decode_message(message_type, body)
    fields = dataclasses.fields(message_type)  # type: ignore[arg-type]
    long = {
        field.name: value
        for field, value in zip(fields, body, strict=False)
        if type(value) is tuple and len(value) > per_step
    }
    short = tuple(() if type(value) is tuple and len(value) > per_step else value for value in body)
    message = decode_message(message_type, short)
    decoded: dict[str, tuple[Any, ...]] = {}
    for name, value in long.items():
        decode_some = _field_decoder(message_type, name)  # type: ignore[arg-type]
        items: list[Any] = []
        for start in range(0, len(value), per_step):
            yield
            try:
                items += decode_some(value[start : start + per_step])
            except _WrongType as error:
                raise ProtocolError(f"{message_type.__name__}: {name}: {error}") from None
        decoded[name] = tuple(items)
    return dataclasses.replace(message, **decoded) if decoded else message  # type: ignore[type-var]


def pack(value: Any) -> bytes:
    """The msgpack bytes of plain lists, tuples, strings, bytes, integers, booleans and None."""
    return msgpack.packb(value)  # type: ignore[no-any-return]


@functools.cache
def _field_decoder(message_type: Any, name: str) -> _Decoder:
    return _decoder_of(typing.get_type_hints(message_type, include_extras=True)[name])


def _is_optional(annotation: Any) -> Any | None:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        arguments = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
        if len(arguments) == 1:
            return arguments[0]
    return None


def _decoder_of(annotation: Any) -> _Decoder:
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _message_decoder(annotation)
    inner = _is_optional(annotation)
    if inner is not None:
        decode_inner = _decoder_of(inner)
        return lambda value: None if value is None else decode_inner(value)
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        bounds = annotation.__metadata__[0]
        return _int_decoder(bounds.low, bounds.high)
    if origin is tuple:
        return _array_decoder(_decoder_of(typing.get_args(annotation)[0]))
    if annotation in (str, bytes, bool):
        return _plain_decoder(annotation)
    raise TypeError(f"no wire form for a field of type {annotation!r}")


def _int_decoder(low: int, high: int) -> _Decoder:
    def decode(value: Any) -> int:
        if type(value) is not int:
            raise _WrongType(f"expected an integer, found {_shown(value)}")
        if not low <= value <= high:
            raise _WrongType(f"{value} is outside {low} to {high}")
        return value

    return decode


def _plain_decoder(expected: type) -> _Decoder:
    def decode(value: Any) -> Any:
        if type(value) is not expected:
            raise _WrongType(f"expected {expected.__name__}, found {_shown(value)}")
        return value

    return decode


def _array_decoder(decode_item: _Decoder) -> _Decoder:
    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple and type(value) is not list:
            raise _WrongType(f"expected an array, found {_shown(value)}")
        return tuple(map(decode_item, value))

    return decode


def _message_decoder(message_type: type) -> _Decoder:
    """Written out as source and compiled, the way ``dataclasses`` makes ``__init__``: half the cost of a loop over fields.

    For a message with the fields ``group_id: str`` and ``generation_id: Int32`` the source reads::

        def decode(value):
            if type(value) is not tuple and type(value) is not list: not_an_array(value)
            if len(value) != 2: value = completed(value)
            v0, v1, = value
            if type(v0) is not str: fault(value)
            if type(v1) is not int or not -2147483648 <= v1 <= 2147483647: fault(value)
            made = new(message)
            set_v0(made, v0)
            set_v1(made, v1)
            return made

    The last four lines are what ``message(v0, v1)`` comes to, whose ``__init__`` looks up how to set each field.
    """
    hints = typing.get_type_hints(message_type, include_extras=True)
    fields = dataclasses.fields(message_type)
    names = [field.name for field in fields]
    if "__slots__" not in vars(message_type) or hasattr(message_type, "__post_init__"):
        raise TypeError(f"{message_type.__name__}: a message is a dataclass with slots=True and without __post_init__")
    decoders = [_decoder_of(hints[name]) for name in names]
    defaults = [field.default for field in fields]
    required = sum(default is dataclasses.MISSING for default in defaults)

    def not_an_array(value: Any) -> None:
        raise _WrongType(f"expected the fields of {message_type.__name__}, found {_shown(value)}")

    def fault(value: Any) -> None:
        raise _WrongType(_first_fault(names, decoders, value)) from None

    def completed(value: Sequence[Any]) -> list[Any]:
        """A shorter body leaves out trailing fields, whose defaults apply; a longer one comes from a newer writer."""
        if len(value) < required:
            raise _WrongType(f"{len(value)} fields, at least {required} are needed: {', '.join(names[:required])}")
        return [*value[: len(names)], *defaults[len(value) :]]

    namespace: dict[str, Any] = {f"decode_v{number}": decode for number, decode in enumerate(decoders)}
    namespace |= {"message": message_type, "fault": fault, "completed": completed, "not_an_array": not_an_array}
    namespace["_WrongType"] = _WrongType
    namespace["new"] = object.__new__
    namespace |= {f"set_v{number}": getattr(message_type, name).__set__ for number, name in enumerate(names)}
    exec(_decoder_source([hints[name] for name in names]), namespace)
    decode: _Decoder = namespace["decode"]
    return decode


def _decoder_source(annotations: Sequence[Any]) -> str:
    variables = [f"v{number}" for number in range(len(annotations))]
    checks = [_check_source(variable, annotation) for variable, annotation in zip(variables, annotations, strict=True)]
    nested = [
        f"    {variable} = decode_{variable}({variable})"
        for variable, check in zip(variables, checks, strict=True)
        if not check
    ]
    return "\n    ".join(
        [
            "def decode(value):",
            "if type(value) is not tuple and type(value) is not list: not_an_array(value)",
            f"if len(value) != {len(variables)}: value = completed(value)",
            f"{''.join(variable + ', ' for variable in variables) or '()'} = value",
            *(f"if {check}: fault(value)" for check in checks if check),
            *(["try:", *nested, "except _WrongType: fault(value)"] if nested else []),
            "made = new(message)",
            *(f"set_{variable}(made, {variable})" for variable in variables),
            "return made",
        ]
    )


def _check_source(variable: str, annotation: Any) -> str:
    """What is true of a plain field's value when it is wrong, as source; "" for a field that has a decoder of its own."""
    if typing.get_origin(annotation) is Annotated:
        bounds = annotation.__metadata__[0]
        return f"type({variable}) is not int or not {bounds.low} <= {variable} <= {bounds.high}"
    if annotation in (str, bytes, bool):
        return f"type({variable}) is not {annotation.__name__}"
    inner = _is_optional(annotation)
    if inner in (str, bytes, bool):
        return f"{variable} is not None and type({variable}) is not {inner.__name__}"
    return ""


def _first_fault(names: Sequence[str], decoders: Sequence[_Decoder], value: Sequence[Any]) -> str:
    for name, decode, item in zip(names, decoders, value, strict=False):
        try:
            decode(item)
        except _WrongType as error:
            return f"{name}: {error}"
    raise AssertionError("a fault that does not show twice")


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list | dict):
        return f"{type(value).__name__} of {len(value)} items"
    if isinstance(value, str | bytes) and len(value) > 40:
        return f"{type(value).__name__} {value[:40]!r}... of {len(value)}"
    return f"{type(value).__name__} {value!r}"


def _encoder_of(annotation: Any) -> _Encoder:
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _message_encoder(annotation)
    inner = _is_optional(annotation)
    if inner is not None:
        encode_inner = _encoder_of(inner)
        if encode_inner is _as_it_is:
            return _as_it_is
        return lambda value: None if value is None else encode_inner(value)
    if typing.get_origin(annotation) is tuple:
        encode_item = _encoder_of(typing.get_args(annotation)[0])
        if encode_item is _as_it_is:
            return _as_it_is
        return lambda value: list(map(encode_item, value))
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _message_encoder(message_type: type) -> _Encoder:
    hints = typing.get_type_hints(message_type, include_extras=True)
    names = [field.name for field in dataclasses.fields(message_type)]
    encoders = [_encoder_of(hints[name]) for name in names]
    if len(names) > 1 and all(encode is _as_it_is for encode in encoders):
        return attrgetter(*names)  # a tuple, made in C: answers about ten thousand members or groups are made of these
    # Else written out as source, as decoders are: half the cost of a loop over the fields.
    values = [
        f"message.{name}" if encode is _as_it_is else f"encode_{name}(message.{name})"
        for name, encode in zip(names, encoders, strict=True)
    ]
    namespace: dict[str, Any] = {f"encode_{name}": encode for name, encode in zip(names, encoders, strict=True)}
    exec(f"def encode(message):\n    return [{', '.join(values)}]", namespace)
    encode: _Encoder = namespace["encode"]
    return encode
