"""Serializers and deserializers: what they see, what ready-made ones make, and what is said of wrong ones."""

from __future__ import annotations

import builtins
import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, assert_type

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import Consumer, ConsumerRecord, JsonSerde, MsgspecSerde, Producer, SerializationContext
from client.errors import RecordDeserializationError
from client.types.serdes import bound_serializer
from coordinator import Coordinator
from tests.integration.consuming import QUICK, create

VALUE = SerializationContext("orders", "value")


@dataclasses.dataclass
class Order:
    dish: str
    count: int


class Recorded:
    """Bytes as they are; keeps what it was told."""

    def __init__(self) -> None:
        self.seen: list[SerializationContext] = []

    def serialize(self, value: bytes, context: SerializationContext, /) -> bytes:
        self.seen.append(context)
        return value

    def deserialize(self, data: bytes, context: SerializationContext, /) -> str:
        self.seen.append(context)
        return f"{context.topic}/{context.field}/{dict(context.headers).get('schema', b'')!r}: {data.decode()}"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON_VALUES)
def test_json_reads_what_it_has_written(value: Any) -> None:
    assert JsonSerde().deserialize(JsonSerde().serialize(value, VALUE), VALUE) == value


def test_json_is_utf8_without_spaces_and_has_no_nan() -> None:
    assert JsonSerde().serialize({"dish": "Käse", "n": [1, 2]}, VALUE) == '{"dish":"Käse","n":[1,2]}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        JsonSerde().serialize(math.nan, VALUE)
    with pytest.raises(TypeError) as failed:
        JsonSerde().serialize({1, 2}, VALUE)
    assert failed.value.__notes__ == ["raised by JsonSerde for the value of a record for 'orders'"]


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_msgspec_makes_the_type_and_refuses_what_does_not_fit(name: Any) -> None:
    serde = MsgspecSerde(Order, format=name)
    assert_type(serde, MsgspecSerde[Order])
    data = serde.serialize(Order("tea", 2), VALUE)
    assert data == getattr(msgspec, name).encode({"dish": "tea", "count": 2})
    assert serde.deserialize(data, VALUE) == Order("tea", 2)
    with pytest.raises(msgspec.ValidationError, match=r"\$.count"):
        serde.deserialize(getattr(msgspec, name).encode({"dish": "tea", "count": "two"}), VALUE)


def test_types_may_be_unions() -> None:
    serde: MsgspecSerde[Order | None] = MsgspecSerde(Order | None)
    assert serde.deserialize(b"null", VALUE) is None
    assert serde.deserialize(b'{"dish":"tea","count":1}', VALUE) == Order("tea", 1)


def test_another_format_and_a_missing_library_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="format is 'yaml'; it can be 'json' or 'msgpack'"):
        MsgspecSerde(Order, format="yaml")  # type: ignore[call-overload]
    import_before = builtins.__import__

    def without_msgspec(name: str, *rest: Any) -> Any:
        if name == "msgspec":
            raise ImportError(name)
        return import_before(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_msgspec)
    with pytest.raises(ImportError, match=r"pip install 'aiocohort\[msgspec\]'"):
        MsgspecSerde(Order)


def test_what_is_no_serializer_is_refused_at_once() -> None:
    assert bound_serializer(None, "key") is None
    with pytest.raises(TypeError, match=r"value_serializer is 42; it must be a function of the value, or an object"):
        Producer(value_serializer=42)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"key_deserializer is 'utf-8'; it must be a function of bytes, or an object"):
        Consumer("t", key_deserializer="utf-8")  # type: ignore[arg-type]


async def test_both_ends_see_topic_field_and_headers_and_null_stays_null() -> None:
    sending, reading = Recorded(), Recorded()
    async with Coordinator() as c:
        await create(c.address, t=1)
        async with Producer(c.address, key_serializer=Recorded(), value_serializer=sending) as producer:
            await producer.send_and_wait("t", b"one", key=b"k", headers=[("schema", b"7")])
            await producer.send_many("t", [b"two", None], headers=[[("schema", b"8")], None])
            await producer.send_and_wait("t", b"four")
        async with Consumer(
            "t", bootstrap_servers=c.address, key_deserializer=reading, value_deserializer=reading, **QUICK
        ) as consumer:
            records = [await consumer.getone() for _ in range(4)]
            assert_type(records[0], ConsumerRecord[str, str])
        async with Consumer("t", bootstrap_servers=c.address, value_deserializer=reading, **QUICK) as consumer:
            many: list[str] = []
            while len(many) < 4:
                for batch in (await consumer.getmany(timeout_ms=1000)).values():
                    many += [record.value for record in batch]
    assert [context.headers for context in sending.seen] == [(("schema", b"7"),), (("schema", b"8"),), ()]
    assert {(context.topic, context.field) for context in sending.seen} == {("t", "value")}
    assert records[0].key == "t/key/b'7': k"
    assert [record.key for record in records[1:]] == [None] * 3
    values = ["t/value/b'7': one", "t/value/b'8': two", None, "t/value/b'': four"]
    assert [record.value for record in records] == values
    assert many == values


async def test_a_record_that_does_not_fit_the_type_is_told_with_its_place() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        async with Producer(c.address) as producer:
            await producer.send_many("t", [b'{"dish":"tea","count":1}', b'{"dish":"tea"}'])
        async with Consumer(
            "t", bootstrap_servers=c.address, value_deserializer=MsgspecSerde(Order), **QUICK
        ) as consumer:
            assert (await consumer.getone()).value == Order("tea", 1)
            with pytest.raises(RecordDeserializationError, match="offset 1 of t-0") as failed:
                await consumer.getone()
    assert isinstance(failed.value.__cause__, msgspec.ValidationError)


PROGRAM = """
from dataclasses import dataclass

from aiocohort import Consumer, ConsumerRecord, JsonSerde, MsgspecSerde, Producer


@dataclass
class Order:
    dish: str


async def cook(record: ConsumerRecord[str, Order]) -> None:
    print(record.value.dish)


async def other(record: ConsumerRecord[str, int]) -> None:
    print(record.value)


async def main() -> None:
    plain = Consumer("orders")
    reveal_type(plain)
    reveal_type((await plain.getone()).value)
    reveal_type(Consumer("orders", value_deserializer=JsonSerde()))
    typed = Consumer("orders", key_deserializer=bytes.decode, value_deserializer=MsgspecSerde(Order))
    reveal_type(typed)
    reveal_type((await typed.getone()).value)
    await typed.process(cook)
    await typed.process(other)  # refused
    async for record in typed:
        reveal_type(record.key)
    nulls: Consumer[str | None, Order | None] = Consumer(
        "orders", key_deserializer=bytes.decode, value_deserializer=MsgspecSerde(Order)
    )
    reveal_type((await nulls.getone()).value)
    producer = Producer(key_serializer=str.encode, value_serializer=MsgspecSerde(Order))
    reveal_type(producer)
    await producer.send("orders", Order("tea"), key="table-7")
    await producer.send("orders", None, key="table-7")
    await producer.send("orders", b"tea")  # refused
    await producer.send_many("orders", [Order("tea")], keys=[7])  # refused
    await Producer().send("orders", b"tea", key=b"7")
"""


def test_a_strict_type_check_knows_the_types_and_refuses_others(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, "program.py"], capture_output=True, text=True, timeout=110, cwd=tmp_path)
    lines = done.stdout.splitlines()
    revealed = [line.partition('Revealed type is "')[2].rstrip('"') for line in lines if "Revealed" in line]
    consumer, producer = "client.consumer.consumer.Consumer", "client.producer.producer.Producer"
    assert revealed == [
        f"{consumer}[Any, Any]",
        "Any",
        f"{consumer}[Any, Any]",
        f"{consumer}[str, program.Order]",
        "program.Order",
        "str",
        "program.Order | None",
        f"{producer}[str, program.Order]",
    ], done.stdout
    refused = {int(line.split(":")[1]) for line in lines if ": error: " in line}
    assert refused == {
        number for number, line in enumerate(PROGRAM.splitlines(), start=1) if line.endswith("# refused")
    }, done.stdout
