"""``cohort demo --exactly-once``: one pipeline twice, exactly once and at least once, with a member killed in the middle."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from client.admin import Admin
from client.cli.failure import CommandError
from client.cli.output import Output
from client.cli.processes import daemon
from client.demo.counting import Comparison, compare
from client.demo.files import Lines
from client.demo.lines import TOPIC, Ends, files_of, outputs_of, produce_lines
from client.demo.member_process import MemberProcess, Report, unless_failed
from client.demo.narrator import Narrator
from client.demo.watch import GroupWatch

PARTITIONS: Final = 12
_MODULE: Final = "client.demo.transforming_member"
_SETTLE_S: Final = 30.0
_IDLE_S: Final = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One of the two runs: what it is called, its group, and the topic of its outputs."""

    name: str
    group: str
    outputs: str
    exactly_once: bool


EXACTLY_ONCE: Final = Delivery("exactly once", "exactly-once", "words-exactly-once", exactly_once=True)
AT_LEAST_ONCE: Final = Delivery("at least once", "at-least-once", "words-at-least-once", exactly_once=False)


@dataclass(slots=True)
class Outcome:
    """What came of a run. ``taken_back`` counts outputs that are in the log and that no reader of what is committed sees."""

    comparison: Comparison
    taken_back: int
    rebalances: int


async def tell_exactly_once(paths: Sequence[Path], output: Output) -> int:
    """Runs the demonstration; 0 when exactly once nothing was lost and nothing came twice.

    Everything it starts is gone when it returns, also after an error or Ctrl-C.
    """
    narrator = Narrator(output, asyncio.get_running_loop().time)
    files = files_of(paths)
    lines = Lines(files)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="cohort-demo-", ignore_cleanup_errors=True) as directory:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(daemon(Path(directory, "data"), "--log-level", "warning"))
            admin = await stack.enter_async_context(Admin(bootstrap_servers=server.address))
            narrator.tell(
                "daemon",
                f"a daemon serves at {server.address}, process {server.pid}",
                address=server.address,
                pid=server.pid,
            )
            await admin.create_topics({TOPIC: PARTITIONS, EXACTLY_ONCE.outputs: 4, AT_LEAST_ONCE.outputs: 4})
            ends = await produce_lines(server.address, lines)
            records = sum(ends.values())
            narrator.tell(
                "produced",
                f"{records:,} lines of {len(files):,} files, keyed by file name",
                records=records,
                files=len(files),
            )
            for delivery in (EXACTLY_ONCE, AT_LEAST_ONCE):
                run = _Run(delivery, narrator, server.address, admin, Path(directory), ends)
                try:
                    await run.play()
                finally:
                    await run.end()
                outcomes.append(await run.reckon(lines))
    return _conclude(narrator, output, *outcomes)


class _Run:
    """Three members, one of which is killed half way through its share, and a fourth in its place."""

    def __init__(
        self, delivery: Delivery, narrator: Narrator, address: str, admin: Admin, directory: Path, ends: Ends
    ) -> None:
        self._delivery = delivery
        self._narrator = narrator
        self._address = address
        self._admin = admin
        self._directory = directory
        self._ends = ends
        self._watch = GroupWatch(admin, delivery.group, PARTITIONS, narrator)
        self._members: dict[str, MemberProcess] = {}
        self._watching: asyncio.Task[None] | None = None

    async def play(self) -> None:
        """From the first member to the last commit. Raises ``CommandError`` when that does not come."""
        self._narrator.tell(
            "run", f"the pipeline runs {self._delivery.name}", style="bold", delivery=self._delivery.name
        )
        self._watching = asyncio.create_task(self._watch.run())
        names = ["member-1", "member-2", "member-3"]
        for number, name in enumerate(names, 1):
            await self._start(name, number)
        owners = await self._unless_failed(self._watch.settled(set(names), _SETTLE_S))
        shares = {name: sum(self._ends.get(number, 0) for number in owned) for name, owned in owners.items()}
        name = max(sorted(shares), key=lambda each: shares[each])
        victim = self._members[name]
        victim.command("halt", max(1, shares[name] // 2))
        for member in self._members.values():
            member.command("go")
        halted = await self._unless_failed(asyncio.wait_for(victim.halted, _IDLE_S))
        await victim.kill()
        self._narrator.tell(
            "kill",
            f"{name} is killed (SIGKILL) after {halted['processed']:,} of its {shares[name]:,} records, in the middle of "
            "what it had not committed",
            style="red",
            name=name,
            processed=halted["processed"],
            share=shares[name],
        )
        await self._start("member-4", names.index(name) + 1)
        self._members["member-4"].command("go")
        await self._unless_failed(self._drained())

    async def end(self) -> None:
        """Ends every process that is still there."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(member.leave() for member in self._members.values()))

    async def reckon(self, lines: Lines) -> Outcome:
        """Reads what the members sent, and holds it against a plain count of the files."""
        seen = await outputs_of(self._address, self._delivery.outputs, "read_committed")
        stored = await outputs_of(self._address, self._delivery.outputs, "read_uncommitted")
        comparison = compare(seen, self._ends, lines.counts)
        return Outcome(comparison, len(stored) - len(seen), self._watch.rebalances)

    async def _start(self, name: str, identity: int) -> None:
        """``identity`` numbers the transactional id: the member in the place of another takes that over."""
        delivery = self._delivery
        member = self._members[name] = MemberProcess(name, self._directory, self._hear, _MODULE)
        more = {"transactional_id": f"words-{identity}"} if delivery.exactly_once else {}
        await member.start(self._address, delivery.group, TOPIC, outputs=delivery.outputs, **more)
        self._narrator.tell("member", f"{name} starts, process {member.pid}", name=name, pid=member.pid)

    def _hear(self, member: MemberProcess, report: Report) -> None:
        if report["event"] == "assigned":
            self._watch.heard(member.name, report["generation"], report["partitions"], report["reason"])

    async def _drained(self) -> None:
        """Waits until the group has committed everything. Raises ``CommandError`` when it stops making progress."""
        clock = asyncio.get_running_loop().time
        best, moved_at, records = -1, clock(), sum(self._ends.values())
        while best < records:
            offsets = await self._admin.list_offsets(self._delivery.group)
            committed = sum(offset.offset for offset in offsets.values())
            if committed > best:
                best, moved_at = committed, clock()
            elif clock() > moved_at + _IDLE_S:
                raise CommandError(
                    f"the group committed {best:,} of {records:,} records, then nothing for {_IDLE_S:.0f} s"
                )
            await asyncio.sleep(0.1)

    async def _unless_failed(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, unless a member or the watch fails meanwhile: then that error at once."""
        failures: list[asyncio.Future[None]] = [member.failed for member in self._members.values()]
        if self._watching is not None:
            failures.append(self._watching)
        return await unless_failed(work, failures, _IDLE_S)


def _conclude(narrator: Narrator, output: Output, once: Outcome, least: Outcome) -> int:
    """Prints the reckoning; returns 0. Raises ``CommandError`` when a line was lost, or came twice exactly once."""
    narrator.blank()
    rows = [("", EXACTLY_ONCE.name, f"{AT_LEAST_ONCE.name:>14}")]
    figures: dict[str, Callable[[Outcome], int]] = {
        "lines produced": lambda outcome: outcome.comparison.produced,
        "lines counted": lambda outcome: outcome.comparison.delivered,
        "counted twice": lambda outcome: outcome.comparison.redelivered,
        "lost": lambda outcome: outcome.comparison.lost,
        "files unlike a plain count": lambda outcome: len(outcome.comparison.unlike),
        "outputs taken back": lambda outcome: outcome.taken_back,
        "rebalances": lambda outcome: outcome.rebalances,
    }
    rows += [(name, f"{figure(once):,}", f"{figure(least):>14,}") for name, figure in figures.items()]
    narrator.figures(rows)
    narrator.blank()
    passed = once.comparison.passed and not once.comparison.redelivered and not least.comparison.lost
    if output.as_json:
        output.object(
            {"event": "result", **_told(once), "at_least_once": _told(least), "seconds": round(narrator.seconds(), 2)}
        )
    elif passed:
        output.line("Exactly once: no line was lost, none counted twice.")
    if not passed:
        raise CommandError(
            f"exactly once {once.comparison.lost:,} lines were lost and {once.comparison.redelivered:,} counted twice; at "
            f"least once {least.comparison.lost:,} were lost"
        )
    return 0


def _told(outcome: Outcome) -> dict[str, object]:
    comparison = outcome.comparison
    return {
        "produced": comparison.produced,
        "delivered": comparison.delivered,
        "redelivered": comparison.redelivered,
        "lost": comparison.lost,
        "contradictions": comparison.contradictions,
        "unexpected": comparison.unexpected,
        "files_unlike": comparison.unlike[:100],
        "taken_back": outcome.taken_back,
        "rebalances": outcome.rebalances,
    }
