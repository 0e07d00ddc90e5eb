"""A member process of an exactly-once run: answers every input with ``process``. It ends with its stdin.

With ``--id`` answers and offsets are committed together, without it answers are sent and acknowledged before their records
count as done. ``die-at-commit`` ends the process by SIGKILL while its next commit is under way.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from random import Random
from typing import Any, Final

from client import CohortError, Consumer, ConsumerRecord, Output, Producer
from tests.chaos.ledger import Ledger
from tests.chaos.member import ASSIGNORS, SESSION_TIMEOUT_MS
from tests.chaos.worker_process import arguments, commands, run
from tests.chaos.working import die_soon

TRANSACTION_TIMEOUT_MS: Final = 4_000
REQUEST_TIMEOUT_MS: Final = 3_000
DELIVERY_TIMEOUT_MS: Final = 9_000
_OUTLASTS_FAULTS_MS: Final = 120_000
"""Of members without transactions, whose handlers have nobody to begin anew for them."""
_STOP_S: Final = 10.0


class Transformer:
    """A program that begins anew after every error, as a supervisor would have it do."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = Random(options.seed)
        self._ledger = Ledger(options.ledger)
        self._leaving = asyncio.Event()
        self._dies_at_commit = False

    async def run(self) -> int:
        """Works until stdin ends."""
        obeying = asyncio.create_task(self._obey())
        try:
            while not self._leaving.is_set():
                try:
                    await self._work()
                except CohortError as error:
                    self._ledger.write("error", error=type(error).__name__, text=str(error))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._leaving.wait(), 0.2)
        finally:
            obeying.cancel()
        self._ledger.write("left")
        return 0

    async def _work(self) -> None:
        async with self._new_producer() as producer, self._new_consumer() as consumer:
            arguments: dict[str, Any] = {}
            if self._options.id is not None:
                arguments = {"producer": producer, "commit_interval_ms": self._random.choice((20, 100, 400))}
                self._may_die_in(producer)
            handler = self._answer if self._options.id is not None else self._sending(producer)
            processing = asyncio.create_task(consumer.process(handler, **arguments))
            leaving = asyncio.create_task(self._leaving.wait())
            await asyncio.wait({processing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if not processing.done():
                await consumer.stop(timeout=_STOP_S)
            await processing

    def _new_consumer(self) -> Consumer:
        return Consumer(
            *self._options.topics.split(","),
            bootstrap_servers=self._options.bootstrap,
            group_id=self._options.group,
            client_id=self._options.name,
            assignors=[ASSIGNORS[name] for name in self._options.assignors.split(",")],
            auto_offset_reset="earliest",
            auto_commit_interval_ms=300,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=800,
            rebalance_timeout_ms=6_000,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            revoke_grace_ms=500,
            random=Random(self._random.getrandbits(64)),
        )

    def _new_producer(self) -> Producer:
        return Producer(
            self._options.bootstrap,
            self._options.name,
            transactional_id=self._options.id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS if self._options.id else _OUTLASTS_FAULTS_MS,
            random=Random(self._random.getrandbits(64)),
        )

    def _may_die_in(self, producer: Producer) -> None:
        """Ends the process at a commit once it was told to."""
        commit = producer.commit_transaction

        async def deadly() -> None:
            if self._dies_at_commit:
                die_soon(self._random)
            await commit()

        producer.commit_transaction = deadly  # type: ignore[method-assign]

    async def _answer(self, record: ConsumerRecord) -> list[Output]:
        """Some inputs take a while, some longer than a rebalance waits."""
        drawn = self._random.random()
        if drawn < 0.3:
            await asyncio.sleep(self._random.uniform(0, 0.01) if drawn > 0.004 else self._random.uniform(0.3, 1.5))
        output = Output(self._options.answers, answer_of(record))
        return (
            [output] if drawn < 0.9 else [output, Output(self._options.answers, None, b"another one, of no interest")]
        )

    def _sending(self, producer: Producer) -> Any:
        async def handle(record: ConsumerRecord) -> None:
            await producer.send_and_wait(self._options.answers, answer_of(record))
            if self._dies_at_commit:
                die_soon(self._random)

        return handle

    async def _obey(self) -> None:
        async for command in commands():
            if command == "die-at-commit":
                self._dies_at_commit = True
        self._leaving.set()


def answer_of(record: ConsumerRecord) -> bytes:
    """Says which input it answers."""
    return f"{record.topic}-{record.partition}@{record.offset} {record.value.decode()}".encode()


def main() -> int:
    """Entry point of the process."""
    parser = arguments("tests.chaos.exactly_once.member", __doc__, "group", "topics", "assignors", "answers")
    parser.add_argument("--id")
    return run(parser, Transformer)


if __name__ == "__main__":
    sys.exit(main())
