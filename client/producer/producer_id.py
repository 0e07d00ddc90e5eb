"""Getting an idempotent producer its id (KIP-98), and a new one when it needs another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from client.errors import CohortError, error_for
from client.log import get_logger
from client.producer.sequences import ProducerIdentity
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from protocol.errors import ErrorCode
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse

log = get_logger()


class IdentityFetcher:
    """Asks for a producer id in the background while ``identity`` has none.

    ``on_answer`` is called when it may have one; ``on_failure`` with the error after each attempt that failed.
    """

    def __init__(
        self,
        cluster: Cluster,
        identity: ProducerIdentity,
        timeout_ms: float,
        on_answer: Callable[[], None],
        on_failure: Callable[[CohortError], None],
    ) -> None:
        self._cluster = cluster
        self._identity = identity
        self._timeout_ms = timeout_ms
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None

    def fetch_if_needed(self) -> bool:
        """Whether there is no id. Then it is asked for, unless the request is in flight."""
        if self._identity.producer_id is not None:
            return False
        if self._task is None:
            self._task = asyncio.create_task(self._fetch(), name=f"cohort-producer-id-{self._cluster.client_id}")
            self._task.add_done_callback(self._ended)
        return True

    def abort(self) -> None:
        """Ends the request in flight, if there is one; ``close`` waits for the end."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Ends the request in flight."""
        self.abort()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():  # perhaps by a program that cancels all tasks: it is asked again, unless the loop ends now
            task.get_loop().call_later(self._cluster.backoff.delay_s(0), self._on_answer)
        else:
            self._on_answer()

    async def _fetch(self) -> None:
        attempt = 0
        while self._identity.producer_id is None:
            try:
                answer = await self._cluster.call(
                    InitProducerIdRequest(), InitProducerIdResponse, deadline=Deadline(self._timeout_ms)
                )
                if answer.error_code != ErrorCode.NONE:
                    raise error_for(answer.error_code, answer.error_message)
                self._identity.producer_id = answer.producer_id
            except CohortError as error:
                log.warning("no_producer_id_yet", client_id=self._cluster.client_id, error=str(error))
                self._on_failure(error)
                await asyncio.sleep(self._cluster.backoff.delay_s(attempt))
                attempt += 1
