"""The messages that protoc made say what ``etcd.proto`` says, to the bytes that etcd reads and writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import coordinator.metadata.etcd

pb = pytest.importorskip("coordinator.metadata.etcd.etcd_pb2", reason="the extra etcd is not installed")

_PROTO = Path(coordinator.metadata.etcd.__file__).parent / "etcd.proto"


def test_the_made_file_has_every_field_with_its_number() -> None:
    text = re.sub(r"//.*", "", _PROTO.read_text(encoding="utf-8"))
    written = {(name, int(number)) for name, number in re.findall(r"(\w+) = (\d+);", text) if not name.isupper()}
    written |= {(name, int(number)) for name, number in re.findall(r"int64 (TTL|ID) = (\d+);", text)}
    messages = pb.DESCRIPTOR.message_types_by_name.values()
    assert {(field.name, field.number) for message in messages for field in message.fields} == written
    assert {message.name for message in messages} == set(re.findall(r"message (\w+)", text))


def test_a_transaction_has_the_bytes_that_etcd_expects() -> None:
    request = pb.TxnRequest(
        compare=[pb.Compare(target=pb.Compare.MOD, key=b"k", mod_revision=7)],
        success=[
            pb.RequestOp(request_put=pb.PutRequest(key=b"k", value=b"v", lease=9)),
            pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"p/", range_end=b"p0")),
        ],
    )
    compare, put, delete = b"\x10\x02\x1a\x01k\x30\x07", b"\x0a\x01k\x12\x01v\x18\x09", b"\x0a\x02p/\x12\x02p0"
    put, delete = b"\x12" + bytes([len(put)]) + put, b"\x1a" + bytes([len(delete)]) + delete
    parts = [(b"\x0a", compare), (b"\x12", put), (b"\x12", delete)]
    assert request.SerializeToString() == b"".join(tag + bytes([len(part)]) + part for tag, part in parts)


def test_what_newer_members_say_beside_is_passed_over() -> None:
    answer = pb.StatusResponse.FromString(
        pb.StatusResponse(version="3.6.16", leader=3).SerializeToString() + b"\x5a\x053.6.0"
    )
    assert (answer.version, answer.leader) == ("3.6.16", 3)
