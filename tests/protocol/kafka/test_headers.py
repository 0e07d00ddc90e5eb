"""Headers of requests and responses: which form goes with which version, and what is no header."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    request_header_version,
    response_header_version,
)
from protocol.kafka.messages import APIS
from tests.protocol.kafka.message_modules import HEADERS, module_source, schema_of

LAST_WITHOUT_TAGGED_FIELDS = {
    0: 8,
    1: 11,
    2: 5,
    3: 8,
    8: 7,
    9: 5,
    10: 2,
    11: 5,
    12: 3,
    13: 3,
    14: 3,
    15: 4,
    16: 2,
    18: 2,
    19: 4,
    20: 3,
    21: 1,
    22: 1,
    23: 3,
    24: 2,
    25: 2,
    26: 2,
    27: 0,
    28: 2,
    32: 3,
    33: 1,
    35: 1,
    36: 1,
    37: 1,
    42: 1,
    44: 0,
    60: -1,
    61: -1,
    65: -1,
    66: -1,
    75: -1,
}
"""By API key, from Kafka's protocol guide; keys 17 and 47 never have tagged fields."""


@pytest.mark.parametrize("key", LAST_WITHOUT_TAGGED_FIELDS)
def test_the_form_of_a_header_goes_with_key_and_version(key: int) -> None:
    last = LAST_WITHOUT_TAGGED_FIELDS[key]
    if last >= 0:
        assert (request_header_version(key, last), response_header_version(key, last)) == (1, 0)
    assert request_header_version(key, last + 1) == 2
    assert response_header_version(key, last + 1) == (0 if key == 18 else 1)


@pytest.mark.parametrize("key", [17, 47])
def test_keys_that_never_became_flexible(key: int) -> None:
    versions = (*range(APIS[key].versions[1] + 1), 99)
    assert {(request_header_version(key, each), response_header_version(key, each)) for each in versions} == {(1, 0)}


def test_no_key_is_left_out() -> None:
    assert set(APIS) == {*LAST_WITHOUT_TAGGED_FIELDS, 17, 47}


@pytest.mark.parametrize(
    ("data", "header", "body"),
    [
        ("0012 0000 00000007 ffff", RequestHeader(18, 0, 7, None), 10),
        ("0012 0003 00000007 0003 6b6974 00", RequestHeader(18, 3, 7, "kit"), 14),
        ("0012 0063 00000007 0000 00 ff", RequestHeader(18, 99, 7, ""), 11),
        ("0000 0008 ffffffff 0002 c3a9", RequestHeader(0, 8, -1, "é"), 12),
        ("0000 0009 00000001 ffff 02 00 01 61 05 02 6262", RequestHeader(0, 9, 1, None), 18),
        ("0000 0009 00000001 ffff 02 05 00 05 00", RequestHeader(0, 9, 1, None), 15),
    ],
)
def test_request_headers(data: str, header: RequestHeader, body: int) -> None:
    assert decode_request_header(bytes.fromhex(data)) == (header, body)
    assert decode_request_header(memoryview(bytes.fromhex(data))) == (header, body)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "ends within its header, after 0 bytes"),
        ("0012 0000 0000", "ends within its header"),
        ("0012 0000 00000007 fffe", "a client id of -2 bytes"),
        ("0012 0000 00000007 0004 6b6974", "a client id of 4 bytes, of which 3 are there"),
        ("0012 0000 00000007 0002 c328", "not UTF-8"),
        ("0012 0003 00000007 ffff", "ends within its header"),
        ("0012 0003 00000007 ffff 05", "5 tagged fields"),
        ("0012 0003 00000007 ffff 01 00 ff", "ends within its header"),
        ("0012 0003 00000007 ffff 01 00 09 00", "tagged field 0 has 9 bytes, of which 1 are there"),
        ("0012 0003 00000007 ffff 80 80 80 80 80 01", "longer than 32 bits"),
        ("03e7 0000 00000007 ffff", "API key 999 is not known"),
        ("0007 0000 00000007", "ends within its header"),
        ("ffff 0000 00000007 ffff", "API key -1 is not known"),
    ],
)
def test_what_is_no_request_header(data: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_request_header(bytes.fromhex(data))


headers = st.builds(
    RequestHeader,
    st.sampled_from(sorted(APIS)),
    st.integers(0, 20),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
)


@functools.cache
def kind_of(schema: str) -> Any:
    """The message that a schema describes, of a module that is in no file."""
    module = sys.modules[f"made_of_{schema}"] = ModuleType(
        f"made_of_{schema}"
    )  # where a dataclass looks up annotations
    exec(module_source(schema_of(schema)), module.__dict__)
    return getattr(module, schema)


@given(headers)
def test_headers_are_what_kafkas_schemas_say(header: RequestHeader) -> None:
    request, response = map(kind_of, HEADERS)
    version = request_header_version(header.api_key, header.api_version)
    sent = encode_request_header(header)
    assert b"".join(encode(request(*header), version)) == sent
    assert decode(request, version, sent) == request(*header)
    version = response_header_version(header.api_key, header.api_version)
    sent = encode_response_header(header.api_key, header.api_version, header.correlation_id)
    assert b"".join(encode(response(header.correlation_id), version)) == sent


@given(headers, st.binary(max_size=20))
def test_headers_survive(header: RequestHeader, body: bytes) -> None:
    request = encode_request_header(header)
    assert decode_request_header(request + body) == (header, len(request))
    answer = encode_response_header(header.api_key, header.api_version, header.correlation_id)
    read = decode_response_header(header.api_key, header.api_version, answer + body)
    assert read == (header.correlation_id, len(answer))


@given(st.binary(max_size=40), st.sampled_from(sorted(APIS)), st.integers(0, 20))
def test_random_bytes_are_a_header_or_a_protocol_error(data: bytes, key: int, version: int) -> None:
    for candidate in (data, key.to_bytes(2, "big") + version.to_bytes(2, "big") + data):
        try:
            _, at = decode_request_header(candidate)
        except ProtocolError:
            continue
        assert at <= len(candidate)


@pytest.mark.parametrize(("key", "version", "data"), [(3, 0, "000000"), (3, 9, "00000001"), (3, 9, "0000000101")])
def test_what_is_no_response_header(key: int, version: int, data: str) -> None:
    with pytest.raises(ProtocolError):
        decode_response_header(key, version, bytes.fromhex(data))


def test_a_response_header_of_an_unknown_key_is_refused() -> None:
    with pytest.raises(ProtocolError, match="API key 4 is not known"):
        encode_response_header(4, 0, 1)
