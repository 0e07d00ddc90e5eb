"""The etcd of a cluster's history: three members on the simulated network around one authority, and each node's way to them.

A member answers while it runs, while two of them hear each other, and while they have a leader. Leases end by the members'
clock, and not while there is no leader; a new leader gives every lease its whole time again. What the world of ``etcd`` has
comes on top: answers that are lost or late, transactions that take effect after their time, watches that break off, fall
silent or come in parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final, TypeVar

from coordinator.metadata.authority import Compare, Delta, Operation
from coordinator.metadata.etcd.rpc import Answer, EtcdUnavailableError, Pace, Page, StreamBrokenError
from tests.simulation.etcd import CALM, SimulatedEtcd, SimulatedWatch, World
from tests.simulation.network import Network

MEMBERS: Final = ("etcd1", "etcd2", "etcd3")
PORT: Final = 2379
URL: Final = f"etcd://{','.join(f'{name}:{PORT}' for name in MEMBERS)}/sim"
_QUORUM: Final = 2
_LOOK_S: Final = 0.05

T = TypeVar("T")
OnTransaction = Callable[[str, Sequence[Compare], Sequence[Operation], Delta], None]
"""Gets who asked, and a transaction that took effect."""


class EtcdMembers(World):
    """The members. ``down`` are those that do not run: a connection to them is refused."""

    def __init__(self, network: Network, random: Random, on_transaction: OnTransaction) -> None:
        super().__init__(random, CALM)
        self.network = network
        self.random = random
        self.down: dict[str, None] = {}
        self.leaderless_until_s = 0.0
        self._had_leader = True
        self._on_transaction = on_transaction

    def has_leader(self) -> bool:
        """Whether enough members run, and have agreed on who leads them."""
        running = sum(name not in self.down for name in MEMBERS)
        return running >= _QUORUM and asyncio.get_running_loop().time() >= self.leaderless_until_s

    def elect(self, seconds: float) -> None:
        """Has the members without a leader for so long."""
        self.leaderless_until_s = asyncio.get_running_loop().time() + seconds

    def heal(self) -> None:
        """Every member runs, nothing is lost any more."""
        self.down.clear()
        self.troubles = CALM

    def asked_by(self, host: str, compare: Sequence[Compare], operations: Sequence[Operation]) -> Delta | None:
        """Decides a transaction of a host, now."""
        delta = self.transaction(compare, operations)
        if delta is not None:
            self._on_transaction(host, compare, operations, delta)
        return delta

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self.has_leader():
                self._had_leader = False
                continue
            if not self._had_leader:
                self._had_leader = True
                self.authority.restart_leases(self.now_ms())
                self.told()
            if self.authority.expire(self.now_ms()):
                self.told()


class NodeEtcd(SimulatedEtcd):
    """See ``rpc.Etcd``: the way of one host to the members, one after the other."""

    endpoints = ",".join(f"{name}:{PORT}" for name in MEMBERS)

    def __init__(self, world: EtcdMembers, host: str, pace: Pace) -> None:
        super().__init__(world, pace)
        self._members = world
        self._host = host
        self._at = int(world.random.random() * len(MEMBERS))

    async def range(self, first: str, end: str, *, limit: int, revision: int = 0, timeout_ms: int) -> Page:
        """See ``rpc.Etcd``."""
        ask = super().range
        return await self._by_any(
            lambda left_ms: ask(first, end, limit=limit, revision=revision, timeout_ms=left_ms), timeout_ms
        )

    async def txn(self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int) -> Answer:
        """See ``rpc.Etcd``."""
        member = await self._first(timeout_ms)
        if not self._members.has_leader():
            if self._members.random.random() < 0.3:  # it is proposed all the same, and the next leader has it
                self._members.later(lambda: self._decide(compare, operations))
            await self._wait(timeout_ms)
            raise EtcdUnavailableError("no answer: there is no leader", "unknown")
        answer = await super().txn(compare, operations, timeout_ms=timeout_ms)
        if not self._is_heard(member):
            await self._wait(timeout_ms)
            raise EtcdUnavailableError(f"no answer of {member}", "unknown")
        return answer

    async def grant(self, ttl_s: int, *, timeout_ms: int) -> tuple[int, int]:
        """See ``rpc.Etcd``."""
        ask = super().grant
        return await self._by_any(lambda left_ms: ask(ttl_s, timeout_ms=left_ms), timeout_ms)

    async def keep_alive(self, lease: int, *, timeout_ms: int) -> bool:
        """See ``rpc.Etcd``."""
        ask = super().keep_alive
        return await self._by_any(lambda left_ms: ask(lease, timeout_ms=left_ms), timeout_ms)

    async def revoke(self, lease: int, *, timeout_ms: int) -> int:
        """See ``rpc.Etcd``."""
        ask = super().revoke
        return await self._by_any(lambda left_ms: ask(lease, timeout_ms=left_ms), timeout_ms)

    async def watch(self, first: str, end: str, *, revision: int, timeout_ms: int) -> MemberWatch:
        """See ``rpc.Etcd``."""

        async def ask(left_ms: int) -> MemberWatch:
            await self._ask(left_ms, repeatable=True)
            return MemberWatch(self._members, self._pace, self._host, MEMBERS[self._at], first, end, revision)

        return await self._by_any(ask, timeout_ms)

    def _decide(self, compare: Sequence[Compare], operations: Sequence[Operation]) -> Delta | None:
        return self._members.asked_by(self._host, compare, operations)

    def _is_heard(self, member: str) -> bool:
        return member not in self._members.down and not self._members.network.is_cut(member, self._host)

    async def _first(self, timeout_ms: int) -> str:
        """The member that takes a request; one that does not run is passed over. Raises ``EtcdUnavailableError``."""
        for _ in MEMBERS:
            member = MEMBERS[self._at]
            if self._members.network.is_cut(self._host, member):
                self._at = (self._at + 1) % len(MEMBERS)
                await self._wait(timeout_ms)
                raise EtcdUnavailableError(f"no answer of {member}", "unknown")
            if member not in self._members.down:
                return member
            self._at = (self._at + 1) % len(MEMBERS)
            await asyncio.sleep(0.001)
        raise EtcdUnavailableError("every member refuses connections", "none")

    async def _by_any(self, ask: Callable[[int], Awaitable[T]], timeout_ms: int) -> T:
        """What may be asked twice is asked of one member after the other until the time is over."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_ms / 1000
        while True:
            left_ms = max(1, int((until_s - loop.time()) * 1000))
            try:
                member = await self._first(left_ms)
                if self._members.has_leader():
                    result = await ask(left_ms)
                    if self._is_heard(member):
                        return result
                self._at = (self._at + 1) % len(MEMBERS)
                await self._wait(left_ms)
            except EtcdUnavailableError:
                await asyncio.sleep(0.01)
            if loop.time() >= until_s:
                raise EtcdUnavailableError("no member answers", "none")


class MemberWatch(SimulatedWatch):
    """See ``rpc.Watch``: at one member. It breaks off when that ends or has no leader, and is silent when the way is cut."""

    def __init__(
        self, world: EtcdMembers, pace: Pace, host: str, member: str, first: str, end: str, revision: int
    ) -> None:
        super().__init__(world, pace, first, end, revision)
        self._members = world
        self._way = member, host

    async def _pass(self) -> None:
        while self._members.network.is_cut(*self._way):
            await asyncio.sleep(_LOOK_S)
        member, _ = self._way
        if member in self._members.down or not self._members.has_leader():
            raise StreamBrokenError(f"{member} is gone or has no leader")
