"""Source of functions that is written line by line and compiled: what ``decoding`` and ``encoding`` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any, Final

from protocol.kafka.schema import Array, Field, Primitive, Structure, Type, covers

NUMBERS: Final = (Primitive.BOOL, Primitive.INT8, Primitive.INT16, Primitive.INT32, Primitive.INT64)
"""Arrays of these are read and written at once."""
SHORT_ARRAY_ITEMS: Final = 16
"""Shorter ones have functions of their own."""


class Source:
    """Lines of one function, the names that they may use, and what the version it is written for says of fields."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._count = 0

    def add(self, *lines: str) -> None:
        """Lines at the present depth."""
        self._lines.extend("    " * self._depth + line for line in lines)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A line that ends with a colon, and deeper lines behind it."""
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    def new(self, prefix: str = "v") -> str:
        """A name that no other line has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def known(self, value: Any, name: str) -> str:
        """The name under which the lines find a value: ``name``, with a number where that stands for another one."""
        while self.names.setdefault(name, value) is not value:
            name = self.new(f"{name}_")
        return name

    def struct(self, method: str, formats: str) -> str:
        """The name of ``pack`` or ``unpack_from`` for big-endian ``formats``."""
        key = f"{method}_{formats.replace('?', 'bool')}"
        if key not in self.names:
            self.names[key] = getattr(Struct(f">{formats}"), method)
        return key

    def is_present(self, field: Field) -> bool:
        """Whether the version has the field, tagged or not."""
        return covers(field.versions, self.version)

    def is_tagged(self, field: Field) -> bool:
        """Whether it is a tagged field of this version."""
        return self.flexible and covers(field.tagged, self.version)

    def is_nullable(self, field: Field) -> bool:
        """Whether it may be null in this version."""
        return covers(field.nullable, self.version)

    def is_compact(self, field: Field) -> bool:
        """Whether its length is a varint, one larger than it is (KIP-482)."""
        return self.flexible and field.flexible

    def tagged_fields(self, structure: type[Structure]) -> list[Field]:
        """The tagged fields of a structure, in the order of their tags."""
        tagged = [field for field in structure.FIELDS if self.is_present(field) and self.is_tagged(field)]
        return sorted(tagged, key=lambda field: field.tag)

    def plain_fields(self, structure: type[Structure]) -> list[Field]:
        """Those that travel one behind the other."""
        return [field for field in structure.FIELDS if self.is_present(field) and not self.is_tagged(field)]

    def least_bytes(self, kind: Type) -> int:
        """The fewest bytes that a value can have."""
        if isinstance(kind, Array) or kind in (Primitive.BYTES, Primitive.RECORDS):
            return 1 if self.flexible else 4
        if isinstance(kind, Primitive):
            return (1 if self.flexible else 2) if kind is Primitive.STRING else Struct(f">{kind.value}").size
        fields = self.plain_fields(kind)
        own = sum(
            1 if isinstance(field.type, type) and self.is_nullable(field) else self.least_bytes(field.type)
            for field in fields
        )
        return own + self.flexible

    def compiled(self, name: str, title: str) -> Callable[..., Any]:
        """The function called ``name``. Tracebacks show its place as ``title``."""
        text = "\n".join(self._lines)
        exec(compile(text, f"<{title}>", "exec"), self.names)  # our own lines only: nothing that came by the wire
        function: Callable[..., Any] = self.names[name]
        return function
