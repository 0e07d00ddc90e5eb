"""The modules in ``protocol/kafka/messages``, made from Kafka's schemas so that the two cannot drift.

``python -m tests.protocol.kafka.message_modules`` writes them anew; a test compares them with what this would write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protocol.kafka.schema import LATEST, Primitive

ROOT: Final = Path(__file__).parents[3]
SCHEMAS: Final = ROOT / "protocol" / "kafka" / "schemas"
MESSAGES: Final = ROOT / "protocol" / "kafka" / "messages"
HEADERS: Final = ("RequestHeader", "ResponseHeader")
"""Schemas without a module: ``headers.py`` reads and writes these few bytes, and is tested against them."""
LINE: Final = 120

_MADE_BY = "``tests/protocol/kafka/message_modules.py``"
_PYTHON_TYPES = {"bool": "bool", "uuid": "bytes", "string": "str", "bytes": "bytes", "records": "bytes"}
_ZEROS = {"bool": "False", "uuid": "bytes(16)", "string": '""', "bytes": 'b""', "records": "None"}
_PRIMITIVES = {primitive.name.lower() for primitive in Primitive}


def schema_of(name: str) -> Any:
    """One of Kafka's schemas: JSON with comments, each on a line of its own."""
    text = (SCHEMAS / f"{name}.json").read_text(encoding="utf-8")
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def schema_names() -> list[str]:
    """The schemas that have a module."""
    return sorted(path.stem for path in SCHEMAS.glob("*.json") if path.stem not in HEADERS)


def snake_case(name: str) -> str:
    """``ThrottleTimeMs`` as ``throttle_time_ms``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@dataclass(frozen=True)
class Member:
    """A field as the module needs it."""

    name: str
    kind: str
    """A primitive of the schema, or the name of a structure."""
    is_array: bool
    schema: Any

    @property
    def is_structure(self) -> bool:
        return self.kind not in _PRIMITIVES

    @property
    def is_tagged(self) -> bool:
        return "tag" in self.schema

    @property
    def is_nullable(self) -> bool:
        """Whether None is a value of the field. A tagged structure that is not sent is None as well."""
        if self.is_structure and not self.is_array and self.is_tagged:
            return True
        return self.kind == "records" or self.schema.get("nullableVersions", "none") != "none"

    def annotation(self) -> str:
        base = self.kind if self.is_structure else _PYTHON_TYPES.get(self.kind, "int")
        base = f"list[{base}]" if self.is_array else base
        return f"{base} | None" if self.is_nullable else base

    def default(self) -> str:
        """What a version without the field has in its place, as the schema says it, or zero or nothing."""
        told = self.schema.get("default")
        if told == "null" or (self.is_structure and not self.is_array and self.is_nullable):
            return "None"
        if self.is_array:
            return "field(default_factory=list)"
        if self.is_structure:
            return f"field(default_factory={self.kind})"
        if told is None or self.kind in ("bytes", "records", "uuid"):
            return _ZEROS.get(self.kind, "0")
        if self.kind == "string":
            return json.dumps(told)
        return str(told).capitalize() if self.kind == "bool" else str(int(str(told), 0))

    def table_row(self) -> str:
        kind = self.kind if self.is_structure else self.kind.upper()
        told = [
            *((f'nullable="{self.schema["nullableVersions"]}"',) if "nullableVersions" in self.schema else ()),
            *((f'tagged="{self.schema["taggedVersions"]}"', f"tag={self.schema['tag']}") if self.is_tagged else ()),
            *(("ignorable=True",) if self.schema.get("ignorable") else ()),
            *(("flexible=False",) if self.schema.get("flexibleVersions") == "none" else ()),
        ]
        arguments = [
            f'"{self.name}"',
            f"Array({kind})" if self.is_array else kind,
            f'"{self.schema["versions"]}"',
            *told,
        ]
        row = f"        Field({', '.join(arguments)}),"
        return row if len(row) <= LINE else f"        Field(\n            {', '.join(arguments)}\n        ),"


def members(fields: list[Any]) -> list[Member]:
    """The fields of one structure."""
    return [
        Member(snake_case(field["name"]), field["type"].removeprefix("[]"), field["type"].startswith("[]"), field)
        for field in fields
    ]


def structures(schema: Any) -> Iterator[tuple[str, list[Member]]]:
    """Every structure of a schema, each behind those that it is made of; the message itself is the last."""
    shared = {each["name"]: each["fields"] for each in schema.get("commonStructs", ())}
    made: set[str] = set()

    def nested(name: str, fields: list[Any]) -> Iterator[tuple[str, list[Member]]]:
        own = members(fields)
        for member in own:
            if member.is_structure and member.kind not in made:
                yield from nested(member.kind, member.schema.get("fields") or shared[member.kind])
            elif member.is_structure:
                assert "fields" not in member.schema, f"{schema['name']} has two structures called {member.kind}"
        made.add(name)
        yield name, own

    yield from nested(schema["name"], schema["fields"])


def structure_source(name: str, fields: list[Member], schema: Any) -> str:
    """The dataclass of one structure."""
    is_message = name == schema["name"]
    described = "The message" if is_message else f"A part of ``{schema['name']}``"
    lines = ["@dataclass(slots=True)", f"class {name}({'Message' if is_message else 'Structure'}):"]
    lines += [f'    """{described}; the schema says what each field means."""', ""]
    if is_message:
        first, last = version_range(schema["validVersions"])
        if "apiKey" in schema:
            lines += [f"    API_KEY: ClassVar[int] = {schema['apiKey']}"]
        lines += [f"    VERSIONS: ClassVar[tuple[int, int]] = ({first}, {last})"]
        if schema["flexibleVersions"] != "none":
            lines += [f"    FLEXIBLE_FROM: ClassVar[int] = {flexible_from(schema)}"]
    table = "    FIELDS: ClassVar[tuple[Field, ...]] = ("
    rows = [member.table_row() for member in fields]
    if len(rows) == 1 and len(table + rows[0].strip() + ")") <= LINE:
        lines += [f"{table}{rows[0].strip()})", ""]
    elif rows:
        lines += [table, *rows, "    )", ""]
    lines += [f"    {member.name}: {member.annotation()} = {member.default()}" for member in fields]
    return "\n".join(lines)


def version_range(versions: str) -> tuple[int, int]:
    """``"3"`` as (3, 3), ``"0-12"`` as (0, 12)."""
    first, _, last = versions.partition("-")
    return int(first), int(last or first)


def flexible_from(schema: Any) -> int:
    """The first flexible version."""
    versions = schema["flexibleVersions"]
    assert versions == "none" or versions.endswith("+")
    return LATEST if versions == "none" else int(versions[:-1])


def _by_width(name: str) -> tuple[str, int]:
    # INT8 before INT16, as the linter orders imports
    return name.rstrip("0123456789"), int(re.sub(r"\D", "", name) or 0)


def module_source(schema: Any) -> str:
    """The module of one message."""
    parts = list(structures(schema))
    everything = [member for _, fields in parts for member in fields]
    names = {member.kind.upper() for member in everything if not member.is_structure}
    classes = {"Message"} | ({"Field"} if everything else set()) | ({"Structure"} if len(parts) > 1 else set())
    classes |= {"Array"} if any(member.is_array for member in everything) else set()
    imported = [*sorted(names, key=_by_width), *sorted(classes)]
    line = f"from protocol.kafka.schema import {', '.join(imported)}"
    if len(line) > LINE:
        line = "from protocol.kafka.schema import (\n" + "".join(f"    {name},\n" for name in imported) + ")"
    uses_field = any("field(" in member.default() for member in everything)
    head = [
        f'"""Kafka\'s ``{schema["name"]}``, made from ``schemas/{schema["name"]}.json`` by',
        f'{_MADE_BY}; not to be edited by hand."""',
        "",
        "from __future__ import annotations",
        "",
        f"from dataclasses import dataclass{', field' if uses_field else ''}",
        "from typing import ClassVar",
        "",
        line,
    ]
    return "\n".join(head) + "\n\n\n" + "\n\n\n".join(structure_source(*part, schema) for part in parts) + "\n"


def table_source() -> str:
    """The module that tells every API key without importing a message."""
    rows: dict[int, str] = {}
    for name in schema_names():
        schema = schema_of(name)
        if "apiKey" in schema:
            api = name.removesuffix("Request").removesuffix("Response")
            first, last = version_range(schema["validVersions"])
            row = f'    {schema["apiKey"]}: Api("{api}", ({first}, {last}), {flexible_from(schema)}),'
            assert rows.setdefault(schema["apiKey"], row) == row, f"request and response of {api} have other versions"
    return "\n".join(
        [
            '"""Messages of Kafka\'s protocol, one module each, and the table of their API keys. Made from the schemas by',
            f'{_MADE_BY}."""',
            "",
            "from __future__ import annotations",
            "",
            "from typing import Final, NamedTuple",
            "",
            "",
            "class Api(NamedTuple):",
            '    """What the schemas say of one API key, both directions."""',
            "",
            "    name: str",
            "    versions: tuple[int, int]",
            '    """The first and the last that the schemas describe; which of them are served is said elsewhere."""',
            "    flexible_from: int",
            f'    """The first flexible version; {LATEST} where there is none."""',
            "",
            "",
            "APIS: Final[dict[int, Api]] = {",
            *(rows[key] for key in sorted(rows)),
            "}",
            "",
        ]
    )


def sources() -> dict[str, str]:
    """Every generated module, by its file's name."""
    modules = {f"{snake_case(name)}.py": module_source(schema_of(name)) for name in schema_names()}
    return {"__init__.py": table_source(), **modules}


if __name__ == "__main__":
    for stale in MESSAGES.glob("*.py"):
        stale.unlink()
    for file_name, source in sources().items():
        (MESSAGES / file_name).write_text(source, encoding="utf-8")
