"""The simulated world: hosts that run programs, the daemon among them, and how they end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from client.transport.background_loop import SameLoop
from coordinator.config import Settings
from coordinator.daemon import Daemon, Origins
from coordinator.metadata.encoding import MetadataDamagedError
from tests.simulation.disk import HostEnded, SimDisk, SimStorage
from tests.simulation.history import CallFact, History
from tests.simulation.loop import PROCESS, SimLoop
from tests.simulation.network import NetProcess, Network
from tests.simulation.plan import Plan

DAEMON: Final = "daemon"
BOOTSTRAP: Final = "daemon:7337"
WALL_MS: Final = 1_700_000_000_000

Program = Callable[["World", "HostProcess"], Coroutine[Any, Any, None]]


class HostProcess(NetProcess):
    """One incarnation of a host's program. ``random`` is its own stream."""

    def __init__(self, world: World, host: str, number: int) -> None:
        super().__init__(f"{host}.{number}", host)
        self.world = world
        self.number = number
        self.daemon: Daemon | None = None
        self.random = world.stream(f"program/{host}/{number}")


@dataclass(slots=True, eq=False)
class Host:
    """A machine with one program."""

    name: str
    program: Program
    process: HostProcess
    started: int = 1
    ended: bool = False
    """The program came to its own end and is not started again."""


class World:
    """One history's hosts, network and disk."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimLoop(self.stream("order"), fifo=plan.fifo, max_steps=plan.max_steps)  # type: ignore[abstract]
        self.network = Network(
            self.loop, self.stream("network"), latency_s=plan.latency_ms / 1000, split=plan.split_chance
        )
        self.disk = SimDisk(self.stream("disk"))
        self.disk.on_end = lambda: None
        self.loop.net = self.network
        self.loop.disk_calls = _DiskCalls(self)
        self.history = History(self.loop.time)
        self.hosts: dict[str, Host] = {}
        self.processes: list[HostProcess] = []
        self.daemon: Daemon | None = None
        self.has_served = False
        """Whether a daemon has been up with this data directory."""
        self.members: list[Any] = []
        """Clients that may own something: see ``ownership``."""
        self.calm = asyncio.Event()
        """No more faults, and producers come to their end."""
        self.finished = asyncio.Event()
        """Everything has been seen; programs stop."""
        self.facts: dict[object, CallFact] = {}
        self.asked: dict[object, dict[tuple[str, int], tuple[int, int, int]]] = {}
        """What fetches ask for: the offset, and the log's start and high watermark when they came."""
        self.fault_random = self.stream("faults")
        self.clock_skew_ms = 0
        self.told_to_stop: dict[str, None] = {}
        """Hosts whose program is to come to its end."""
        self.instances: dict[str, list[str]] = {}
        """Hosts with the same instance id."""
        self._ids = 0
        self._serials: dict[int, tuple[int, object]] = {}

    def stream(self, name: str) -> Random:
        """A random stream of its own: more draws from one do not change another."""
        return Random(f"{self.plan.seed}/{name}")

    def new_id(self) -> str:
        """A fresh id that people can read."""
        self._ids += 1
        return f"id{self._ids}"

    def wall_ms(self) -> int:
        """The wall clock of every host, which may be set."""
        return WALL_MS + int(self.loop.time() * 1000) + self.clock_skew_ms

    def serial_of(self, thing: object) -> int:
        """A number for an object, the same for as long as the history lasts."""
        known = self._serials.get(id(thing))
        if known is None:
            known = self._serials[id(thing)] = (len(self._serials), thing)
        return known[0]

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Calls ``action`` as the world, whoever asks."""
        self.loop.call_later(delay_s, action, context=Context())

    # Hosts

    def add_host(self, name: str, program: Program) -> Host:
        """A machine that runs ``program`` from now on."""
        host = Host(name, program, HostProcess(self, name, 1))
        self.hosts[name] = host
        self._run(host)
        return host

    def start(self, name: str) -> None:
        """Starts a host's program again, if it does not run."""
        host = self.hosts[name]
        self.network.host_up(name)
        if host.process.dead and not host.ended:
            host.started += 1
            host.process = HostProcess(self, name, host.started)
            self.history.say(name, "starts again")
            self._run(host)

    def power_cut(self, name: str) -> None:
        """The machine loses power: nothing of it runs any more, peers hear nothing, unsynced bytes are gone."""
        if not self.hosts[name].process.dead:
            self.history.say(name, "loses its power")
            self._end(name, silent=True)
        self.network.host_down(name)
        if name == DAEMON:
            self.disk.power_cut()

    def kill(self, name: str) -> None:
        """SIGKILL: the process is gone, its written bytes stay, the kernel closes its sockets."""
        if not self.hosts[name].process.dead:
            self.history.say(name, "is killed")
            self._end(name, silent=False)
            if name == DAEMON:
                self.disk.process_ended()

    def clients(self) -> list[str]:
        """Names of the hosts that are no daemon and still at work, in order of their making."""
        return [host.name for host in self.hosts.values() if host.name != DAEMON and not host.ended]

    def has_successor(self, name: str, instance: str | None) -> bool:
        """Whether a host that is still at work has the instance id of this one."""
        others = self.instances.get(instance, []) if instance is not None else []
        return any(other != name and not self.hosts[other].ended and other not in self.told_to_stop for other in others)

    def alive(self, name: str) -> bool:
        """Whether the host's program runs."""
        return not self.hosts[name].process.dead

    def _run(self, host: Host) -> None:
        process = host.process
        self.processes.append(process)
        task = self.loop.spawn(process, host.program(self, process))

        def ended(done: asyncio.Task[None]) -> None:
            if process.dead:
                return
            host.ended = True
            process.dead = True
            self.network.process_ended(process, silent=False)
            if done.cancelled():
                self.history.unexpected.append(f"the program of {process.name} was cancelled")
            elif (error := done.exception()) is not None:
                self.history.unexpected.append(f"the program of {process.name} ended with {error!r}")

        task.add_done_callback(ended)

    def _end(self, name: str, *, silent: bool) -> None:
        process = self.hosts[name].process
        process.dead = True
        self.network.process_ended(process, silent=silent)
        if name == DAEMON:
            self.daemon = None


def here() -> tuple[World, HostProcess] | None:
    """The world and the process of the running callback."""
    process = PROCESS.get()
    return (process.world, process) if isinstance(process, HostProcess) else None


class _DiskCalls:
    """The daemon's disk for the calls of the daemon, no time at all for those of others."""

    def __init__(self, world: World) -> None:
        self._world = world

    def latency_s(self) -> tuple[float, float]:
        """See ``loop.DiskCalls``."""
        process = PROCESS.get()
        if isinstance(process, HostProcess) and process.host == DAEMON:
            return self._world.disk.latency_s()
        return 0.0, 0.0

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any, BaseException | None]:
        """See ``loop.DiskCalls``."""
        try:
            return True, function(*args), None
        except HostEnded:
            return False, None, None
        except Exception as error:
            return True, None, error


def settings(plan: Plan) -> Settings:
    """The daemon of a history: everything small, so that segments roll and logs are compacted."""
    return Settings(
        host=DAEMON,
        port=7337,
        segment_bytes=plan.segment_bytes,
        offsets_segment_bytes=plan.segment_bytes,
        transactions_segment_bytes=plan.segment_bytes,
        compaction_interval_ms=plan.compaction_ms,
        checkpoint_interval_ms=plan.checkpoint_ms,
        group_max_size=plan.group_max_size,
        initial_rebalance_delay_ms=plan.initial_delay_ms,
        offsets_retention_ms=plan.retention_ms,
        offsets_retention_check_interval_ms=plan.expiry_ms,
        max_in_flight=plan.max_in_flight,
        retention_ms=-1,
        retention_check_interval_ms=700,
        producer_id_expiration_ms=2**53,  # a wall clock that leaps must not make the daemon forget
        drain_timeout_ms=2_000,
    ).check()


async def daemon_program(world: World, process: HostProcess) -> None:
    """Runs the real daemon for as long as it can, as ``python -m coordinator`` does, and again after each end."""
    boot_id = f"boot{world.disk.power_cuts}"
    origins = Origins(world.wall_ms, world.new_id, lambda: boot_id, lambda: int(world.loop.time() * 1000))
    daemon = Daemon(settings(world.plan), SimStorage(world.disk, process), origins)
    process.daemon = daemon
    try:
        await daemon.start()
    except MetadataDamagedError as error:
        world.history.unexpected.append(f"the metadata is damaged: {error}")
        raise
    except OSError as error:
        world.history.say(DAEMON, f"cannot start: {error}")
        if error.errno == errno.ENOSPC and world.has_served:
            world.history.not_started.append(f"at {world.loop.time():.3f} s the daemon did not start: {error}")
        _exit(world)
        return
    world.daemon = daemon
    _look_at_cleanliness(world, daemon)
    world.has_served = True
    world.history.say(DAEMON, "serves")
    reason = await daemon.failed
    world.history.say(DAEMON, f"ends itself: {reason}")
    _exit(world)


def _look_at_cleanliness(world: World, daemon: Daemon) -> None:
    """A start has all that was acknowledged, as that is synced, unless the disk failed, is damaged or refused to note it."""
    assert daemon.cleanliness is not None
    harmed = world.disk.errors or world.disk.refused or world.history.damaged
    if daemon.cleanliness.reason and world.has_served and not harmed:
        world.history.unclean.append(f"at {world.loop.time():.3f} s a start says: {daemon.cleanliness.reason}")


def _exit(world: World) -> None:
    """``os._exit``: nothing is drained; the supervisor starts it again."""
    world.kill(DAEMON)
    delay_s = 0.1 + world.stream("supervisor").random()
    world.later(delay_s, lambda: world.start(DAEMON))


async def stop_daemon(world: World, process: HostProcess, daemon: Daemon) -> None:
    """SIGTERM."""
    world.history.say(DAEMON, "is told to stop")
    await daemon.stop()
    world.history.say(DAEMON, "stopped")
    world.kill(process.host)


def client_options(process: HostProcess, *, random_bits: int = 64) -> dict[str, Any]:
    """What every group client is given instead of threads and the machine's randomness."""
    return {
        "bootstrap_servers": BOOTSTRAP,
        "client_id": process.host,
        "background": SameLoop(),
        "random": Random(process.random.getrandbits(random_bits)),
    }
