"""A producer process of the chaos run that is confluent-kafka's or aiokafka's: unique values, every answer written down.

It ends with its stdin. ``--promise`` is as that of ``tests.chaos.producer``: ``once`` numbers its batches.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from random import Random
from typing import Any, Final, Protocol

import aiokafka
import aiokafka.errors
import confluent_kafka

from tests.chaos.ledger import Ledger
from tests.chaos.producer import DELIVERY_TIMEOUT_MS, PROMISES, REQUEST_TIMEOUT_MS
from tests.chaos.worker_process import arguments, commands, run

_END_S: Final = 20.0
_OUTLASTS_FAULTS_MS: Final = 300_000
"""A message that librdkafka gives up begins a new epoch, in which it sends again what the last one may have stored."""


class Sending(Protocol):
    """A producer of either client."""

    async def start(self) -> None:
        """Raises ``aiokafka.errors.KafkaError`` when no broker answers."""

    async def send(self, sequence: int, topic: str, value: bytes, key: bytes | None) -> None:
        """Queues a record; its answer is written down when it comes."""

    async def stop(self) -> None:
        """Sends what is queued."""


class _Notes(logging.Handler):
    """Writes into the ledger what librdkafka says of its epoch: why it began a new one cannot be told from answers."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        """Called by librdkafka's threads, or by ``poll``."""
        if len(text := record.getMessage()) < 2_000:
            self._ledger.write("note", text=text)


def _noting(ledger: Ledger) -> logging.Logger:
    logger = logging.Logger("librdkafka", logging.DEBUG)
    logger.addHandler(_Notes(ledger))
    return logger


class Confluent:
    """librdkafka's, which has threads of its own."""

    def __init__(self, options: argparse.Namespace, ledger: Ledger, random: Random) -> None:
        once = options.promise == "once"
        self._ledger = ledger
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": options.bootstrap,
                "client.id": options.name,
                "acks": "all" if once else 1,
                "enable.idempotence": once,
                "linger.ms": random.choice((0, 20)),
                "batch.num.messages": random.choice(
                    (3, 10_000)
                ),  # many small ones: several of a partition are under way
                "request.timeout.ms": REQUEST_TIMEOUT_MS,
                "message.timeout.ms": _OUTLASTS_FAULTS_MS if once else DELIVERY_TIMEOUT_MS,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS + 500,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
                **({"debug": "eos", "log_level": 7} if once else {"log_level": 0}),
            },
            logger=_noting(ledger),
        )

    async def start(self) -> None:
        """librdkafka connects when it is to send."""

    async def send(self, sequence: int, topic: str, value: bytes, key: bytes | None) -> None:
        """See ``Sending``."""

        def answered(error: Any, message: Any) -> None:
            if error is not None:
                self._ledger.write("failed", sequence=sequence, error=error.name(), text=error.str())
                return
            tp = f"{message.topic()}-{message.partition()}"
            self._ledger.write("acknowledged", sequence=sequence, tp=tp, offset=message.offset())

        self._producer.produce(topic, value, key, on_delivery=answered)
        self._producer.poll(0)

    async def stop(self) -> None:
        """See ``Sending``."""
        await asyncio.to_thread(self._producer.flush, _END_S)


class Aiokafka:
    """aiokafka's; it tries a batch again for ``request_timeout_ms``.

    A batch that it gives up leaves a gap in the sequences, which is told for every later one of that partition: one that is
    idempotent may not give up because of a fault.
    """

    def __init__(self, options: argparse.Namespace, ledger: Ledger, random: Random) -> None:
        once = options.promise == "once"
        self._ledger = ledger
        self._settings = {
            "bootstrap_servers": options.bootstrap,
            "client_id": options.name,
            "acks": "all" if once else 1,
            "enable_idempotence": once,
            "linger_ms": random.choice((0, 20)),
            "max_batch_size": random.choice((300, 16_384)),
            "request_timeout_ms": _OUTLASTS_FAULTS_MS if once else REQUEST_TIMEOUT_MS,
            "metadata_max_age_ms": 1_000,
        }
        self._producer: Any = None

    async def start(self) -> None:
        """See ``Sending``."""
        self._producer = aiokafka.AIOKafkaProducer(**self._settings)
        try:
            await self._producer.start()
        except aiokafka.errors.KafkaError:
            await self._producer.stop()
            raise

    async def send(self, sequence: int, topic: str, value: bytes, key: bytes | None) -> None:
        """See ``Sending``."""

        def answered(done: asyncio.Future[Any]) -> None:
            if done.cancelled() or (error := done.exception()) is not None:
                failure = "cancelled" if done.cancelled() else type(error).__name__
                self._ledger.write("failed", sequence=sequence, error=failure, text="")
                return
            stored = done.result()
            tp = f"{stored.topic}-{stored.partition}"
            self._ledger.write("acknowledged", sequence=sequence, tp=tp, offset=stored.offset)

        try:
            (await self._producer.send(topic, value, key)).add_done_callback(answered)
        except aiokafka.errors.KafkaError as error:
            self._ledger.write("failed", sequence=sequence, error=type(error).__name__, text=str(error))

    async def stop(self) -> None:
        """See ``Sending``."""
        try:
            async with asyncio.timeout(_END_S):
                await self._producer.stop()
        except TimeoutError:
            self._ledger.write("error", what="stop", error="TimeoutError", text=f"not within {_END_S:.0f} s")


CLIENTS: Final[dict[str, type[Confluent | Aiokafka]]] = {"confluent": Confluent, "aiokafka": Aiokafka}


class KafkaProducer:
    """Sends ``NAME:SEQUENCE`` values at a steady rate, half of them with a key."""

    def __init__(self, options: argparse.Namespace) -> None:
        logging.getLogger("aiokafka").setLevel(
            logging.CRITICAL
        )  # it logs every connection that is broken, with a traceback
        self._options = options
        self._random = Random(options.seed)
        self._ledger = Ledger(options.ledger)
        self._stopping = asyncio.Event()
        self._sending: Sending = CLIENTS[options.client](options, self._ledger, self._random)

    async def run(self) -> int:
        """Works until stdin ends; what is queued then is still delivered."""
        obeying = asyncio.create_task(self._obey())
        started = False
        while not started and not self._stopping.is_set():
            try:
                await self._sending.start()
                started = True
            except aiokafka.errors.KafkaError as error:
                self._ledger.write("error", what="start", error=type(error).__name__, text=str(error))
                await asyncio.sleep(0.1)
        if started:
            await self._send_all()
            await self._sending.stop()
        obeying.cancel()
        self._ledger.write("left")
        return 0

    async def _send_all(self) -> None:
        sequence, random = 0, self._random
        topics = self._options.topics.split(",")
        while not self._stopping.is_set():
            for _ in range(random.randint(1, 5)):
                value, topic = f"{self._options.name}:{sequence}", random.choice(topics)
                key = str(random.randrange(50)).encode() if random.random() < 0.5 else None
                self._ledger.write("send", sequence=sequence, topic=topic, value=value)
                await self._sending.send(sequence, topic, value.encode(), key)
                sequence += 1
            await asyncio.sleep(3 / self._options.rate)

    async def _obey(self) -> None:
        async for _ in commands():
            continue
        self._stopping.set()


def main() -> int:
    """Entry point of the process."""
    parser = arguments("tests.chaos.kafka.producers", __doc__, "topics")
    parser.add_argument("--client", required=True, choices=CLIENTS)
    parser.add_argument("--promise", required=True, choices=PROMISES)
    parser.add_argument("--rate", type=float, required=True)
    return run(parser, KafkaProducer)


if __name__ == "__main__":
    sys.exit(main())
