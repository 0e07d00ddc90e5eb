"""Failed sends whose outcome the program has not asked for: told in one line, not in one a record.

asyncio reports each future whose exception was never retrieved. A program that sends without waiting would get thousands
of those when its daemon is gone, so a producer looks at its failed futures itself, a second later, and at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from client.errors import CohortError
from client.log import get_logger
from client.producer.acknowledgements import RecordFuture
from client.producer.errors import name_of
from protocol.subscription import TopicPartition

log = get_logger()

REPORT_AFTER_S: Final = 1.0
"""How long a program has to ask for the outcome of a failed send: at most one line so often."""
_PARTITIONS_NAMED: Final = 5


class UnretrievedFailures:
    """The failures of the last ``REPORT_AFTER_S`` seconds; ``client_id`` names the producer in the log.

    A future whose exception was told in the log still raises it when it is awaited.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._failed: list[tuple[TopicPartition, CohortError, Sequence[RecordFuture]]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, partition: TopicPartition, error: CohortError, futures: Sequence[RecordFuture]) -> None:
        """Takes note of the futures of one batch, which failed by ``error``."""
        if futures:
            self._failed.append((partition, error, futures))
            if self._timer is None:
                self._timer = self._loop.call_later(REPORT_AFTER_S, self.report)

    def report(self) -> None:
        """Says now how many records failed unnoticed, and why the first of them did."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        failed, self._failed = self._failed, []
        unnoticed: dict[TopicPartition, CohortError] = {}
        count = 0
        for partition, error, futures in failed:
            for future in futures:
                if future._log_traceback:  # asyncio's own note that the exception was not retrieved
                    future.exception()  # so that asyncio has nothing to report of it
                    unnoticed.setdefault(partition, error)
                    count += 1
        if count:
            names = [name_of(partition) for partition in unnoticed]
            more = [f"and {len(names) - _PARTITIONS_NAMED} more"] if len(names) > _PARTITIONS_NAMED else []
            log.error(
                "sends_failed_unnoticed",
                reason="they were not acknowledged, and the program has not asked for the outcome",
                records=count,
                client_id=self._client_id,
                partitions=", ".join(names[:_PARTITIONS_NAMED] + more),
                error=str(next(iter(unnoticed.values()))),
            )
