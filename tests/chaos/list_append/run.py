"""One list-append run: workers behind the proxy, the chaos faults on a schedule, then calm, one last reader, the verdict."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from random import Random
from typing import Final

from client import Admin, CohortError, Consumer, TopicPartition
from tests.chaos.groups import ChaosGroup
from tests.chaos.list_append.worker import TRANSACTION_TIMEOUT_MS
from tests.chaos.processes import ChaosProcess
from tests.chaos.run import Say, ends_that_stay_open, heal, hurt, live
from tests.chaos.schedule import Step
from tests.chaos.world import World

TOPICS: Final = {"lists": 4, "more": 2}
KINDS: Final = (
    *("kill-member", "stop-member", "kill-at-commit", "kill-daemon", "restart-daemon", "stop-daemon"),
    *("reset-connections", "delay-traffic", "stall-one-way", "lose-answers", "cut-off", "fill-disk"),
)
"""The faults that mean something here, of those that the chaos runs have."""
_DECIDED_S: Final = TRANSACTION_TIMEOUT_MS / 1000 + 20
"""So long after the last worker ended everything has to be decided."""
_VERIFY_S: Final = 90.0


class Workers(World):
    """A world whose members are list-append workers; two of three share a transactional id with another."""

    def __init__(self, directory: Path, random: Random, count: int) -> None:
        super().__init__(directory, random, count, count, ["cooperative"])
        self.daemon.options += ("--retention-check-interval-ms", "1000")
        self._count = count
        self._worker_names = itertools.count()
        self._ids = [f"id-{number}" for number in range(max(1, count * 2 // 3))]

    async def start(self) -> None:
        """Daemon, topics and workers."""
        await self.serve()
        async with Admin(self.address) as admin:
            await admin.create_topics(TOPICS)
        (pool,) = self.groups.values()
        for _ in range(self._count):
            await self.add_member(pool)

    async def start_member(
        self, group: ChaosGroup, *, after: ChaosProcess | None = None, everything: bool = False
    ) -> ChaosProcess:
        """One more worker; it takes the id that fewest have."""
        number = next(self._worker_names)
        taken = [worker.options["id"] for worker in self.living()]
        worker = ChaosProcess(
            *(f"w{number}", "tests.chaos.list_append.worker", self.directory, self.ledger),
            bootstrap=self.address,
            topics=",".join(f"{topic}={count}" for topic, count in TOPICS.items()),
            id=min(self._ids, key=taken.count),
            seed=self.random.getrandbits(32),
        )
        return await self.begin(worker)

    def living(self, group: str | None = None) -> list[ChaosProcess]:
        """Workers that run, in the order they were started."""
        return [worker for worker in self.members.values() if worker.alive]

    def group_of(self, member: ChaosProcess) -> ChaosGroup:
        """All are of one."""
        (pool,) = self.groups.values()
        return pool


async def run(world: Workers, steps: list[Step], length_s: float, say: Say) -> None:
    """Everything up to the end of all processes; the ledgers are complete after it."""

    async def story() -> None:
        await hurt(world, steps, length_s, say)
        say("healing; workers end")
        await heal(world)
        await asyncio.gather(*(worker.leave() for worker in world.living()))
        say("reading everything once more")
        await _verify(world)

    await live(world, story)


async def _verify(world: World) -> None:
    """Waits until everything is decided, then reads every partition from the beginning and writes down what is there."""
    tps = [TopicPartition(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
    read: dict[TopicPartition, list[tuple[int, str]]] = {tp: [] for tp in tps}
    try:
        async with asyncio.timeout(_VERIFY_S):
            for each in await ends_that_stay_open(world.address, tps, _DECIDED_S):
                name = f"{each.tp.topic}-{each.tp.partition}"
                world.ledger.write("open-end", tp=name, stable=each.stable, end=each.end)
            async with Consumer(bootstrap_servers=world.address, auto_offset_reset="earliest") as consumer:
                consumer.assign(tps)
                ends = await consumer.end_offsets(tps)
                while [tp for tp in tps if await consumer.position(tp) < ends[tp]]:
                    for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                        read[tp].extend((record.offset, record.value.decode()) for record in records)
    except (TimeoutError, CohortError) as error:
        world.ledger.write("crash", name="the last reader", text=f"did not come to the end: {error!r}")
    for tp, rows in read.items():
        offsets, values = [offset for offset, _ in rows], [value for _, value in rows]
        world.ledger.write("log", tp=f"{tp.topic}-{tp.partition}", offsets=offsets, values=values)
