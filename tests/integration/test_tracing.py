"""Spans of producers and consumers, as OpenTelemetry's own SDK collects them, and the context in records."""

from __future__ import annotations

import ast
import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, assert_type

import pytest
from aiocohort.tracing import TracedConsumer, TracedProducer
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode, get_current_span

import client.tracing
from client import (
    Admin,
    CohortError,
    CommitFailedError,
    Consumer,
    ConsumerRecord,
    DeadLetter,
    HandlerError,
    OffsetAndMetadata,
    Output,
    Producer,
    TopicPartition,
    UnknownTopicOrPartitionError,
)
from coordinator import Coordinator
from tests.daemon_process import DaemonProcess


class Spans:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


async def test_a_record_carries_the_context_of_its_send_to_the_handler_and_the_commit(tmp_path: Path) -> None:
    spans = Spans()
    with DaemonProcess(tmp_path, "--initial-rebalance-delay-ms", "0") as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"lines": 1})
        async with TracedProducer(daemon.address, tracer_provider=spans.provider) as producer:
            await producer.send_and_wait("lines", b"x", headers=[("own", b"1"), ("traceparent", b"of another")])
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.send("nowhere", b"x")
        (sent,) = spans.named("send lines")
        (failed,) = spans.named("send nowhere")
        assert failed.status.status_code is StatusCode.ERROR
        assert sent.kind is SpanKind.PRODUCER
        assert sent.attributes is not None
        assert sent.attributes["messaging.kafka.offset"] == 0
        records: list[ConsumerRecord] = []

        async with TracedConsumer(
            "lines",
            bootstrap_servers=daemon.address,
            group_id="g",
            auto_offset_reset="earliest",
            tracer_provider=spans.provider,
        ) as consumer:

            async def handle(record: ConsumerRecord) -> None:
                records.append(record)
                await consumer.commit(record)
                raise ValueError("enough")

            async with asyncio.timeout(20):
                with pytest.raises(HandlerError):
                    await consumer.process(handle)
        (processed,) = spans.named("process lines")
        (committed,) = spans.named("commit g")
        assert processed.parent is not None
        assert processed.parent.span_id == sent.context.span_id
        assert committed.parent is not None
        assert committed.parent.span_id == processed.context.span_id
        assert processed.status.status_code is StatusCode.ERROR
        of = sent.context
        carried = f"00-{of.trace_id:032x}-{of.span_id:016x}-{of.trace_flags:02x}".encode()
        assert records[0].headers == (("own", b"1"), ("traceparent", carried))


def test_without_the_extra_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None\nimport aiocohort.tracing"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert ended.stderr.splitlines()[-1] == (
        "ImportError: tracing needs opentelemetry-api: pip install 'aiocohort[otel]'"
    )


async def test_a_coroutine_function_for_threads_is_refused_as_by_any_consumer() -> None:
    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(0)

    async with Coordinator() as c, TracedConsumer("lines", bootstrap_servers=c.address, group_id="g") as consumer:
        with pytest.raises(TypeError, match="threads=2 and a coroutine function"):
            await consumer.process(handle, threads=2, on_error="skip")


async def test_handlers_in_threads_and_of_batches_have_spans_too() -> None:
    spans = Spans()
    async with Coordinator() as c:
        async with Admin(c.address) as admin:
            await admin.create_topics({"lines": 1})
        async with TracedProducer(c.address, tracer_provider=spans.provider) as producer:
            for value in (b"1", b"2", b"3"):
                await producer.send_and_wait("lines", value)
            await producer.send_many("lines", [b"4"])  # brings no context
        sent = [span.context.span_id for span in spans.named("send lines")]
        current: list[int] = []

        def plain(given: ConsumerRecord | list[ConsumerRecord]) -> None:
            current.append(get_current_span().get_span_context().span_id)

        for group, calls in (("one-by-one", 4), ("batches", 1)):
            async with TracedConsumer(
                "lines",
                bootstrap_servers=c.address,
                group_id=group,
                auto_offset_reset="earliest",
                tracer_provider=spans.provider,
            ) as consumer:
                if calls == 1:
                    working = asyncio.create_task(consumer.process_batch(plain, max_records=4, max_wait_ms=5_000))
                else:
                    working = asyncio.create_task(consumer.process(plain, threads=2))
                async with asyncio.timeout(30):
                    while len(current) < calls:
                        await asyncio.sleep(0.01)
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
            of_group = [
                span
                for span in spans.named("process lines")
                if span.attributes is not None and span.attributes["messaging.consumer.group.name"] == group
            ]
            assert [span.context.span_id for span in of_group] == current, "the span is current in the handler"
            current.clear()
            if calls == 1:
                assert [link.context.span_id for link in of_group[0].links] == sent
            else:
                assert [span.parent.span_id for span in of_group if span.parent is not None] == sent


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def coordinator(**partitions: int) -> AsyncIterator[str]:
    async with Coordinator() as c:
        async with Admin(c.address) as admin:
            await admin.create_topics(partitions)
        yield c.address


def group_of(span: ReadableSpan) -> object:
    assert span.attributes is not None
    return span.attributes.get("messaging.consumer.group.name")


def settles(span: ReadableSpan) -> bool:
    assert span.attributes is not None
    kept = ("messaging.system", "messaging.operation.name", "messaging.operation.type")
    return [span.attributes[name] for name in kept] == ["cohort", "commit", "settle"]


def traces(spans: list[ReadableSpan]) -> set[int]:
    return {span.context.trace_id for span in spans}


def context_of(record: ConsumerRecord) -> list[bytes | None]:
    return [value for name, value in record.headers if name == "traceparent"]


def as_header(span: ReadableSpan) -> bytes:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}".encode()


async def ended(working: asyncio.Task[None]) -> None:
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


def traced(address: str, spans: Spans, topic: str = "lines", **settings: Any) -> TracedConsumer:
    return TracedConsumer(
        topic,
        bootstrap_servers=address,
        group_id="g",
        auto_offset_reset="earliest",
        tracer_provider=spans.provider,
        **settings,
    )


@pytest.mark.parametrize("batches", [False, True])
async def test_what_process_and_the_clock_commit_has_spans_that_are_nobodys_children(batches: bool) -> None:
    spans = Spans()
    tracer = spans.provider.get_tracer("program")
    async with coordinator(lines=1) as address, TracedProducer(address, tracer_provider=spans.provider) as producer:
        with tracer.start_as_current_span("start of the program"):
            consumer = traced(address, spans, auto_commit_interval_ms=20)
            await consumer.start()
            working = asyncio.create_task(
                consumer.process_batch(lambda records: None) if batches else consumer.process(lambda record: None)
            )
        await producer.send_and_wait("lines", b"1")
        await until(lambda: spans.named("commit g"))
        by_the_clock = spans.named("commit g")
        await producer.send_and_wait("lines", b"2")
        await until(lambda: len(spans.named("commit g")) > len(by_the_clock))
        await ended(working)
        await consumer.stop()
    committed = spans.named("commit g")
    assert {span.kind for span in committed} == {SpanKind.CLIENT}
    assert all(settles(span) and group_of(span) == "g" and span.parent is None for span in committed)
    # One for each record; the clock may be first, and commit where the consumer begins.
    assert len(committed) in (2, 3), "only what is sent"


@pytest.mark.parametrize("how", ["process ends", "stop", "explicit"])
async def test_every_other_way_to_commit_has_a_span_too(how: str) -> None:
    spans = Spans()
    tracer = spans.provider.get_tracer("program")
    async with coordinator(lines=1) as address:
        async with Producer(address) as producer:
            await producer.send_and_wait("lines", b"1")
        async with traced(address, spans) as consumer:
            if how == "process ends":
                handled = asyncio.Event()
                working = asyncio.create_task(consumer.process(lambda record: handled.set()))
                await handled.wait()
                await ended(working)
            else:
                await consumer.getone()
                with tracer.start_as_current_span("program"):
                    if how == "explicit":
                        await consumer.commit()
        (committed,) = spans.named("commit g")
        if how == "explicit":
            assert committed.parent is not None
            assert committed.parent.span_id == spans.named("program")[0].context.span_id
        async with traced(address, spans, enable_auto_commit=False) as consumer:
            async with asyncio.timeout(20):
                while TopicPartition("lines", 0) not in consumer.assignment():
                    await consumer.getmany(timeout_ms=10)
            with pytest.raises(CommitFailedError):
                await consumer.commit({TopicPartition("lines", 0): OffsetAndMetadata(1, "x" * 20_000)})
        refused = spans.named("commit g")[-1]
        assert refused.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("own", [True, False])
async def test_consume_transform_produce_is_one_trace(own: bool) -> None:
    spans = Spans()
    async with coordinator(lines=1, words=1) as address:
        async with TracedProducer(address, tracer_provider=spans.provider) as source:
            await source.send_and_wait("lines", b"a")
        made = (
            TracedProducer(address, transactional_id="t", tracer_provider=spans.provider)
            if own
            else Producer(address, transactional_id="t")
        )

        def split(record: ConsumerRecord) -> list[Output]:
            return [Output("words", record.value, headers=(("own", b"1"),)), Output("words", b"x" * 2_000)]

        async with made as producer, traced(address, spans) as consumer:
            working = asyncio.create_task(consumer.process(split, producer=producer, commit_interval_ms=10))
            await until(lambda: spans.named("commit t"))
            await ended(working)
        async with traced(address, spans, topic="words") as consumer:
            seen: list[ConsumerRecord] = []
            working = asyncio.create_task(consumer.process(seen.append))
            await until(lambda: len(seen) == 2)
            await ended(working)
    (sent,) = spans.named("send lines")
    (processed,) = spans.named("process lines")
    outputs = spans.named("send words")
    assert [span.parent.span_id for span in outputs if span.parent] == [processed.context.span_id] * 2
    assert traces(outputs) == traces(spans.named("process words")) == {sent.context.trace_id}
    assert [context_of(record) for record in seen] == [[as_header(span)] for span in outputs]
    assert seen[0].headers[0] == ("own", b"1")
    assert [span.attributes["messaging.kafka.offset"] for span in outputs if span.attributes] == [0, 1]
    (of_offsets,) = [
        span for span in spans.named("commit g") if span.end_time < spans.named("process words")[0].start_time
    ]
    (of_transaction,) = spans.named("commit t")
    for span in (of_offsets, of_transaction):
        assert settles(span)
        assert group_of(span) == "g"
        assert span.parent is None
        assert span.attributes is not None
        assert span.attributes["messaging.cohort.transactional_id"] == "t"


async def test_outputs_that_are_not_sent_leave_no_span_open() -> None:
    spans = Spans()
    async with coordinator(lines=1, words=1) as address:
        async with Producer(address) as source:
            await source.send_and_wait("lines", b"a")
        producer = TracedProducer(
            address, transactional_id="t", tracer_provider=spans.provider, max_request_bytes=10_000
        )

        def too_large(record: ConsumerRecord) -> list[Output]:
            return [Output("words", b"a"), Output("words", b"x" * 20_000)]

        async with producer, traced(address, spans) as consumer:
            with pytest.raises(HandlerError):
                await consumer.process(too_large, producer=producer)
    unsent = spans.named("send words")
    (processed,) = spans.named("process lines")
    assert len(unsent) == 2
    assert {span.status.status_code for span in [*unsent, processed]} == {StatusCode.ERROR}


async def test_a_transaction_of_the_program_has_its_spans_where_it_is() -> None:
    spans = Spans()
    tracer = spans.provider.get_tracer("program")
    async with (
        coordinator(lines=1) as address,
        TracedProducer(address, transactional_id="t", tracer_provider=spans.provider) as producer,
    ):
        with tracer.start_as_current_span("program") as program:
            async with producer.transaction() as tx:
                await tx.send("lines", b"1")
                await tx.send_many("lines", [b"2"])
                await tx.send_offsets({TopicPartition("lines", 0): 0}, "g")
            async with producer.transaction():
                pass  # of nothing the coordinator hears nothing
    children = [*spans.named("send lines"), *spans.named("commit g"), *spans.named("commit t")]
    assert len(children) == 4
    assert {span.parent.span_id for span in children if span.parent} == {program.get_span_context().span_id}
    assert [group_of(span) for span in children[2:]] == ["g", "g"]


async def test_send_many_has_one_span_whose_context_every_record_brings() -> None:
    spans = Spans()
    async with (
        coordinator(lines=1) as address,
        TracedProducer(address, tracer_provider=spans.provider) as producer,
        Consumer("lines", bootstrap_servers=address, auto_offset_reset="earliest") as consumer,
    ):
        await producer.send_many("lines", (value for value in (b"1", b"2")))
        own = [[("own", b"1"), ("traceparent", b"of another")], None]
        await producer.send_many("lines", [b"3", b"4"], headers=own)
        with pytest.raises(TypeError):
            await producer.send_many("lines", [1])
        first, second, failed = spans.named("send lines")
        assert failed.status.status_code is StatusCode.ERROR
        records = [await consumer.getone() for _ in range(4)]
    assert first.attributes is not None
    assert first.attributes["messaging.batch.message_count"] == 2
    assert [record.headers for record in records] == [
        (("traceparent", as_header(first)),),
        (("traceparent", as_header(first)),),
        (("own", b"1"), ("traceparent", as_header(second))),
        (("traceparent", as_header(second)),),
    ]


@pytest.mark.parametrize("how", ["one", "batch", "undecoded", "transaction"])
async def test_a_dead_letter_is_in_the_trace_of_its_record(how: str) -> None:
    spans = Spans()

    def fail(given: ConsumerRecord | list[ConsumerRecord]) -> None:
        raise ValueError("never")

    def refuse(stored: bytes) -> str:
        raise ValueError("no text")

    async with coordinator(lines=1, dead=1) as address:
        async with TracedProducer(address, tracer_provider=spans.provider) as source:
            await source.send_and_wait("lines", b"a", headers=[("own", b"1")])
        settings: dict[str, Any] = {"value_deserializer": refuse} if how == "undecoded" else {}
        async with (
            Producer(address, transactional_id="t") as producer,
            traced(address, spans, **settings) as consumer,
            Consumer("dead", bootstrap_servers=address, auto_offset_reset="earliest") as reader,
        ):
            letters = DeadLetter("dead")
            if how == "batch":
                working = asyncio.create_task(consumer.process_batch(fail, on_error=letters))
            elif how == "transaction":
                working = asyncio.create_task(
                    consumer.process(fail, on_error=letters, producer=producer, commit_interval_ms=10)
                )
            else:
                working = asyncio.create_task(consumer.process(fail, on_error=letters))
            async with asyncio.timeout(20):
                letter = await reader.getone()
            await ended(working)
    (sent,) = spans.named("send lines")
    (dead,) = spans.named("send dead")
    assert dead.kind is SpanKind.PRODUCER
    assert dead.parent is not None
    if how == "undecoded":
        assert dead.parent.span_id == sent.context.span_id
    else:
        assert dead.parent.span_id == spans.named("process lines")[0].context.span_id
    if how == "batch":  # whose trace is another
        assert [link.context.span_id for link in dead.links] == [sent.context.span_id]
    assert letter.headers[0] == ("own", b"1")
    assert "__cohort.errors.offset" in dict(letter.headers)
    assert context_of(letter) == [as_header(dead)]


def as_it_is(key: bytes) -> bytes:
    return key


async def typed(consumer: TracedConsumer[str, int], producer: TracedProducer[bytes, str]) -> None:
    assert_type(await consumer.getone(), ConsumerRecord[str, int])
    await producer.send("lines", 1)  # type: ignore[arg-type]


def test_types_and_settings_are_those_of_consumer_and_producer() -> None:
    consumer = TracedConsumer("lines", group_id="g", key_deserializer=bytes.decode, value_deserializer=int)
    assert_type(consumer, TracedConsumer[str, int])
    assert_type(TracedProducer(key_serializer=as_it_is, value_serializer=str.encode), TracedProducer[bytes, str])
    with pytest.raises(TypeError, match="it is named enable_auto_commit"):
        TracedConsumer("lines", auto_commit=False)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="it is named linger_ms"):
        TracedProducer(linger=5)  # type: ignore[call-arg]


def test_the_settings_that_types_know_are_those_there_are() -> None:
    """What only type checkers read repeats the signatures; this compares the two."""
    source = ast.parse(inspect.getsource(client.tracing))
    for traced_class, plain in ((TracedConsumer, Consumer), (TracedProducer, Producer)):
        (definition,) = [
            node for node in source.body if isinstance(node, ast.ClassDef) and node.name == traced_class.__name__
        ]
        told = next(
            node for node in ast.walk(definition) if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        ).args
        parameters = inspect.signature(plain.__init__).parameters.values()
        expected = {p.name: str(p.annotation) for p in parameters if p.kind is not p.VAR_POSITIONAL}
        named = [*told.args, *told.kwonlyargs]
        found = {each.arg: ast.unparse(each.annotation) for each in named if each.annotation is not None}
        assert found.pop("tracer_provider") == "Any"
        expected.pop("self")
        assert found == expected


async def test_an_output_that_its_topic_refuses_ends_its_span_as_failed() -> None:
    spans = Spans()
    async with Coordinator() as c:
        async with Admin(c.address) as admin:
            await admin.create_topics({"lines": 1})
            await admin.create_topics({"words": 1}, {"max.message.bytes": "1000"})
        async with Producer(c.address) as source:
            await source.send_and_wait("lines", b"a")
        async with Producer(c.address, transactional_id="t") as producer, traced(c.address, spans) as consumer:
            with pytest.raises(CohortError):
                await consumer.process(
                    lambda record: Output("words", b"x" * 5_000), producer=producer, commit_interval_ms=10
                )
    (refused,) = spans.named("send words")
    assert refused.status.status_code is StatusCode.ERROR
    assert not spans.named("commit t")


async def test_where_no_spans_are_recorded_headers_stay_as_they_are() -> None:
    own = (("traceparent", b"of another"),)
    provider = NoOpTracerProvider()
    async with coordinator(lines=1, words=1) as address:
        async with TracedProducer(address, tracer_provider=provider) as source:
            await source.send_and_wait("lines", b"a", headers=own)
            await source.send_many("lines", [b"b"])
        consumer = TracedConsumer(
            "lines", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest", tracer_provider=provider
        )
        async with (
            Producer(address, transactional_id="t") as producer,
            consumer,
            Consumer("words", bootstrap_servers=address, auto_offset_reset="earliest") as reader,
        ):
            working = asyncio.create_task(
                consumer.process(
                    lambda record: Output("words", record.value, headers=record.headers), producer=producer
                )
            )
            async with asyncio.timeout(20):
                records = [await reader.getone() for _ in range(2)]
            await ended(working)
    assert [record.headers for record in records] == [own, ()]
