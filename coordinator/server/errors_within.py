"""The error codes within an answer: of its topics, partitions, groups, members, wherever its kind has some. Pure.

Where they are is read from the types of the fields, of Cohort's own answers and of Kafka's, so that a new kind of answer is
counted as any other. From that a function is compiled for each kind, as Produce and Fetch have an entry for each partition::

    def note(answer, errors):
        for each0 in answer.responses or ():
            for each1 in each0.partition_responses or ():
                if each1.error_code:
                    errors[each1.error_code] += 1

The code of the answer as a whole is not among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Final, get_args, get_type_hints

Note = Callable[[Any, Counter[int]], None]
"""Counts the codes within an answer, by code."""

_CODES: Final = ("error_code", "partition_error_code")
"""What Kafka calls the field. CreateTopics has another, which says why no settings are told: no error."""


class _Notes(dict[type, Note | None]):
    def __missing__(self, answer: type) -> Note | None:
        lines = list(_lines(answer, "answer", 1))
        made: dict[str, Any] = {"note": None}
        if lines:
            exec("\n".join(("def note(answer, errors):", *lines)), made)
        note: Note | None = made["note"]
        self[answer] = note
        return note


NOTES: Final = _Notes()
"""What counts the codes within answers of a class, None where they have no room for any; made when it is first asked for."""


def errors_within(answer: Any) -> Counter[int]:
    """How often each code is within an answer."""
    errors = Counter[int]()
    note = NOTES[type(answer)]
    if note is not None:
        note(answer, errors)
    return errors


def _lines(structure: type, name: str, depth: int) -> Iterator[str]:
    """What looks at the structures that are in fields of ``structure``, a variable of this ``name``."""
    indent, inner = "    " * depth, f"each{depth - 1}"
    for field, part in _parts(structure):
        within = [*_own(part, inner, depth + 1), *_lines(part, inner, depth + 1)]
        if within:
            yield f"{indent}for {inner} in {name}.{field} or ():"
            yield from within


def _own(structure: type, name: str, depth: int) -> Iterator[str]:
    indent = "    " * depth
    for field in fields(structure):
        if field.name in _CODES:
            yield f"{indent}if {name}.{field.name}:"
            yield f"{indent}    errors[{name}.{field.name}] += 1"


def _parts(structure: type) -> Iterator[tuple[str, type]]:
    """The fields that have any number of structures, and of which class. A test holds that no single one has a code."""
    hints = get_type_hints(structure)
    for field in fields(structure):
        for part in _classes_in(hints[field.name]):
            yield field.name, part


def _classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for each in get_args(hint):  # of a tuple or a list, perhaps with None beside it
        yield from _classes_in(each)
