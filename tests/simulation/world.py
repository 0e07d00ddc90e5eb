"""The simulated world: hosts that run programs, the daemons among them, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from client.transport.background_loop import SameLoop
from coordinator.daemon import Daemon
from tests.simulation.disk import HostEnded, SimDisk
from tests.simulation.etcd_members import EtcdMembers
from tests.simulation.history import CallFact, History
from tests.simulation.loop import PROCESS, SimLoop
from tests.simulation.network import NetProcess, Network
from tests.simulation.plan import Plan, has_kafka

DAEMON: Final = "daemon"
"""The host of a node that is alone; several are called node1, node2 and so on."""
PORT: Final = 7337
KAFKA_PORT: Final = 9092
"""Where nodes listen for Kafka's clients, in histories that have such."""
WALL_MS: Final = 1_700_000_000_000

Program = Callable[["World", "HostProcess"], Coroutine[Any, Any, None]]


class HostProcess(NetProcess):
    """One incarnation of a host's program. ``random`` is its own stream."""

    def __init__(self, world: World, host: str, number: int) -> None:
        super().__init__(f"{host}.{number}", host)
        self.world = world
        self.number = number
        self.node = world.node(host)
        self.life = number if self.node is None else number * len(world.nodes) + self.node.index
        """A number that no process of another node has."""
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


@dataclass(slots=True, eq=False)
class Node:
    """A machine with a daemon. Its disk and its clocks outlive its processes."""

    name: str
    index: int
    disk: SimDisk
    daemon: Daemon | None = None
    """The daemon while it serves."""
    has_served: bool = False
    """Whether a daemon has been up with this data directory."""
    is_unnoted: bool = False
    """Whether a process has ended, since a daemon was last up, of which the disk refused the note to the end."""
    skew_ms: int = 0
    """What its wall clock is off, more than those of all hosts."""
    booted_s: float = 0.0

    def boot_id(self) -> str:
        """Another one after each power cut."""
        return f"boot{self.disk.power_cuts}" if self.name == DAEMON else f"{self.name}-boot{self.disk.power_cuts}"


class World:
    """One history's hosts, network and disks."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimLoop(self.stream("order"), fifo=plan.fifo, max_steps=plan.max_steps)  # type: ignore[abstract]
        self.network = Network(
            self.loop, self.stream("network"), latency_s=plan.latency_ms / 1000, split=plan.split_chance
        )
        names = [DAEMON] if plan.nodes == 1 else [f"node{number + 1}" for number in range(plan.nodes)]
        self.nodes = [
            Node(name, index, SimDisk(self.stream("disk" if name == DAEMON else f"disk/{name}")))
            for index, name in enumerate(names)
        ]
        self.bootstrap = ",".join(f"{name}:{PORT}" for name in names)
        self.loop.net = self.network
        self.loop.disk_calls = _DiskCalls()
        self.history = History(self.loop.time, nodes=plan.nodes)
        self.etcd = EtcdMembers(self.network, self.stream("etcd"), self.history.cluster.note_transaction)
        """Where several nodes have their metadata."""
        self.hosts: dict[str, Host] = {}
        self.processes: list[HostProcess] = []
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
        """A fresh id that people can read; in histories with Kafka's clients it is a uuid, for these name topics by it."""
        self._ids += 1
        return f"{self._ids:032x}" if has_kafka(self.plan) else f"id{self._ids}"

    def wall_ms(self, node: Node | None = None) -> int:
        """The wall clock of a host, which may be set."""
        skew_ms = self.clock_skew_ms if node is None else self.clock_skew_ms + node.skew_ms
        return WALL_MS + int(self.loop.time() * 1000) + skew_ms

    def boot_ms(self, node: Node) -> int:
        """Since the machine started, its suspensions too."""
        return int((self.loop.time() - node.booted_s) * 1000)

    def node(self, name: str) -> Node | None:
        """The node whose host has this name."""
        return next((node for node in self.nodes if node.name == name), None)

    def serving(self) -> list[Node]:
        """Nodes whose daemon is up."""
        return [node for node in self.nodes if node.daemon is not None]

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
        node = self.node(name)
        if node is not None:
            node.disk.power_cut()
            node.booted_s = self.loop.time()

    def kill(self, name: str) -> None:
        """SIGKILL: the process is gone, its written bytes stay, the kernel closes its sockets."""
        if not self.hosts[name].process.dead:
            self.history.say(name, "is killed")
            self._end(name, silent=False)
            node = self.node(name)
            if node is not None:
                node.disk.process_ended()

    def clients(self) -> list[str]:
        """Names of the hosts without a daemon that are still at work, in order of their making."""
        return [host.name for host in self.hosts.values() if not host.ended and self.node(host.name) is None]

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
        node = self.node(name)
        if node is not None:
            node.daemon = None


def here() -> tuple[World, HostProcess] | None:
    """The world and the process of the running callback."""
    process = PROCESS.get()
    return (process.world, process) if isinstance(process, HostProcess) else None


class _DiskCalls:
    """A node's disk for the calls of its daemon, no time at all for those of others."""

    def latency_s(self) -> tuple[float, float]:
        """See ``loop.DiskCalls``."""
        process = PROCESS.get()
        if isinstance(process, HostProcess) and process.node is not None:
            return process.node.disk.latency_s()
        return 0.0, 0.0

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any, BaseException | None]:
        """See ``loop.DiskCalls``."""
        try:
            return True, function(*args), None
        except HostEnded:
            return False, None, None
        except Exception as error:
            return True, None, error


def client_options(process: HostProcess, *, random_bits: int = 64) -> dict[str, Any]:
    """What every group client is given instead of threads and the machine's randomness."""
    return {
        "bootstrap_servers": process.world.bootstrap,
        "client_id": process.host,
        "background": SameLoop(),
        "random": Random(process.random.getrandbits(random_bits)),
    }
