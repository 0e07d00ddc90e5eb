"""What ``Consumer.process`` does about records whose handler fails: try again, pass over, keep aside, or end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, Literal, get_args

from client.errors import RecordDeserializationError
from client.producer.acknowledgements import RecordFuture
from client.producer.producer import EXIT_ON_ERROR_MS, Producer
from client.types.records import ConsumerRecord, Headers, Output
from client.types.spans import Spans

Verdict = Literal["raise", "skip", "retry"]

HEADER_PREFIX: Final = "__cohort.errors."
_MAX_MESSAGE_CHARS: Final = 1_000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """``on_error=DeadLetter("orders.dlq")``: the record goes to that topic, and is done when it is on disk there.

    The dead letter has the key, the stored value and the headers of the record, and tells its origin and the reason in more
    headers, texts in UTF-8, named as Kafka Connect names its own (KIP-298):

    ===================================================== =========================================================
    ``__cohort.errors.topic``, ``.partition``, ``.offset`` where the record is
    ``__cohort.errors.timestamp``                         its own timestamp, in ms since 1970. The dead letter has that
                                                          of its sending, so that retention counts from there
    ``__cohort.errors.group``                             the group whose handler failed, if it is one
    ``__cohort.errors.attempts``                          how often the handler was called
    ``__cohort.errors.exception.class.name``, ``.message`` the last error, its text cut off at 1,000 characters
    ===================================================== =========================================================

    At least once: it is produced (``acks="all"``) before the offset is committed, so after a crash between the two it is
    there twice. The topic has to exist. When it cannot be written, ``process`` raises ``HandlerError``, and the record comes
    again. Without ``Retry`` around it the first failure counts: ``Retry(attempts=5, then=DeadLetter("orders.dlq"))``.
    """

    topic: str

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str) or not self.topic:
            raise ValueError(f"a dead letter goes to a topic, not to {self.topic!r}")


@dataclass(frozen=True, slots=True)
class Retry:
    """``on_error=Retry(...)``: the handler is called again after a pause, the records behind it in its partition wait.

    The first pause is ``initial_ms`` long (100), each later one ``factor`` times as long (2) up to ``maximum_ms`` (30,000),
    and ``jitter`` (0.2) is the part of it that is drawn: a pause of 1,000 ms takes 800 to 1,200. It takes up no place of
    ``concurrency``, and no rebalance waits for it; the next owner of the partition counts anew. After ``attempts`` calls in
    all (``None``: without end) follows ``then``: "raise" ends ``process`` with ``HandlerError``, "skip" counts the record as
    done, a ``DeadLetter`` keeps it. Raises ``ValueError`` for what makes no sense.
    """

    attempts: int | None = None
    initial_ms: float = 100
    factor: float = 2.0
    maximum_ms: float = 30_000
    jitter: float = 0.2
    then: Literal["raise", "skip"] | DeadLetter = "raise"

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; it must be at least 1, or None to try without end")
        if not 0 < self.initial_ms <= self.maximum_ms:
            raise ValueError(
                f"initial_ms is {self.initial_ms} and maximum_ms {self.maximum_ms}; both are milliseconds above 0, and the "
                "first is not above the second"
            )
        if self.factor < 1 or not 0 <= self.jitter < 1:
            raise ValueError(
                f"factor is {self.factor} and jitter {self.jitter}; a factor is at least 1, a jitter from 0 to below 1"
            )
        if self.then not in ("raise", "skip") and not isinstance(self.then, DeadLetter):
            raise ValueError(f"then is {self.then!r}; it can be 'raise', 'skip' or a DeadLetter")

    def pause_s(self, attempt: int, random: Random) -> float:
        """Seconds to wait after failed attempt number ``attempt``, counted from 1."""
        nominal_ms = self.initial_ms
        for _ in range(attempt - 1):
            nominal_ms = min(self.maximum_ms, nominal_ms * self.factor)
            if nominal_ms == self.maximum_ms or self.factor == 1:
                break
        return nominal_ms * random.uniform(1 - self.jitter, 1 + self.jitter) / 1000

    def ended_by(self, attempt: int) -> bool:
        """Whether failed attempt number ``attempt`` was the last."""
        return self.attempts is not None and attempt >= self.attempts


Policy = Verdict | Retry | DeadLetter
OnError = Policy | Callable[[ConsumerRecord, Exception], Policy | Awaitable[Policy]]
OnBatchError = Policy | Callable[[list[ConsumerRecord], Exception], Policy | Awaitable[Policy]]


def checked_policy(policy: object, verb: str = "returned") -> Policy:
    """``policy``, if it is one. Raises ``ValueError`` otherwise."""
    if isinstance(policy, Retry | DeadLetter):
        return policy
    for verdict in get_args(Verdict):
        if policy == verdict:
            return verdict  # type: ignore[no-any-return]
    raise ValueError(f"on_error {verb} {policy!r}; it can be 'raise', 'skip' or 'retry', a Retry or a DeadLetter")


def check_on_error(on_error: object) -> None:
    """Raises ``ValueError`` for what cannot be ``on_error``."""
    if on_error is not None and not callable(on_error):
        checked_policy(on_error, "is")


def dead_letter_headers(
    record: ConsumerRecord, error: Exception, attempts: int, group_id: str | None
) -> tuple[tuple[str, bytes], ...]:
    """What a dead letter tells of its record, beside the record's own headers."""
    cause = error.__cause__ if isinstance(error, RecordDeserializationError) and error.__cause__ else error
    told: Mapping[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **({} if group_id is None else {"group": group_id}),
        "attempts": attempts,
        "exception.class.name": f"{type(cause).__module__}.{type(cause).__qualname__}",
        "exception.message": str(cause)[:_MAX_MESSAGE_CHARS],
    }
    return tuple((HEADER_PREFIX + name, str(value).encode(errors="replace")) for name, value in told.items())


class DeadLetters:
    """Writes dead letters, with a producer that is started for the first of them.

    ``spans`` is told of each; None where nobody traces.
    """

    def __init__(self, new_producer: Callable[[], Producer], group_id: str | None, spans: Spans | None = None) -> None:
        self._new_producer = new_producer
        self._group_id = group_id
        self._spans = spans
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()

    def output(self, letter: DeadLetter, record: ConsumerRecord, error: Exception, attempts: int) -> Output:
        """The dead letter of ``record``, with the bytes that are stored."""
        headers = (*record.headers, *dead_letter_headers(record, error, attempts, self._group_id))
        return Output(letter.topic, record.value, record.key, headers=headers)

    async def write(
        self, letter: DeadLetter, records: Sequence[ConsumerRecord], error: Exception, attempts: int
    ) -> None:
        """Returns when ``records``, with the bytes that are stored, are on disk in the topic of ``letter``."""
        async with self._starting:
            if self._producer is None:
                producer = self._new_producer()
                await producer.start()
                self._producer = producer
        sent = []
        for record in records:
            topic, value, key, _, headers = self.output(letter, record, error, attempts)
            if self._spans is None:
                sent.append(await self._producer.send(topic, value, key, headers=headers))
            else:
                send = partial(_send, self._producer, topic, value, key)
                sent.append(await self._spans.sending(topic, headers, send))
        await asyncio.gather(*sent)

    async def stop(self) -> None:
        """Closes the producer, if there is one, within seconds.

        What waits there still belongs to handlers that were cancelled, perhaps because no daemon answers: these records are
        not done and come again.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop(timeout_ms=EXIT_ON_ERROR_MS)


async def _send(producer: Producer, topic: str, value: Any, key: Any, headers: Headers) -> RecordFuture:
    return await producer.send(topic, value, key, headers=headers)
