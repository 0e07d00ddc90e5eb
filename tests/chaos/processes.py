"""Member and producer processes, seen from the run that starts, commands and kills them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.chaos.ledger import Ledger

ROOT: Final = Path(__file__).parents[2]
_LEAVE_TIMEOUT_S: Final = 40.0


class ChaosProcess:
    """``python -m MODULE`` with its ledger and its stderr in files of the run's directory."""

    def __init__(self, name: str, module: str, directory: Path, run_ledger: Ledger, **options: object) -> None:
        self.name = name
        self.ledger_path = directory / f"{name}.jsonl"
        self.options = {**options, "name": name, "ledger": self.ledger_path}  # None: not given
        self.stopped = False
        self.asked_to_end = False
        self._module = module
        self._errors = directory / f"{name}.stderr"
        self._run_ledger = run_ledger
        self._process: asyncio.subprocess.Process | None = None
        self._resumed = asyncio.Event()
        self._resumed.set()

    @property
    def alive(self) -> bool:
        """Whether it runs and nobody has asked it to end."""
        return self._process is not None and self._process.returncode is None and not self.asked_to_end

    async def start(self) -> None:
        """Starts it and returns at once."""
        given = {option: value for option, value in self.options.items() if value is not None}
        arguments = (part for option, value in given.items() for part in (f"--{option}", str(value)))
        told: dict[str, Any] = {
            option: self.options.get(option) for option in ("group", "instance", "commits", "promise", "client")
        }
        self._run_ledger.write("process", name=self.name, **told)
        with self._errors.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._module, *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def command(self, line: str) -> None:
        """Sends one line to its stdin."""
        if self.alive and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(line.encode() + b"\n")

    async def kill(self) -> None:
        """SIGKILL. The ledger of the run has the moment before, so that nothing can have happened after it."""
        if self._process is None or self._process.returncode is not None:
            return
        self.asked_to_end = True
        self._run_ledger.write("killed", name=self.name)
        self._process.kill()
        await self._process.wait()

    async def die(self, command: str, within_s: float) -> None:
        """Tells it to end by SIGKILL at a moment of its own choice; kills it when that has not come after ``within_s``."""
        if self._process is None or self._process.returncode is not None:
            return
        self.command(command)
        self.asked_to_end = True
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._run_ledger.write("killed", name=self.name)

    def stop(self) -> None:
        """SIGSTOP until ``resume``."""
        if self.alive and self._process is not None and not self.stopped:
            self.stopped = True
            self._resumed.clear()
            self._run_ledger.write("stopped", name=self.name)
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self._process is not None and self._process.returncode is None and self.stopped:
            self.stopped = False
            self._run_ledger.write("resumed", name=self.name)
            self._process.send_signal(signal.SIGCONT)
        self._resumed.set()

    async def leave(self) -> None:
        """Lets it end by itself and waits for that; kills it when it takes too long, which is a crash in the books."""
        if self._process is None or self._process.stdin is None or self.asked_to_end:
            return
        self.asked_to_end = True
        self._process.stdin.close()
        await self._resumed.wait()
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._run_ledger.write(
                "crash", name=self.name, text=f"did not end within {_LEAVE_TIMEOUT_S:.0f} s of being asked"
            )
            self._process.kill()
            await self._process.wait()

    def record_end(self) -> None:
        """At the end of the run: notes in its ledger whether this process ended or printed as it should not have."""
        status = self._process.returncode if self._process is not None else None
        text = self._errors.read_text(errors="replace") if self._errors.exists() else ""
        if status not in (0, -signal.SIGKILL):
            self._run_ledger.write("crash", name=self.name, text=f"ended with status {status}: {text[-600:].strip()}")
        elif "Traceback (most recent call last)" in text:
            start = text.index("Traceback (most recent call last)")
            self._run_ledger.write(
                "crash", name=self.name, text=f"printed a traceback: {text[start : start + 1500].strip()}"
            )
