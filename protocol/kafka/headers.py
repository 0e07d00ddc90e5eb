"""What stands before a message: request headers 1 and 2, response headers 0 and 1 (KIP-482).

The later form of both has tagged fields, of which none is known; it goes with flexible versions. The answer to ApiVersions
has header 0 in all versions: its reader does not know yet what the daemon speaks (KIP-511).
"""

from __future__ import annotations

import struct
from functools import cache
from struct import Struct
from typing import Final, NamedTuple

from protocol.errors import ProtocolError
from protocol.kafka.decoding import read_sections, read_varint
from protocol.kafka.messages import APIS

API_VERSIONS: Final = 18

_FIXED: Final = Struct(">hhih")
_CORRELATION_ID: Final = Struct(">i")
_NULL: Final = -1


class RequestHeader(NamedTuple):
    """What every request begins with."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def request_header_version(api_key: int, api_version: int) -> int:
    """1 or 2, also of versions later than the schemas. Raises ``ProtocolError`` for an API key that is not known."""
    return 2 if api_version >= _flexible_from(api_key) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """0 or 1. Raises ``ProtocolError`` for an API key that is not known."""
    return 1 if api_version >= _flexible_from(api_key) and api_key != API_VERSIONS else 0


def decode_request_header(data: bytes | memoryview) -> tuple[RequestHeader, int]:
    """The header of a request, and where its body begins.

    The version may be one that is not served: to ApiVersions even that has an answer. Raises ``ProtocolError`` when the
    bytes are no header, and for an API key that is not known, as its header may have either form.
    """
    try:
        api_key, api_version, correlation_id, length = _FIXED.unpack_from(data)
        at: int = _FIXED.size
        flexible = request_header_version(api_key, api_version) == 2
        client_id, at = _client_id(data, at, length)
        if flexible:
            at = _behind_tagged_fields(data, at)
    except (struct.error, IndexError):
        raise ProtocolError(f"a request ends within its header, after {len(data)} bytes") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id), at


def encode_request_header(header: RequestHeader) -> bytes:
    """The header as a client sends it. Raises ``ProtocolError`` for an API key that is not known."""
    client_id = b"" if header.client_id is None else header.client_id.encode()
    length = _NULL if header.client_id is None else len(client_id)
    fixed = _FIXED.pack(header.api_key, header.api_version, header.correlation_id, length)
    tagged_fields = bytes(request_header_version(header.api_key, header.api_version) - 1)
    return fixed + client_id + tagged_fields


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header of the answer to a request. Raises ``ProtocolError`` for an API key that is not known."""
    return _CORRELATION_ID.pack(correlation_id) + _behind_correlation_id(api_key, api_version)


@cache
def _behind_correlation_id(api_key: int, api_version: int) -> bytes:
    return bytes(response_header_version(api_key, api_version))


def decode_response_header(api_key: int, api_version: int, data: bytes | memoryview) -> tuple[int, int]:
    """The correlation id of the answer to a request of this key and version, and where its body begins.

    Raises ``ProtocolError`` when the bytes are no header, and for an API key that is not known.
    """
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(data)
        at: int = _CORRELATION_ID.size
        if response_header_version(api_key, api_version) == 1:
            at = _behind_tagged_fields(data, at)
    except (struct.error, IndexError):
        raise ProtocolError(f"a response ends within its header, after {len(data)} bytes") from None
    return correlation_id, at


def _flexible_from(api_key: int) -> int:
    api = APIS.get(api_key)
    if api is None:
        raise ProtocolError(f"API key {api_key} is not known")
    return api.flexible_from


def _client_id(data: bytes | memoryview, at: int, length: int) -> tuple[str | None, int]:
    if length == _NULL:
        return None, at
    if length < 0 or length > len(data) - at:
        raise ProtocolError(f"a client id of {length} bytes, of which {len(data) - at} are there")
    try:
        return str(data[at : at + length], "utf-8"), at + length
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a client id is not UTF-8: {error.reason}") from None


def _behind_tagged_fields(data: bytes | memoryview, at: int) -> int:
    if data[at] == 0:
        return at + 1
    count, at = read_varint(data, at)
    return read_sections(data, at, count)[0]
