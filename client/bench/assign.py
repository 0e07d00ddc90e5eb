"""How long assignors take and how much memory, next to only making the same partitions; and what the loop feels of it."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from statistics import median
from time import perf_counter
from typing import Final

from client.assignors import Assignor
from client.assignors.assignor import NO_RACKS
from client.bench.assign_cases import ASSIGNORS, CHANGES, QUICK, TARGETS, Case, Group, Plan, grid
from client.bench.figures import Figure, Setting
from client.consumer.leader_assignor import encoded_plan
from protocol.subscription import TopicPartition, decode_subscription, encode_subscription

_MEASURED_S: Final = 0.5
_MOST_RUNS: Final = 5
_TICK_S: Final = 0.01
_MB: Final = 1_000_000
_FLOOR: Final = "the same partitions made and put into one list a member"


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """The groups with a promised time, or with ``full`` the whole grid too; then the loop beside the largest of them.

    ``..._encoded`` is what a leader does: from subscriptions to assignments as they are sent, without lists of partitions.
    """
    cases = QUICK if setting.quick else (*TARGETS, *grid()) if setting.full else TARGETS
    for case in cases:
        group = Group.of(case)
        floor = await asyncio.to_thread(_Cost.of, partial(_made, group))
        for assignor in ASSIGNORS:
            settled = await asyncio.to_thread(group.settled, assignor)
            for change in CHANGES:
                asked = group if change == "fresh" else settled.after(change)
                cost = await asyncio.to_thread(_Cost.of, partial(assignor.assign, *asked))
                for figure in _figures(case, f"{assignor.name}_{change}", cost, floor):
                    yield figure
                led = await asyncio.to_thread(_Cost.of, partial(encoded_plan, assignor, *asked, NO_RACKS, {}, {}))
                for figure in _figures(case, f"{assignor.name}_{change}_encoded", led, floor):
                    yield figure
    largest = max(cases[: len(TARGETS)], key=lambda case: case.partitions)
    for assignor in ASSIGNORS:
        yield await _lateness(largest, assignor)


@dataclass(frozen=True, slots=True)
class _Cost:
    """What some work costs: the median of ``runs``, and the most bytes in use at a time beyond those before."""

    milliseconds: float
    runs: int
    peak_bytes: int

    @classmethod
    def of(cls, work: Callable[[], object]) -> _Cost:
        """Runs it a few times, less often what takes long; then once more for the memory, which is not timed."""
        times: list[float] = []
        while len(times) < _MOST_RUNS and sum(times) < _MEASURED_S:
            gc.collect()
            began = perf_counter()
            work()
            times.append(perf_counter() - began)
        gc.collect()
        tracemalloc.start()
        try:
            work()
            return cls(median(times) * 1000, len(times), tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()


def _figures(case: Case, name: str, cost: _Cost, floor: _Cost) -> list[Figure]:
    params = {**case.params, "runs": cost.runs}
    peak, peak_floor = cost.peak_bytes / _MB, floor.peak_bytes / _MB
    return [
        Figure("assign", f"{name}_ms", cost.milliseconds, "ms", floor.milliseconds, _FLOOR, params),
        Figure("assign", f"{name}_peak_mb", peak, "MB", peak_floor, _FLOOR, params),
    ]


def _made(group: Group) -> Plan:
    """A plan that follows no rule: each topic is cut up as if all members subscribed to it."""
    plan: Plan = {member_id: [] for member_id in group.members}
    shares = cycle(plan.values())
    for topic, count in group.partitions.items():
        for number in range(count):
            next(shares).append(TopicPartition(topic, number))
    return plan


async def _lateness(case: Case, assignor: Assignor) -> Figure:
    """How late an event loop wakes up that shares its process with a leader's whole work, which is how heartbeats fare."""

    def joined() -> tuple[dict[str, int], dict[str, bytes]]:
        group = Group.of(case).settled(assignor).after("leave")
        return group.partitions, {member_id: encode_subscription(each) for member_id, each in group.members.items()}

    partitions, blobs = await asyncio.to_thread(joined)
    gc.collect()

    def lead() -> None:
        members = {member_id: decode_subscription(blob) for member_id, blob in blobs.items()}
        encoded_plan(assignor, partitions, members, NO_RACKS, {}, {})

    idle = await _latest_while(asyncio.sleep(1.0))
    busy = await _latest_while(asyncio.to_thread(lead))
    params = {**case.params, "change": "leave"}
    floor_name = "the same loop with nothing beside it"
    return Figure("assign", f"{assignor.name}_loop_late_max_ms", busy, "ms", idle, floor_name, params)


async def _latest_while(work: Awaitable[None]) -> float:
    """The most milliseconds by which one of many short sleeps was too long while ``work`` ran."""
    task = asyncio.ensure_future(work)
    latest = 0.001  # the clock tells no less
    while not task.done():
        began = perf_counter()
        await asyncio.sleep(_TICK_S)
        latest = max(latest, (perf_counter() - began - _TICK_S) * 1000)
    await task
    return latest
