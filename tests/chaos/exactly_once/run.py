"""One exactly-once run: groups behind the proxy, the chaos faults on a schedule, then calm, one last reader, the verdict."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Final

from client import Admin, CohortError, Consumer, TopicPartition
from tests.chaos.exactly_once.checks import Outcome
from tests.chaos.exactly_once.member import TRANSACTION_TIMEOUT_MS
from tests.chaos.groups import ChaosGroup
from tests.chaos.ledger import now, read
from tests.chaos.processes import ChaosProcess
from tests.chaos.registry import FAULTS, Fault
from tests.chaos.run import Say, ends_that_stay_open, heal, hurt, live
from tests.chaos.schedule import Step
from tests.chaos.world import TOPICS, World

GROUPS: Final = ("eager", "cooperative", "cooperative")
"""The kinds of the groups; the last one works without transactions."""
KINDS: Final = (
    *("kill-member", "stop-member", "kill-at-commit", "leave-member", "kill-daemon", "restart-daemon", "stop-daemon"),
    *("reset-connections", "delay-traffic", "stall-one-way", "lose-answers", "cut-off", "fill-disk"),
)
"""The faults that mean something here, of those that the chaos runs have."""
MEMBERS: Final = 6
_UNEXPECTED: Final = frozenset({"HandlerError", "CorruptMessageError", "IllegalStateError", "InvalidTxnStateError"})
_SETTLE_S: Final = 90.0
_VERIFY_S: Final = 90.0


class Transformers(World):
    """A world whose members answer what two producers send; a member that comes in the place of another has its id."""

    def __init__(self, directory: Path, random: Random) -> None:
        super().__init__(directory, random, MEMBERS, MEMBERS, GROUPS)
        self.with_transactions = frozenset(list(self.groups)[:-1])
        self._member_names = itertools.count()

    def answers_of(self, group: str) -> str:
        """The topic that a group writes to."""
        return f"answers-{group}"

    async def start(self) -> None:
        """Daemon, topics, producers and members."""
        await self.serve()
        async with Admin(self.address) as admin:
            await admin.create_topics({**TOPICS, **{self.answers_of(group): 2 for group in self.groups}})
        for _ in range(2):
            await self.add_producer("once")
        for _ in range(MEMBERS // len(GROUPS)):
            for group in self.groups.values():
                await self.add_member(group)

    async def start_member(
        self, group: ChaosGroup, *, after: ChaosProcess | None = None, everything: bool = False
    ) -> ChaosProcess:
        """One more member, with the first id that no living member of its group has."""
        number = next(self._member_names)
        taken = {member.options["id"] for member in self.living(group.id)}
        ids = (f"{group.id}-{place}" for place in itertools.count())
        draw = Random(f"{number} {self.random.getrandbits(32)}")
        member = ChaosProcess(
            *(f"{group.letter}{number}", "tests.chaos.exactly_once.member", self.directory, self.ledger),
            bootstrap=self.address,
            group=group.id,
            topics=",".join(TOPICS),
            assignors=",".join(group.assignors(draw)),
            answers=self.answers_of(group.id),
            id=next(name for name in ids if name not in taken) if group.id in self.with_transactions else None,
            seed=draw.getrandbits(32),
        )
        return await self.begin(member)


async def run(
    world: Transformers, steps: list[Step], length_s: float, say: Say, known: Mapping[str, Fault] = FAULTS
) -> Outcome:
    """Everything up to the end of all processes."""
    outcome = Outcome(with_transactions=world.with_transactions)

    async def story() -> None:
        await hurt(world, steps, length_s, say, known)
        say("healing; producers end")
        await heal(world)
        await asyncio.gather(*(producer.leave() for producer in world.producers.values()))
        say("waiting until the groups have answered everything")
        outcome.lag = {group: await _lag(world, group) for group in world.groups}
        await asyncio.gather(*(member.leave() for member in world.living()))
        say("reading everything once more")
        async with asyncio.timeout(_VERIFY_S):
            await _verify(world, outcome)

    await live(world, story)
    entries = read(world.directory / "run.jsonl")
    outcome.crashes = [f"{entry['name']}: {entry['text']}" for entry in entries if entry["e"] == "crash"]
    outcome.unexpected = [
        f"{name}: {entry['error']}: {entry['text']}"
        for name in world.members
        for entry in read(world.directory / f"{name}.jsonl")
        if entry["e"] == "error" and entry["error"] in _UNEXPECTED
    ]
    return outcome


async def _lag(world: World, group: str) -> int:
    """How far behind a group is when it has got no further for ``_SETTLE_S``, or 0."""
    least, since, behind = -1, now(), -1
    while True:
        try:
            async with Admin(world.address) as admin:
                rows = await admin.group_lag(group, timeout_ms=5_000)
            behind = sum((row.end or 0) - (row.committed or 0) for row in rows)
            if not behind and rows:
                return 0
            if least < 0 or behind < least:
                least, since = behind, now()
        except CohortError as error:
            world.ledger.write("lag-unknown", group=group, text=str(error))
        if now() - since > _SETTLE_S:
            return max(1, behind)
        await asyncio.sleep(0.3)


async def _verify(world: Transformers, outcome: Outcome) -> None:
    """Reads inputs and answers from the beginning, once no transaction can be open any more."""
    tps = await _partitions(world, [world.answers_of(group) for group in world.groups])
    still_open = await ends_that_stay_open(world.address, tps, TRANSACTION_TIMEOUT_MS / 1000 + 20)
    outcome.open_ends = [f"{each.tp.topic}-{each.tp.partition} at {each.stable} of {each.end}" for each in still_open]
    outcome.inputs = [
        f"{tp.topic}-{tp.partition}@{offset} {value}" for tp, offset, value in await _everything(world, TOPICS)
    ]
    outcome.answers = {
        group: [value for _, _, value in await _everything(world, [world.answers_of(group)])] for group in world.groups
    }


async def _partitions(world: World, topics: Iterable[str]) -> list[TopicPartition]:
    async with Admin(world.address) as admin:
        described = await admin.describe_topics(*topics)
    return [TopicPartition(name, each.partition) for name, topic in described.items() for each in topic.partitions]


async def _everything(world: World, topics: Iterable[str]) -> list[tuple[TopicPartition, int, str]]:
    """What a reader of what is committed sees, without the records of no interest."""
    found: list[tuple[TopicPartition, int, str]] = []
    tps = await _partitions(world, topics)
    async with Consumer(bootstrap_servers=world.address, auto_offset_reset="none") as consumer:
        consumer.assign(tps)
        await (
            consumer.seek_to_beginning()
        )  # from there on nothing is lost any more: a truncation that is told is not true
        while any((await consumer.lag()).values()):
            for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                found += [(tp, record.offset, record.value.decode()) for record in records if record.value is not None]
    return found
