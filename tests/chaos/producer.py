"""A producer process of the chaos run: unique values, every attempt and every answer written down. Ends with its stdin.

``--promise`` says what it is: ``once`` numbers its batches, as is the default, and everything it stores is there once and in
order; ``acknowledged`` waits for the leader alone (``acks=1``) and may store a record twice.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from random import Random

from client import CohortError, Producer
from client.producer.acknowledgements import RecordFuture
from tests.chaos.ledger import Ledger
from tests.chaos.worker_process import arguments, commands, run

REQUEST_TIMEOUT_MS = 3_000
DELIVERY_TIMEOUT_MS = 15_000
PROMISES = ("once", "acknowledged")


class ChaosProducer:
    """Sends ``NAME:SEQUENCE`` values at a steady rate, half of them with a key."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = Random(options.seed)
        self._ledger = Ledger(options.ledger)
        self._stopping = asyncio.Event()
        self._sequence = 0
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        return Producer(
            self._options.bootstrap,
            self._options.name,
            acks="all" if self._options.promise == "once" else 1,
            enable_idempotence=self._options.promise == "once",
            linger_ms=self._random.choice((0, 20)),
            batch_size=self._random.choice((300, 64 * 1024)),  # many small ones: several of a partition are under way
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            random=Random(self._random.getrandbits(64)),
        )

    async def run(self) -> int:
        """Works until stdin ends; what is queued then is still delivered."""
        obeying = asyncio.create_task(self._obey())
        while not self._stopping.is_set():
            try:
                await self._producer.start()
                break
            except CohortError as error:
                self._ledger.write("error", what="start", error=type(error).__name__, text=str(error))
                self._producer = self._new_producer()
        topics = self._options.topics.split(",")
        while not self._stopping.is_set():
            for _ in range(self._random.randint(1, 5)):
                await self._send(self._random.choice(topics))
            await asyncio.sleep(3 / self._options.rate)
        await self._producer.stop(timeout=20)
        obeying.cancel()
        self._ledger.write("left")
        return 0

    async def _send(self, topic: str) -> None:
        sequence, self._sequence = self._sequence, self._sequence + 1
        value = f"{self._options.name}:{sequence}".encode()
        key = str(self._random.randrange(50)).encode() if self._random.random() < 0.5 else None
        self._ledger.write("send", sequence=sequence, topic=topic, value=value.decode())
        try:
            future = await self._producer.send(topic, value, key)
        except CohortError as error:
            self._failed(sequence, error)
            return
        future.add_done_callback(lambda done: self._answered(sequence, done))

    def _answered(self, sequence: int, done: RecordFuture) -> None:
        error = done.exception()
        if error is not None:
            self._failed(sequence, error)
            return
        stored = done.result()
        tp = f"{stored.topic}-{stored.partition}"
        self._ledger.write("acknowledged", sequence=sequence, tp=tp, offset=stored.offset)

    def _failed(self, sequence: int, error: BaseException) -> None:
        self._ledger.write("failed", sequence=sequence, error=type(error).__name__, text=str(error))

    async def _obey(self) -> None:
        async for _ in commands():
            continue
        self._stopping.set()


def main() -> int:
    """Entry point of the process."""
    parser = arguments("tests.chaos.producer", __doc__, "topics")
    parser.add_argument("--promise", required=True, choices=PROMISES)
    parser.add_argument("--rate", type=float, required=True)
    return run(parser, ChaosProducer)


if __name__ == "__main__":
    sys.exit(main())
