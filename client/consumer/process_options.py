"""How one call of ``Consumer.process`` or ``process_batch`` handles records, checked before it begins."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Final, Literal, get_args

from client.consumer.error_policy import OnBatchError, OnError, check_on_error
from client.consumer.handler_calls import BatchLimits, Handler
from client.consumer.transforming import check_producer
from client.producer.producer import Producer

Order = Literal["partition", "key"]

_MAX_THREADS: Final = 1_000
_MAX_BATCH_RECORDS: Final = 1_000_000
_MAX_WAIT_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """See ``Consumer.process`` and ``Consumer.process_batch`` for what each one means."""

    concurrency: int | None = None
    order: Order = "partition"
    threads: int | None = None
    on_error: OnError | OnBatchError | None = None
    producer: Producer | None = None
    commit_interval_ms: float = 100
    batch: BatchLimits | None = None

    def check(self, handler: Handler, group_id: str | None) -> None:
        """Raises ``ValueError``, ``TypeError`` or ``IllegalStateError`` for what makes no sense."""
        self._check_order()
        self._check_threads(handler)
        if self.batch is not None:
            _check_batch(self.batch)
        check_on_error(self.on_error)
        if self.producer is not None:
            check_producer(self.producer, self.commit_interval_ms, group_id)

    @property
    def at_once(self) -> int | None:
        """How many handlers may run at once; None for one a partition."""
        if self.threads is None or self.concurrency is None:
            return self.threads or self.concurrency
        return min(self.threads, self.concurrency)

    def _check_order(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(
                f"concurrency is {self.concurrency}; it must be at least 1, or None for one handler a partition"
            )
        if self.order not in get_args(Order):
            raise ValueError(f"order is {self.order!r}; it can be 'partition' or 'key'")
        if self.order == "key" and self.at_once is None:
            raise ValueError("order='key' has many handlers at once: pass concurrency, or threads, to bound them")
        if self.order == "key" and self.producer is not None:
            raise ValueError(
                "order='key' and producer: outputs are committed with the offsets of their records, which are not done in "
                "their order; use order='partition' with a producer"
            )

    def _check_threads(self, handler: Handler) -> None:
        if self.threads is None:
            return
        if isinstance(self.threads, bool) or not isinstance(self.threads, int) or not 1 <= self.threads <= _MAX_THREADS:
            raise ValueError(
                f"threads is {self.threads!r}; it must be a whole number from 1 to {_MAX_THREADS}, or None"
            )
        if inspect.iscoroutinefunction(handler):
            raise TypeError(
                f"threads={self.threads} and a coroutine function: threads are for plain functions, which block; leave "
                "threads out for this handler"
            )


def _check_batch(batch: BatchLimits) -> None:
    count, wait_ms = batch.max_records, batch.max_wait_ms
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_BATCH_RECORDS:
        raise ValueError(f"max_records is {count!r}; it must be a whole number from 1 to {_MAX_BATCH_RECORDS}")
    if isinstance(wait_ms, bool) or not isinstance(wait_ms, int | float) or not 0 <= wait_ms <= _MAX_WAIT_MS:
        raise ValueError(f"max_wait_ms is {wait_ms!r}; it must be a number of milliseconds from 0 to {_MAX_WAIT_MS}")
