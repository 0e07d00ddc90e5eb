"""The part of ``protocol/README.md`` that lists every message, made from the code so that the two cannot drift.

``python -m tests.protocol.message_tables`` writes it anew between its two markers.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from pathlib import Path
from typing import Annotated, Any

from protocol.errors import RETRIABLE, ErrorCode
from protocol.messages import PEER_REQUESTS, REQUESTS
from tests.protocol.instances import fields_of, item_of, optional_of, structures_in

README = Path(__file__).parents[2] / "protocol" / "README.md"
MESSAGES = ("<!-- messages: made by tests/protocol/message_tables.py -->", "<!-- end of messages -->")
ERRORS = ("<!-- errors: made by tests/protocol/message_tables.py -->", "<!-- end of errors -->")


def type_name(annotation: Any) -> str:
    """A field's type in the words of the document."""
    inner = optional_of(annotation)
    if inner is not None:
        return f"{type_name(inner)} or nil"
    item = item_of(annotation)
    if item is not None:
        return f"array of {type_name(item)}"
    if typing.get_origin(annotation) is Annotated:
        return f"int{(annotation.__metadata__[0].high + 1).bit_length()}"
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return annotation.__name__
    return {str: "string", bytes: "bytes", bool: "bool"}[annotation]


def default_text(default: Any) -> str:
    """A field's default in the words of the document; empty when the field must be there."""
    if default is dataclasses.MISSING:
        return ""
    if default is None:
        return "nil"
    if default in ("", b"", ()):
        return "empty"
    return str(default).lower() if isinstance(default, bool) else str(default)


def prose(described: type) -> str:
    """A class's docstring as Markdown: one line a paragraph."""
    paragraphs = (inspect.getdoc(described) or "").split("\n\n")
    return "\n\n".join(re.sub(r"\s*\n\s*", " ", paragraph).replace("``", "`") for paragraph in paragraphs)


def table(structure: type) -> list[str]:
    """The fields of a structure in order."""
    rows = [
        f"| `{name}` | {type_name(kind)} | {default_text(default)} |" for name, kind, default in fields_of(structure)
    ]
    return ["| field | type | default |", "|---|---|---|", *rows] if rows else ["No fields."]


def messages() -> str:
    """Every request and response with the structures in them, by API key. A structure is shown where it is first used."""
    lines: list[str] = []
    shown: set[type] = set()
    requests = REQUESTS | PEER_REQUESTS
    for key in sorted(requests):
        request = requests[key]
        name = request.__name__.removesuffix("Request")
        low, high = request.versions
        lines += [f"### {name}: key {key}, version{f's {low} to {high}' if low != high else f' {low}'}", ""]
        for message in (request, request.response):
            for structure in structures_in(message):
                if structure in shown:
                    continue
                shown.add(structure)
                lines += [f"**{structure.__name__}**: {prose(structure)}", "", *table(structure), ""]
    return "\n".join(lines)


def errors() -> str:
    """Every error code, its name, and whether the same request may succeed later."""
    rows = [f"| {code.value} | {code.name} | {'yes' if code in RETRIABLE else ''} |" for code in sorted(ErrorCode)]
    return "\n".join(["| code | name | try again |", "|---|---|---|", *rows, ""])


def between(text: str, markers: tuple[str, str]) -> str:
    """What stands between two markers."""
    start, end = (text.index(marker) for marker in markers)
    return text[start + len(markers[0]) : end].strip("\n")


def written(text: str, markers: tuple[str, str], content: str) -> str:
    """The text with what stands between two markers replaced."""
    head, _, rest = text.partition(markers[0])
    return f"{head}{markers[0]}\n\n{content.strip()}\n\n{markers[1]}{rest.partition(markers[1])[2]}"


if __name__ == "__main__":
    document = README.read_text(encoding="utf-8")
    document = written(written(document, MESSAGES, messages()), ERRORS, errors())
    README.write_text(document, encoding="utf-8")
