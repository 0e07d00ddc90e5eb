"""Nodes that register with a simulated etcd, in virtual time: processes that stop and go on, clocks, directories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from coordinator.filesystem.executor import Disk
from coordinator.metadata.etcd.rpc import EtcdUnavailableError, News, Pace, StreamBrokenError
from coordinator.metadata.etcd.store import EtcdStore
from coordinator.nodes.identity import NodeIdentity
from coordinator.nodes.registration import Announced, Registration
from coordinator.replication.partition import Incarnation
from tests.simulation.disk import SimDisk, SimStorage
from tests.simulation.etcd import CALM, SimulatedEtcd, SimulatedWatch, Troubles, World
from tests.simulation.loop import Process, SimLoop

SESSION_MS: Final = 2_000
PACE: Final = Pace()


class Member:
    """A node: its disk, and while it runs its process, its store and its registration."""

    def __init__(self, etcd: Etcd, number: int) -> None:
        self.number = number
        self.disk = SimDisk(Random(number))
        self.defaults = ""
        self.asleep_ms = 0
        """How long the machine has been suspended: the boot clock counts that, the loop's does not."""
        self.told: list[str] = []
        self.fatal: list[str] = []
        self._etcd = etcd

    async def start(self, *, serve_without_quorum: bool = False, timeout_s: float = 30.0) -> Incarnation:
        """Begins a process up to its registration. Raises what that raises."""
        self.process = Process(f"node {self.number}")
        self._etcd.processes.append(self.process)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return await loop.spawn(self.process, self._start(serve_without_quorum, timeout_s))

    async def _start(self, serve_without_quorum: bool, timeout_s: float) -> Incarnation:
        await self._prepare(serve_without_quorum)
        announced = Announced(f"host{self.number}", 7000 + self.number, "peer", 9, "r", self.defaults)
        return await self.registration.register(announced, timeout_s=timeout_s)

    async def _prepare(self, serve_without_quorum: bool) -> None:
        self._disk = Disk(SimStorage(self.disk, self.process), threads=1)
        self.rpc = CuttableEtcd(self._etcd.world)
        self.store = await EtcdStore.open(self.rpc, "sim", lambda: "cluster", self.fatal.append)
        identity = await NodeIdentity.read(self._disk)
        identity.check(self.store.cluster_id, self.number, "etcd")
        known = self.store.get(f"nodes/{self.number}")
        start = "" if known is None else str(known.value["start"])
        self.cleanliness = await identity.begin(
            self.store.cluster_id, self.number, self._etcd.new_id, "boot", "ack", False, start
        )
        self.identity = identity
        self.registration = Registration(
            self.store,
            identity,
            self.number,
            session_ms=SESSION_MS,
            boot_ms=lambda: self._etcd.now_ms() + self.asleep_ms,
            wall_ms=self._etcd.now_ms,
            on_fatal=self.fatal.append,
            serve_without_quorum=serve_without_quorum,
        )
        self.registration.on_lost(lambda: self.told.append("lost"))
        self.registration.on_invalid(lambda: self.told.append("invalid"))
        self.registration.on_valid(lambda: self.told.append("valid"))
        self.registration.on_registered(lambda me: self.told.append(f"registered {me.broker_epoch}"))

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more."""
        self.process.dead = True
        self.disk.process_ended()

    def pause(self) -> None:
        """SIGSTOP."""
        self.process.held = []

    def go_on(self) -> None:
        """SIGCONT."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.go_on(self.process)

    async def stop(self) -> None:
        """A stop that gives the lease back."""
        await self.registration.close()
        await self.store.close()


class CuttableEtcd(SimulatedEtcd):
    """A node's way to etcd, which may be cut: nothing comes through then."""

    def __init__(self, world: World) -> None:
        super().__init__(world, PACE)
        self.cut = False

    async def _ask(self, timeout_ms: int, *, repeatable: bool) -> None:
        if self.cut:
            await self._wait(timeout_ms)
        if self.cut:
            raise EtcdUnavailableError("no member answers", "none")
        await super()._ask(timeout_ms, repeatable=repeatable)

    async def keep_alive(self, lease: int, *, timeout_ms: int) -> bool:
        """See ``SimulatedEtcd``. Its answer may be slow."""
        held = await super().keep_alive(lease, timeout_ms=timeout_ms)
        if self._world.happens("answer_lost"):
            await self._wait(timeout_ms)
        return held

    async def watch(self, first: str, end: str, *, revision: int, timeout_ms: int) -> SimulatedWatch:
        """See ``SimulatedEtcd``."""
        await self._ask(timeout_ms, repeatable=True)
        return _CuttableWatch(self, self._world, PACE, first, end, revision)


class _CuttableWatch(SimulatedWatch):
    def __init__(self, etcd: CuttableEtcd, *given: Any) -> None:
        super().__init__(*given)
        self._etcd = etcd

    async def next(self) -> News:
        """See ``SimulatedWatch``."""
        news = await super().next()
        if self._etcd.cut:
            await asyncio.sleep(PACE.silence / 1000)
            raise StreamBrokenError("silent")
        return news


class Etcd:
    """The simulated etcd, and what all nodes share."""

    def __init__(self, seed: int) -> None:
        self.world = World(Random(seed), CALM)
        self.processes: list[Process] = []
        self._ids = 0

    def new_id(self) -> str:
        """A fresh id."""
        self._ids += 1
        return f"id{self._ids}"

    def now_ms(self) -> int:
        """The clock of all."""
        return self.world.now_ms()

    def trouble(self, **shares: float) -> None:
        """See ``Troubles``."""
        self.world.troubles = Troubles(**shares)


def simulate(scenario: Callable[[Etcd], Awaitable[None]], seed: int = 1) -> None:
    """Runs a scenario on a loop of its own."""

    etcd = Etcd(seed)

    async def run() -> None:
        etcd.world.begin()
        try:
            await scenario(etcd)
        finally:
            etcd.world.end()

    loop = SimLoop(Random(seed), max_steps=10_000_000)  # type: ignore[abstract]
    try:
        loop.run_until_complete(run())
        assert loop.failures == []
    finally:
        loop.dispose(etcd.processes)
