"""The running system that faults act on: daemon, proxy, members, producers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

from client import Admin
from tests.chaos.groups import KINDS, ChaosGroup
from tests.chaos.ledger import Ledger
from tests.chaos.member import COMMIT_MODES, WORK
from tests.chaos.processes import ChaosProcess
from tests.chaos.producer import PROMISES
from tests.chaos.proxy import Proxy
from tests.daemon_process import DaemonProcess

TOPICS: Final = {"orders": 6, "returns": 3}
MAX_PARTITIONS: Final = 14
_RATE_OF_A_PRODUCER: Final = 60
_START_TIMEOUT_S: Final = 40.0


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


LOOKING_FOR_EXPIRED_OFFSETS = ("--offsets-retention-ms", "86400000", "--offsets-retention-check-interval-ms", "700")
"""Looked for all the time and found never: what is in use does not expire, nor what a group leaves for less than a day."""


class World:
    """What a run consists of. Everything random in it is drawn from ``random``, before faults begin to race."""

    def __init__(self, directory: Path, random: Random, low: int, high: int, kinds: Sequence[str] = ()) -> None:
        self.directory = directory
        self.random = random
        self.low = low
        self.high = high
        self.ledger = Ledger(directory / "run.jsonl")
        self.prepare_daemon()
        kinds = kinds or random.sample(list(KINDS), min(random.choice((2, 2, 3)), max(1, high // 2)))
        self.groups = {group.id: group for group in (ChaosGroup(*each) for each in enumerate(kinds))}
        self.members: dict[str, ChaosProcess] = {}
        self.producers: dict[str, ChaosProcess] = {}
        self.daemon_turn = asyncio.Lock()  # one thing at a time is done to the daemon
        self.daemon_down = True
        self._names = itertools.count(1)

    def prepare_daemon(self) -> None:
        """The daemon and the proxy before it, not started yet."""
        self.daemon = DaemonProcess(
            self.directory / "data",
            *("--segment-bytes", "65536", "--offsets-segment-bytes", "65536", "--compaction-interval-ms", "4000"),
            *LOOKING_FOR_EXPIRED_OFFSETS,
        )
        self.daemon.port = free_port()
        self.proxy = Proxy(free_port(), self.daemon.port)
        self.daemon.options += ("--advertised-host", "127.0.0.1", "--advertised-port", str(self.proxy.port))

    @property
    def address(self) -> str:
        """Where clients connect: the proxy."""
        return f"127.0.0.1:{self.proxy.port}"

    async def start(self) -> None:
        """Daemon, topics, producers and the first members."""
        await self.serve()
        async with Admin(self.address) as admin:
            await admin.create_topics(TOPICS)
        for number in range(self.random.randint(2, 3)):
            await self.add_producer(PROMISES[number] if number < len(PROMISES) else self.random.choice(PROMISES))
        members = max(len(self.groups), self.random.randint(self.low, max(self.low, (self.low + self.high) // 2)))
        for number in range(members):
            await self.add_member(list(self.groups.values())[number % len(self.groups)])

    async def serve(self) -> None:
        """Proxy and daemon."""
        await self.proxy.accept()
        await self.start_daemon()

    async def heal_network(self) -> None:
        """Takes back whatever is wrong between clients and daemon."""
        await self.proxy.accept()
        self.proxy.delay_s = 0.0

    async def add_producer(self, promise: str) -> ChaosProcess:
        """One more producer; it has a name that no other had, so its values are its own."""
        name = f"p{len(self.producers)}"
        self.producers[name] = ChaosProcess(
            *(name, "tests.chaos.producer", self.directory, self.ledger),
            bootstrap=self.address,
            topics=",".join(TOPICS),
            promise=promise,
            rate=_RATE_OF_A_PRODUCER,
            seed=self.random.getrandbits(32),
        )
        await self.producers[name].start()
        return self.producers[name]

    async def add_member(self, group: ChaosGroup) -> ChaosProcess:
        """One more member, when it is the turn of somebody to change the group's membership."""
        async with group.turn:
            return await self.start_member(group)

    async def start_member(
        self, group: ChaosGroup, *, after: ChaosProcess | None = None, everything: bool = False
    ) -> ChaosProcess:
        """One more member; its assignors, topics, ways of working and of committing are drawn. The caller has the turn.

        ``after`` is whose instance id it takes; with ``everything`` it is like that one and reads all topics.
        """
        name = f"{group.letter}{next(self._names)}"
        draw = Random(f"{name} {self.random.getrandbits(32)}")
        taken = [member.options["instance"] for member in self.living(group.id)]
        assignors = ",".join(group.assignors(draw))
        topics = ",".join(draw.choice((["orders"], ["orders", "returns"])))
        if after is not None and everything:
            assignors, topics = str(after.options["assignors"]), ",".join(TOPICS)
        member = ChaosProcess(
            *(name, "tests.chaos.member", self.directory, self.ledger),
            bootstrap=self.address,
            group=group.id,
            instance=group.instance(taken) if after is None else after.options["instance"],
            topics=topics,
            assignors=assignors,
            work=draw.choice(list(WORK)),
            commits=draw.choice(COMMIT_MODES),
            seed=draw.getrandbits(32),
        )
        return await self.begin(member)

    async def begin(self, member: ChaosProcess) -> ChaosProcess:
        """Starts a member and keeps it."""
        self.members[member.name] = member
        await member.start()
        return member

    def group_of(self, member: ChaosProcess) -> ChaosGroup:
        """The group it was started for."""
        return self.groups[str(member.options["group"])]

    def living(self, group: str | None = None) -> list[ChaosProcess]:
        """Members that run, in the order they were started."""
        return [
            member for member in self.members.values() if member.alive and group in (None, member.options.get("group"))
        ]

    def picked(self, pick: float, *, running: bool = False, static: bool = False) -> ChaosProcess | None:
        """A living member, by a number from 0 to 1; with ``running`` none that is stopped, with ``static`` a static one."""
        candidates = [
            member
            for member in self.living()
            if not (running and member.stopped) and not (static and member.options["instance"] is None)
        ]
        return candidates[int(pick * len(candidates))] if candidates else None

    async def start_daemon(self) -> None:
        """Starts it (again) on the same directory and port."""
        async with asyncio.timeout(_START_TIMEOUT_S):
            await asyncio.to_thread(self.daemon.start)
        self.daemon_down = False

    @asynccontextmanager
    async def having_daemon(self) -> AsyncIterator[DaemonProcess]:
        """The daemon for one fault alone; it is down meanwhile as far as the watch over it is concerned."""
        async with self.daemon_turn:
            self.daemon_down = True
            try:
                yield self.daemon
            finally:
                self.daemon_down = False

    async def watch_daemon(self) -> None:
        """Notes when the daemon ends unasked, and starts it again."""
        while True:
            await asyncio.sleep(0.5)
            async with self.daemon_turn:
                if not self.daemon_down and not await asyncio.to_thread(_runs, self.daemon):
                    self.ledger.write(
                        "crash", name="daemon", text="ended unasked: " + "".join(self.daemon.output[-15:])
                    )
                    await asyncio.to_thread(self.daemon.wait)
                    await self.start_daemon()

    def limit_files(self, size: int) -> int:
        """No file of the daemon may grow beyond ``size`` bytes (-1: no limit); returns the process it holds for."""
        pid = self.daemon.pid
        with contextlib.suppress(ProcessLookupError):  # it has just ended; the watch will tell
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
        return pid

    async def stop(self) -> None:
        """Ends every process that is left, with a bound, and writes down how each of them ended."""
        processes = [*self.members.values(), *self.producers.values()]
        for process in processes:
            process.resume()
        await asyncio.gather(*(process.leave() for process in processes))
        for process in processes:
            process.record_end()
        await self.stop_serving()

    async def stop_serving(self) -> None:
        """Ends daemon and proxy, and writes down how the daemon ended."""
        async with self.daemon_turn:
            self.daemon_down = True
            try:
                status = await asyncio.to_thread(self.daemon.terminate)
            except subprocess.TimeoutExpired:
                self.ledger.write("crash", name="daemon", text="did not end within 30 s of SIGTERM")
                await asyncio.to_thread(self.daemon.kill)
            else:
                if status != 0:
                    self.ledger.write("crash", name="daemon", text=f"ended with status {status} after SIGTERM")
        if any("Traceback" in line for line in self.daemon.output):
            self.ledger.write(
                "crash", name="daemon", text="printed a traceback: " + "".join(self.daemon.output)[-3000:]
            )
        (self.directory / "daemon.stderr").write_text("".join(self.daemon.output))
        await self.proxy.close()


def _runs(daemon: DaemonProcess) -> bool:
    with open(f"/proc/{daemon.pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"
