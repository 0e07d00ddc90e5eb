"""Messages to bytes of Kafka's wire protocol.

As in ``decoding``, a function is written and compiled for each message and version when it is first wanted.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import Any, Final, NoReturn, cast

from protocol.kafka.compiling import NUMBERS, SHORT_ARRAY_ITEMS, Source
from protocol.kafka.decoding import MAX_STRING_BYTES
from protocol.kafka.schema import Array, Field, Message, Primitive, Structure

UNCOPIED_BYTES: Final = 4096
"""Byte strings of this length and more are pieces of their own in what ``encode`` gives."""


class _InPieces:
    """See ``in_pieces``."""

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: Sequence[bytes | memoryview], size: int) -> None:
        self.pieces = pieces
        self.size = size

    def __len__(self) -> int:
        return self.size


def in_pieces(pieces: Sequence[bytes | memoryview]) -> bytes:
    """``pieces`` as one value for a field of records, of which only the length can be asked: ``encode`` passes them on.

    They are put together where that is cheaper: a piece costs as much as to copy some ``UNCOPIED_BYTES``.
    """
    size = sum(map(len, pieces))
    if size < UNCOPIED_BYTES * len(pieces) // 2:  # of a batch, its head is one that is small
        return b"".join(pieces)
    return cast("bytes", _InPieces(pieces, size))


_Write = Callable[[Any], list[bytes]]
_writers: dict[tuple[type[Message], int], _Write] = {}


def encode(message: Message, version: int) -> list[bytes]:
    """The message as pieces, in order; long byte strings are in it as they are, not copied.

    Raises ``ValueError`` for a version that the schema does not have, and for what the version cannot say: null where it may
    not be, an integer out of its range, a string beyond 32,767 bytes, a field that it does not have, unless that is its
    default or the schema lets it be ignored.
    """
    kind = type(message)
    try:
        write = _writers[kind, version]
    except KeyError:
        write = _writers[kind, version] = _compiled(kind, version)
    try:
        return write(message)
    except (struct.error, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{kind.__name__} {version}: {error}") from error


def varint(value: int) -> bytes:
    """An unsigned varint, of an integer from 0 to 2**32 - 1."""
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT: Final = tuple(varint(value) for value in range(128))


def _unsaid(what: str) -> None:
    raise ValueError(f"has no field {what}, which is not to be ignored")


def _long(what: str, size: int) -> NoReturn:
    raise ValueError(f"{what} has {size} bytes, at most {MAX_STRING_BYTES}")


def _no_uuid(what: str) -> None:
    raise ValueError(f"{what} has to have 16 bytes")


@functools.cache
def _packers(formats: str) -> tuple[Callable[..., bytes], ...]:
    # Of short arrays by their length, such as the replicas of a partition: a format is found by its text more slowly.
    return tuple(struct.Struct(">" + formats.replace("%d", str(count))).pack for count in range(SHORT_ARRAY_ITEMS))


def _compiled(kind: type[Message], version: int) -> _Write:
    first, last = kind.VERSIONS
    if not first <= version <= last:
        raise ValueError(f"{kind.__name__} has no version {version}: there are {first} to {last}")
    return _Writer(Source(version, version >= kind.FLEXIBLE_FROM)).written(kind)


class _Writer:
    """Writes the lines that write one message."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._run: list[tuple[str, str]] = []
        """Fixed-width values to be packed at once: their formats, and the expressions that give them."""
        self._copies = False
        """Whether byte strings of any length are copied: in a tagged field, whose size is told before it."""
        source.names |= {
            "SHORT": _SHORT,
            "varint": varint,
            "pack": struct.pack,
            "unsaid": _unsaid,
            "long": _long,
            "no_uuid": _no_uuid,
            "InPieces": _InPieces,
        }

    def written(self, kind: type[Message]) -> _Write:
        """The function that writes a message of ``kind``."""
        source = self._source
        with source.block("def write(message):"):
            source.add("pieces = []", "out = []", "add = out.append")
            self._structure(kind, "message")
            self._pack()
            source.add("pieces.append(b''.join(out))", "return pieces")
        return source.compiled("write", f"encode {kind.__name__} {source.version}")

    def _structure(self, kind: type[Structure], value: str) -> None:
        source = self._source
        for field in kind.FIELDS:
            if not source.is_present(field) and not field.ignorable:
                with source.block(f"if {self._is_set(kind, field, f'{value}.{field.name}')}:"):
                    source.add(f"unsaid({field.name!r})")
        for field in source.plain_fields(kind):
            self._value(field, f"{value}.{field.name}")
        if source.flexible:
            self._tagged_fields(kind, value)

    def _is_set(self, kind: type[Structure], field: Field, value: str) -> str:
        told = kind.__dataclass_fields__[field.name]  # type: ignore[attr-defined]
        if told.default_factory is list:
            return f"{value} is None or {value}" if field.nullable != "none" else value
        if told.default_factory is not MISSING:
            return f"{value} != {self._source.known(told.default_factory(), 'default')}"
        return f"{value} is not None" if told.default is None else f"{value} != {told.default!r}"

    def _pack(self) -> None:
        """Writes the fixed-width values that are still to be written."""
        run, self._run = self._run, []
        if not run:
            return
        formats = "".join(each for each, _ in run)
        values = ", ".join(value for _, value in run if value)
        if not values:
            self._source.add(f"add({bytes(len(formats))!r})")
        else:
            self._source.add(f"add({self._source.struct('pack', formats)}({values}))")

    def _length(self, formats: str, value: str, compact: bool) -> None:
        if not compact:
            self._run.append((formats, value))
            self._pack()
            return
        self._pack()
        number = self._source.new("n")
        self._source.add(f"{number} = {value} + 1")
        self._source.add(f"add(SHORT[{number}] if {number} < 128 else varint({number}))")

    def _null(self, formats: str, compact: bool) -> None:
        self._source.add(f"add({(bytes(1) if compact else struct.pack('>' + formats, -1))!r})")

    def _value(self, field: Field, value: str) -> None:
        source = self._source
        kind, nullable = field.type, source.is_nullable(field)
        if isinstance(kind, Primitive) and kind not in (Primitive.STRING, Primitive.BYTES, Primitive.RECORDS):
            if kind is Primitive.UUID:
                with source.block(f"if len({value}) != 16:"):
                    source.add(f"no_uuid({field.name!r})")
            self._run.append((kind.value, value))
            return
        if isinstance(kind, type) and not nullable:
            name = source.new()
            source.add(f"{name} = {value}")
            self._structure(kind, name)
            return
        if not isinstance(kind, type):
            formats = "h" if kind is Primitive.STRING else "i"
            compact = source.flexible if isinstance(kind, Array) else source.is_compact(field)
        name = source.new()
        source.add(f"{name} = {value}")
        if nullable:
            self._pack()
            with source.block(f"if {name} is None:"):
                if isinstance(kind, type):
                    source.add("add(b'\\xff')")
                else:
                    self._null(formats, compact)
            with source.block("else:"):
                if isinstance(kind, type):
                    source.add("add(b'\\x01')")
                    self._structure(kind, name)
                else:
                    self._sized(field.name, kind, name, compact)
                self._pack()
        elif not isinstance(kind, type):
            self._sized(field.name, kind, name, compact)

    def _sized(self, what: str, kind: Primitive | Array, name: str, compact: bool) -> None:
        """A string, byte string or array that is not null."""
        source = self._source
        if isinstance(kind, Array):
            if isinstance(kind.item, Primitive) and kind.item in NUMBERS:
                self._numbers(kind.item, name, compact)
                return
            self._length("i", f"len({name})", compact)
            self._items(what, kind.item, name)
        elif kind is Primitive.STRING:
            text, size = source.new(), source.new("size")
            source.add(f"{text} = {name}.encode()", f"{size} = len({text})")
            self._string_length(what, size, compact)
            source.add(f"add({text})")
        else:
            size = source.new("size")
            source.add(f"{size} = len({name})")
            self._length("i", size, compact)
            if self._copies:
                source.add(f"add({name})")
                return
            instead = "if"
            if kind is Primitive.RECORDS:
                with source.block(f"if type({name}) is InPieces:"):
                    source.add("pieces.append(b''.join(out))", "out.clear()", f"pieces += {name}.pieces")
                instead = "elif"
            with source.block(f"{instead} {size} < {UNCOPIED_BYTES}:"):
                source.add(f"add({name})")
            with source.block("else:"):
                source.add("pieces.append(b''.join(out))", "out.clear()", f"pieces.append({name})")

    def _numbers(self, item: Primitive, name: str, compact: bool) -> None:
        """An array of numbers, packed with its length."""
        source = self._source
        self._pack()
        length = "B" if compact else "i"
        packers = source.known(_packers(f"{length}%d{item.value}"), f"pack_{length}_{item.name}")
        count = source.new("n")
        told = f"{count} + 1" if compact else count
        source.add(f"{count} = len({name})")
        with source.block(f"if {count} < {SHORT_ARRAY_ITEMS}:"):
            source.add(f"add({packers}[{count}]({told}, *{name}))")
        with source.block("else:"):
            self._length("i", count, compact)
            source.add(f"add(pack(f'>{{{count}}}{item.value}', *{name}))")

    def _string_length(self, what: str, size: str, compact: bool) -> None:
        if not compact:
            self._length("h", size, compact=False)  # more than 32,767 does not fit
            return
        run = list(self._run)
        with self._source.block(f"if {size} < 127:"):
            self._run.append(("B", f"{size} + 1"))
            self._pack()
        with self._source.block("else:"):
            self._run = run
            self._pack()
            self._source.add(f"add(varint({size} + 1 if {size} <= {MAX_STRING_BYTES} else long({what!r}, {size})))")

    def _items(self, what: str, item: Primitive | type[Structure], name: str) -> None:
        source = self._source
        each = source.new("each")
        with source.block(f"for {each} in {name}:"):
            if isinstance(item, Primitive):
                self._value(Field(what, item, "0+"), each)
            else:
                self._structure(item, each)
            self._pack()

    def _tagged_fields(self, kind: type[Structure], value: str) -> None:
        """The tagged fields that are not their default, each with its size."""
        source = self._source
        fields = source.tagged_fields(kind)
        if not fields:
            self._run.append(("x", ""))
            return
        self._pack()
        count, outer, section = source.new("count"), source.new("outer"), source.new("section")
        source.add(f"{count} = 0", f"{outer} = add", f"{section} = []")
        copies, self._copies = self._copies, True
        for field in fields:
            with source.block(f"if {self._is_set(kind, field, f'{value}.{field.name}')}:"):
                body, content = source.new("body"), source.new("content")
                source.add(f"{count} += 1", f"{body} = []", f"add = {body}.append")
                self._value(field, f"{value}.{field.name}")
                self._pack()
                source.add(f"{content} = b''.join({body})")
                source.add(f"{section} += (varint({field.tag}), varint(len({content})), {content})")
        self._copies = copies
        source.add(f"add = {outer}", f"add(varint({count}))")
        with source.block(f"if {count}:"):
            source.add(f"add(b''.join({section}))")
