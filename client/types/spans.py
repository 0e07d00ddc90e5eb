"""What producers and consumers tell of their work to whoever traces it; ``client.tracing`` makes spans of it.

A producer or consumer that nobody traces has None in place of a ``Spans``, and looks at no more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from client.types.records import ConsumerRecord, RecordMetadata
from protocol.columns import Headers


class SendSpan(Protocol):
    """A record on its way, from the call that sends it to its acknowledgement."""

    headers: Headers
    """The record's own headers, and the context of this span."""

    def sent(self, partition: int, offset: int) -> None:
        """It is stored, at an ``offset`` that is -1 without acknowledgement."""
        ...

    def failed(self, error: BaseException) -> None:
        """It is not, as far as is known."""
        ...


class ProcessSpan(Protocol):
    """A call of a handler of ``process``."""

    def failed(self, error: BaseException) -> None:
        """The handler has failed, or what it returned cannot be sent."""
        ...


class Spans(Protocol):
    """Begins the spans of one producer or consumer."""

    def send(self, topic: str, headers: Headers) -> SendSpan:
        """A record with ``headers`` is sent to ``topic``."""
        ...

    async def sending(
        self, topic: str, headers: Headers, send: Callable[[Headers], Awaitable[asyncio.Future[RecordMetadata]]]
    ) -> asyncio.Future[RecordMetadata]:
        """A record is sent by ``send``, which gets its headers; the span ends with the future. Raises as ``send`` does."""
        ...

    def process(self, records: Sequence[ConsumerRecord], *, batch: bool) -> AbstractContextManager[ProcessSpan]:
        """A handler is called with ``records``: one, unless it is a ``batch``. The span is current inside."""
        ...

    def following(self, span: ProcessSpan | None, record: ConsumerRecord) -> AbstractContextManager[object]:
        """What is done about a call that has failed belongs to its span; to what ``record`` brings where none was made."""
        ...

    def commit(self, group_id: str | None, transactional_id: str | None = None) -> AbstractContextManager[object]:
        """Offsets of a group are sent to its coordinator, in a transaction if that is named. The span is current inside."""
        ...

    def commit_transaction(self, transactional_id: str, group_id: str | None) -> AbstractContextManager[object]:
        """A transaction is committed, with offsets of a group if that is named. The span is current inside."""
        ...

    def unattended(self) -> AbstractContextManager[object]:
        """What is done inside the program did not ask for: its spans are nobody's children."""
        ...
