"""The demonstration's side of the process in which Spark runs: start it, command it, hear its events, end it.

Java, and through it Spark's Python workers, are children of that process and of its session. Java holds standard error
open, so its end is the end of them all.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, Self

from client.cli.failure import CommandError
from client.cli.processes import child_environment
from client.demo.narrator import Narrator
from client.spark import require_spark

_SILENCE_S: Final = 660.0
"""The process says why it gives up before this."""
_STOP_S: Final = 30.0
_PIECE: Final = 64 * 1024
_LONGEST_LINE: Final = 64 * 1024 * 1024

Event = dict[str, Any]


def check_spark() -> None:
    """Raises ``CommandError`` with one line when Spark or Java is missing."""
    try:
        require_spark()
    except (ImportError, RuntimeError) as error:
        raise CommandError(str(error)) from error


class SparkProcess:
    """Spark, which writes in ``directory`` only. Use as an async context manager: at the end its processes are gone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "spark.log"
        self._process: asyncio.subprocess.Process | None = None
        self._logging: asyncio.Task[None] | None = None
        self._started = False

    async def start(self, bootstrap: str, *options: str) -> None:
        """Starts the process, which starts Spark; ``event`` gives ``spark`` when that is done."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "client.demo.spark_queries", "--bootstrap", bootstrap, "--directory", str(self._directory)),
            *options,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            cwd=self._directory,
            env=_environment(self._directory),
            start_new_session=True,
        )
        self._logging = asyncio.create_task(self._write_log(self._process))

    def go(self, records: int) -> None:
        """The records are there: the queries may begin."""
        assert self._process is not None, "only what was started is told to go"
        assert self._process.stdin is not None
        self._process.stdin.write(b"go %d\n" % records)

    async def event(self) -> Event:
        """The next event. Raises ``CommandError`` in one line, which names a copy of Spark's log, when the process fails."""
        assert self._process is not None, "only what was started has events"
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_SILENCE_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise CommandError(f"Spark did nothing for {_SILENCE_S:.0f} s; {self._kept_log()}") from None
        if not line:
            await self._end()
            raise CommandError(f"Spark ended unasked with status {self._process.returncode}; {self._kept_log()}")
        event: Event = json.loads(line)
        self._started = True
        if event["event"] == "failed":
            await self._end()
            raise CommandError(f"{event['text']} ({self._kept_log()})")
        return event

    async def told(self, narrator: Narrator) -> Event:
        """Tells what Spark does until its queries are done; the last event. Raises as ``event`` does."""
        event: Event = {"event": ""}
        while event["event"] != "done":
            event = await self.event()
            if event["text"]:
                details = {name: value for name, value in event.items() if name not in ("event", "text")}
                narrator.tell(event["event"], event["text"], **details)
        return event

    @property
    def pid(self) -> int:
        """The driver's process id."""
        assert self._process is not None, "only what was started has a process"
        return self._process.pid

    async def kill(self) -> None:
        """SIGKILL for the driver and all that it has started."""
        assert self._process is not None, "only what was started is killed"
        assert self._logging is not None
        await self._kill(self._process, self._logging)
        self._process = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._end()

    async def _end(self) -> None:
        """Lets the queries stop in order and waits until Java is gone; kills them when that takes too long."""
        if self._process is None or self._logging is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S if self._started else 0):  # nothing runs that could be stopped in order
                await self._process.wait()
                await asyncio.shield(self._logging)
        except TimeoutError:
            await self._kill(self._process, self._logging)
        except asyncio.CancelledError:
            await self._kill(self._process, self._logging)
            raise

    async def _kill(self, process: asyncio.subprocess.Process, logging: asyncio.Task[None]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all of them have ended by themselves
        await process.wait()
        await asyncio.wait((logging,), timeout=_STOP_S)

    async def _write_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with self._log.open("ab", buffering=0) as log:
            while piece := await process.stderr.read(_PIECE):
                log.write(piece)

    def _kept_log(self) -> str:
        """Where to read more: the directory of the demonstration does not outlive it."""
        with tempfile.NamedTemporaryFile(prefix="cohort-demo-spark-", suffix=".log", delete=False) as kept:
            kept.write(self._log.read_bytes())
        return f"Spark's log is {kept.name}"


def _environment(directory: Path) -> dict[str, str]:
    """Ours, with temporary files of Python and Java in ``directory``: they go with it, whatever ends the process."""
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = child_environment()
    java = f'"-Djava.io.tmpdir={temporary}" -XX:-UsePerfData'
    environment["JDK_JAVA_OPTIONS"] = f"{environment.get('JDK_JAVA_OPTIONS', '')} {java}".strip()
    return environment | {"TMPDIR": str(temporary)}
