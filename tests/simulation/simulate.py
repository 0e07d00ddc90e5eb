"""One history from its plan to its verdict: set up, faults, healing, a look at everything that is left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from unittest.mock import patch

from coordinator.groups import group
from tests.simulation import cluster_faults as _cluster_faults
from tests.simulation import cluster_invariants as _cluster_invariants
from tests.simulation import cluster_workloads as _cluster_workloads
from tests.simulation import faults as _faults
from tests.simulation import group_invariants as _group_invariants
from tests.simulation import group_workloads as _group_workloads
from tests.simulation import invariants as _invariants
from tests.simulation import kafka_transaction_workloads as _kafka_transaction_workloads
from tests.simulation import kafka_workloads as _kafka_workloads
from tests.simulation import log_invariants as _log_invariants
from tests.simulation import log_workloads as _log_workloads
from tests.simulation import record_faults as _record_faults
from tests.simulation import record_invariants as _record_invariants
from tests.simulation import record_workloads as _record_workloads
from tests.simulation import transaction_invariants as _transaction_invariants
from tests.simulation import transaction_workloads as _transaction_workloads
from tests.simulation import workloads
from tests.simulation.cluster_copies import CopyReader
from tests.simulation.cluster_probes import compare_replicas, look_at_replicas, what_is_not_replicated
from tests.simulation.daemons import daemon_program
from tests.simulation.faults import restart
from tests.simulation.history import Event, History
from tests.simulation.inspection import (
    check_bounds,
    compare_replay,
    note_high_watermarks,
    note_unanswered,
    read_everything,
    what_is_unsettled,
)
from tests.simulation.loop import START_S, Deadlock, OutOfSteps
from tests.simulation.plan import Plan, draw, draw_cluster
from tests.simulation.probes import installed
from tests.simulation.record_probes import note_logs, read_what_is_left, what_is_not_deleted
from tests.simulation.registry import CLUSTER_FAULTS, CLUSTER_WORKLOADS, FAULTS, INVARIANTS, WORKLOADS
from tests.simulation.story import told
from tests.simulation.transaction_probes import (
    look_at_coordinators,
    note_stable_offsets,
    read_what_is_decided,
    what_is_undecided,
)
from tests.simulation.world import World

__all__ = ["LIVENESS_S", "Outcome", "Violation", "plan_of", "simulate"]

LIVENESS_S = 45.0
"""Virtual seconds from the end of all faults within which everything has to be in order."""
_LOOK_EVERY_S = 1.0
_REGISTERED = (
    *(_faults, _record_faults, _cluster_faults),
    *(
        _cluster_invariants,
        _invariants,
        _group_invariants,
        _record_invariants,
        _log_invariants,
        _transaction_invariants,
    ),
    *(_cluster_workloads, workloads, _group_workloads, _record_workloads, _log_workloads, _transaction_workloads),
    _kafka_workloads,
    _kafka_transaction_workloads,
)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant."""

    invariant: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a history."""

    plan: Plan
    violations: tuple[Violation, ...]
    trace_hash: str
    steps: int
    virtual_s: float
    events: tuple[Event, ...]
    acknowledged: int
    handed_out: int
    injected: int

    def without_events(self) -> Outcome:
        """The same without the story: small enough to be sent between processes."""
        return replace(self, events=())

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the broken invariants, each once."""
        return tuple(dict.fromkeys(violation.invariant for violation in self.violations))


def plan_of(seed: int, nodes: int = 1) -> Plan:
    """The plan that a seed draws from everything registered."""
    if nodes == 1:
        return draw(seed, tuple(WORKLOADS), tuple(FAULTS))
    return draw_cluster(seed, tuple(CLUSTER_WORKLOADS), tuple(CLUSTER_FAULTS), nodes)


def simulate(plan: Plan, *, verbose: bool = False, without: Sequence[AbstractContextManager[None]] = ()) -> Outcome:
    """Runs a history. ``without`` are safeguards to be switched off, see ``ablations``."""
    collecting = gc.isenabled()
    gc.disable()  # a history is short, and what it leaves is in cycles: one collection at its end is cheaper
    world = World(plan)
    driver = _Driver(world)
    try:
        with installed(verbose=verbose):
            try:
                with ExitStack() as stack:
                    stack.enter_context(patch.object(group, "MEMBERS_PER_SLICE", plan.members_per_slice))
                    for safeguard in without:
                        stack.enter_context(safeguard)
                    _run(world, driver)
                return _outcome(world, driver, verbose)
            finally:
                world.loop.dispose(list(world.processes))
    finally:
        if collecting:
            gc.enable()


def _run(world: World, driver: _Driver) -> None:
    try:
        world.loop.run_until_complete(driver.run())
    except (Deadlock, OutOfSteps) as error:
        world.history.not_live.append(f"{type(error).__name__}: {error}")


def _outcome(world: World, driver: _Driver, verbose: bool) -> Outcome:
    history = world.history
    history.unexpected += world.loop.failures
    violations = [
        Violation(name, text) for name, invariant in INVARIANTS.items() for text in _first(history, invariant)
    ]
    return Outcome(
        plan=world.plan,
        violations=tuple(violations),
        trace_hash=world.loop.trace_hash,
        steps=world.loop.steps,
        virtual_s=world.loop.time(),
        events=told(history) if verbose else tuple(history.events),
        acknowledged=len(history.acknowledged),
        handed_out=len(history.handed_out),
        injected=driver.injected,
    )


def _first(history: History, invariant: object, limit: int = 5) -> list[str]:
    texts: list[str] = []
    for text in invariant(history):  # type: ignore[operator]
        texts.append(text)
        if len(texts) == limit:
            break
    return texts


class _Driver:
    """Runs the phases of a history."""

    def __init__(self, world: World) -> None:
        self.injected = 0
        self._world = world
        self._copies = CopyReader()
        self._under_way: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """The whole history."""
        world = self._world
        if world.history.nodes > 1:
            world.etcd.begin()
        for node in world.nodes:
            world.add_host(node.name, daemon_program)
        setup = world.add_host("setup", workloads.create_topics)
        while not setup.ended:
            await asyncio.sleep(0.1)
            if world.loop.time() > START_S + LIVENESS_S:
                world.history.not_live.append(f"{LIVENESS_S:.0f} s after the start there are no topics")
                return
        known = WORKLOADS if world.history.nodes == 1 else CLUSTER_WORKLOADS
        started = [asyncio.create_task(known[name](world)) for name in world.plan.workloads]
        looking = asyncio.create_task(self._look())
        await self._faults()
        await self._heal()
        await asyncio.gather(*started)
        await self._settle()
        looking.cancel()
        read_everything(world)
        read_what_is_left(world)
        read_what_is_decided(world)
        compare_replicas(world, self._copies)
        world.history.complete = not world.history.not_live
        world.finished.set()
        await self._end()

    async def _faults(self) -> None:
        world, plan = self._world, self._world.plan
        random, known = world.fault_random, FAULTS if plan.nodes == 1 else CLUSTER_FAULTS
        end_s = world.loop.time() + plan.fault_s
        await asyncio.sleep(random.random() * 2)
        while world.loop.time() < end_s and self.injected < plan.max_faults and plan.faults:
            name = plan.faults[int(random.random() * len(plan.faults))]
            self.injected += 1
            self._under_way.append(asyncio.create_task(known[name](world)))
            await asyncio.sleep(random.expovariate(1 / plan.fault_pause_s))
        await asyncio.sleep(max(0.0, end_s - world.loop.time()))

    async def _heal(self) -> None:
        world = self._world
        await asyncio.gather(*self._under_way)
        world.network.heal()
        world.network.slow.clear()
        for node in world.nodes:
            node.disk.heal()
        world.etcd.heal()
        for name in list(world.hosts):
            world.start(name)
        world.history.say("everybody", "is healed")
        world.calm.set()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            check_bounds(self._world)
            note_high_watermarks(self._world)
            note_stable_offsets(self._world)
            look_at_coordinators(self._world)
            note_logs(self._world)
            look_at_replicas(self._world, self._copies)
            compare_replay(self._world)

    async def _settle(self) -> None:
        world = self._world
        end_s = world.loop.time() + LIVENESS_S
        wrong: list[str] = []
        while world.loop.time() < end_s:
            await asyncio.sleep(0.5)
            wrong = what_is_unsettled(world) + what_is_not_deleted(world) + what_is_undecided(world)
            wrong += what_is_not_replicated(world)
            if not wrong:
                break
        world.history.not_live += [f"{LIVENESS_S:.0f} s after the last fault: {text}" for text in wrong]
        compare_replay(world)
        note_unanswered(world)

    async def _end(self) -> None:
        """Every program stops by itself, the daemon last."""
        world = self._world
        end_s = world.loop.time() + 15.0
        while world.clients() and world.loop.time() < end_s:
            await asyncio.sleep(0.2)
        for name in world.clients():
            if world.alive(name):
                world.history.not_live.append(f"{name} did not stop within 15 s")
        ends = [restart(world, node) for node in world.nodes]
        await (ends[0] if len(ends) == 1 else asyncio.gather(*ends))
