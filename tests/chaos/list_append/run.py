"""One list-append run: workers behind the proxy, the chaos faults on a schedule, then calm, one last reader, the verdict."""

from __future__ import annotations

import asyncio
import itertools
import traceback
from pathlib import Path
from random import Random
from typing import Final

from client import Admin, CohortError, Consumer, TopicPartition
from tests.chaos.groups import ChaosGroup
from tests.chaos.ledger import now
from tests.chaos.list_append.worker import TRANSACTION_TIMEOUT_MS
from tests.chaos.processes import ChaosProcess
from tests.chaos.run import Say, hurt
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
        await self.proxy.accept()
        await self.start_daemon()
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
        self.members[worker.name] = worker
        await worker.start()
        return worker

    def living(self, group: str | None = None) -> list[ChaosProcess]:
        """Workers that run, in the order they were started."""
        return [worker for worker in self.members.values() if worker.alive]

    def group_of(self, member: ChaosProcess) -> ChaosGroup:
        """All are of one."""
        (pool,) = self.groups.values()
        return pool


async def run(world: Workers, steps: list[Step], length_s: float, say: Say) -> None:
    """Everything up to the end of all processes; the ledgers are complete after it."""
    watching: asyncio.Task[None] | None = None
    try:
        await world.start()
        watching = asyncio.create_task(world.watch_daemon())
        await hurt(world, steps, now(), length_s, say)
        say("healing; workers end")
        await world.proxy.accept()
        world.proxy.delay_s = 0.0
        for worker in world.living():
            worker.resume()
        await asyncio.gather(*(worker.leave() for worker in world.living()))
        say("reading everything once more")
        await _verify(world)
    except Exception:
        # A daemon that does not come up again, for one: the ledgers are judged all the same, and this stands in them.
        world.ledger.write("crash", name="the run", text=traceback.format_exc())
    finally:
        if watching is not None:
            watching.cancel()
            for result in await asyncio.gather(watching, return_exceptions=True):
                if isinstance(result, Exception):
                    world.ledger.write("crash", name="the run", text=f"the watch ended: {result!r}")
        await world.stop()
        world.ledger.close()


async def _verify(world: World) -> None:
    """Waits until everything is decided, then reads every partition from the beginning and writes down what is there."""
    tps = [TopicPartition(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
    read: dict[TopicPartition, list[tuple[int, str]]] = {tp: [] for tp in tps}
    try:
        async with asyncio.timeout(_VERIFY_S):
            await _wait_decided(world, tps)
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


async def _wait_decided(world: World, tps: list[TopicPartition]) -> None:
    deadline = now() + _DECIDED_S
    while True:
        ends: dict[str, dict[TopicPartition, int]] = {}
        for level in ("read_uncommitted", "read_committed"):
            async with Consumer(bootstrap_servers=world.address, isolation_level=level) as consumer:
                consumer.assign(tps)
                ends[level] = await consumer.end_offsets(tps)
        still_open = [tp for tp in tps if ends["read_committed"][tp] < ends["read_uncommitted"][tp]]
        if not still_open or now() > deadline:
            break
        await asyncio.sleep(0.5)
    for tp in still_open:
        stable, end = ends["read_committed"][tp], ends["read_uncommitted"][tp]
        world.ledger.write("open-end", tp=f"{tp.topic}-{tp.partition}", stable=stable, end=end)
