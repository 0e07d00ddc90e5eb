"""Spans of OpenTelemetry for send, process and commit, with W3C's context in the headers of records. Extra ``otel``.

::

    from aiocohort.tracing import TracedConsumer, TracedProducer

    async with TracedProducer() as producer:
        await producer.send("orders", b"42")  # a span "send orders", whose context travels in the header traceparent

    async with TracedConsumer("orders", group_id="billing") as consumer:
        await consumer.process(handle)  # a span "process orders" around each call, a child of the one that sent the record

They are a ``Producer`` and a ``Consumer`` in all else; programs that use those look at one attribute that is None. Names
and attributes follow OpenTelemetry's conventions for messaging. Importing this module raises ``ImportError``, which says
what to install, where ``opentelemetry-api`` is missing.

============================================ ==================================================================
span                                         of
============================================ ==================================================================
``send TOPIC``                               ``send``, ``send_and_wait``, a call of ``send_many``, an output or a
                                             dead letter of ``process``; until it is acknowledged
``process TOPIC``                            a call of a handler of ``process`` or ``process_batch``
``commit GROUP``                             offsets that are sent to the coordinator, in a transaction too
``commit TRANSACTIONAL_ID``                  a transaction that is committed
============================================ ==================================================================

A record that brings the context of another trace than that of its span, as a dead letter of a batch does, has a link to it.
What is committed while nobody waits for it (by the clock, by ``process``, before a rebalance) is nobody's child.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final

from client.assignors import Assignor
from client.consumer import Consumer
from client.consumer.config import OffsetReset
from client.producer.acknowledgements import RecordFuture
from client.producer.config import Acks
from client.producer.partitioner import Partitioner
from client.producer.producer import Producer
from client.producer.serialization import checked_headers, headers_column, listed
from client.transport.background_loop import Background
from client.types.records import ConsumerRecord, Headers, IsolationLevel, RecordMetadata
from client.types.serdes import AnyDeserializer, AnySerializer, K, V
from protocol.compression import Compression

try:
    from opentelemetry import context as current_context
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError("tracing needs opentelemetry-api: pip install 'aiocohort[otel]'") from error

_NAME: Final = "aiocohort"
_CONTEXT: Final = TraceContextTextMapPropagator()
_CONTEXT_HEADERS: Final = frozenset(_CONTEXT.fields)


class TracedProducer(Producer[K, V]):
    """A ``Producer`` that makes a span of each record that it sends, from the call to the acknowledgement, and of commits.

    ``tracer_provider`` makes the spans; None for the one that is set for the program. All else is as for ``Producer``.
    Records of ``send_many`` share the span of the call. An output of ``process(producer=...)`` has one as a ``send`` has.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            bootstrap_servers: str | Sequence[str] = ...,
            client_id: str | None = ...,
            *,
            acks: Acks = ...,
            partitioner: Partitioner | None = ...,
            partitioner_adaptive: bool = ...,
            partitioner_availability_timeout_ms: float = ...,
            batch_size: int = ...,
            linger_ms: float = ...,
            compression: Compression | None = ...,
            enable_idempotence: bool = ...,
            max_in_flight: int = ...,
            max_request_bytes: int = ...,
            buffer_bytes: int = ...,
            retries: int | None = ...,
            request_timeout_ms: int = ...,
            delivery_timeout_ms: int = ...,
            transactional_id: str | None = ...,
            transaction_timeout_ms: int = ...,
            key_serializer: AnySerializer[K] | None = ...,
            value_serializer: AnySerializer[V] | None = ...,
            clock: Callable[[], int] | None = ...,
            random: Random | None = ...,
            tracer_provider: Any = ...,
        ) -> None: ...

    else:

        def __init__(self, *arguments: Any, tracer_provider: Any = None, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self._traced = self._spans = _Spans(tracer_provider)

    _traced: _Spans

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
        plain = super().send

        async def send(headers: Headers) -> RecordFuture:
            return await plain(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)

        return await self._traced.sending(topic, checked_headers(headers)[0] if headers else (), send)

    async def send_many(
        self,
        topic: str,
        values: Iterable[V | None],
        keys: Iterable[K | None] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | Iterable[int] | None = None,
        headers: Iterable[Sequence[tuple[str, bytes | None]] | None] | None = None,
    ) -> list[RecordMetadata]:
        """As ``Producer.send_many``, in one span, whose context every record brings as one of ``send`` does."""
        value_list = listed("value", values)
        column = None if headers is None else headers_column(headers, len(value_list))[0]
        with self._traced.send_many(topic, len(value_list)) as context:
            if context:
                own = [()] * len(value_list) if column is None else column
                column = [_with_context(each, context) if each else context for each in own]
            return await super().send_many(
                topic, value_list, keys, partition=partition, timestamp_ms=timestamp_ms, headers=column
            )


class TracedConsumer(Consumer[K, V]):
    """A ``Consumer`` that makes a span of each call of a handler of ``process``, and of each commit that it sends.

    ``tracer_provider`` makes the spans; None for the one that is set for the program. All else is as for ``Consumer``. The
    span around a handler is a child of the one whose context the record brings; around a handler of batches it has a link to
    each. What handlers return for ``process(producer=...)``, and dead letters, are sent in spans that are children of that,
    whether the producer is a ``TracedProducer`` or not.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            *topics: str,
            bootstrap_servers: str | Sequence[str] = ...,
            group_id: str | None = ...,
            client_id: str | None = ...,
            group_instance_id: str | None = ...,
            client_rack: str | None = ...,
            assignors: Sequence[Assignor | type[Assignor]] = ...,
            auto_offset_reset: OffsetReset = ...,
            enable_auto_commit: bool = ...,
            auto_commit_interval_ms: int = ...,
            session_timeout_ms: int = ...,
            heartbeat_interval_ms: int = ...,
            max_poll_interval_ms: int = ...,
            rebalance_timeout_ms: int | None = ...,
            revoke_grace_ms: int = ...,
            max_poll_records: int | None = ...,
            fetch_max_bytes: int = ...,
            max_partition_fetch_bytes: int = ...,
            fetch_min_bytes: int = ...,
            fetch_max_wait_ms: int = ...,
            isolation_level: IsolationLevel = ...,
            key_deserializer: AnyDeserializer[K] | None = ...,
            value_deserializer: AnyDeserializer[V] | None = ...,
            request_timeout_ms: int = ...,
            background: Background | None = ...,
            random: Random | None = ...,
            clock: Callable[[], int] | None = ...,
            tracer_provider: Any = ...,
        ) -> None: ...

    else:

        def __init__(self, *topics: str, tracer_provider: Any = None, **settings: Any) -> None:
            super().__init__(*topics, **settings)
            spans = _Spans(tracer_provider, self._settings.group_id)
            self._process.spans = self._coordinator.commits.spans = spans


class _Spans:
    """See ``client.types.spans.Spans``."""

    def __init__(self, tracer_provider: Any, group_id: str | None = None) -> None:
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        self._group_id = group_id

    def send(self, topic: str, headers: Headers) -> _SendSpan:
        """A record with ``headers`` is sent to ``topic``."""
        brought = _span_context(headers)
        trace_id = trace.get_current_span().get_span_context().trace_id
        links = [trace.Link(brought)] if brought.is_valid and brought.trace_id != trace_id else []
        return _SendSpan(self._begin_send(topic, links=links), headers)

    async def sending(
        self, topic: str, headers: Headers, send: Callable[[Headers], Awaitable[RecordFuture]]
    ) -> RecordFuture:
        """A record is sent by ``send``; the span ends with the future."""
        span = self.send(topic, headers)
        try:
            future = await send(span.headers)
        except BaseException as error:
            span.failed(error)
            raise
        future.add_done_callback(span.settled)
        return future

    @contextmanager
    def send_many(self, topic: str, count: int) -> Iterator[Headers]:
        """``count`` records are sent to ``topic``. Gives the headers with the context of the span."""
        span = self._begin_send(topic, attributes={"messaging.batch.message_count": count})
        with trace.use_span(span, end_on_exit=True):
            yield _context_headers(span)

    def _begin_send(self, topic: str, attributes: dict[str, Any] | None = None, **options: Any) -> Any:
        told = _attributes("send", "send") | {"messaging.destination.name": topic} | (attributes or {})
        return self._tracer.start_span(f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=told, **options)

    @contextmanager
    def process(self, records: Sequence[ConsumerRecord], *, batch: bool) -> Iterator[_ProcessSpan]:
        """A handler is called with ``records``."""
        first = records[0]
        attributes = _attributes("process", "process") | {
            "messaging.destination.name": first.topic,
            "messaging.destination.partition.id": str(first.partition),
            "messaging.consumer.group.name": self._group_id or "",
        }
        options: dict[str, Any] = {}
        if batch:
            attributes["messaging.batch.message_count"] = len(records)
            brought = map(_span_context, (record.headers for record in records))
            options["links"] = [trace.Link(context) for context in brought if context.is_valid]
        else:
            attributes["messaging.kafka.offset"] = first.offset
            options["context"] = _CONTEXT.extract(_carried(first.headers))
        with self._tracer.start_as_current_span(
            f"process {first.topic}", kind=trace.SpanKind.CONSUMER, attributes=attributes, **options
        ) as span:
            yield _ProcessSpan(span)

    def following(self, span: Any, record: ConsumerRecord) -> AbstractContextManager[None]:
        """What is done about a call that has failed belongs to its ``span``, or where ``record`` comes from."""
        if span is None:
            return _within(_CONTEXT.extract(_carried(record.headers)))
        return _within(trace.set_span_in_context(span.span))

    def commit(self, group_id: str | None, transactional_id: str | None = None) -> AbstractContextManager[Any]:
        """Offsets of a group are committed, perhaps in a transaction."""
        return self._commit(group_id or "", group_id, transactional_id)

    def commit_transaction(self, transactional_id: str, group_id: str | None) -> AbstractContextManager[Any]:
        """A transaction is committed, perhaps with offsets of a group."""
        return self._commit(transactional_id, group_id, transactional_id)

    def _commit(self, name: str, group_id: str | None, transactional_id: str | None) -> AbstractContextManager[Any]:
        attributes = _attributes("commit", "settle")
        if group_id is not None:
            attributes["messaging.consumer.group.name"] = group_id
        if transactional_id is not None:
            attributes["messaging.cohort.transactional_id"] = transactional_id
        span: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"commit {name}", kind=trace.SpanKind.CLIENT, attributes=attributes
        )
        return span

    def unattended(self) -> AbstractContextManager[None]:
        """Spans inside are nobody's children."""
        return _within(Context())


class _SendSpan:
    """See ``client.types.spans.SendSpan``."""

    def __init__(self, span: Any, headers: Headers) -> None:
        context = _context_headers(span)
        self.headers = _with_context(headers, context) if context else headers
        self._span = span

    def sent(self, partition: int, offset: int) -> None:
        """It is stored."""
        self._span.set_attribute("messaging.destination.partition.id", str(partition))
        self._span.set_attribute("messaging.kafka.offset", offset)
        self._span.end()

    def failed(self, error: BaseException) -> None:
        """It is not."""
        _note_failure(self._span, error)
        self._span.end()

    def settled(self, future: RecordFuture) -> None:
        """The future of the record is done."""
        if future.cancelled():
            self._span.end()
        elif future._exception is not None:  # exception() would say that the program has asked for it
            self.failed(future._exception)
        else:
            sent = future.result()
            self.sent(sent.partition, sent.offset)


class _ProcessSpan:
    """See ``client.types.spans.ProcessSpan``."""

    def __init__(self, span: Any) -> None:
        self.span = span

    def failed(self, error: BaseException) -> None:
        """The call has failed."""
        _note_failure(self.span, error)


def _attributes(operation: str, kind: str) -> dict[str, Any]:
    return {"messaging.system": "cohort", "messaging.operation.name": operation, "messaging.operation.type": kind}


def _carried(headers: Headers) -> dict[str, str]:
    """The context that a record brings; a header that is no text is as none, for anyone may have written it."""
    return {
        name: value.decode("ascii", "replace")
        for name, value in headers
        if name in _CONTEXT_HEADERS and value is not None
    }


def _span_context(headers: Headers) -> Any:
    """The same as OpenTelemetry has it, to be linked; not valid where there is none."""
    return trace.get_current_span(_CONTEXT.extract(_carried(headers), Context())).get_span_context()


def _context_headers(span: Any) -> Headers:
    """The headers for the context of ``span``; none where no spans are recorded: what the program has given stays."""
    carrier: dict[str, str] = {}
    _CONTEXT.inject(carrier, trace.set_span_in_context(span))
    return tuple((name, text.encode()) for name, text in carrier.items())


def _with_context(headers: Headers, context: Headers) -> Headers:
    return (*(header for header in headers if header[0] not in _CONTEXT_HEADERS), *context)


@contextmanager
def _within(context: Any) -> Iterator[None]:
    token = current_context.attach(context)
    try:
        yield
    finally:
        current_context.detach(token)


def _note_failure(span: Any, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
