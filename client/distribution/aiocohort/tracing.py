"""Spans of OpenTelemetry for send, process and commit (extra ``otel``); ``client.tracing`` describes them."""

from aiocohort.own_packages import require_own_packages

require_own_packages(("protocol", "client"))

from client.tracing import TracedConsumer as TracedConsumer  # noqa: E402 - after the check
from client.tracing import TracedProducer as TracedProducer  # noqa: E402
