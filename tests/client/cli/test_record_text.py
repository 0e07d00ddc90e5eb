"""Records as text: formats that print them, lines that become records."""

from __future__ import annotations

import argparse
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.cli.failure import CommandError
from client.cli.record_text import InputRecord, format_string, json_line, json_record, keyed_record, value_line
from client.types.records import ConsumerRecord

RECORD = ConsumerRecord("lines", 3, 42, 1700, b"k\xff", b"v", (("a", b"1"), ("b", None)))
EMPTY = ConsumerRecord("lines", 0, 0, 0, None, None)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%t-%p@%o %T\\n", b"lines-3@42 1700\n"),
        ("%k=%v", b"k\xff=v"),
        ("%K,%S", b"2,1"),
        ("%h", b"a=1,b="),
        ("%s%%\\t\\r\\0\\\\\\x41", b"v%\t\r\0\\A"),
        ("überall", "überall".encode()),
        ("", b""),
    ],
)
def test_a_format_prints_what_its_tokens_name(text: str, printed: bytes) -> None:
    assert format_string(text)(RECORD) == printed


def test_null_prints_nothing_and_has_length_minus_one() -> None:
    assert format_string("<%k|%v|%h|%K|%S>")(EMPTY) == b"<|||-1|-1>"
    assert value_line(EMPTY) == b"\n"


@pytest.mark.parametrize("text", ["%x", "50%", "\\q", "\\", "\\x4"])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="there are"):
        format_string(text)


contents = st.none() | st.binary(max_size=20)


@given(contents, contents, st.lists(st.tuples(st.text(max_size=5), contents), max_size=3), st.integers(0, 2**62))
def test_a_record_comes_back_from_its_json_line(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], number: int
) -> None:
    record = ConsumerRecord("lines", 3, number, number, key, value, tuple(headers))
    assert json_record(json_line(record), 1) == InputRecord(key, value, tuple(headers), 3, number)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is no JSON"),
        ("\xff", "is no JSON"),
        ("[1]", "is no JSON object"),
        ('{"valeu": "a"}', "has a field 'valeu'"),
        ('{"value": {"a": 1}}', "value must be a text or null"),
        ('{"value": 1}', "value must be a text or null"),
        ('{"key": "a", "key_encoding": "hex"}', "there is base64 only"),
        ('{"key": "a", "key_encoding": "base64"}', "key:"),
        ('{"value": "\\ud800"}', "value:"),
        ('{"headers": {"a": "b"}}', "headers must be a list"),
        ('{"headers": ["a"]}', "a header must be an object"),
        ('{"partition": -1}', "partition must be a whole number"),
        ('{"partition": true}', "partition must be a whole number"),
        ('{"timestamp_ms": "now"}', "timestamp_ms must be a whole number"),
    ],
)
def test_a_line_that_is_no_record_is_named_with_what_is_wrong(line: str, reason: str) -> None:
    with pytest.raises(CommandError) as refused:
        json_record(line.encode("latin-1"), 17)
    assert reason in str(refused.value)
    assert str(refused.value).startswith("line 17")


def test_an_object_may_leave_out_all_but_nothing() -> None:
    assert json_record(b"{}", 1) == InputRecord(None, None)
    assert json_record(json.dumps({"topic": "x", "offset": 9, "value": "a"}).encode(), 1) == InputRecord(None, b"a")


def test_a_key_stands_before_the_first_separator() -> None:
    assert keyed_record(b"a::b::c", 1, b"::") == InputRecord(b"a", b"b::c")
    with pytest.raises(CommandError, match="line 3 has no separator '::'"):
        keyed_record(b"a:b", 3, b"::")
