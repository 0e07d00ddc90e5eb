"""The story: a daemon, a topic, real files, three members, one SIGKILL, a fourth member, and the reckoning."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from client.admin import Admin
from client.cli.failure import CommandError
from client.cli.output import Output
from client.cli.processes import daemon
from client.cli.progress import Progress
from client.demo.counting import Comparison, compare, decode
from client.demo.files import Lines, find_files
from client.demo.member_process import MemberProcess, Report, unless_failed
from client.demo.narrator import Narrator
from client.demo.watch import GroupWatch
from client.producer.producer import Producer
from client.types.records import TopicPartition

TOPIC: Final = "lines"
GROUP: Final = "counters"
PARTITIONS: Final = 12
NAMES: Final = ("member-1", "member-2", "member-3")

_SETTLE_TIMEOUT_S: Final = 30.0
_IDLE_TIMEOUT_S: Final = 30.0
_PRODUCE_TIMEOUT_S: Final = 600.0
_LARGEST_BATCH: Final = 5000
_BATCHES_A_SHARE: Final = 16


@dataclass(frozen=True, slots=True)
class Killed:
    """The member that was killed: its share in records, what it had processed, and how much of that was not committed."""

    name: str
    share: int
    processed: int
    uncommitted: int


async def tell(paths: Sequence[Path], output: Output) -> int:
    """Runs the whole demonstration; 0 when nothing was lost and all counts agree, else 1.

    Everything it starts is gone when it returns, also after an error or Ctrl-C.
    """
    narrator = Narrator(output, asyncio.get_running_loop().time)
    with tempfile.TemporaryDirectory(prefix="cohort-demo-", ignore_cleanup_errors=True) as directory:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(daemon(Path(directory, "data"), "--log-level", "warning"))
            admin = await stack.enter_async_context(Admin(bootstrap_servers=server.address))
            story = Story(narrator, server.address, admin, Path(directory))
            narrator.tell(
                "daemon",
                f"a daemon serves at {server.address}, process {server.pid}",
                address=server.address,
                pid=server.pid,
            )
            stack.push_async_callback(story.end)
            outcome, killed = await story.play(paths)
            rebalances = story.watch.rebalances
    return conclude(narrator, output, outcome, killed, rebalances)


class Story:
    """Members that count the lines of a topic, and who watches them."""

    def __init__(self, narrator: Narrator, address: str, admin: Admin, directory: Path) -> None:
        self.ends: dict[int, int] = {}
        """By partition: the offset after the last line that is acknowledged."""
        self.watch = GroupWatch(admin, GROUP, PARTITIONS, narrator)
        self._narrator = narrator
        self._address = address
        self._admin = admin
        self._directory = directory
        self._members: dict[str, MemberProcess] = {}
        self._watching: asyncio.Task[None] | None = None

    async def play(self, paths: Sequence[Path]) -> tuple[Comparison, Killed]:
        """The acts in order. Raises ``CommandError`` when one does not come to its end."""
        files = find_files(paths)
        await self._admin.create_topics({TOPIC: PARTITIONS})
        self._narrator.tell("topic", f"topic {TOPIC} has {PARTITIONS} partitions", topic=TOPIC, partitions=PARTITIONS)
        lines = Lines(files)
        try:
            async with asyncio.timeout(_PRODUCE_TIMEOUT_S):
                await self._produce(lines, len(files))
        except TimeoutError:
            raise CommandError(f"the files were not produced within {_PRODUCE_TIMEOUT_S:.0f} s") from None
        owners = await self.start_members(NAMES)
        killed = await self._kill_in_the_middle(owners)
        await self._start_member("member-4")
        survivors = {*NAMES, "member-4"} - {killed.name}
        await self._unless_failed(self.watch.settled(survivors, _SETTLE_TIMEOUT_S))
        self._members["member-4"].command("go", self._batch())
        await self.drain()
        return self.counted(lines), killed

    async def start_members(self, names: Sequence[str]) -> Mapping[str, Sequence[int]]:
        """Starts members and waits until they own all partitions, which they do not read yet; returns what each owns."""
        self._watching = asyncio.create_task(self.watch.run())
        for name in names:
            await self._start_member(name)
        owners: Mapping[str, Sequence[int]] = await self._unless_failed(
            self.watch.settled(set(names), _SETTLE_TIMEOUT_S)
        )
        return owners

    def release(self, batch: int) -> None:
        """Lets all members read, so many records at a time."""
        for member in self._members.values():
            member.command("go", batch)

    def counted(self, lines: Lines) -> Comparison:
        """What members wrote down, next to a plain count."""
        return compare(
            (each for member in self._members.values() for each in decode(member.results.read_bytes())),
            self.ends,
            lines.counts,
        )

    async def end(self) -> None:
        """Ends every process that is still there."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(member.leave() for member in self._members.values()))

    async def _produce(self, lines: Lines, files: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with Producer(bootstrap_servers=self._address, client_id="demo-producer") as producer:
            with Progress("producing", None, clock=loop.time) as progress:
                for keys, values in lines.batches():
                    for metadata in await producer.send_many(TOPIC, values, keys):
                        self.ends[metadata.partition] = max(self.ends.get(metadata.partition, 0), metadata.offset + 1)
                    progress.update(0, f"{sum(self.ends.values()):,} lines")
        took_s = loop.time() - began
        produced = sum(self.ends.values())
        self._narrator.tell(
            "produced",
            f"{produced:,} lines of {files:,} files ({lines.bytes / 1e6:.1f} MB) are acknowledged and on disk, keyed by "
            f"file name, {produced / max(took_s, 1e-9):,.0f} a second",
            records=produced,
            files=files,
            bytes=lines.bytes,
            seconds=round(took_s, 3),
        )

    async def _start_member(self, name: str) -> None:
        member = self._members[name] = MemberProcess(name, self._directory, self._hear)
        await member.start(self._address, GROUP, TOPIC, results=str(member.results))
        self._narrator.tell("member", f"{name} starts, process {member.pid}", name=name, pid=member.pid)

    def _hear(self, member: MemberProcess, report: Report) -> None:
        match report:
            case {"event": "assigned", "generation": generation, "partitions": partitions, "reason": reason}:
                self.watch.heard(member.name, generation, partitions, reason)
            case {"event": "commit-failed" | "lost" as event, "reason": reason}:
                self._narrator.tell(event, f"{member.name}: {event.replace('-', ' ')}: {reason}", name=member.name)

    async def _kill_in_the_middle(self, owners: Mapping[str, Sequence[int]]) -> Killed:
        """Lets all members go, and kills the one with the most to do half way through its share.

        So that the kill falls into the middle for certain, that member stops dead when half of its share is processed,
        with its last batch counted and written down but not committed: the worst moment there is.
        """
        shares = {name: sum(self.ends.get(number, 0) for number in owned) for name, owned in owners.items()}
        name = max(sorted(shares), key=lambda each: shares[each])
        victim = self._members[name]
        victim.command("halt", max(1, shares[name] // 2))
        self.release(self._batch())
        report = await self._unless_failed(asyncio.wait_for(victim.halted, _IDLE_TIMEOUT_S))
        await victim.kill()
        killed = Killed(name, shares[name], report["processed"], report["uncommitted"])
        self._narrator.tell(
            "kill",
            f"{name} is killed (SIGKILL) after {killed.processed:,} of its {killed.share:,} records; "
            f"{killed.uncommitted:,} of them are processed but not committed",
            style="red",
            name=name,
            processed=killed.processed,
            share=killed.share,
            uncommitted=killed.uncommitted,
        )
        return killed

    def _batch(self) -> int:
        """Records a member takes at a time: some batches a share also when there is little to do."""
        share = sum(self.ends.values()) // 3
        return max(1, min(_LARGEST_BATCH, share // _BATCHES_A_SHARE))

    async def drain(self) -> None:
        """Waits until the group has committed everything. Raises ``CommandError`` when it stops making progress."""
        await self._unless_failed(self._drained())

    async def _drained(self) -> None:
        loop = asyncio.get_running_loop()
        produced = sum(self.ends.values())
        best, moved_at = -1, loop.time()
        with Progress("consuming", produced, clock=loop.time) as progress:
            while best < produced:
                offsets = await self._admin.list_offsets(GROUP)
                committed = sum(
                    offsets[TopicPartition(TOPIC, number)].offset
                    for number in self.ends
                    if TopicPartition(TOPIC, number) in offsets
                )
                if committed > best:
                    best, moved_at = committed, loop.time()
                elif loop.time() > moved_at + _IDLE_TIMEOUT_S:
                    raise CommandError(
                        f"the group committed {best:,} of {produced:,} records and then nothing for {_IDLE_TIMEOUT_S:.0f} s"
                    )
                progress.update(best, f"{best:,} records committed")
                await asyncio.sleep(0.05)
        self._narrator.tell("drained", f"the group has committed all {produced:,} records", records=produced)

    async def _unless_failed(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of ``work``, unless a member or the watch fails meanwhile: then that error at once."""
        failures: list[asyncio.Future[None]] = [member.failed for member in self._members.values()]
        if self._watching is not None:
            failures.append(self._watching)
        return await unless_failed(work, failures, _IDLE_TIMEOUT_S)


def conclude(narrator: Narrator, output: Output, outcome: Comparison, killed: Killed, rebalances: int) -> int:
    """Prints the reckoning; returns 0. Raises ``CommandError``, and so exit status 1, when anything is wrong with it."""
    whose = f"processed by {killed.name}, not committed when it was killed"
    if outcome.redelivered != killed.uncommitted:
        whose = f"{killed.uncommitted:,} of them {whose}"
    return reckon(
        narrator,
        output,
        outcome,
        rebalances,
        redelivered=whose,
        end="Nothing was lost, and the group counted what a plain count counts.",
    )


def reckon(
    narrator: Narrator,
    output: Output,
    outcome: Comparison,
    rebalances: int,
    *,
    redelivered: str,
    end: str,
    gap_s: float | None = None,
) -> int:
    """See ``conclude``. ``redelivered`` is a remark, ``end`` what is said when all is well, ``gap_s`` a figure more."""
    lines = sum(count.lines for count in outcome.counts.values())
    words = sum(count.words for count in outcome.counts.values())
    seconds = round(narrator.seconds(), 2)
    gap = [] if gap_s is None else [("gap", f"{gap_s:.2f}", "seconds without an acknowledgement, at most")]
    narrator.blank()
    narrator.figures(
        [
            ("records produced", f"{outcome.produced:,}", "acknowledged by the daemon"),
            ("records delivered", f"{outcome.delivered:,}", "written down by the members, each counted once"),
            ("re-delivered", f"{outcome.redelivered:,}", redelivered),
            ("lost", f"{outcome.lost:,}", ""),
            ("lines", f"{lines:,}", "counted by the group"),
            ("words", f"{words:,}", "counted by the group"),
            ("files", f"{outcome.files:,}", f"{len(outcome.unlike):,} of them unlike a plain count"),
            ("rebalances", f"{rebalances:,}", ""),
            *gap,
            ("seconds", f"{seconds:.1f}", ""),
        ]
    )
    narrator.blank()
    if output.as_json:
        output.object(
            {
                "event": "result",
                "produced": outcome.produced,
                "delivered": outcome.delivered,
                "deliveries": outcome.deliveries,
                "redelivered": outcome.redelivered,
                "lost": outcome.lost,
                "contradictions": outcome.contradictions,
                "unexpected": outcome.unexpected,
                "lines": lines,
                "words": words,
                "files": outcome.files,
                "files_unlike": outcome.unlike[:100],
                "rebalances": rebalances,
                **({} if gap_s is None else {"gap_s": round(gap_s, 3)}),
                "seconds": seconds,
            }
        )
    elif outcome.passed:
        output.line(end)
    if not outcome.passed:
        raise CommandError(_what_is_wrong(outcome))
    return 0


def _what_is_wrong(outcome: Comparison) -> str:
    return (
        f"{outcome.lost:,} records lost, {outcome.contradictions:,} delivered twice with different content, "
        f"{outcome.unexpected:,} never acknowledged, {len(outcome.unlike):,} files counted differently"
        + (f", the first is {outcome.unlike[0]}" if outcome.unlike else "")
    )
