"""Hypothesis strategies for Kafka's messages, from their field tables, and what of a message a version can say."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

from protocol.kafka.schema import Array, Field, Message, Primitive, Structure, Type, covers

S = TypeVar("S", bound=Structure)

TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["x" * 126, "x" * 127, "é" * 64])
"""Some as long as where the length needs a second byte."""
_BITS: Final = {Primitive.INT8: 8, Primitive.INT16: 16, Primitive.INT32: 32, Primitive.INT64: 64}
_OTHERS: Final[dict[Primitive, st.SearchStrategy[Any]]] = {
    Primitive.BOOL: st.booleans(),
    Primitive.UUID: st.binary(min_size=16, max_size=16) | st.just(bytes(16)),
    Primitive.STRING: TEXT,
    Primitive.BYTES: st.binary(max_size=8),
    Primitive.RECORDS: st.binary(max_size=8) | st.sampled_from([bytes(127), b"r" * 4095, b"r" * 4096, b"r" * 20_000]),
}
_ZEROS: Final = {Primitive.STRING: "", Primitive.BYTES: b""}
_ERROR_CODES: Final = st.integers(-1, 100)
_LATEST_MS: Final = 4_000_000_000_000
"""In the year 2096. One of the other codecs makes dates of times, and knows no later ones than of the year 9999."""


def instances(kind: type[S]) -> st.SearchStrategy[S]:
    """A structure with values in all fields of all versions: ``as_version`` leaves those of one."""
    return st.builds(kind, **{field.name: values(field) for field in kind.FIELDS})


@functools.cache
def values(field: Field) -> st.SearchStrategy[Any]:
    """Values of one field; error codes and times as they are used."""
    kind = field.type
    if isinstance(kind, Primitive):
        made = _primitives(field.name, kind)
    elif isinstance(kind, Array):
        made = st.lists(_items(field.name, kind.item), max_size=3)
    else:
        made = instances(kind)
        if field.tag >= 0:  # one of defaults is not sent, and None is read
            made = made.map(lambda made: None if made == type(made)() else made)
    return made if field.nullable == "none" else st.none() | made


def _items(name: str, kind: Primitive | type[Structure]) -> st.SearchStrategy[Any]:
    return _primitives(name, kind) if isinstance(kind, Primitive) else instances(kind)


def _primitives(name: str, kind: Primitive) -> st.SearchStrategy[Any]:
    if kind is Primitive.INT16 and name.endswith("error_code"):
        return _ERROR_CODES
    if kind is Primitive.INT64 and name.endswith("_ms"):
        return st.integers(0, _LATEST_MS)
    if kind not in _BITS:
        return _OTHERS[kind]
    bound = 2 ** (_BITS[kind] - 1)
    return st.integers(-bound, bound - 1) | st.sampled_from([-bound, -1, 0, 1, bound - 1])


def as_version(structure: S, version: int) -> S:
    """What is left of a structure when a version has carried it: others have their default, null is what may be."""
    kind = type(structure)
    blank = kind()
    return dataclasses.replace(  # type: ignore[type-var]
        structure,
        **{
            field.name: _carried(field, getattr(structure, field.name), version)
            if covers(field.versions, version)
            else getattr(blank, field.name)
            for field in kind.FIELDS
        },
    )


def _carried(field: Field, value: Any, version: int) -> Any:
    if value is None:
        may_be_null = covers(field.nullable, version) or (isinstance(field.type, type) and field.tag >= 0)
        return None if may_be_null else _zero(field.type)
    if isinstance(value, list):
        return [as_version(each, version) if isinstance(each, Structure) else each for each in value]
    return as_version(value, version) if isinstance(value, Structure) else value


def _zero(kind: Type) -> Any:
    if isinstance(kind, Array):
        return []
    return _ZEROS[kind] if isinstance(kind, Primitive) else kind()


def structures_in(kind: type[Structure]) -> list[type[Structure]]:
    """The structure and all that are in it, each once."""
    found = [kind]
    for field in kind.FIELDS:
        inner = field.type.item if isinstance(field.type, Array) else field.type
        if isinstance(inner, type):
            found += [each for each in structures_in(inner) if each not in found]
    return found


def versions_of(kind: type[Message]) -> range:
    """Those that the schema describes."""
    return range(kind.VERSIONS[0], kind.VERSIONS[1] + 1)
