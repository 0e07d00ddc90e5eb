"""Batches of Kafka clients through their admission, all of its steps at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, cast

from coordinator.config import Settings
from coordinator.kafka.batches import admitted
from coordinator.log.config import LogConfig
from coordinator.server.handlers.produced_batches import ALLOWED, Inflation
from protocol.record_batch import BatchHeader

CONFIG: Final = LogConfig(max_message_bytes=Settings().max_message_bytes)


class Run:
    """All steps of an admission, at once; and how many of them there were, on the loop and in a thread."""

    def __init__(self) -> None:
        self.in_threads = 0
        self.turns = 0

    def __call__(
        self,
        records: bytes,
        config: LogConfig = CONFIG,
        inflation: Inflation | None = None,
        allowed: int = ALLOWED,
    ) -> tuple[bytes, BatchHeader]:
        steps = admitted("t", config, records, inflation or Inflation(), self._in_thread, allowed)
        while True:
            try:
                self.turns += next(steps) is None
            except StopIteration as end:
                ((batch, header),) = end.value
                return batch, header

    def _in_thread(self, check: Callable[[], None]) -> asyncio.Future[None]:
        self.in_threads += 1
        future: Future[None] = Future()
        try:
            check()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return cast("asyncio.Future[None]", future)
