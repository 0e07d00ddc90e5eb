"""``cohortd --workers N``: N daemons on one machine, a process each, as the nodes of one cluster.

A Python process uses one core for its event loop. N of them share out partitions and groups as nodes of a cluster do: the
first keeps the metadata and serves them to the others, and it is the address that clients are given. They learn the
others' from it. Nothing is replicated between them, as they stand on one machine: what one has led waits while it is
started again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from coordinator.config import ENVIRONMENT_PREFIX, ConfigurationError, Settings
from coordinator.log.directories import WORKERS
from coordinator.log_output import get_logger
from coordinator.metadata import urls

log = get_logger()

_LOOPBACK: Final = "127.0.0.1"
SERVES: Final = "listening on"
SERVES_KAFKA: Final = "listening for Kafka's clients on"
SERVES_HTTP: Final = "serving the page, metrics and health on"
"""What a daemon says of its addresses, in front of each."""
_SERVES: Final = re.compile(f"^({SERVES}|{SERVES_KAFKA}|{SERVES_HTTP}) (\\S+)$")
_SHORTEST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_RUNS_WELL_S: Final = 60.0
"""After so long a worker's next end is no longer taken for a repetition of its last."""
_STARTS: Final = 5
"""A worker that a signal ends before it has served, or that the metadata fail meanwhile, is started so often; one that says
why it cannot serve, once."""
_BEYOND_STOP_S: Final = 10.0
"""What a worker gets beside its settings' time to hand over and drain before it is killed."""


def settings_of_workers(settings: Settings, metadata_port: int) -> list[Settings]:
    """The settings of each worker. Ports that are fixed count up from the first worker's, free ones stay free."""
    common = dataclasses.replace(settings, offsets_replication_factor=1)
    serving = dataclasses.replace(common, node_id=0, serve_metadata=f"{_LOOPBACK}:{metadata_port}")
    return [serving, *(_other(common, number, metadata_port) for number in range(1, settings.workers))]


def _other(common: Settings, number: int, metadata_port: int) -> Settings:
    def counted(port: int) -> int:
        return port + number if port > 0 else port

    http = common.http
    if http:
        host, port = urls.address(http)
        http = f"[{host}]:{counted(port)}" if ":" in host else f"{host}:{counted(port)}"
    return dataclasses.replace(
        common,
        node_id=number,
        metadata=f"cohort://{_LOOPBACK}:{metadata_port}/{WORKERS}",
        data_dir=str(Path(common.data_dir) / WORKERS / str(number)),
        port=counted(common.port),
        advertised_port=counted(common.advertised_port),
        peer_port=counted(common.peer_port),
        kafka_port=counted(common.kafka_port),
        kafka_advertised_port=counted(common.kafka_advertised_port),
        http=http,
    )


def check_alone(settings: Settings) -> None:
    """Raises ``ConfigurationError`` when the workers are to be nodes of another cluster than their own."""
    if settings.metadata != "local" or settings.serve_metadata or settings.node_id > 0:
        raise ConfigurationError(
            f"workers is {settings.workers}, and workers are the nodes of a cluster of their own: leave metadata, "
            "serve_metadata and node_id out, or start one daemon for each node of another cluster"
        )


def check_directory(settings: Settings) -> None:
    """Raises ``ConfigurationError`` when the data directory was shared out to more workers than are to run."""
    try:
        found = [int(name) for name in os.listdir(Path(settings.data_dir) / WORKERS) if name.isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        return
    if (needed := max(found, default=0) + 1) > settings.workers:
        raise ConfigurationError(
            f"{settings.data_dir!r} holds the partitions of {needed} workers, and workers is {settings.workers}: start "
            f"with --workers {needed}; to run fewer, move what the last ones have to others first (cohort topics reassign "
            f"--drain-node, cohort cluster remove-node), stop, and remove their directories in {WORKERS}"
        )


def as_arguments(settings: Settings) -> list[str]:
    """The command line that gives these settings, whatever the environment and a file say."""
    return [
        f"--{spec.name.replace('_', '-')}={getattr(settings, spec.name)}"
        for spec in dataclasses.fields(settings)
        if getattr(settings, spec.name) != spec.default
    ]


class Worker:
    """One worker's process, and what it has said of its addresses."""

    def __init__(self, number: int, settings: Settings) -> None:
        self.number = number
        self.serves: dict[str, str] = {}
        """What it serves, by the words of its lines."""
        self.ready = asyncio.Event()
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._ends = False

    async def run(self) -> int:
        """Starts the process and returns its exit status once it has ended, 1 if the system starts none.

        Its lines go to this process's stderr.
        """
        self.ready.clear()
        environment = {name: text for name, text in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "coordinator.worker", *as_arguments(self._settings)),
                stdin=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C goes to the parent alone, which stops its workers in order
            )
        except OSError as error:
            log.error("worker_not_started", worker=self.number, error=str(error))
            return 1
        self._process = process
        log.info("worker_started", worker=self.number, pid=process.pid)
        if self._ends:  # it was told so while the process was made
            self.end(signal.SIGTERM)
        await self._pass_lines_on(process)
        return await process.wait()

    def end(self, number: signal.Signals) -> None:
        """Sends the process a signal, if it runs; one that is being started gets SIGTERM then."""
        self._ends = True
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _pass_lines_on(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:  # longer than asyncio reads: it is not passed on, those behind it are
                continue
            if not line:
                return
            self._said(line.decode(errors="replace").rstrip())

    def _said(self, line: str) -> None:
        match = _SERVES.match(line)
        if match is None:
            prefix = "" if self._settings.log_format == "json" else f"worker {self.number}: "
            print(f"{prefix}{line}", file=sys.stderr)
            return
        self.serves[match[1]] = match[2]
        if match[1] == SERVES:
            self._keep_ports()
            self.ready.set()

    def _keep_ports(self) -> None:
        """Free ports that it has picked are its own from now on, as clients know them."""
        ports = {words: int(address.rpartition(":")[2]) for words, address in self.serves.items()}
        settings = dataclasses.replace(self._settings, port=ports[SERVES])
        if SERVES_KAFKA in ports:
            settings = dataclasses.replace(settings, kafka_port=ports[SERVES_KAFKA])
        if settings.http and SERVES_HTTP in ports:
            host = settings.http.rpartition(":")[0]
            settings = dataclasses.replace(settings, http=f"{host}:{ports[SERVES_HTTP]}")
        self._settings = settings


class Workers:
    """Starts the workers, keeps them running, and stops them in order."""

    def __init__(self, settings: Settings, metadata_port: int) -> None:
        self._settings = settings
        self._workers = [
            Worker(number, each) for number, each in enumerate(settings_of_workers(settings, metadata_port))
        ]
        self._running: dict[int, asyncio.Task[int]] = {}
        self._keeping: dict[int, asyncio.Task[None]] = {}

    async def serve(self, stopping: asyncio.Event) -> int:
        """Serves until ``stopping``; returns the exit status, which is a worker's if one cannot serve at the start."""
        stopped = asyncio.create_task(stopping.wait())
        status: int | None = None
        try:
            status = await self._start(stopped)
            if status is None:
                for words, address in self._workers[0].serves.items():
                    print(f"{words} {address}", file=sys.stderr)
                await stopped
        finally:
            await _give_up([stopped])
            await self._stop()
        return status or 0

    def kill(self) -> None:
        """SIGKILL for all of them."""
        for worker in self._workers:
            worker.end(signal.SIGKILL)

    async def _start(self, stopped: asyncio.Task[bool]) -> int | None:
        """The first, which has the metadata, then the others. An exit status when one cannot serve or all are to stop."""
        first, *others = self._workers
        for group in ([first], others):
            starts = [asyncio.create_task(self._start_one(worker)) for worker in group]
            try:
                while not all(each.done() for each in starts):
                    undone = [each for each in starts if not each.done()]
                    await asyncio.wait([stopped, *undone], return_when=asyncio.FIRST_COMPLETED)
                    if stopped.done():
                        return 0
                    failed = [status for each in starts if each.done() and (status := each.result()) is not None]
                    if failed:
                        return failed[0]
            finally:
                await _give_up(starts)
        return None

    async def _start_one(self, worker: Worker) -> int | None:
        """Starts a worker, which is kept running once it has served; else the exit status, and why is said."""
        pause_s = _SHORTEST_PAUSE_S
        for attempt in range(1, _STARTS + 1):
            metadata = self._running.get(0)  # of the others; the first one has them itself
            run = self._running[worker.number] = asyncio.create_task(worker.run())
            served = asyncio.create_task(worker.ready.wait())
            try:
                await asyncio.wait([run, served], return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _give_up([served])
            if worker.ready.is_set():
                self._keeping[worker.number] = asyncio.create_task(self._keep(worker))
                return None
            status = run.result()
            lost_metadata = metadata is not None and (metadata.done() or self._running[0] is not metadata)
            if status >= 0 and not (worker.number and lost_metadata):
                print(f"cohortd: worker {worker.number} ended with status {status} before it served", file=sys.stderr)
                return status or 1
            log.error("worker_ended", worker=worker.number, status=status, before_it_served=True, attempt=attempt)
            if attempt < _STARTS:
                await asyncio.sleep(pause_s)
                pause_s *= 2
        ended = f"was ended by {_signal_name(-status)}" if status < 0 else f"ended with status {status}"
        print(
            f"cohortd: worker {worker.number} {ended} before it served, {_STARTS} times in a row: something of this system "
            "ends workers, such as a limit of memory",
            file=sys.stderr,
        )
        return 1

    async def _keep(self, worker: Worker) -> None:
        """Starts a worker again whenever it ends, at once the first time and then after longer pauses."""
        pause_s, began = 0.0, asyncio.get_running_loop().time()
        while True:
            status = await asyncio.shield(self._running[worker.number])
            if asyncio.get_running_loop().time() - began > _RUNS_WELL_S:
                pause_s = 0.0
            log.error("worker_ended", worker=worker.number, status=status, starts_in_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s, began = (
                min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, 2 * pause_s)),
                asyncio.get_running_loop().time(),
            )
            self._running[worker.number] = asyncio.create_task(worker.run())

    async def _stop(self) -> None:
        """The one that has the metadata last: it is started again if it ends before, as the others still write there.

        Each is killed that takes too long.
        """
        bound_s = (self._settings.controlled_shutdown_ms + self._settings.drain_timeout_ms) / 1000 + _BEYOND_STOP_S
        first, *others = self._workers
        for group in (others, [first]):
            await _give_up([self._keeping[worker.number] for worker in group if worker.number in self._keeping])
            for worker in group:
                worker.end(signal.SIGTERM)
            ends = [self._running[worker.number] for worker in group if worker.number in self._running]
            if ends:
                _, late = await asyncio.wait(ends, timeout=bound_s)
                for worker in group:
                    worker.end(signal.SIGKILL)
                if late:
                    await asyncio.wait(late, timeout=_BEYOND_STOP_S)


async def _give_up(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _reserved_port() -> socket.socket:
    """A socket on a free port of this machine where nobody listens: the first worker may, as often as it is started, and
    no program of other users or that does not ask to share the port."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((_LOOPBACK, 0))
    except OSError:
        reserved.close()
        raise
    return reserved


async def serve_with_workers(settings: Settings) -> int:
    """Runs the daemon as ``settings.workers`` processes until SIGTERM or SIGINT; a second one kills them."""
    with _reserved_port() as reserved:
        return await _serve_with(Workers(settings, reserved.getsockname()[1]))


async def _serve_with(workers: Workers) -> int:
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            workers.kill()
            os._exit(1)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return await workers.serve(stopping)
