"""Messages to msgpack and back: everything survives, both sides can grow, and what is wrong is named."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Generator
from typing import Annotated, Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.codec import MAX_STRING_BYTES, decode_message, decode_message_in_steps, encode_message, pack
from protocol.errors import ProtocolError
from protocol.framing import unpack
from protocol.messages import PEER_REQUESTS, REQUESTS, ApiKey, Request, Response
from protocol.messages.api import register
from protocol.messages.cluster import ApiVersion, FindCoordinatorRequest, MetadataRequest
from protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, SyncGroupAssignment, SyncGroupRequest
from tests.protocol.instances import MESSAGES, STRUCTURES, fields_of, instances_of, item_of, optional_of

all_messages = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
all_structures = pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.__name__)


def over_the_wire(message: object) -> Any:
    return unpack(pack(encode_message(message)))


@all_messages
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_message_survives_the_wire(message: type, data: st.DataObject) -> None:
    sent = data.draw(instances_of(message))
    assert decode_message(message, over_the_wire(sent)) == sent


def done(steps: Generator[None, None, Any]) -> tuple[int, Any]:
    """How many steps there were, and what came of them."""
    number = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return number, end.value
        number += 1


@all_messages
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), per_step=st.integers(1, 3))
def test_decoded_in_steps_every_message_is_the_same(message: type, data: st.DataObject, per_step: int) -> None:
    sent = data.draw(instances_of(message))
    assert done(decode_message_in_steps(message, over_the_wire(sent), per_step))[1] == sent


def test_a_long_array_is_decoded_some_in_each_step_and_its_faults_are_named() -> None:
    shares = tuple(SyncGroupAssignment(f"m{number}", b"share") for number in range(100))
    body = over_the_wire(SyncGroupRequest("g", 1, "m", None, None, None, shares))
    steps, decoded = done(decode_message_in_steps(SyncGroupRequest, body, 30))
    assert (steps, decoded) == (5, decode_message(SyncGroupRequest, body))
    broken = (*body[:6], (*body[6], ("m", "text")))
    with pytest.raises(ProtocolError) as at_once:
        decode_message(SyncGroupRequest, broken)
    with pytest.raises(ProtocolError) as in_steps:
        done(decode_message_in_steps(SyncGroupRequest, broken, 30))
    assert str(in_steps.value) == str(at_once.value)
    for body in (None, (), ("g", (1,) * 99, "m"), tuple(range(200))):
        with pytest.raises(ProtocolError):
            done(decode_message_in_steps(SyncGroupRequest, body, 30))


@all_structures
@settings(max_examples=10)
@given(data=st.data())
def test_fields_from_a_newer_writer_are_ignored(structure: type, data: st.DataObject) -> None:
    sent = data.draw(instances_of(structure))
    assert decode_message(structure, [*over_the_wire(sent), "new", [1, {"a": None}]]) == sent


@all_structures
@settings(max_examples=10)
@given(data=st.data())
def test_fields_that_an_older_writer_leaves_out_take_their_defaults(structure: type, data: st.DataObject) -> None:
    sent = data.draw(instances_of(structure))
    required = sum(default is dataclasses.MISSING for _, _, default in fields_of(structure))
    kept = data.draw(st.integers(required, len(fields_of(structure))))
    defaults = {name: default for name, _, default in fields_of(structure)[kept:]}
    assert decode_message(structure, over_the_wire(sent)[:kept]) == dataclasses.replace(sent, **defaults)


@all_structures
@settings(max_examples=5)
@given(data=st.data())
def test_a_required_field_that_is_missing_is_an_error(structure: type, data: st.DataObject) -> None:
    required = [name for name, _, default in fields_of(structure) if default is dataclasses.MISSING]
    if required:
        body = over_the_wire(data.draw(instances_of(structure)))[: len(required) - 1]
        with pytest.raises(ProtocolError, match=f"^{structure.__name__}: .*at least {len(required)} are needed"):
            decode_message(structure, body)


def wrong_values(annotation: Any) -> list[Any]:
    """Values that a field of this type cannot have, as they come from the wire."""
    if optional_of(annotation) is not None:
        return [wrong for wrong in wrong_values(optional_of(annotation)) if wrong is not None]
    if item_of(annotation) is not None:
        return [None, 1, "a", b"a", {}, (object(),), *((wrong,) for wrong in wrong_values(item_of(annotation)))]
    if typing.get_origin(annotation) is Annotated:
        bounds = annotation.__metadata__[0]
        return [None, "1", b"1", 1.0, True, (), {}, bounds.low - 1, bounds.high + 1]
    plain: dict[Any, list[Any]] = {str: [b"a", 1], bytes: ["a", 1], bool: [0, 1, "a"]}
    return [None, (), {}, 1.5, *plain.get(annotation, ["a", 1, b"a"])][: None if annotation in plain else 2]


@all_structures
@settings(max_examples=5)
@given(data=st.data())
def test_a_value_of_the_wrong_type_is_an_error_that_names_the_field(structure: type, data: st.DataObject) -> None:
    body = list(over_the_wire(data.draw(instances_of(structure))))
    for place, (name, annotation, _) in enumerate(fields_of(structure)):
        wrong_ones = wrong_values(annotation)
        if dataclasses.is_dataclass(annotation):
            wrong_ones = [None, 1, "a", {}]
        for wrong in wrong_ones:
            with pytest.raises(ProtocolError, match=rf"^{structure.__name__}: (\w+: )*{name}: "):
                decode_message(structure, [*body[:place], wrong, *body[place + 1 :]])


@all_messages
@pytest.mark.parametrize("body", [None, 1, "text", b"bytes", {}, {1: 2}, 1.5, True])
def test_a_body_that_is_no_array_is_an_error(message: type, body: object) -> None:
    with pytest.raises(ProtocolError, match=f"^{message.__name__}: expected the fields of"):
        decode_message(message, body)


@all_messages
@settings(max_examples=30)
@given(body=st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
))  # fmt: skip
def test_any_value_is_a_message_or_a_protocol_error(message: type, body: Any) -> None:
    try:
        decoded: object = decode_message(message, body)
    except ProtocolError:
        return
    assert decode_message(message, encode_message(decoded)) == decoded


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_protocol_error(payload: bytes) -> None:
    try:
        value = unpack(payload)
    except ProtocolError:
        return
    assert repr(unpack(pack(value))) == repr(value)  # as text, because NaN is not itself


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (b"\xa2\xff\xfe", "invalid UTF-8"),
        (msgpack.packb("a" * (MAX_STRING_BYTES + 1)), "a string above the bound"),
        (b"\xdd\xff\xff\xff\xff", "an array that claims four billion items"),
        (b"\xdf\xff\xff\xff\xff", "a map that claims four billion items"),
        (b"\xc6\xff\xff\xff\xff", "bytes that claim four gigabytes"),
        (b"\x91" * 100_000 + b"\x00", "nesting without end"),
        (b"\x01\x02", "two values"),
        (b"", "nothing"),
        (b"\xc1", "a byte that msgpack never uses"),
        (b"\x81\x90\x01", "a map whose key is an array"),
        (b"\x81\xc0\x01", "a map whose key is nil"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_outside_the_bounds_is_refused(payload: bytes, what: str) -> None:
    with pytest.raises(ProtocolError):
        unpack(payload)


def test_the_longest_string_passes() -> None:
    assert unpack(pack("a" * MAX_STRING_BYTES)) == "a" * MAX_STRING_BYTES


def test_errors_show_what_came_but_not_all_of_it() -> None:
    with pytest.raises(ProtocolError, match=r"^FindCoordinatorRequest: key: expected str, found bytes b'") as caught:
        decode_message(FindCoordinatorRequest, [b"x" * 5000])
    assert len(str(caught.value)) < 200


def test_a_nested_fault_is_named_from_the_outside_in() -> None:
    with pytest.raises(ProtocolError, match=r"^JoinGroupRequest: protocols: metadata: expected bytes, found str"):
        decode_message(JoinGroupRequest, ["g", 1, 1, "", None, "consumer", [["range", "no bytes"]]])


def test_null_and_empty_are_told_apart() -> None:
    assert decode_message(MetadataRequest, over_the_wire(MetadataRequest(None))).topics is None
    assert decode_message(MetadataRequest, over_the_wire(MetadataRequest(()))).topics == ()


def test_a_body_is_its_fields_in_order() -> None:
    assert encode_message(HeartbeatRequest("g", 4, "m", None, 500)) == ["g", 4, "m", None, 500]
    assert encode_message(ApiVersion(18, 0, 1)) == [18, 0, 1, 0, 0]


def test_every_key_has_one_request_and_every_request_its_response() -> None:
    assert sorted([*REQUESTS, *PEER_REQUESTS]) == sorted(ApiKey)
    for key, request in (REQUESTS | PEER_REQUESTS).items():
        assert request.api_key == key
        assert issubclass(request, Request)
        assert issubclass(request.response, Response)
        assert request.versions[0] <= request.versions[1]


def test_two_requests_cannot_share_a_key() -> None:
    @dataclasses.dataclass(frozen=True)
    class Impostor(Request):
        api_key = ApiKey.HEARTBEAT

    with pytest.raises(ValueError, match="belongs to HeartbeatRequest already"):
        register(Impostor)


def test_a_field_type_without_a_wire_form_is_a_programming_error() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Odd:
        ratio: float

    with pytest.raises(TypeError, match="no wire form"):
        decode_message(Odd, [1.0])


def test_a_message_that_cannot_be_made_field_by_field_is_a_programming_error() -> None:
    @dataclasses.dataclass(frozen=True)
    class WithoutSlots:
        name: str

    @dataclasses.dataclass(frozen=True, slots=True)
    class Checked:
        name: str

        def __post_init__(self) -> None:
            raise ValueError(self.name)

    for kind in (WithoutSlots, Checked):
        with pytest.raises(TypeError, match=f"{kind.__name__}: a message is a dataclass with slots"):
            decode_message(kind, ["n"])
