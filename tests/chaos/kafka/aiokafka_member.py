"""A member process of the chaos run that is aiokafka's consumer: reads, and writes down what it was given and committed.

Commands, one a line on its stdin: ``subscribe TOPIC...``. The end of stdin means that it leaves. It writes down as
``tests.chaos.member`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import sys
from collections.abc import Collection
from typing import Any, Final

import aiokafka
import aiokafka.abc
import aiokafka.coordinator.assignors.range
import aiokafka.errors

from tests.chaos.ledger import Ledger
from tests.chaos.member import SESSION_TIMEOUT_MS, STATIC_SESSION_TIMEOUT_MS
from tests.chaos.worker_process import arguments, commands, run

ASSIGNOR: Final = aiokafka.coordinator.assignors.range.RangePartitionAssignor
"""The only one that a member offers, and one that every eager group shares. With two, aiokafka joins twice, at first
with one alone (aio-libs/aiokafka#1168): two such members rebalance for as long as both are there, with a Kafka too."""
COMMIT_MODES: Final = ("batch", "record")
"""Not "auto": it commits what it has handed out, also what the program has not seen yet."""
_STOP_S: Final = 10.0


def name_of(tp: Any) -> str:
    """A partition as it stands in ledgers."""
    return f"{tp.topic}-{tp.partition}"


class AiokafkaMember(aiokafka.abc.ConsumerRebalanceListener):  # type: ignore[misc]
    """A consumer and what it has not committed yet."""

    def __init__(self, options: argparse.Namespace) -> None:
        logging.getLogger("aiokafka").setLevel(
            logging.CRITICAL
        )  # it logs every connection that is broken, with a traceback
        self._options = options
        self._ledger = Ledger(options.ledger)
        self._topics: list[str] = options.topics.split(",")
        self._leaving = asyncio.Event()
        self._uncommitted: dict[Any, int] = {}
        self._owned: frozenset[Any] = frozenset()
        self._numbers = itertools.count()
        self._consumer: Any = None

    def _new_consumer(self) -> Any:
        options = self._options
        static = options.instance is not None
        return aiokafka.AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap,
            client_id=options.name,
            group_id=options.group,
            group_instance_id=options.instance,
            partition_assignment_strategy=[ASSIGNOR],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=STATIC_SESSION_TIMEOUT_MS if static else SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=800,
            max_poll_interval_ms=20_000,
            rebalance_timeout_ms=6_000,
            request_timeout_ms=4_000,
            metadata_max_age_ms=1_000,
        )

    async def run(self) -> int:
        """Works until it is told to leave, or fenced."""
        self._ledger.write("started", mode=self._options.commits, assignors=self._options.assignors)
        obeying = asyncio.create_task(self._obey())
        try:
            if await self._started():
                await self._work_until_told()
        finally:
            obeying.cancel()
            if self._consumer is not None:
                await self._stop()
            self._ledger.write("left")
        return 0

    async def _started(self) -> bool:
        while not self._leaving.is_set():
            self._consumer = self._new_consumer()
            self._consumer.subscribe(self._topics, listener=self)
            try:
                await self._consumer.start()
            except aiokafka.errors.KafkaError as error:
                self._ledger.write("error", what="start", error=type(error).__name__, text=str(error))
                await self._stop()
            else:
                return True
        return False

    async def _stop(self) -> None:
        try:
            async with asyncio.timeout(_STOP_S):
                await self._consumer.stop()
        except (TimeoutError, aiokafka.errors.KafkaError) as error:
            self._ledger.write("error", what="stop", error=type(error).__name__, text=str(error))

    async def _work_until_told(self) -> None:
        """Gives up a commit that waits for a coordinator: aiokafka looks for one without a bound."""
        working = asyncio.create_task(self._work())
        leaving = asyncio.create_task(self._leaving.wait())
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        done, _ = await asyncio.wait({working}, timeout=_STOP_S)
        if not done:
            working.cancel()
            await asyncio.wait({working}, timeout=_STOP_S)
        if not working.cancelled() and working.done():
            working.result()

    async def _work(self) -> None:
        while not self._leaving.is_set():
            try:
                found = await self._consumer.getmany(timeout_ms=200, max_records=40)
            except aiokafka.errors.KafkaError as error:
                self._ledger.write("error", what="getmany", error=type(error).__name__, text=str(error))
                if self._options.instance is not None and "UnknownError" in str(error):
                    self._ledger.write("fenced", text=str(error))  # aiokafka has no name for FENCED_INSTANCE_ID
                    return
                await asyncio.sleep(0.1)
                continue
            owned = self._owned
            for tp, records in found.items():
                # What was taken from it since is for others, and comes again where it was given back: aiokafka's own set
                # still has it.
                if tp in owned and self._owned is owned:
                    await self._delivered(tp, records)
            await self._commit()

    async def _delivered(self, tp: Any, records: list[Any]) -> None:
        values = [record.value.decode() for record in records]
        self._ledger.write("delivered", tp=name_of(tp), offsets=[record.offset for record in records], values=values)
        self._uncommitted[tp] = records[-1].offset + 1
        if self._options.commits == "record":
            await self._commit()

    async def _commit(self) -> None:
        """Commits what it has written down; what was refused is tried again as long as its partition is this member's."""
        if not self._uncommitted:
            return
        number, portion = next(self._numbers), dict(self._uncommitted)
        self._ledger.write("commit", number=number, offsets={name_of(tp): offset for tp, offset in portion.items()})
        try:
            await self._consumer.commit(portion)
        except (aiokafka.errors.KafkaError, aiokafka.errors.IllegalStateError) as error:
            self._ledger.write("commit-failed", number=number, error=type(error).__name__, text=str(error))
            await asyncio.sleep(0.1)
            return
        self._ledger.write("committed", number=number)
        self._uncommitted = {tp: offset for tp, offset in self._uncommitted.items() if portion.get(tp) != offset}

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        """Begins anew with them, or others do, where it has committed."""
        if revoked:
            self._ledger.write("revoked", tps=sorted(map(name_of, revoked)))
        self._owned = frozenset()
        self._uncommitted.clear()

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        """Writes down what this member owns from now on; aiokafka tells a program nothing of generations."""
        self._owned = frozenset(assigned)
        generation: int = self._consumer._coordinator.generation
        self._ledger.write("assigned", generation=generation, tps=sorted(map(name_of, assigned)))

    async def _obey(self) -> None:
        async for line in commands():
            match line.split():
                case ["subscribe", *topics]:
                    self._topics = topics
                    self._consumer.subscribe(topics, listener=self)
                    self._ledger.write("subscription", topics=topics)
                case _:
                    break
        self._leaving.set()


def main() -> int:
    """Entry point of the process."""
    parser = arguments("tests.chaos.kafka.aiokafka_member", __doc__, "group", "topics", "assignors")
    parser.add_argument("--instance")
    parser.add_argument("--commits", required=True, choices=COMMIT_MODES)
    return run(parser, AiokafkaMember)


if __name__ == "__main__":
    sys.exit(main())
