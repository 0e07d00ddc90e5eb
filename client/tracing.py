"""Spans of OpenTelemetry for send, process and commit, with W3C's context in the headers of records. Extra ``otel``.

::

    from aiocohort.tracing import TracedConsumer, TracedProducer

    async with TracedProducer() as producer:
        await producer.send("orders", b"42")  # a span "send orders", whose context travels in the header traceparent

    async with TracedConsumer("orders", group_id="billing") as consumer:
        await consumer.process(handle)  # a span "process orders" around each call, a child of the one that sent the record

They are a ``Producer`` and a ``Consumer`` in all else; those two know nothing of tracing, so it costs programs without it
nothing. Names and attributes follow OpenTelemetry's conventions for messaging. Importing this module raises ``ImportError``,
which says what to install, where ``opentelemetry-api`` is missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final

from client.consumer import Consumer
from client.consumer.arguments import Commitable
from client.producer.acknowledgements import RecordFuture
from client.producer.producer import Producer
from client.types.records import ConsumerRecord
from client.types.serdes import K, V

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError("tracing needs opentelemetry-api: pip install 'aiocohort[otel]'") from error

_NAME: Final = "aiocohort"
_CONTEXT: Final = TraceContextTextMapPropagator()
_CONTEXT_HEADERS: Final = frozenset(_CONTEXT.fields)


class TracedProducer(Producer[K, V]):
    """A ``Producer`` that makes a span of each ``send`` and ``send_and_wait``, from the call to the acknowledgement.

    ``tracer_provider`` makes the spans; None for the one that is set for the program. All else is as for ``Producer``.
    Records of ``send_many``, and outputs of ``process``, have no spans of their own.
    """

    def __init__(self, *arguments: Any, tracer_provider: Any = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)

    async def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> RecordFuture:
        """As ``Producer.send``. The headers ``traceparent`` and ``tracestate`` become those of the span."""
        span = self._tracer.start_span(
            f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=_attributes("send", topic)
        )
        carrier: dict[str, str] = {}
        _CONTEXT.inject(carrier, trace.set_span_in_context(span))
        if carrier:  # none where no spans are recorded: what the program has given stays
            kept = [header for header in headers if header[0] not in _CONTEXT_HEADERS]
            headers = [*kept, *((name, text.encode()) for name, text in carrier.items())]
        try:
            future = await super().send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        except BaseException as error:
            _end_failed(span, error)
            raise
        future.add_done_callback(lambda done: _sent(span, done))
        return future


class TracedConsumer(Consumer[K, V]):
    """A ``Consumer`` that makes a span of each call of a handler of ``process``, and of each ``commit`` of the program.

    ``tracer_provider`` makes the spans; None for the one that is set for the program. All else is as for ``Consumer``.
    What is committed by the clock has no span.
    """

    def __init__(self, *topics: str, tracer_provider: Any = None, **settings: Any) -> None:
        super().__init__(*topics, **settings)
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)

    async def process(self, handler: Callable[[ConsumerRecord[K, V]], Awaitable[Any] | Any], **options: Any) -> None:
        """As ``Consumer.process``. The span around a handler is a child of the one whose context the record brings."""
        threads = options.get("threads") is not None
        await super().process(_within(self._span_of_record, handler, threads=threads), **options)

    async def process_batch(
        self, handler: Callable[[list[ConsumerRecord[K, V]]], Awaitable[Any] | Any], **options: Any
    ) -> None:
        """As ``Consumer.process_batch``. The span around a handler has a link to each context that a record brings."""
        threads = options.get("threads") is not None
        await super().process_batch(_within(self._span_of_batch, handler, threads=threads), **options)

    def _span_of_record(self, record: ConsumerRecord[K, V]) -> AbstractContextManager[Any]:
        attributes = self._attributes_of(record) | {"messaging.kafka.offset": record.offset}
        return self._process_span(record, attributes, context=_CONTEXT.extract(_carried(record)))

    def _span_of_batch(self, records: list[ConsumerRecord[K, V]]) -> AbstractContextManager[Any]:
        attributes = self._attributes_of(records[0]) | {"messaging.batch.message_count": len(records)}
        brought = [
            trace.get_current_span(_CONTEXT.extract(_carried(record), Context())).get_span_context()
            for record in records
        ]
        links = [trace.Link(context) for context in brought if context.is_valid]
        return self._process_span(records[0], attributes, links=links)

    def _process_span(
        self, record: ConsumerRecord[K, V], attributes: dict[str, Any], **options: Any
    ) -> AbstractContextManager[Any]:
        span: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"process {record.topic}", kind=trace.SpanKind.CONSUMER, attributes=attributes, **options
        )
        return span

    def _attributes_of(self, record: ConsumerRecord[K, V]) -> dict[str, Any]:
        return {
            **_attributes("process", record.topic),
            "messaging.destination.partition.id": str(record.partition),
            "messaging.consumer.group.name": self._settings.group_id or "",
        }

    async def commit(self, offsets: Commitable = None) -> None:
        """As ``Consumer.commit``."""
        group = self._settings.group_id or ""
        attributes = {
            "messaging.system": "cohort",
            "messaging.operation.name": "commit",
            "messaging.operation.type": "settle",
            "messaging.consumer.group.name": group,
        }
        with self._tracer.start_as_current_span(f"commit {group}", kind=trace.SpanKind.CLIENT, attributes=attributes):
            await super().commit(offsets)


def _within(
    span: Callable[[Any], AbstractContextManager[Any]], handler: Callable[[Any], Any], *, threads: bool
) -> Callable[[Any], Any]:
    """``handler`` inside the ``span`` of what it is given; a plain function where handlers are called in threads.

    A coroutine function for threads stays what it is, for the consumer to refuse.
    """
    if threads and iscoroutinefunction(handler):
        return handler

    def plain(given: Any) -> Any:
        with span(given):
            return handler(given)

    async def coroutine(given: Any) -> Any:
        with span(given):
            returned = handler(given)
            return await returned if isawaitable(returned) else returned

    return plain if threads else coroutine


def _attributes(operation: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": "cohort",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


def _carried(record: ConsumerRecord) -> dict[str, str]:
    """The context that a record brings; a header that is no text is as none, for anyone may have written it."""
    return {
        name: value.decode("ascii", "replace")
        for name, value in record.headers
        if name in _CONTEXT_HEADERS and value is not None
    }


def _sent(span: Any, future: RecordFuture) -> None:
    error = None
    if not future.cancelled():
        error = future._exception  # exception() would say that the program has asked for it
    if error is not None:
        _end_failed(span, error)
        return
    if not future.cancelled():
        sent = future.result()
        span.set_attribute("messaging.destination.partition.id", str(sent.partition))
        span.set_attribute("messaging.kafka.offset", sent.offset)
    span.end()


def _end_failed(span: Any, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
    span.end()
