"""What a member process does with its records: polls and commits, or has them handled by ``Consumer.process``."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from random import Random
from typing import Any, Final, Literal

from client import CohortError, CommitFailedError, Consumer, ConsumerRecord, RebalanceListener, TopicPartition
from tests.chaos.ledger import Ledger, now

_COMMITS_EVERY_S: Final = 1.0
_FRESH_MS: Final = 5_000

CommitMode = Literal["batch", "record", "auto"]


def name_of(tp: TopicPartition) -> str:
    """As it stands in ledgers."""
    return f"{tp.topic}-{tp.partition}"


def die_soon(random: Random) -> None:
    """Ends the process by SIGKILL within ten ms."""
    delay_s = random.choice((0.0, 0.0, 0.001, 0.003, 0.01))
    asyncio.get_running_loop().call_later(delay_s, os.kill, os.getpid(), signal.SIGKILL)


class Working(RebalanceListener):
    """Writes down what the member owns. ``work`` is called again after an error until the member leaves."""

    def __init__(self, consumer: Consumer, ledger: Ledger, random: Random, mode: CommitMode) -> None:
        self.consumer = consumer
        self.ledger = ledger
        self.random = random
        self.mode: CommitMode = mode
        self.dies_at_commit = False
        """Whether the process is to end while its next commit is under way."""
        self._numbers = itertools.count()

    async def work(self, leaving: asyncio.Event) -> None:
        """Goes on with records until ``leaving`` is set, or for a while."""
        raise AssertionError("a way of working says how it works")

    async def end(self) -> None:
        """After the consumer was stopped."""

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Writes down what this member owns from now on."""
        generation = self.consumer.group_metadata().generation
        self.ledger.write("assigned", generation=generation, tps=sorted(map(name_of, tps)), reason=reason)

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Writes down that it owns them no more."""
        self.ledger.write("lost", tps=sorted(map(name_of, tps)), reason=reason)

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Writes down that it gives them up."""
        self.ledger.write("revoked", tps=sorted(map(name_of, tps)), reason=reason)

    async def commit(self, portion: dict[TopicPartition, ConsumerRecord]) -> CohortError | None:
        """Commits these records, in the way drawn for this member, and writes down what came of it."""
        offsets = {tp: record.offset + 1 for tp, record in portion.items()}
        by_name = next(iter(portion.values())) if self.mode == "record" else None
        return await self.commit_offsets(offsets, by_name)

    async def commit_offsets(
        self, offsets: dict[TopicPartition, int], by_name: ConsumerRecord | None = None
    ) -> CohortError | None:
        """Commits ``offsets``, as that of the record ``by_name`` if there is one, and writes down what came of it."""
        number = next(self._numbers)
        self.ledger.write("commit", number=number, offsets={name_of(tp): offset for tp, offset in offsets.items()})
        if self.dies_at_commit:
            die_soon(self.random)
        try:
            await self.consumer.commit(offsets if by_name is None else by_name)
        except CohortError as error:
            self.ledger.write("commit-failed", number=number, error=type(error).__name__, text=str(error))
            return error
        self.ledger.write("committed", number=number)
        return None


class Polling(Working):
    """Polls, and commits what it has written down, never more."""

    def __init__(self, consumer: Consumer, ledger: Ledger, random: Random, mode: CommitMode) -> None:
        super().__init__(consumer, ledger, random, mode)
        self._uncommitted: dict[TopicPartition, ConsumerRecord] = {}
        self._shares: dict[TopicPartition, int] = {}
        """How many times a partition came or went: what was handed out before is not mixed with what came after."""
        self._committing = asyncio.Lock()

    async def work(self, leaving: asyncio.Event) -> None:
        """One poll."""
        batches = await self.consumer.getmany(timeout_ms=200, max_records=self.random.randint(1, 60))
        at = now()  # the moment the records became the program's, also when it is stopped while it writes them down
        for tp, records in batches.items():
            offsets, values = [record.offset for record in records], [record.value.decode() for record in records]
            self.ledger.write("delivered", at, tp=name_of(tp), offsets=offsets, values=values)
            self._uncommitted[tp] = records[-1]
        if batches:
            await asyncio.sleep(self.random.uniform(0, 0.04))
            await self._commit()
            if self.mode == "auto" and not leaving.is_set():
                self.ledger.write("done")  # the next poll says so to the consumer

    async def _commit(self) -> None:
        if self.mode == "auto":
            self._uncommitted.clear()
            return
        async with self._committing:
            handed, self._uncommitted = self._uncommitted, {}
            portions = [handed] if self.mode == "batch" else [{tp: record} for tp, record in handed.items()]
            for portion in portions:
                if portion:
                    await self._commit_portion(portion)

    async def _commit_portion(self, portion: dict[TopicPartition, ConsumerRecord]) -> None:
        shares = {tp: self._shares.get(tp) for tp in portion}
        error = await self.commit(portion)
        if error is not None and not isinstance(error, CommitFailedError):
            # Its fate is not known. Where the partitions are still this member's the next commit says it again.
            still = {tp: record for tp, record in portion.items() if shares[tp] == self._shares.get(tp)}
            self._uncommitted = {**still, **self._uncommitted}

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Commits what is done before somebody else goes on from there."""
        await super().on_partitions_revoked(tps, reason)
        await self._commit()
        self._forget(tps)

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Begins anew with these."""
        self._forget(tps)
        super().on_partitions_assigned(tps, reason)

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Forgets what can no longer be committed."""
        super().on_partitions_lost(tps, reason)
        self._forget(tps)

    def _forget(self, tps: frozenset[TopicPartition]) -> None:
        for tp in tps:
            self._uncommitted.pop(tp, None)
            self._shares[tp] = self._shares.get(tp, 0) + 1


class Handling(Working):
    """Has records handled; some handlers are slow, slower than a rebalance waits for them."""

    def __init__(self, consumer: Consumer, ledger: Ledger, random: Random, mode: CommitMode) -> None:
        super().__init__(consumer, ledger, random, "auto" if mode == "auto" else "record")
        self._options: dict[str, Any] = {"concurrency": random.choice((None, None, 2))}
        self._processing: asyncio.Task[None] | None = None

    async def work(self, leaving: asyncio.Event) -> None:
        """Until an error ends it, or the member leaves; ``stop`` ends the handlers then."""
        self.ledger.write("processing")
        processing = asyncio.create_task(self.consumer.process(self._handle, **self._options))
        self._processing = processing
        left = asyncio.create_task(leaving.wait())
        try:
            await asyncio.wait({processing, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
        if processing.done():
            self._processing = None
            await processing

    async def end(self) -> None:
        """``process`` returns after ``stop``; what it raises now is nobody's business but the ledger's."""
        if self._processing is not None:
            try:
                await self._processing
            except CohortError as error:
                self.ledger.write("error", what="process", error=type(error).__name__, text=str(error))

    async def _handle(self, record: ConsumerRecord) -> None:
        tp, offset = f"{record.topic}-{record.partition}", record.offset
        self.ledger.write("began", tp=tp, offset=offset, value=record.value.decode())
        try:
            await asyncio.sleep(self._seconds(record))
        except asyncio.CancelledError:
            self.ledger.write("cancelled", tp=tp, offset=offset)
            raise
        self.ledger.write("handled", tp=tp, offset=offset)
        if self.mode == "record":
            await self.commit({TopicPartition(record.topic, record.partition): record})

    def _seconds(self, record: ConsumerRecord) -> float:
        """Some handlers are slow, but not while the group catches up with a log that it reads again."""
        if time.time() * 1000 - record.timestamp_ms > _FRESH_MS:
            return 0.0
        drawn = self.random.random()
        if drawn < 0.006:
            return self.random.uniform(0.4, 2.5)
        return self.random.uniform(0, 0.02) if drawn < 0.3 else 0.0


class HandlingByKey(Handling):
    """Has records of different keys handled beside each other. Commits up to where all are done, now and then."""

    def __init__(self, consumer: Consumer, ledger: Ledger, random: Random, mode: CommitMode) -> None:
        super().__init__(consumer, ledger, random, mode)
        self._options = {"order": "key", "concurrency": random.choice((2, 8, 40))}
        self._committing = asyncio.Lock()
        self._committed: dict[TopicPartition, int] = {}

    async def work(self, leaving: asyncio.Event) -> None:
        """As others do, and commits what is done also when no record comes that could bring it about."""
        committing = asyncio.create_task(self._commit_steadily())
        try:
            await super().work(leaving)
        finally:
            committing.cancel()
            await asyncio.gather(committing, return_exceptions=True)

    async def _commit_steadily(self) -> None:
        while self.mode != "auto":
            await asyncio.sleep(_COMMITS_EVERY_S)
            async with self._committing:
                await self._commit_done()

    async def _handle(self, record: ConsumerRecord) -> None:
        told: dict[str, Any] = {"tp": f"{record.topic}-{record.partition}", "offset": record.offset}
        key = f"@{record.offset}" if record.key is None else record.key.decode()
        self.ledger.write("began", **told, value=record.value.decode(), key=key)
        try:
            await asyncio.sleep(self._seconds(record))
        except asyncio.CancelledError:
            self.ledger.write("cancelled", **told)
            raise
        self.ledger.write("handled", **told)
        if self.mode != "auto" and self.random.random() < 0.1 and not self._committing.locked():
            async with self._committing:
                await self._commit_done()

    async def _commit_done(self) -> None:
        """The records of handlers that have returned, without a gap: this one's is not among them yet."""
        done = {tp: stored.offset for tp, stored in self.consumer.consumed_offsets().items()}
        moved = {tp: offset for tp, offset in done.items() if offset > self._committed.get(tp, 0)}
        if moved and await self.commit_offsets(moved) is None:
            self._committed |= moved

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """What others have committed meanwhile is not known."""
        for tp in tps:
            self._committed.pop(tp, None)
        super().on_partitions_assigned(tps, reason)
