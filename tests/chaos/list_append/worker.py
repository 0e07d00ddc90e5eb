"""A worker process of the list-append run. It ends with its stdin.

One command: ``die-at-commit`` ends the process by SIGKILL while its next commit is under way.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from random import Random

from client import Consumer, Producer, TopicPartition
from tests.chaos.ledger import Ledger
from tests.chaos.list_append.program import ListAppend, Setting
from tests.chaos.worker_process import arguments, commands, run
from tests.chaos.working import die_soon

TRANSACTION_TIMEOUT_MS = 4_000
REQUEST_TIMEOUT_MS = 3_000
DELIVERY_TIMEOUT_MS = 9_000


class Worker:
    """The program with the clients of a process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = Random(options.seed)
        self._stopping = asyncio.Event()
        self._dies_at_commit = False
        self._ledger = Ledger(options.ledger)

    async def run(self) -> int:
        """Works until stdin ends."""
        obeying = asyncio.create_task(self._obey())
        setting = Setting(
            name=self._options.name,
            tps=[
                TopicPartition(topic, partition)
                for topic, count in (entry.split("=") for entry in self._options.topics.split(","))
                for partition in range(int(count))
            ],
            random=self._random,
            ledger=self._ledger,
            new_producer=self._new_producer,
            new_consumer=self._new_consumer,
            is_over=self._stopping.is_set,
            timeout_s=TRANSACTION_TIMEOUT_MS / 1000,
            at_commit=self._at_commit,
        )
        try:
            await ListAppend(setting).run()
        finally:
            obeying.cancel()
        self._ledger.write("left")
        return 0

    def _new_consumer(self) -> Consumer:
        return Consumer(
            bootstrap_servers=self._options.bootstrap,
            client_id=self._options.name,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            random=Random(self._random.getrandbits(64)),
        )

    def _new_producer(self) -> Producer:
        return Producer(
            self._options.bootstrap,
            self._options.name,
            transactional_id=self._options.id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            linger_ms=self._random.choice((0, 5)),
            batch_size=self._random.choice((300, 64 * 1024)),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            random=Random(self._random.getrandbits(64)),
        )

    def _at_commit(self) -> None:
        if self._dies_at_commit:
            die_soon(self._random)

    async def _obey(self) -> None:
        async for command in commands():
            if command == "die-at-commit":
                self._dies_at_commit = True
        self._stopping.set()


def main() -> int:
    """Entry point of the process."""
    parser = arguments("tests.chaos.list_append.worker", __doc__, "topics", "id")
    return run(parser, Worker)


if __name__ == "__main__":
    sys.exit(main())
