"""One run: start the world, hurt it on schedule, heal it, wait until it is well, restart in turn, read everything, judge."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from typing import Final

from client import Admin, CohortError, Consumer, TopicPartition
from client.types.records import IsolationLevel
from tests.chaos.groups import ChaosGroup
from tests.chaos.ledger import now, read
from tests.chaos.member import STATIC_SESSION_TIMEOUT_MS
from tests.chaos.processes import ChaosProcess
from tests.chaos.registry import FAULTS, LEFT_OUT, Fault
from tests.chaos.schedule import Step
from tests.chaos.world import TOPICS, World

SETTLE_S: Final = 45.0
"""So long after the last fault is healed a group may take to be Stable and to own all partitions."""
CATCH_UP_S: Final = 900.0
"""So long it may take to have no lag, while that shrinks: an administrator may have had it read everything again, and half
an hour of faults on a busy machine leaves thousands of records to a member that commits each."""
STUCK_S: Final = 20.0
"""A group whose lag has not shrunk for so long catches up no more."""
_PRODUCERS_END_S: Final = 40.0
_VERIFY_S: Final = 60.0
_OBSERVE_EVERY_S: Final = 1.0

Say = Callable[[str], None]


async def run(world: World, steps: list[Step], length_s: float, say: Say, known: Mapping[str, Fault] = FAULTS) -> None:
    """Everything up to the end of all processes; the ledgers are complete after it."""

    async def story() -> None:
        observing = asyncio.create_task(_observe(world))
        try:
            await hurt(world, steps, length_s, say, known)
            say("healing; producers end")
            await _calm(world)
            world.ledger.write("healed")
            await _settle_all(world)
            world.ledger.write("calm")
            for group in world.groups.values():
                if group.kind.static:
                    say(f"restarting the members of {group.id} one after the other")
                    await roll(world, group)
            await _settle_all(world)
            say("reading everything once more")
            await _verify(world)
            world.ledger.write("ended")
        finally:
            await _stop_watching(world, observing)

    await live(world, story)


async def live(world: World, story: Callable[[], Awaitable[None]]) -> None:
    """Starts a world, has the story happen in it under the watch of who starts its daemon again, and ends all processes.

    What goes wrong in the story stands in the ledgers, which are complete after it.
    """
    watching: asyncio.Task[None] | None = None
    try:
        await world.start()
        watching = asyncio.create_task(world.watch_daemon())
        await story()
    except Exception:
        # A daemon that does not come up again, for one: the ledgers are judged all the same, and this stands in them.
        world.ledger.write("crash", name="the run", text=traceback.format_exc())
    finally:
        if watching is not None:
            await _stop_watching(world, watching)
        await world.stop()
        world.ledger.close()


async def _stop_watching(world: World, watching: asyncio.Task[None]) -> None:
    watching.cancel()
    for result in await asyncio.gather(watching, return_exceptions=True):
        if isinstance(result, Exception):
            world.ledger.write("crash", name="the run", text=f"a watch ended: {result!r}")


async def hurt(world: World, steps: list[Step], length_s: float, say: Say, known: Mapping[str, Fault] = FAULTS) -> None:
    """The faults of a schedule, each at its time from now; returns after ``length_s``."""
    start = now()
    world.ledger.write("began")
    async with asyncio.TaskGroup() as faults:
        for step in steps:
            await asyncio.sleep(start + step.at_s - now())
            faults.create_task(_act(world, step, start, say, known[step.kind]))
        await asyncio.sleep(start + length_s - now())


async def _act(world: World, step: Step, start: float, say: Say, fault: Fault) -> None:
    began = now()
    say(f"{began - start:7.1f} s  {step.kind} for {step.duration_s:.1f} s")
    target = await fault.act(world, step.pick, step.duration_s)
    if target == LEFT_OUT:
        say(f"{now() - start:7.1f} s  {step.kind} is left out")
    else:
        world.ledger.write("fault", kind=step.kind, start=began, target=target, breaks=fault.breaks)


async def heal(world: World) -> None:
    """Takes back whatever is still wrong, and sees to it that every group has a member."""
    await world.heal_network()
    for member in world.living():
        member.resume()
    for group in world.groups.values():
        if not world.living(group.id):
            await world.add_member(group)


async def _calm(world: World) -> None:
    """Heals, lets producers end, and has every member read all topics."""
    await heal(world)
    for member in world.living():
        member.command(f"subscribe {' '.join(TOPICS)}")
    async with asyncio.timeout(_PRODUCERS_END_S + 10):
        await asyncio.gather(*(producer.leave() for producer in world.producers.values()))


async def _settle_all(world: World) -> None:
    settled = await asyncio.gather(*(_settle(world, group) for group in world.groups))
    for group, text in zip(world.groups, settled, strict=True):
        if text:
            world.ledger.write("unsettled", group=group, text=text)


async def _settle(world: World, group: str) -> str:
    """Why the group is not well after the stated times; empty when it is."""
    start = now()
    why = "nobody answered"
    least, since = inf, start
    try:
        async with asyncio.timeout(CATCH_UP_S), Admin(world.address) as admin:
            while why:
                try:
                    why = await _unsettled(admin, group)
                    if why and now() - start > SETTLE_S:
                        return f"after {SETTLE_S:.0f} s: {why}"
                    if not why:
                        lag, why = await _lag(admin, group)
                        if lag < least:
                            least, since = lag, now()
                        elif now() - max(since, start + SETTLE_S) > STUCK_S:
                            return f"no progress for {STUCK_S:.0f} s: {why}"
                except CohortError as error:
                    why = repr(error)
                if why:
                    await asyncio.sleep(0.3)
    except TimeoutError:
        return f"after {CATCH_UP_S:.0f} s: {why}"
    except CohortError as error:
        return repr(error)
    return ""


async def _unsettled(admin: Admin, group: str) -> str:
    description = (await admin.describe_groups(group, timeout_ms=5_000))[group]
    if description.state != "Stable":
        return f"it is {description.state}: {description.last_rebalance_reason}"
    topics = await admin.describe_topics(*TOPICS, timeout_ms=5_000)
    there = {TopicPartition(name, each.partition) for name, topic in topics.items() for each in topic.partitions}
    owned = {tp for member in description.members for tp in member.assignment}
    if owned != there:
        return f"of {len(there)} partitions nobody owns {sorted(there - owned)}; owned in vain: {sorted(owned - there)}"
    return "" if description.last_rebalance_reason else "it does not say why it rebalanced last"


async def _lag(admin: Admin, group: str) -> tuple[int, str]:
    """All partitions together, and in words."""
    rows = await admin.group_lag(group, timeout_ms=5_000)
    behind = [row for row in rows if row.lag or (row.lag is None and row.end)]
    lag = sum((row.end or 0) - (row.committed or 0) for row in behind)
    return lag, f"{len(behind)} partitions lag, the first {behind[0]}" if behind else ""


async def roll(world: World, group: ChaosGroup) -> None:
    """Restarts the static members of a settled group one by one, and writes down whether that made it rebalance.

    Only when each came back well within its session: on a machine that is too busy for that nothing is promised.
    """
    async with group.turn, Admin(world.address) as admin:
        before = (await admin.describe_groups(group.id))[group.id]
        longest = 0.0
        for member in world.living(group.id):
            gone = now()
            await member.leave()
            new = await world.start_member(group, after=member, everything=True)
            longest = max(longest, (await _owning(new, gone + 2 * STATIC_SESSION_TIMEOUT_MS / 1000)) - gone)
        after = (await admin.describe_groups(group.id))[group.id]
    world.ledger.write(
        "rolled",
        group=group.id,
        before=before.generation,
        after=after.generation,
        longest=longest,
        reason=after.last_rebalance_reason,
    )


async def _owning(member: ChaosProcess, limit: float) -> float:
    """When the member was given its first share; ``limit`` when it was not by then."""
    while now() < limit:
        for entry in read(member.ledger_path):
            if entry["e"] == "assigned":
                at: float = entry["t"]
                return at
        await asyncio.sleep(0.05)
    return limit


async def _observe(world: World) -> None:
    """Asks again and again what the groups have committed."""
    for group in itertools.cycle(world.groups):
        await asyncio.sleep(_OBSERVE_EVERY_S / len(world.groups))
        with contextlib.suppress(CohortError):  # the daemon is not to be reached: there is nothing to observe
            admin = Admin(world.address)
            await admin.start(timeout_ms=1_500)
            try:
                asked = now()
                committed = await admin.list_offsets(group, timeout_ms=3_000)
                offsets = {f"{tp.topic}-{tp.partition}": known.offset for tp, known in committed.items()}
                world.ledger.write("offsets", group=group, asked=asked, offsets=offsets)
            finally:
                await admin.stop()


async def _verify(world: World) -> None:
    """Reads every partition from the beginning, in no group, and writes down what is there."""
    read: dict[TopicPartition, list[tuple[int, str]]] = {}
    try:
        async with asyncio.timeout(_VERIFY_S), Admin(world.address) as admin:
            topics = await admin.describe_topics(*TOPICS)
            tps = [TopicPartition(name, each.partition) for name, topic in topics.items() for each in topic.partitions]
            async with Consumer(bootstrap_servers=world.address, auto_offset_reset="none") as consumer:
                consumer.assign(tps)
                await (
                    consumer.seek_to_beginning()
                )  # nothing is lost from here on: a truncation that is told is not true
                ends = await consumer.end_offsets(tps)
                read = {tp: [] for tp in tps}
                while any(ends[tp] and (not rows or rows[-1][0] < ends[tp] - 1) for tp, rows in read.items()):
                    for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                        read[tp].extend((record.offset, record.value.decode()) for record in records)
    except (TimeoutError, CohortError) as error:
        world.ledger.write("crash", name="the verifying reader", text=f"did not come to the end: {error!r}")
    for tp, rows in read.items():
        offsets, values = [offset for offset, _ in rows], [value for _, value in rows]
        world.ledger.write("log", tp=f"{tp.topic}-{tp.partition}", offsets=offsets, values=values)


@dataclass(frozen=True, slots=True)
class OpenEnd:
    """A partition with a transaction that nobody has ended: its last stable offset stays behind its end."""

    tp: TopicPartition
    stable: int
    end: int


async def ends_that_stay_open(address: str, tps: Sequence[TopicPartition], within_s: float) -> list[OpenEnd]:
    """Waits until every transaction in these partitions is decided; gives those that are still open after ``within_s``."""
    limit = now() + within_s
    while True:
        stable, end = [await _ends(address, tps, level) for level in ("read_committed", "read_uncommitted")]
        found = [OpenEnd(tp, stable[tp], end[tp]) for tp in tps if stable[tp] < end[tp]]
        if not found or now() > limit:
            return found
        await asyncio.sleep(0.5)


async def _ends(address: str, tps: Sequence[TopicPartition], level: IsolationLevel) -> dict[TopicPartition, int]:
    async with Consumer(bootstrap_servers=address, isolation_level=level) as consumer:
        return await consumer.end_offsets(tps)


def plan(seed: int, directory: Path, low: int, high: int, groups: Sequence[str] = ()) -> tuple[World, Random]:
    """The world of a seed and the stream that its schedule is drawn from; the two streams do not disturb each other."""
    return World(directory, Random(f"world {seed}"), low, high, groups), Random(f"schedule {seed}")
