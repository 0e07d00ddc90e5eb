"""The columns of the source: those of Spark's Kafka source, and the parts of them that a query may ask for."""

from __future__ import annotations

from typing import Any, Final

from client.spark.errors import OptionsError

COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
HEADERS: Final = {"headers": "array<struct<key:string,value:binary>>"}


def full_schema(include_headers: bool) -> str:
    """All columns as Spark's DDL."""
    columns = COLUMNS | (HEADERS if include_headers else {})
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def checked(schema: Any) -> Any:
    """``schema``, a Spark type, unless it asks for what there is not: then ``OptionsError``.

    Any of the columns may be left out: what is not asked for is not made.
    """
    known = COLUMNS | HEADERS
    faults = []
    for column in schema.fields:
        kind = column.dataType.simpleString()
        if column.name not in known:
            faults.append(f"schema: there is no column {column.name!r}, but {', '.join(known)}")
        elif kind != known[column.name]:
            hint = f"cast({column.name} as {kind}) in the query makes it one"
            faults.append(f"schema: {column.name} is {known[column.name]} and not {kind}; {hint}")
        elif not column.nullable:
            faults.append(f"schema: {column.name} must be nullable")
    if faults:
        raise OptionsError(faults)
    return schema
