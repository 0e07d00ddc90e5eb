"""Spans of producers and consumers, as OpenTelemetry's own SDK collects them, and the context in records."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from aiocohort.tracing import TracedConsumer, TracedProducer
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from client import Admin, ConsumerRecord, HandlerError, UnknownTopicOrPartitionError
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
