"""The document of the protocol says what the code does."""

from __future__ import annotations

import struct

import pytest

from protocol.codec import MAX_STRING_BYTES
from protocol.framing import DEFAULT_MAX_FRAME_BYTES
from protocol.hashing import java_string_hash, murmur2
from protocol.messages import PEER_REQUESTS, REQUESTS
from protocol.record_batch import HEADER_BYTES, MAX_BATCH_BYTES, Attributes, encode_batch, read_header
from tests.protocol.message_tables import ERRORS, MESSAGES, README, between, errors, messages

DOCUMENT = README.read_text(encoding="utf-8")
REWRITE = "run: python -m tests.protocol.message_tables"


def test_the_tables_of_messages_are_those_of_the_code() -> None:
    assert between(DOCUMENT, MESSAGES) == messages().strip("\n"), REWRITE


def test_the_table_of_errors_is_that_of_the_code() -> None:
    assert between(DOCUMENT, ERRORS) == errors().strip("\n"), REWRITE


@pytest.mark.parametrize("request_name", [request.__name__ for request in (REQUESTS | PEER_REQUESTS).values()])
def test_every_message_has_a_table(request_name: str) -> None:
    assert f"**{request_name}**: " in DOCUMENT


def test_bounds_are_those_of_the_code() -> None:
    text = " ".join(DOCUMENT.split())
    assert f"at most {DEFAULT_MAX_FRAME_BYTES:,} bytes" in text
    assert f"at most {MAX_STRING_BYTES:,} bytes of UTF-8" in text
    assert f"at most {MAX_BATCH_BYTES:,} bytes" in text


def test_the_body_in_the_example_is_that_of_the_code() -> None:
    batch = encode_batch([b"v"], [b"k"], timestamps_ms=[258])
    assert batch[HEADER_BYTES:].hex(" ", -4) in DOCUMENT


def test_the_bits_of_a_batch_are_those_of_the_code() -> None:
    named = [bit for bit in Attributes if bit.name and bit not in (Attributes.NONE, Attributes.COMPRESSION_MASK)]
    for bit in named:
        row = f"| {bit.value.bit_length() - 1} | {bit.name} |"
        assert bit.value.bit_count() > 1 or row in DOCUMENT, row


def test_the_header_in_the_document_is_that_of_the_code() -> None:
    """Reads the table of header fields and takes a batch apart by it."""
    section = DOCUMENT.partition("<!-- batch header -->")[2].partition("<!-- end of batch header -->")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in section.splitlines() if line.startswith("| ")]
    formats = {"4 bytes": "4s", "uint32": "I", "int64": "q", "int32": "i", "uint16": "H", "int16": "h"}
    fields = [(int(at), formats[kind], name) for at, name, kind, _ in rows if at.isdigit()]
    assert [at for at, _, _ in fields] == [
        struct.calcsize("<" + "".join(kind for _, kind, _ in fields[:place])) for place in range(len(fields))
    ]
    layout = "<" + "".join(kind for _, kind, _ in fields)
    assert struct.calcsize(layout) == HEADER_BYTES
    batch = encode_batch([b"v"], [b"k"], timestamps_ms=[7], producer_id=5, producer_epoch=6, base_sequence=8)
    found = dict(zip((name for _, _, name in fields), struct.unpack_from(layout, batch), strict=True))
    header = read_header(batch)
    assert (found["length"], found["body crc"], found["record count"]) == (len(batch), header.body_crc, 1)
    assert (found["producer id"], found["producer epoch"], found["base sequence"]) == (5, 6, 8)
    assert (found["base timestamp"], found["max timestamp"], found["body length"]) == (7, 7, header.body_length)
    assert (found["attributes"], found["last delta"], found["leader epoch"]) == (Attributes.KEYS, 0, -1)


def test_the_vectors_of_the_hashes_hold() -> None:
    rows = [line for line in DOCUMENT.splitlines() if line.startswith(("| java |", "| murmur2 |"))]
    assert len(rows) >= 8
    for row in rows:
        _, kind, text, value, _ = [cell.strip() for cell in row.split("|")]
        text = text.strip("`")
        hashed = java_string_hash(text) if kind == "java" else murmur2(text.encode())
        assert hashed == int(value), row
