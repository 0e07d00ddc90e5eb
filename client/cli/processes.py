"""Servers of one's own as child processes, daemons above all, for the demonstration and the benchmarks.

The client package does not import the daemon: it starts the program, reads the address it prints and stops it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final, Literal, Self

from client.cli.failure import CommandError

_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 15.0
_KEPT_LINES: Final = 20
_CPUCLOCK_SCHED: Final = 2
"""Linux numbers the clock of a process's time, in nanoseconds, by its id and this: clock_getcpuclockid(3)."""
_LISTENING: Final = re.compile(r"^listening on (\S+:\d+)$")
_LISTENING_FOR_KAFKA: Final = re.compile(r"^listening for Kafka's clients on (\S+:\d+)$")


class ServerProcess:
    """A child process that prints ``listening on HOST:PORT`` to stderr when it serves.

    Use as an async context manager: at the end it is stopped, by force if it has to be. ``name`` is for people,
    ``arguments`` are what this Python is started with. ``kafka_address`` is where a daemon listens for Kafka's clients, ""
    when it does not.
    """

    def __init__(self, name: str, *arguments: str) -> None:
        self.address = ""
        self.kafka_address = ""
        self._name = name
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._listening: asyncio.Future[str] | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, "a server has a process from its start on"
        return self._process.pid

    def resident_bytes(self, which: Literal["VmRSS", "VmHWM"]) -> int:
        """Its resident memory in bytes: ``VmRSS`` now, ``VmHWM`` the most it ever had.

        Raises ``CommandError`` where no Linux tells it.
        """
        try:
            return resident_bytes(self.pid, which)
        except OSError as error:
            why = f"the memory of {self._name} is read from /proc/{self.pid}/status, which only Linux has: {error.strerror}"
            raise CommandError(why) from error

    def cpu_s(self) -> float:
        """The processor time of all its threads so far, in seconds."""
        return cpu_s(self.pid)

    async def start(self) -> None:
        """Starts the process and waits until it serves. Raises ``CommandError`` with its last lines when it does not."""
        self._listening = asyncio.get_running_loop().create_future()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # a module of the directory we run in, such as its own coordinator.py, is not meant
            *self._arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C goes to this program alone, which then stops its children in order
        )
        self._reading = asyncio.create_task(self._read(self._process))
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                self.address = await self._listening
        except TimeoutError:
            await self.kill()
            raise CommandError(f"{self._name} did not serve within {_START_TIMEOUT_S:.0f} s{self._tail()}") from None
        except BaseException:
            await self.kill()
            raise

    async def stop(self) -> None:
        """Asks the process to stop (SIGTERM) and waits; kills it when that takes too long."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._process.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            await self.kill()
            if isinstance(error, asyncio.CancelledError):
                raise

    async def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()
        if self._reading is not None:
            await self._reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        assert self._listening is not None
        async for line in process.stderr:
            text = line.decode(errors="replace").rstrip()
            match = _LISTENING.match(text)
            if for_kafka := _LISTENING_FOR_KAFKA.match(text):
                self.kafka_address = for_kafka[1]
            if match and not self._listening.done():
                self._listening.set_result(match[1])
            elif not match:
                self._last_lines.append(text)
        if not self._listening.done():
            self._listening.set_exception(CommandError(f"{self._name} ended before it served{self._tail()}"))

    def _tail(self) -> str:
        return ":\n" + "\n".join(f"  {line}" for line in self._last_lines) if self._last_lines else ""


def resident_bytes(pid: int, which: Literal["VmRSS", "VmHWM"]) -> int:
    """The resident memory of a process in bytes, as ``ServerProcess.resident_bytes``.

    Raises ``OSError`` where there is no such process, or no Linux to tell it.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    raise CommandError(f"/proc/{pid}/status does not tell {which}")


def cpu_s(pid: int) -> float:
    """The processor time of a process, of all its threads so far, in seconds.

    Raises ``CommandError`` where the system does not tell it of another process: only Linux does, of one that runs.
    """
    try:
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    except OSError as error:
        raise CommandError(f"the processor time of process {pid} is not told, as on Linux: {error.strerror}") from error


def daemon(data_dir: Path, *options: str) -> ServerProcess:
    """A daemon on a free port of this machine that keeps its data in ``data_dir``; ``options`` as for ``cohortd``."""
    return ServerProcess("the daemon", "-m", "coordinator", "--port", "0", "--data-dir", str(data_dir), *options)


def child_environment() -> dict[str, str]:
    """This process's environment without daemon settings, and with our packages importable from wherever we run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return environment
