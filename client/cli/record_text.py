"""Records as text: what ``cohort consume`` prints, and what ``cohort produce`` reads.

A format string has kcat's tokens. A JSON line has the fields that ``consume --json`` prints, so ``produce --json-lines``
takes its output.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from client.cli.failure import CommandError
from client.types.records import ConsumerRecord, Headers

Formatter = Callable[[ConsumerRecord], bytes]

_TOKENS: Final[dict[str, Callable[[ConsumerRecord], bytes]]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % _length(record.key),
    "v": lambda record: record.value or b"",
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % _length(record.value),
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
    "%": lambda record: b"%",
}
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_PIECES: Final = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|([^%\\]+)", re.DOTALL)

_INPUT_FIELDS: Final = frozenset({"key", "value", "headers", "partition", "timestamp_ms"})
_IGNORED_FIELDS: Final = frozenset({"topic", "offset"})
"""``consume --json`` prints them. Where a record goes is said on the command line."""


def format_string(text: str) -> Formatter:
    """What prints a record as ``text`` says.

    ``%t`` topic, ``%p`` partition, ``%o`` offset, ``%T`` timestamp in ms, ``%k`` key, ``%v`` (or ``%s``) value, ``%h``
    headers as ``name=value,...``, ``%K`` and ``%S`` lengths of key and value in bytes (-1: null), ``%%`` a percent sign.
    ``\\n``, ``\\t``, ``\\r``, ``\\0``, ``\\\\`` and ``\\xHH`` mean what they mean in C. Nothing is added.

    Raises ``ArgumentTypeError`` for what is none of these.
    """
    makers: list[Callable[[ConsumerRecord], bytes]] = []
    for piece in _PIECES.finditer(text):
        token, code, escape, plain = piece.groups()
        if token is not None:
            if token not in _TOKENS:
                raise argparse.ArgumentTypeError(
                    f"%{token} is no token; there are {' '.join('%' + t for t in _TOKENS)}"
                )
            makers.append(_TOKENS[token])
        elif code is None and escape is not None and escape not in _ESCAPES:
            raise argparse.ArgumentTypeError(rf"\{escape} is no escape; there are \n \r \t \0 \\ and \xHH")
        else:
            makers.append(_constant(_bytes_of(code, escape, plain)))
    return lambda record: b"".join([make(record) for make in makers])


def _bytes_of(code: str | None, escape: str | None, plain: str | None) -> bytes:
    if code is not None:
        return bytes.fromhex(code)
    return _ESCAPES[escape] if escape is not None else (plain or "").encode(errors="surrogateescape")


def _constant(content: bytes) -> Callable[[ConsumerRecord], bytes]:
    return lambda _: content


def _length(content: bytes | None) -> int:
    return -1 if content is None else len(content)


def value_line(record: ConsumerRecord) -> bytes:
    """The value and a line feed."""
    return (record.value or b"") + b"\n"


def json_line(record: ConsumerRecord) -> bytes:
    """The record as a JSON object, and a line feed."""
    return json.dumps(as_object(record), ensure_ascii=False).encode() + b"\n"


def as_object(record: ConsumerRecord) -> dict[str, Any]:
    """A record for JSON. Bytes that are no UTF-8 come as base64, and a field ``..._encoding`` beside them says so."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": [{"name": name, **_text("value", value)} for name, value in record.headers],
    }


def _text(field: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {field: None}
    try:
        return {field: content.decode()}
    except UnicodeDecodeError:
        return {field: base64.b64encode(content).decode(), f"{field}_encoding": "base64"}


class InputRecord(NamedTuple):
    """A record of the input. ``partition`` and ``timestamp_ms`` are ``None`` where the producer is to choose them."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def keyed_record(line: bytes, number: int, separator: bytes) -> InputRecord:
    """``KEY SEPARATOR VALUE``. Raises ``CommandError`` naming the line, counted from 1, for one without the separator."""
    key, found, value = line.partition(separator)
    if not found:
        raise CommandError(
            f"line {number} has no separator {separator.decode(errors='surrogateescape')!r} between key and value"
        )
    return InputRecord(key, value)


def json_record(line: bytes, number: int) -> InputRecord:
    """A JSON object with ``value`` and, if wanted, ``key``, ``headers``, ``partition`` and ``timestamp_ms``.

    Texts become UTF-8; ``"key_encoding": "base64"`` (``value_encoding`` likewise) says that a text is base64. Headers are
    objects with ``name`` and ``value``. Raises ``CommandError`` naming the line, counted from 1, for all else.
    """
    try:
        content = json.loads(line)
    except ValueError as error:  # also for text that is no UTF-8
        raise CommandError(f"line {number} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise CommandError(f'line {number} is no JSON object such as {{"key": "a", "value": "b"}}')
    known = _INPUT_FIELDS | _IGNORED_FIELDS | {"key_encoding", "value_encoding"}
    if unknown := sorted(content.keys() - known):
        raise CommandError(f"line {number} has a field {unknown[0]!r}; there are {', '.join(sorted(_INPUT_FIELDS))}")
    return InputRecord(
        _content(content, "key", number),
        _content(content, "value", number),
        _headers(content.get("headers", ()), number),
        _whole(content, "partition", number),
        _whole(content, "timestamp_ms", number),
    )


def _content(fields: dict[str, Any], name: str, number: int) -> bytes | None:
    text, encoding = fields.get(name), fields.get(f"{name}_encoding")
    if encoding not in (None, "base64"):
        raise CommandError(f"line {number}: {name}_encoding is {encoding!r}; there is base64 only")
    if text is None:
        return None
    if not isinstance(text, str):
        raise CommandError(f"line {number}: {name} must be a text or null, not {json.dumps(text)}")
    try:
        return text.encode() if encoding is None else base64.b64decode(text, validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise CommandError(f"line {number}: {name}: {error}") from error


def _headers(listed: object, number: int) -> Headers:
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise CommandError(f'line {number}: headers must be a list such as [{{"name": "a", "value": "b"}}]')
    headers = []
    for header in listed:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise CommandError(f"line {number}: a header must be an object with a name and a value")
        headers.append((header["name"], _content(header, "value", number)))
    return tuple(headers)


def _whole(fields: dict[str, Any], name: str, number: int) -> int | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63):
        raise CommandError(f"line {number}: {name} must be a whole number from 0, not {json.dumps(value)}")
    return value
