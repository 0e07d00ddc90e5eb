"""A member process of the chaos run: reads, writes down what it was given and what it committed, obeys its stdin.

Commands, one a line: ``subscribe TOPIC...``, ``pattern REGEX``, ``block SECONDS``, ``leave``. The end of stdin means
``leave`` too, so that no member outlives the run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from pathlib import Path
from random import Random
from typing import Final, Literal

from client import (
    CohortError,
    CommitFailedError,
    Consumer,
    ConsumerRecord,
    RangeAssignor,
    RebalanceListener,
    RoundRobinAssignor,
    TopicPartition,
)
from client.assignors import Assignor
from client.cli.session import configure_logging
from tests.chaos.ledger import Ledger, now

ASSIGNORS: Final[dict[str, type[Assignor]]] = {"range": RangeAssignor, "roundrobin": RoundRobinAssignor}
SESSION_TIMEOUT_MS: Final = 3_000
COMMIT_MODES: Final = ("batch", "record", "auto")

CommitMode = Literal["batch", "record", "auto"]


def name_of(tp: TopicPartition) -> str:
    """As it stands in ledgers."""
    return f"{tp.topic}-{tp.partition}"


def compute(seconds: float) -> None:
    """What a handler does that does not let the event loop run."""
    time.sleep(seconds)


class ChaosMember(RebalanceListener):
    """A consumer that commits what it has written down, never more."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = Random(options.seed)
        self._ledger = Ledger(options.ledger)
        self._mode: CommitMode = options.commits
        self._topics: list[str] = options.topics.split(",")
        self._leaving = asyncio.Event()
        self._numbers = itertools.count()
        self._uncommitted: dict[TopicPartition, ConsumerRecord] = {}
        self._shares = (
            0  # how many times partitions came or went: what was handed out before is not mixed with what came after
        )
        self._committing = asyncio.Lock()
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> Consumer:
        options = self._options
        return Consumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            client_id=options.name,
            assignors=[ASSIGNORS[name] for name in options.assignors.split(",")],
            auto_offset_reset="earliest",
            enable_auto_commit=self._mode == "auto",
            auto_commit_interval_ms=700,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=800,
            max_poll_interval_ms=20_000,
            rebalance_timeout_ms=6_000,
            request_timeout_ms=4_000,
            revoke_grace_ms=500,
            random=Random(self._random.getrandbits(64)),
        )

    async def run(self) -> int:
        """Works until it is told to leave."""
        self._ledger.write("started", mode=self._mode, assignors=self._options.assignors)
        commands = asyncio.create_task(self._obey())
        try:
            if await self._start():
                await self._work()
        finally:
            commands.cancel()
            await self._consumer.stop(timeout=8)
            self._ledger.write("left")
        return 0

    async def _start(self) -> bool:
        while not self._leaving.is_set():
            self._consumer.subscribe(topics=self._topics, listener=self)
            try:
                await self._consumer.start()
            except CohortError as error:
                self._ledger.write("error", what="start", error=type(error).__name__, text=str(error))
                self._consumer = self._new_consumer()
            else:
                return True
        return False

    async def _work(self) -> None:
        while not self._leaving.is_set():
            try:
                batches = await self._consumer.getmany(timeout_ms=200, max_records=self._random.randint(1, 60))
            except CohortError as error:
                self._ledger.write("error", what="poll", error=type(error).__name__, text=str(error))
                await asyncio.sleep(0.1)
                continue
            at = now()  # the moment the records became the program's, also when it is stopped while it writes them down
            for tp, records in batches.items():
                offsets, values = [record.offset for record in records], [record.value.decode() for record in records]
                self._ledger.write("delivered", at, tp=name_of(tp), offsets=offsets, values=values)
                self._uncommitted[tp] = records[-1]
            if batches:
                await asyncio.sleep(self._random.uniform(0, 0.04))
                await self._commit()

    async def _commit(self) -> None:
        if self._mode == "auto":
            self._uncommitted.clear()
            return
        async with self._committing:
            handed, self._uncommitted = self._uncommitted, {}
            portions = [handed] if self._mode == "batch" else [{tp: record} for tp, record in handed.items()]
            for portion in portions:
                if portion:
                    await self._commit_portion(portion)

    async def _commit_portion(self, portion: dict[TopicPartition, ConsumerRecord]) -> None:
        number, shares = next(self._numbers), self._shares
        offsets = {tp: record.offset + 1 for tp, record in portion.items()}
        self._ledger.write("commit", number=number, offsets={name_of(tp): offset for tp, offset in offsets.items()})
        try:
            if self._mode == "record":
                (record,) = portion.values()
                await self._consumer.commit(record)
            else:
                await self._consumer.commit(offsets)
        except CohortError as error:
            self._ledger.write("commit-failed", number=number, error=type(error).__name__, text=str(error))
            if not isinstance(error, CommitFailedError) and shares == self._shares:
                # Its fate is not known and the partitions are still this member's: the next commit says it again.
                self._uncommitted = {**portion, **self._uncommitted}
        else:
            self._ledger.write("committed", number=number)

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Commits what is done before somebody else goes on from there."""
        self._ledger.write("revoked", tps=sorted(map(name_of, tps)), reason=reason)
        await self._commit()
        self._uncommitted.clear()
        self._shares += 1

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Writes down what this member owns from now on."""
        self._uncommitted.clear()
        self._shares += 1
        generation = self._consumer.group_metadata().generation
        self._ledger.write("assigned", generation=generation, tps=sorted(map(name_of, tps)), reason=reason)

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Forgets what can no longer be committed."""
        self._ledger.write("lost", tps=sorted(map(name_of, tps)), reason=reason)
        self._uncommitted.clear()
        self._shares += 1

    async def _obey(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            match line.decode().split():
                case ["subscribe", *topics]:
                    self._topics = topics
                    self._consumer.subscribe(topics=topics, listener=self)
                case ["block", seconds]:
                    self._ledger.write("blocking", seconds=float(seconds))
                    compute(float(seconds))
                case ["pattern", pattern]:
                    self._consumer.subscribe(pattern=pattern, listener=self)
                case _:
                    break
            self._ledger.write("subscription", line=line.decode().strip())
        self._leaving.set()


def main() -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.member", description=__doc__)
    for name in ("bootstrap", "group", "topics", "name", "assignors"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--commits", required=True, choices=COMMIT_MODES)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    options = parser.parse_args()
    configure_logging()

    async def work() -> int:
        return await ChaosMember(options).run()

    return asyncio.run(work())


if __name__ == "__main__":
    sys.exit(main())
