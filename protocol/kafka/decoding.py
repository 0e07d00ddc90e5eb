"""Bytes of Kafka's wire protocol to messages.

A function is written and compiled for each message and version when it is first wanted: neighbouring fields of fixed width
are unpacked at once, and no table is looked at while a message is read. Whatever the bytes are, all that comes of them is a
message or a ``ProtocolError``, and memory for no more values than there are bytes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Collection, Generator
from typing import Any, Final, TypeVar

from protocol.errors import ProtocolError
from protocol.kafka.compiling import NUMBERS, SHORT_ARRAY_ITEMS, Source
from protocol.kafka.schema import Array, Field, Message, Primitive, Structure

MAX_STRING_BYTES: Final = 32767
"""Longest string, in bytes of UTF-8; longer ones are refused in the compact form too, as in Kafka."""
MAX_VARINT_BYTES: Final = 5

MAX_TAGGED_FIELDS: Final = 1024
"""Most tagged fields behind one structure, known or not. Kafka's schemas have three at most."""
MAX_ITEMS: Final = 1_000_000
"""Most items in all arrays of a message together, unless the caller says otherwise."""
STEP_BYTES: Final = 16 * 1024
"""About what ``decode_in_steps`` reads in one step: 3 ms where every 2 bytes are a structure."""
_STEP_NUMBERS: Final = 16 * 1024
"""Of an array of numbers, in one step."""

M = TypeVar("M", bound=Message)

_Read = Callable[[bytes, int, int, int], Any]
_readers: dict[tuple[type[Message], int], _Read] = {}
_readers_in_steps: dict[tuple[type[Message], int, str], _Read] = {}


class TooManyItemsError(ProtocolError):
    """The arrays of a message have more items together than the caller takes; as far as it was read it is sound."""


def decode(kind: type[M], version: int, data: bytes | memoryview, at: int = 0, *, max_items: int = MAX_ITEMS) -> M:
    """The message that begins at ``at``. Bytes behind its last field are ignored, as are unknown tagged fields.

    Three bytes may make a structure, which takes a hundred in memory: ``max_items`` bounds what comes of them, as the items
    of all arrays of the message together.

    Raises ``ProtocolError`` for a version that the schema does not have, and for everything malformed: lengths below -1, -1
    where null is not allowed, more bytes or items than there are, more than ``max_items``, varints of more than 5 bytes or
    32 bits, strings of more than ``MAX_STRING_BYTES``, text that is no UTF-8, more than ``MAX_TAGGED_FIELDS``, known tagged
    fields that are there twice or have another size than is told.
    """
    try:
        read = _readers[kind, version]
    except KeyError:
        read = _readers[kind, version] = _compiled(kind, version, in_steps=False)
    if type(data) is not bytes:
        data, at = bytes(data[at:]), 0
    try:
        return read(data, at, len(data), max_items)  # type: ignore[no-any-return]
    except (ProtocolError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise _malformed(kind, version, error, len(data)) from None


def decode_in_steps(
    kind: type[M],
    version: int,
    data: bytes | memoryview,
    at: int = 0,
    *,
    max_items: int = MAX_ITEMS,
    passed_over: str = "",
) -> Generator[None, None, M]:
    """As ``decode``, for messages so long that others should have their turn: yields about every ``STEP_BYTES``.

    Strings and byte strings of fields that are called ``passed_over`` are not read: such a field has its default.
    """
    read = _readers_in_steps.get((kind, version, passed_over))
    if read is None:
        read = _compiled(kind, version, in_steps=True, passed_over=passed_over)
        _readers_in_steps[kind, version, passed_over] = read
    if type(data) is not bytes:
        data, at = bytes(data[at:]), 0
    try:
        message: M = yield from read(data, at, len(data), max_items)
    except (ProtocolError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise _malformed(kind, version, error, len(data)) from None
    return message


def _malformed(kind: type[Message], version: int, error: Exception, size: int) -> ProtocolError:
    reason = str(error)
    if isinstance(error, UnicodeDecodeError):
        reason = f"a string is not UTF-8: {error.reason}"
    elif not isinstance(error, ProtocolError):
        reason = f"ends within a field, after {size} bytes"
    told = TooManyItemsError if isinstance(error, TooManyItemsError) else ProtocolError
    return told(f"{kind.__name__} {version}: {reason}")


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint, and where it ends.

    Raises ``ProtocolError`` when it has more than 5 bytes or 32 bits, IndexError when the bytes end within it.
    """
    value = 0
    for place in range(MAX_VARINT_BYTES):
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if value >> 32:
                break
            return value, at + place + 1
    raise ProtocolError(f"a varint at {at} is longer than 32 bits")


def read_sections(
    data: bytes | memoryview, at: int, count: int, known: Collection[int] = ()
) -> tuple[int, dict[int, tuple[int, int]]]:
    """Where tagged fields end, and where each of the ``known`` tags begins and ends (KIP-482).

    ``at`` is behind their number, ``count``. Raises as ``read_varint`` does, and ``ProtocolError`` for more than
    ``MAX_TAGGED_FIELDS``, for sizes beyond the data, and for a known tag that is there twice.
    """
    size = len(data)
    sections: dict[int, tuple[int, int]] = {}
    if count > min(MAX_TAGGED_FIELDS, (size - at) // 2):
        raise ProtocolError(f"{count} tagged fields at {at}, in {size - at} bytes; at most {MAX_TAGGED_FIELDS}")
    for _ in range(count):
        tag, at = read_varint(data, at)
        length, at = read_varint(data, at)
        if length > size - at:
            raise ProtocolError(f"tagged field {tag} has {length} bytes, of which {size - at} are there")
        if tag in sections:
            raise ProtocolError(f"tagged field {tag} is there twice")
        if tag in known:
            sections[tag] = (at, at + length)
        at += length
    return at, sections


def _refuse(length: int, what: str) -> None:
    raise ProtocolError(f"{what} is null where it may not be" if length == -1 else f"{what} has a length of {length}")


def _too_many(count: int, what: str, left: int) -> None:
    raise ProtocolError(f"{what} has {count} items, in {left} bytes")


def _above_bound(what: str, surplus: int) -> None:
    raise TooManyItemsError(f"with {what} it has {surplus} items more than it may have")


def _another_size(what: str, size: int, told: int) -> None:
    raise ProtocolError(f"tagged field {what} takes {size} bytes, where {told} are told")


@functools.cache
def _unpackers(item: str) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    # Of short arrays by their length, such as the replicas of a partition: a format is found by its text more slowly.
    return tuple(struct.Struct(f">{count}{item}").unpack_from for count in range(SHORT_ARRAY_ITEMS))


def _compiled(kind: type[Message], version: int, in_steps: bool, passed_over: str = "") -> _Read:
    first, last = kind.VERSIONS
    if not first <= version <= last:
        raise ProtocolError(f"{kind.__name__} has no version {version}: there are {first} to {last}")
    return _Writer(Source(version, version >= kind.FLEXIBLE_FROM), in_steps, passed_over).written(kind)


def _is_there(length: str, kind: Primitive, compact: bool) -> str:
    """Whether a string or byte string has a length that it may have, and is not null: an expression."""
    if not compact:
        return f"{length} >= 0"
    return f"0 < {length} <= {MAX_STRING_BYTES + 1}" if kind is Primitive.STRING else f"{length} > 0"


class _Writer:
    """Writes the lines that read one message."""

    def __init__(self, source: Source, in_steps: bool, passed_over: str) -> None:
        self._source = source
        self._in_steps = in_steps
        self._passed_over = passed_over
        self._run: list[tuple[str, str]] = []
        """Fixed-width values to be unpacked at once: their formats, and the names they get."""
        source.names |= {
            "read_varint": read_varint,
            "read_sections": read_sections,
            "unpack_from": struct.unpack_from,
            "refuse": _refuse,
            "too_many": _too_many,
            "above_bound": _above_bound,
            "another_size": _another_size,
            "ProtocolError": ProtocolError,
        }

    def written(self, kind: type[Message]) -> _Read:
        """The function that reads a message of ``kind``."""
        source = self._source
        with source.block("def read(data, at, size, items_left):"):
            if self._in_steps:
                source.add("yield", f"pause = at + {STEP_BYTES}")  # so that it is a generator, whatever the message has
            message = self._structure(kind)
            # Slices end where the data ends: whether one left it is asked once, here and behind tagged fields.
            with source.block("if at > size:"):
                source.add("raise ProtocolError(f'ends at byte {at}, of which {size} are there')")
            source.add(f"return {message}")
        return source.compiled("read", f"decode {kind.__name__} {source.version}")

    def _structure(self, kind: type[Structure]) -> str:
        """Lines that read a structure; gives the expression that makes it."""
        source = self._source
        plain, tagged = source.plain_fields(kind), source.tagged_fields(kind)
        values: dict[str, str] = {}
        for field in plain:
            if field.name == self._passed_over:
                self._pass_over(field)
            else:
                values[field.name] = self._value(field)
        if source.flexible:
            values |= self._tagged_fields(kind, tagged)
        self._unpack()
        name = source.known(kind, kind.__name__)
        default = {field.name: self._default(kind, field) for field in kind.FIELDS if field.name not in values}
        return f"{name}({', '.join((values | default)[field.name] for field in kind.FIELDS)})"

    def _default(self, kind: type[Structure], field: Field) -> str:
        told = kind.__dataclass_fields__[field.name]  # type: ignore[attr-defined]
        if told.default_factory is list:
            return "[]"
        if callable(told.default_factory):
            return f"{self._source.known(told.default_factory, told.default_factory.__name__)}()"
        return repr(told.default)

    def _unpack(self) -> None:
        """Reads the fixed-width values that are still to be read."""
        run, self._run = self._run, []
        if not run:
            return
        formats = "".join(each for each, _ in run)
        names = ", ".join(name for _, name in run)
        if formats == "B":
            self._source.add(f"{names} = data[at]")
        else:
            self._source.add(
                f"{names}{',' if len(run) == 1 else ''} = {self._source.struct('unpack_from', formats)}(data, at)"
            )
        self._source.add(f"at += {struct.calcsize('>' + formats)}")

    def _fixed(self, formats: str) -> str:
        name = self._source.new()
        self._run.append((formats, name))
        return name

    def _length(self, formats: str, compact: bool) -> str:
        """Lines that read a length, or one more than a length; what was to be read before it has been read then."""
        name = self._fixed("B" if compact else formats)
        self._unpack()
        if compact:
            with self._source.block(f"if {name} > 127:"):
                self._source.add(f"{name}, at = read_varint(data, at - 1)")
        return name

    def _value(self, field: Field) -> str:
        kind, nullable = field.type, self._source.is_nullable(field)
        if isinstance(kind, Array):
            return self._array(field.name, kind, nullable)
        if not isinstance(kind, Primitive):
            return self._nullable_structure(field.name, kind) if nullable else self._inlined(kind)
        if kind in (Primitive.STRING, Primitive.BYTES, Primitive.RECORDS):
            return self._sized(field.name, kind, nullable, self._source.is_compact(field))
        return self._fixed(kind.value)

    def _inlined(self, kind: type[Structure]) -> str:
        name = self._source.new()
        self._source.add(f"{name} = {self._structure(kind)}")
        return name

    def _nullable_structure(self, what: str, kind: type[Structure]) -> str:
        source = self._source
        marker, name = self._fixed("b"), source.new()
        self._unpack()
        with source.block(f"if {marker} == 1:"):
            source.add(f"{name} = {self._structure(kind)}")
        with source.block(f"elif {marker} == -1:"):
            source.add(f"{name} = None")
        with source.block("else:"):
            source.add(f"refuse({marker}, {what!r})")
        return name

    def _pass_over(self, field: Field) -> None:
        """Lines that read over a string or byte string."""
        source, kind = self._source, field.type
        assert isinstance(kind, Primitive)
        compact = source.is_compact(field)
        length = self._length("h" if kind is Primitive.STRING else "i", compact)
        with source.block(f"if {_is_there(length, kind, compact)}:"):
            source.add(f"at += {length}{' - 1' if compact else ''}")
        self._null_or_refused(field.name, source.new(), length, source.is_nullable(field), compact)

    def _sized(self, what: str, kind: Primitive, nullable: bool, compact: bool) -> str:
        """Strings and byte strings: a length, and so many bytes."""
        source = self._source
        length = self._length("h" if kind is Primitive.STRING else "i", compact)
        name, end = source.new(), source.new("end")
        with source.block(f"if {_is_there(length, kind, compact)}:"):
            source.add(f"{end} = at + {length}{' - 1' if compact else ''}")
            source.add(f"{name} = data[at:{end}]{'.decode()' if kind is Primitive.STRING else ''}", f"at = {end}")
        self._null_or_refused(what, name, length, nullable, compact)
        return name

    def _null_or_refused(self, what: str, name: str, length: str, nullable: bool, compact: bool) -> None:
        source = self._source
        if nullable:
            with source.block(f"elif {length} == {0 if compact else -1}:"):
                source.add(f"{name} = None")
        with source.block("else:"):
            source.add(f"refuse({length}{' - 1' if compact else ''}, {what!r})")

    def _array(self, what: str, kind: Array, nullable: bool) -> str:
        source = self._source
        compact = source.flexible
        length = self._length("i", compact)
        name, count = source.new(), length
        with source.block(f"if {length} {'> 0' if compact else '>= 0'}:"):
            if compact:
                count = source.new("count")
                source.add(f"{count} = {length} - 1")
            least = source.least_bytes(kind.item)
            with source.block(f"if {count} * {least} > size - at:"):
                source.add(f"too_many({count}, {what!r}, size - at)")
            source.add(f"items_left -= {count}")
            with source.block("if items_left < 0:"):
                source.add(f"above_bound({what!r}, -items_left)")
            self._items(what, kind.item, name, count)
        self._null_or_refused(what, name, length, nullable, compact)
        return name

    def _items(self, what: str, item: Primitive | type[Structure], name: str, count: str) -> None:
        source = self._source
        if isinstance(item, Primitive) and item in NUMBERS:
            self._numbers(item, name, count)
            return
        source.add(f"{name} = []")
        with source.block(f"for _ in range({count}):"):
            if self._in_steps:
                with source.block("if at >= pause:"):
                    source.add("yield", f"pause = at + {STEP_BYTES}")
            made = self._structure(item) if not isinstance(item, Primitive) else self._value(Field(what, item, "0+"))
            self._unpack()
            source.add(f"{name}.append({made})")

    def _numbers(self, item: Primitive, name: str, count: str) -> None:
        source = self._source
        width = struct.calcsize(">" + item.value)
        unpackers = source.known(_unpackers(item.value), f"unpack_{item.name}")
        with source.block(f"if {count} < {SHORT_ARRAY_ITEMS}:"):
            source.add(f"{name} = list({unpackers}[{count}](data, at))", f"at += {count} * {width}")
        with source.block("else:"):
            if not self._in_steps:
                source.add(
                    f"{name} = list(unpack_from(f'>{{{count}}}{item.value}', data, at))", f"at += {count} * {width}"
                )
                return
            source.add(f"{name} = []")
            with source.block(f"while {count} > 0:"):
                some = source.new("some")
                source.add(f"{some} = min({count}, {_STEP_NUMBERS})", f"{count} -= {some}")
                source.add(f"{name} += unpack_from(f'>{{{some}}}{item.value}', data, at)", f"at += {some} * {width}")
                source.add("yield", f"pause = at + {STEP_BYTES}")

    def _tagged_fields(self, kind: type[Structure], fields: list[Field]) -> dict[str, str]:
        """Lines that read the tagged fields of a structure; gives the names of those that are known."""
        source = self._source
        count = self._length("B", compact=True)
        values = {field.name: source.new() for field in fields}
        for field in fields:
            source.add(f"{values[field.name]} = {self._default(kind, field)}")
        with source.block(f"if {count}:"):
            if not fields:
                source.add(f"at, _ = read_sections(data, at, {count})")
                return values
            behind, sections = source.new("behind"), source.new("sections")
            known = tuple(field.tag for field in fields)
            source.add(f"{behind}, {sections} = read_sections(data, at, {count}, {known})")
            for field in fields:
                start, end = source.new("start"), source.new("end")
                with source.block(f"if {field.tag} in {sections}:"):
                    source.add(f"{start}, {end} = {sections}[{field.tag}]", f"at = {start}")
                    value = self._value(field)
                    self._unpack()
                    source.add(f"{values[field.name]} = {value}")
                    with source.block(f"if at != {end}:"):
                        source.add(f"another_size({field.name!r}, at - {start}, {end} - {start})")
            source.add(f"at = {behind}")
        return values
