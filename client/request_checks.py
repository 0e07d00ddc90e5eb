"""What a daemon would close the connection for, found before a request is sent.

A frame that breaks a bound of the protocol cannot be read, so it cannot be answered either: the daemon hangs up, and a
client would try again until its deadline and then blame the network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from client.errors import InvalidRequestError
from protocol.codec import MAX_ARRAY_ITEMS, MAX_STRING_BYTES, encode_message
from protocol.framing import encode_request
from protocol.messages import Request

_MAX_CLIENT_ID_CHARS: Final = 1024
_MAX_UTF8_PER_CHAR: Final = 4


def checked_frame(request: Request, correlation_id: int, client_id: str) -> bytes:
    """The bytes of a request.

    Raises ``InvalidRequestError`` naming the field whose text is longer than ``MAX_STRING_BYTES`` in UTF-8 or has no UTF-8
    at all (half a surrogate pair), or whose list has more than ``MAX_ARRAY_ITEMS`` entries.
    """
    body = encode_message(request)
    try:
        frame = encode_request(request.api_key, request.versions[1], correlation_id, client_id, body)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(_explained(request, client_id)) from error
    if (len(frame) > MAX_STRING_BYTES and _breaks_bound(body)) or len(client_id) > _MAX_CLIENT_ID_CHARS:
        raise InvalidRequestError(_explained(request, client_id))
    return frame


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
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            yield f"its {name} {value[:60]!r} is no text that UTF-8 can hold"
            return
        if size > MAX_STRING_BYTES:
            yield f"its {name} {value[:40]!r}... takes {size} bytes of UTF-8, at most {MAX_STRING_BYTES} are allowed"
    elif isinstance(value, tuple | list):
        if len(value) > MAX_ARRAY_ITEMS:
            yield f"its {name} has {len(value)} entries, at most {MAX_ARRAY_ITEMS} are allowed"
        for item in value:
            yield from _faults(name, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _faults(field.name, getattr(value, field.name))
