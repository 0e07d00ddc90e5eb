"""Random histories of several stores on a simulated etcd, in virtual time; and what breaks without each safeguard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import pytest

from coordinator.metadata.authority import Authority, Compare, Delta, Operation, Put
from coordinator.metadata.etcd.rpc import News, Pace
from coordinator.metadata.etcd.store import EtcdStore
from coordinator.metadata.etcd.watching import Following
from coordinator.metadata.store import MetadataUnavailableError
from tests.coordinator.metadata.contract import Cluster, SharedStoreContract
from tests.simulation.etcd import CALM, SimulatedEtcd, SimulatedWatch, Troubles, World
from tests.simulation.loop import SimLoop

_PREFIX: Final = "/cohort/sim/"
_PACE: Final = Pace()


class Broken(Exception):
    """An invariant does not hold."""


class Node:
    """A store, a watcher of everything, and a program that counts up a key by conditional transactions."""

    def __init__(self, number: int, store: EtcdStore, random: Random) -> None:
        self.store = store
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        self.unknown: list[str] = []
        self._number = number
        self._random = random
        self._picture = {known.key: known for known in store.range("")}
        self._revision = store.revision
        store.watch("", self._hear)

    def _hear(self, delta: Delta) -> None:
        if delta.revision <= self._revision:
            raise Broken(f"deltas_come_in_order: {delta.revision} after {self._revision}")
        self._revision = delta.revision
        for key, before, after in delta.changes:
            if self._picture.get(key) != before:
                raise Broken(f"no_change_is_missed: {key} was {before}, not {self._picture.get(key)}")
            if after is None:
                del self._picture[key]
            else:
                self._picture[key] = after

    async def write(self, attempt: int) -> None:
        """One attempt."""
        note = f"note/{self._number}/{attempt}"
        known = self.store.get("counter")
        compare = Compare("counter", "mod", 0 if known is None else known.mod_revision)
        puts: list[Operation] = [Put("counter", 1 if known is None else known.value + 1), Put(note, attempt)]
        try:
            revision = await self.store.transaction([compare], puts)
        except MetadataUnavailableError as error:
            (self.unknown if error.outcome == "unknown" else self.refused).append(note)
            return
        (self.refused if revision is None else self.acknowledged).append(note)
        if revision is not None and self.store.revision < revision:
            raise Broken(f"a_transaction_is_seen_when_it_returns: {revision}, mirror at {self.store.revision}")
        found = self.store.get("counter")
        if revision is None and (found and found.mod_revision) == compare.revision:
            raise Broken("a_refused_transaction_shows_why")

    async def live(self, seconds: float) -> None:
        """Writes, and keeps a lease with a key of its own, for a while."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        attempt, lease = 0, None
        while loop.time() < end:
            attempt += 1
            await self.write(attempt)
            await asyncio.sleep(self._random.random() * 0.3)
            try:
                if lease is None or not await lease.renew():
                    lease = await self.store.grant(3_000)
                    await self.store.transaction([], [Put(f"live/{self._number}", attempt, lease.id)])
                elif self._random.random() < 0.05:
                    await lease.revoke()
            except MetadataUnavailableError:
                await asyncio.sleep(0.1)


async def history(seed: int) -> World:
    """One, and its invariants. Raises ``Broken``."""
    random = Random(seed)
    shares = {
        name: random.choice((0.0, 0.02, 0.1))
        for name in ("refused", "answer_lost", "late", "lag", "broken", "silent", "parts")
    }
    world = World(Random(random.random()), CALM)
    world.begin()
    ends: list[str] = []
    nodes = []
    for number in range(3):
        store = await EtcdStore.open(SimulatedEtcd(world, _PACE), "sim", lambda: "id", ends.append)
        nodes.append(Node(number, store, Random(random.random())))
    world.troubles = Troubles(**shares)

    async def disturb() -> None:
        while True:
            await asyncio.sleep(random.random() * 4)
            if random.random() < 0.5:
                world.authority.compact(world.authority.revision - random.randrange(3))
            else:
                world.authority.restart_leases(world.now_ms())

    disturbing = asyncio.create_task(disturb())
    await asyncio.gather(*(node.live(20) for node in nodes))
    disturbing.cancel()
    world.troubles = CALM
    await asyncio.sleep(10)  # what is late lands
    for node in nodes:
        try:
            await node.store.catch_up(timeout_ms=20_000)
        except MetadataUnavailableError as error:
            raise Broken(f"everybody_catches_up: {error}; {ends}") from error
    if ends:
        raise Broken(f"nothing_fails_unexpectedly: {ends}")
    _judge(world.authority, nodes)
    for node in nodes:
        await node.store.close()
    world.end()
    return world


def _judge(authority: Authority, nodes: Sequence[Node]) -> None:
    truth = [
        known._replace(key=known.key.removeprefix(_PREFIX), value=json.loads(known.value))
        for known in authority.range(_PREFIX)
    ]
    for node in nodes:
        if node.store.range("") != truth:
            raise Broken("mirrors_agree")
    notes = {known.key for known in truth if known.key.startswith("note/")}
    acknowledged, unknown, refused = (
        {note for node in nodes for note in getattr(node, kind)} for kind in ("acknowledged", "unknown", "refused")
    )
    if not acknowledged <= notes:
        raise Broken("acknowledged_transactions_took_effect")
    if refused & notes:
        raise Broken("refused_transactions_did_not")
    if not notes <= acknowledged | unknown:
        raise Broken("nothing_else_did")
    counter = [known.value for known in truth if known.key == "counter"]
    if counter != ([len(notes)] if notes else []):
        raise Broken(f"each_took_effect_once: counted {counter}, {len(notes)} notes")


def run(seed: int) -> World:
    """A history on its own loop."""
    return SimLoop(Random(seed), max_steps=10_000_000).run_until_complete(history(seed))  # type: ignore[abstract, no-any-return]


def test_every_invariant_holds_in_every_history() -> None:
    happened: dict[str, int] = {}
    for seed in range(40):
        for what, times in run(seed).happened.items():
            happened[what] = happened.get(what, 0) + times
    assert happened.keys() >= {"refused", "answer_lost", "late", "lag", "broken", "silent", "parts"}


def _resumed_without_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(self: Following, timeout_ms: int) -> None:
        self.mirror.apply(Delta(await self.now(timeout_ms), ()))

    listed = Following._list

    async def first_only(self: Following, timeout_ms: int) -> None:
        await (listed if self.mirror.revision == 0 else forget)(self, timeout_ms)

    monkeypatch.setattr(Following, "_list", first_only)


def _sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    once = SimulatedEtcd.txn

    async def twice(self: SimulatedEtcd, *args: Any, **options: Any) -> Any:
        try:
            return await once(self, *args, **options)
        except Exception:
            return await once(self, *args, **options)

    monkeypatch.setattr(SimulatedEtcd, "txn", twice)


def _parts_taken_for_wholes(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimulatedWatch.next

    async def whole(self: SimulatedWatch) -> News:
        return (await told(self))._replace(unfinished=False)

    monkeypatch.setattr(SimulatedWatch, "next", whole)


def _answered_before_the_mirror_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: Following, revision: int, timeout_ms: int) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Following, "reach", at_once)


@pytest.mark.parametrize(
    ("without", "invariant"),
    [
        (_resumed_without_a_list, "no_change_is_missed|mirrors_agree|a_refused_transaction_shows_why"),
        (_sent_again, "refused_transactions_did_not"),
        (_parts_taken_for_wholes, "no_change_is_missed|mirrors_agree"),
        (_answered_before_the_mirror_shows_it, "a_transaction_is_seen_when_it_returns|a_refused_transaction_shows_why"),
    ],
)
def test_without_a_safeguard_an_invariant_fails(
    monkeypatch: pytest.MonkeyPatch, without: Callable[[pytest.MonkeyPatch], None], invariant: str
) -> None:
    def search() -> None:
        for seed in range(40):
            run(seed)

    without(monkeypatch)
    with pytest.raises(Broken, match=invariant):
        search()


class _Simulated(Cluster):
    def __init__(self, world: World) -> None:
        self._world = world

    async def open(self) -> None:
        """Opens both."""
        self.one, self.other = [
            await EtcdStore.open(SimulatedEtcd(self._world, _PACE), "sim", lambda: "id", pytest.fail) for _ in range(2)
        ]

    async def pass_time(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    async def compact(self) -> None:
        self._world.authority.compact(self._world.authority.revision)


_CONTRACT: Final = [name for name in dir(SharedStoreContract) if name.startswith("test_")]


@pytest.mark.parametrize("promise", [name for name in _CONTRACT if "missed_deltas" not in name])
def test_the_contract_is_kept_in_virtual_time(promise: str) -> None:
    async def kept() -> None:
        world = World(Random(1), CALM)
        world.begin()
        cluster = _Simulated(world)
        await cluster.open()
        await getattr(SharedStoreContract(), promise)(cluster)
        await cluster.one.close()
        await cluster.other.close()
        world.end()

    SimLoop(Random(1)).run_until_complete(kept())  # type: ignore[abstract]
