"""Hypothesis strategies for any message, derived from its annotations, and the list of all message classes."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Annotated, Any

from hypothesis import strategies as st

from protocol.messages import PEER_REQUESTS, REQUESTS

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def fields_of(message: type) -> list[tuple[str, Any, Any]]:
    """Name, annotation and default (``MISSING`` if there is none) of each field, in order."""
    hints = typing.get_type_hints(message, include_extras=True)
    return [(field.name, hints[field.name], field.default) for field in dataclasses.fields(message)]


def optional_of(annotation: Any) -> Any | None:
    """The inner type of ``X | None``, or None for anything else."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        inner = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
        assert len(inner) == 1
        return inner[0]
    return None


def item_of(annotation: Any) -> Any | None:
    """The item type of ``tuple[X, ...]``, or None for anything else."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is tuple else None


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that a field of this type can have."""
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return instances_of(annotation)
    inner = optional_of(annotation)
    if inner is not None:
        return st.none() | values_of(inner)
    item = item_of(annotation)
    if item is not None:
        return st.lists(values_of(item), max_size=3).map(tuple)
    if typing.get_origin(annotation) is Annotated:
        bounds = annotation.__metadata__[0]
        return st.integers(bounds.low, bounds.high)
    return {str: TEXT, bytes: st.binary(max_size=8), bool: st.booleans()}[annotation]


def instances_of(message: type) -> st.SearchStrategy[Any]:
    """Instances of a message class."""
    return st.builds(message, *(values_of(annotation) for _, annotation, _ in fields_of(message)))


def structures_in(message: type) -> list[type]:
    """The message class and every structure nested in it, outermost first, each once."""
    found = [message]
    for _, annotation, _ in fields_of(message):
        inner = annotation
        while True:
            deeper = optional_of(inner) or item_of(inner)
            if deeper is None:
                break
            inner = deeper
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            found += [structure for structure in structures_in(inner) if structure not in found]
    return found


MESSAGES: list[type] = [
    message for _, request in sorted((REQUESTS | PEER_REQUESTS).items()) for message in (request, request.response)
]
"""Every request and response, by API key."""

STRUCTURES: list[type] = list(dict.fromkeys(part for message in MESSAGES for part in structures_in(message)))
"""Every message and every structure in one."""
