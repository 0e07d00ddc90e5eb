"""etcd as nodes see it, over an ``Authority``: members that lag, answers that are lost or late, watches that break off, fall
silent, come in parts, or begin below what is compacted, leases that end early or get their whole time again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Final

from coordinator.metadata.authority import (
    Authority,
    CompactedError,
    Compare,
    Delta,
    Operation,
    TransactionError,
)
from coordinator.metadata.etcd.rpc import (
    Answer,
    EtcdUnavailableError,
    Happening,
    LeaseOverError,
    News,
    Pace,
    Page,
    RevisionsForgottenError,
    StreamBrokenError,
)

_EXPIRY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Troubles:
    """Shares, 0 to 1: of calls that are not taken, of those whose answer is lost, of transactions that take effect after
    their time, of deliveries of a watch that come late, after which it breaks off, or falls silent, or that are in parts."""

    refused: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    lag: float = 0.0
    broken: float = 0.0
    silent: float = 0.0
    parts: float = 0.0
    slow_s: float = 0.005
    """The longest that a call takes otherwise."""


CALM: Final = Troubles()


class World:
    """The etcd, which several nodes ask."""

    def __init__(self, random: Random, troubles: Troubles) -> None:
        self.authority = Authority()
        self.troubles = troubles
        self.happened: dict[str, int] = {}
        self._random = random
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Leases end from now on."""
        self._tasks.add(asyncio.create_task(self._expire()))

    def end(self) -> None:
        """Nothing is under way any more."""
        for task in self._tasks:
            task.cancel()

    def now_ms(self) -> int:
        """Its clock."""
        return int(asyncio.get_running_loop().time() * 1000)

    def happens(self, what: str) -> bool:
        """Whether this trouble comes now."""
        if self._random.random() >= getattr(self.troubles, what):
            return False
        self.happened[what] = self.happened.get(what, 0) + 1
        return True

    def told(self) -> None:
        """Something changed: watches look."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Returns at the next change."""
        await self._changed.wait()

    async def travel(self) -> None:
        """A message's way."""
        await asyncio.sleep(self._random.random() * self.troubles.slow_s)

    def transaction(self, compare: Sequence[Compare], operations: Sequence[Operation]) -> Delta | None:
        """Decides one, now."""
        delta = self.authority.transaction(compare, operations)
        self.told()
        return delta

    def later(self, decide: Callable[[], object]) -> None:
        """Decides one some time after who sent it has given it up, or is gone."""

        async def land() -> None:
            await asyncio.sleep(self._random.random() * 5)
            try:
                decide()
            except TransactionError:
                self.happened["late and over"] = self.happened.get("late and over", 0) + 1

        self._tasks.add(asyncio.get_running_loop().create_task(land(), context=Context()))

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_S)
            if self.authority.expire(self.now_ms()):
                self.told()


class SimulatedEtcd:
    """See ``rpc.Etcd``: one node's way to the world."""

    endpoints = "the simulated etcd"

    def __init__(self, world: World, pace: Pace) -> None:
        self._world = world
        self._pace = pace

    async def range(self, first: str, end: str, *, limit: int, revision: int = 0, timeout_ms: int) -> Page:
        """See ``rpc.Etcd``. Of the past it has what its authority can tell: nothing, so a later page of keys that changed is
        refused as one of a revision that is forgotten."""
        await self._ask(timeout_ms, repeatable=True)
        authority = self._world.authority
        if revision and revision != authority.revision:
            raise RevisionsForgottenError(f"revision {revision} is compacted")
        page = Page(authority.revision, [known for known in authority.range("") if first <= known.key < end], False)
        await self._world.travel()
        return page._replace(keys=page.keys[:limit], more=len(page.keys) > limit)

    async def txn(self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int) -> Answer:
        """See ``rpc.Etcd``."""
        await self._ask(timeout_ms, repeatable=False)
        world = self._world
        if world.happens("late"):
            world.later(lambda: self._decide(compare, operations))
            await self._wait(timeout_ms)
            raise EtcdUnavailableError("no answer", "unknown")
        try:
            delta = self._decide(compare, operations)
        except TransactionError as error:
            raise LeaseOverError(str(error)) from error
        revision = world.authority.revision
        if world.happens("answer_lost"):
            await self._wait(timeout_ms)
            raise EtcdUnavailableError("no answer", "unknown")
        await world.travel()
        return Answer(revision, delta is not None)

    async def grant(self, ttl_s: int, *, timeout_ms: int) -> tuple[int, int]:
        """See ``rpc.Etcd``."""
        await self._ask(timeout_ms, repeatable=True)
        lease = self._world.authority.grant(ttl_s * 1000, self._world.now_ms())
        return lease, max(2, ttl_s)

    async def keep_alive(self, lease: int, *, timeout_ms: int) -> bool:
        """See ``rpc.Etcd``."""
        await self._ask(timeout_ms, repeatable=True)
        return self._world.authority.renew(lease, self._world.now_ms())

    async def revoke(self, lease: int, *, timeout_ms: int) -> int:
        """See ``rpc.Etcd``."""
        await self._ask(timeout_ms, repeatable=True)
        self._world.authority.revoke(lease)
        self._world.told()
        return self._world.authority.revision

    async def watch(self, first: str, end: str, *, revision: int, timeout_ms: int) -> SimulatedWatch:
        """See ``rpc.Etcd``."""
        await self._ask(timeout_ms, repeatable=True)
        return SimulatedWatch(self._world, self._pace, first, end, revision)

    async def close(self) -> None:
        """See ``rpc.Etcd``."""

    def _decide(self, compare: Sequence[Compare], operations: Sequence[Operation]) -> Delta | None:
        return self._world.transaction(compare, operations)

    async def _ask(self, timeout_ms: int, *, repeatable: bool) -> None:
        """A request's way, and the tries of one that may be sent again."""
        world = self._world
        await world.travel()
        if world.happens("refused"):
            await self._wait(timeout_ms)
            raise EtcdUnavailableError("no member answers", "none")
        if repeatable and world.happens("answer_lost"):
            await self._wait(timeout_ms)
            await world.travel()

    async def _wait(self, timeout_ms: int) -> None:
        await asyncio.sleep(min(timeout_ms, self._pace.call) / 1000)


class SimulatedWatch:
    """See ``rpc.Watch``."""

    def __init__(self, world: World, pace: Pace, first: str, end: str, revision: int) -> None:
        self._world = world
        self._pace = pace
        self._first, self._end = first, end
        self._told = revision - 1
        self._from = revision
        self._held: list[News] = []
        self._asked = asyncio.Event()

    async def next(self) -> News:
        """See ``rpc.Watch``."""
        try:
            async with asyncio.timeout(self._pace.silence / 1000):
                return await self._next()
        except TimeoutError as error:
            raise StreamBrokenError("silent") from error

    async def _next(self) -> News:
        world = self._world
        await world.travel()
        if self._held:
            return self._held.pop(0)
        if world.happens("broken"):
            raise StreamBrokenError("the member is gone")
        if world.happens("silent"):
            await asyncio.sleep(60)
        if world.happens("lag"):
            await asyncio.sleep(self._pace.silence / 2000)
        while True:
            await self._pass()
            news = self._since()
            if news:
                self._held = news[1:]
                return news[0]
            if self._asked.is_set() and world.authority.revision >= self._from:
                self._asked.clear()
                self._told = max(self._told, world.authority.revision)
                return News([], world.authority.revision)
            await self._change()

    async def _pass(self) -> None:
        """Returns when messages pass; here they always do."""

    def _since(self) -> list[News]:
        """What is to be told, in one message or in parts. A watch may begin at the revision that was compacted last; of that
        one it is told nothing here."""
        authority = self._world.authority
        if self._told < authority.compacted == self._from == self._told + 1:
            self._told = self._from
        try:
            deltas = list(authority.since(self._told))
        except CompactedError as error:
            raise RevisionsForgottenError(str(error)) from error
        self._told = max(self._told, authority.revision)
        found = [
            Happening(delta.revision, key, after)
            for delta in deltas
            for key, _, after in delta.changes
            if self._first <= key < self._end
        ]
        if len(found) > 1 and self._world.happens("parts"):
            return [News(found[:1], unfinished=True), News(found[1:])]
        return [News(found)] if found else []

    async def _change(self) -> None:
        waits = [asyncio.ensure_future(self._world.change()), asyncio.ensure_future(self._asked.wait())]
        try:
            await asyncio.wait(waits, timeout=self._pace.progress / 1000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not any(wait.done() and not wait.cancelled() for wait in waits):
            self._asked.set()  # its own question, after a while

    def ask_progress(self) -> None:
        """See ``rpc.Watch``."""
        self._asked.set()

    async def close(self) -> None:
        """See ``rpc.Watch``."""
