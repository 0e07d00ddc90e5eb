"""``cohort demo --spark --exactly-once``: a query of Spark whose driver is killed twice, compared with a plain count."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from client.admin import Admin
from client.cli.failure import CommandError
from client.cli.main import build_parser
from client.cli.output import Output
from client.cli.processes import daemon
from client.demo.counting import Comparison, compare
from client.demo.files import Lines
from client.demo.lines import TOPIC, files_of, outputs_of, produce_lines
from client.demo.narrator import Narrator
from client.demo.pipeline import WORDS
from client.demo.spark_process import SparkProcess, check_spark
from client.demo.spark_queries import GROUP

PARTITIONS: Final = 4
KILLS: Final = 2
_LOOK_EVERY_S: Final = 0.02
_SETTLE_S: Final = 30.0

T = TypeVar("T")


async def tell_spark_exactly_once(paths: Sequence[Path], output: Output) -> int:
    """Runs the demonstration; 0 when each line was answered once and the offsets are those of the outputs.

    Everything it starts is gone when it returns, also after an error or Ctrl-C. Raises ``CommandError`` as ``tell_on_spark``
    does, and when a line was lost or answered twice.
    """
    check_spark()
    narrator = Narrator(output, asyncio.get_running_loop().time)
    files = files_of(paths)
    lines = Lines(files)
    with tempfile.TemporaryDirectory(prefix="cohort-demo-", ignore_cleanup_errors=True) as directory:
        async with (
            daemon(Path(directory, "data"), "--log-level", "warning") as server,
            Admin(bootstrap_servers=server.address) as admin,
        ):
            narrator.tell(
                "daemon",
                f"a daemon serves at {server.address}, process {server.pid}",
                address=server.address,
                pid=server.pid,
            )
            await admin.create_topics({TOPIC: PARTITIONS, WORDS: PARTITIONS})
            ends = await produce_lines(server.address, lines)
            records = sum(ends.values())
            narrator.tell("produced", f"{records:,} lines of {len(files):,} files, keyed by file name", records=records)
            run = _Run(narrator, output, server.address, admin, Path(directory), records)
            kills = await run.play()
            seen = await outputs_of(server.address, WORDS, "read_committed")
            stored = await outputs_of(server.address, WORDS, "read_uncommitted")
            lag = records - await run.committed()
    comparison = compare(seen, ends, lines.counts)
    return _conclude(narrator, output, comparison, len(stored) - len(seen), kills, lag)


class _Run:
    """One query, and as many drivers for it as it takes."""

    def __init__(
        self, narrator: Narrator, output: Output, address: str, admin: Admin, directory: Path, records: int
    ) -> None:
        self._narrator = narrator
        self._output = output
        self._address = address
        self._admin = admin
        self._directory = directory
        self._records = records

    async def play(self) -> int:
        """Until the query is done; how many of its drivers were killed."""
        kills = 0
        while not await self._live(may_be_killed=kills < KILLS):
            kills += 1
        await self._decided()
        await self._show("groups", "describe", GROUP)
        await self._show("transactions", "list")
        return kills

    async def committed(self) -> int:
        """How many lines the group has committed."""
        return sum(offset.offset for offset in (await self._admin.list_offsets(GROUP)).values())

    async def _live(self, *, may_be_killed: bool) -> bool:
        """One driver, to the end of the query or its own; whether the query is done."""
        before = await self.committed()
        async with SparkProcess(self._directory) as spark:
            await spark.start(self._address, "--exactly-once")
            self._narrator.tell("driver", f"a driver of Spark starts, process {spark.pid}", pid=spark.pid)
            spark.go(self._records)
            hearing = asyncio.create_task(spark.told(self._narrator))
            open_batch = asyncio.create_task(self._open_batch(before))
            waiting = (hearing, open_batch) if may_be_killed else (hearing,)
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if hearing.done():
                    await hearing
                    return True
                await open_batch
            finally:
                for task in (hearing, open_batch):
                    task.cancel()
                await asyncio.gather(hearing, open_batch, return_exceptions=True)
            await spark.kill()
            committed = await self.committed()
            self._narrator.tell(
                "kill",
                f"the driver is killed (SIGKILL) in the middle of a batch; {committed:,} lines are committed",
                style="red",
                committed=committed,
            )
            await self._show("groups", "describe", GROUP)
            await self._show("transactions", "list")
            return False

    async def _open_batch(self, before: int) -> None:
        """Waits until this driver has committed a batch, and the rows of the next one are being written."""
        await _until(lambda: self.committed(), lambda committed: committed > before)
        await _until(lambda: self._admin.list_transactions(["Ongoing"]), bool)

    async def _decided(self) -> None:
        """Waits until what was decided last is so in every partition."""
        async with asyncio.timeout(_SETTLE_S):
            await _until(
                lambda: self._admin.list_transactions(["PrepareCommit", "PrepareAbort"]), lambda open_: not open_
            )

    async def _show(self, *words: str) -> None:
        """What a command of ``cohort`` prints now."""
        told = io.StringIO()
        options = build_parser().parse_command(["--bootstrap", self._address, *words])
        await options.handler(options, Output(as_json=self._output.as_json, stream=told))
        shown = " ".join(("cohort", *words))
        if self._output.as_json:
            self._narrator.tell("shown", "", command=shown, shows=json.loads(told.getvalue()))
            return
        self._narrator.tell("shown", f"{shown}:", style="dim")
        for line in told.getvalue().splitlines():
            self._output.line(f"{'':10}{line}".rstrip())


async def _until(ask: Callable[[], Awaitable[T]], enough: Callable[[T], bool]) -> None:
    """Asks again and again until the answer is ``enough``."""
    while True:
        if enough(await ask()):
            return
        await asyncio.sleep(_LOOK_EVERY_S)


def _conclude(narrator: Narrator, output: Output, comparison: Comparison, taken_back: int, kills: int, lag: int) -> int:
    """Prints the reckoning; returns 0. Raises ``CommandError`` when a line was lost or answered twice."""
    narrator.blank()
    figures = {
        "lines produced": comparison.produced,
        "lines answered": comparison.delivered,
        "answered twice": comparison.redelivered,
        "lost": comparison.lost,
        "files unlike a plain count": len(comparison.unlike),
        "rows taken back": taken_back,
        "drivers killed": kills,
        "lag of the group": lag,
    }
    narrator.figures([(name, f"{figure:,}", "") for name, figure in figures.items()])
    narrator.blank()
    passed = comparison.passed and not comparison.redelivered and not lag
    if output.as_json:
        output.object(
            {
                "event": "result",
                **{name.replace(" ", "_"): figure for name, figure in figures.items()},
                "words": sum(count.words for count in comparison.counts.values()),
                "files": comparison.files,
                "seconds": round(narrator.seconds(), 2),
            }
        )
    elif passed:
        output.line("Exactly once: no line was lost, none answered twice.")
    if not passed:
        raise CommandError(
            f"{comparison.lost:,} lines were lost and {comparison.redelivered:,} answered twice; the lag is {lag:,}"
        )
    return 0
