"""The demonstration's side of a member process: start it, command it, hear its reports, kill it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from client.cli.failure import CommandError
from client.cli.processes import child_environment

_LEAVE_TIMEOUT_S: Final = 15.0
_SHOWN_CHARS: Final = 2000

Report = dict[str, Any]

T = TypeVar("T")


class MemberProcess:
    """One member, which ``module`` runs. ``on_report`` is called with each of its reports; ``failed`` is done when it ended
    unasked.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        on_report: Callable[[MemberProcess, Report], None],
        module: str = "client.demo.member",
    ) -> None:
        self.name = name
        self.results = directory / f"{name}.jsonl"
        self.processed = 0
        self.killed = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.halted: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._errors = directory / f"{name}.stderr"
        self._on_report = on_report
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._released = False

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, "a member has a process from its start on"
        return self._process.pid

    async def start(self, bootstrap: str, group: str, topic: str, **more: str) -> None:
        """Starts the process with these and ``more`` options; it joins the group by itself."""
        arguments = {"bootstrap": bootstrap, "group": group, "topic": topic, "name": self.name, **more}
        with self._errors.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                self._module,
                *(part for option, value in arguments.items() for part in (f"--{option.replace('_', '-')}", value)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=child_environment(),
                start_new_session=True,
            )
        self._reading = asyncio.create_task(self._read(self._process))

    def command(self, *words: object) -> None:
        """Sends one command; see ``client.demo.member``."""
        assert self._process is not None, "commands go to a started member"
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")

    async def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        assert self._process is not None, "only a started member can be killed"
        self.killed = True
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def leave(self) -> None:
        """Lets the member leave its group and waits for its end; kills it when that takes too long."""
        if self._process is None:
            return
        self._released = True
        if self._process.returncode is None and self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                await self._process.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            await self.kill()
            if isinstance(error, asyncio.CancelledError):
                raise
        if self._reading is not None:
            await self._reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            report = json.loads(line)
            if report["event"] == "processed":
                self.processed = report["total"]
            elif report["event"] == "halted":
                self.halted.set_result(report)
            self._on_report(self, report)
        await process.wait()
        if not (self.killed or self._released) and not self.failed.done():
            text = self._errors.read_text(errors="replace")[-_SHOWN_CHARS:].strip()
            self.failed.set_exception(
                CommandError(f"{self.name} ended with status {process.returncode} unasked:\n{text or '(no output)'}")
            )


async def unless_failed(work: Coroutine[Any, Any, T], failures: Iterable[asyncio.Future[Any]], idle_s: float) -> T:
    """The result of ``work``, unless one of ``failures`` comes meanwhile: then that error at once.

    Raises ``CommandError`` when ``work`` ends by ``TimeoutError``, which is to come after ``idle_s`` without progress.
    """
    task, failures = asyncio.ensure_future(work), list(failures)
    waited: list[asyncio.Future[Any]] = [task, *failures]
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for failure in failures:
            if failure.done():
                failure.result()
        return await task
    except TimeoutError:
        raise CommandError(f"a member made no progress for {idle_s:.0f} s") from None
    finally:
        task.cancel()
