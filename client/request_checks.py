"""What a daemon would close the connection for, found before a request is sent.

A frame that breaks a bound of the protocol cannot be read, so it cannot be answered either: the daemon hangs up, and a
client would try again until its deadline and then blame the network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from client.errors import InvalidRequestError
from protocol.codec import MAX_ARRAY_ITEMS, MAX_STRING_BYTES, decode_message, encode_message
from protocol.errors import ProtocolError
from protocol.framing import LENGTH_BYTES, decode_request, encode_request
from protocol.messages import Request
from protocol.messages.groups import HeartbeatRequest, SyncGroupRequest
from protocol.messages.records import FetchRequest

_MAX_CLIENT_ID_CHARS: Final = 1024
_MAX_UTF8_PER_CHAR: Final = 4
_MADE_BY_CLIENTS: Final = (FetchRequest, HeartbeatRequest, SyncGroupRequest)
"""What is sent most, or is large: clients make these of values that they have checked or got from a daemon."""


def checked_frame(request: Request, correlation_id: int, client_id: str) -> bytes:
    """The bytes of a request.

    Raises ``InvalidRequestError`` naming the field whose text is longer than ``MAX_STRING_BYTES`` in UTF-8 or has no UTF-8
    at all (half a surrogate pair), whose list has more than ``MAX_ARRAY_ITEMS`` entries, or whose value is of another type
    than the daemon expects.
    """
    try:
        body = encode_message(request)
        frame = encode_request(request.api_key, request.versions[1], correlation_id, client_id, body)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(_explained(request, client_id)) from error
    except (AttributeError, TypeError, OverflowError) as error:
        raise InvalidRequestError(f"{type(request).__name__} cannot be sent: {error}; nothing was sent") from error
    if (len(frame) > MAX_STRING_BYTES and _breaks_bound(body)) or len(client_id) > _MAX_CLIENT_ID_CHARS:
        raise InvalidRequestError(_explained(request, client_id))
    if not isinstance(request, _MADE_BY_CLIENTS):
        _read_as_daemons_do(request, frame)
    return frame


def _read_as_daemons_do(request: Request, frame: bytes) -> None:
    try:
        decode_message(type(request), decode_request(frame[LENGTH_BYTES:]).body)
    except ProtocolError as error:
        raise InvalidRequestError(f"{error}; nothing was sent") from error


def text_fault(text: str) -> str:
    """Why no daemon would read a string, quoting it; empty when one would."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"{text[:60]!r} is no text that UTF-8 can hold"
    if size > MAX_STRING_BYTES:
        return f"{text[:40]!r}... takes {size} of at most {MAX_STRING_BYTES} bytes of UTF-8"
    return ""


def _breaks_bound(value: Any) -> bool:
    """Looks at plain lists only, which is quick also for ten thousand assignments."""
    for item in value:
        kind = type(item)
        if kind is str:
            if _is_too_long(item):
                return True
        elif (kind is list or kind is tuple) and (len(item) > MAX_ARRAY_ITEMS or _breaks_bound(item)):
            return True
    return False


def _is_too_long(text: str) -> bool:
    return len(text) * _MAX_UTF8_PER_CHAR > MAX_STRING_BYTES and len(text.encode()) > MAX_STRING_BYTES


def _explained(request: Request, client_id: str) -> str:
    if len(client_id) > _MAX_CLIENT_ID_CHARS:
        fault = f"its client_id has {len(client_id)} characters, at most {_MAX_CLIENT_ID_CHARS} are allowed"
    else:
        fault = next(_faults("client_id", client_id), None) or next(_faults("", request))
    return f"{type(request).__name__} cannot be sent: {fault}; nothing was sent"


def _faults(name: str, value: Any) -> Iterator[str]:
    """What is wrong with a value, in words that name its field."""
    if isinstance(value, str):
        fault = text_fault(value)
        if fault:
            yield f"its {name} {fault}"
    elif isinstance(value, tuple | list):
        if len(value) > MAX_ARRAY_ITEMS:
            yield f"its {name} has {len(value)} entries, at most {MAX_ARRAY_ITEMS} are allowed"
        for item in value:
            yield from _faults(name, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _faults(field.name, getattr(value, field.name))
