"""Three daemons and their metadata store as processes of this machine, with a proxy wherever the network is to be cut.

There is a proxy for each way that can be cut: from clients to a node, from a node to each other node, from a node to the
metadata. A node that is dead refuses connections at its proxies too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from coordinator.metadata.authority import Authority
from coordinator.metadata.memory import MemoryStore
from coordinator.metadata.served.server import MetadataServer
from tests.chaos.proxy import Proxy
from tests.daemon_process import DaemonProcess
from tests.etcd import build
from tests.etcd.members import Members, free_ports

SESSION_MS: Final = 2_000
START_TIMEOUT_S: Final = 60.0
_UNSYNCED: Final = "--unsafe-no-fsync"
"""For etcd: what a process has written outlives its SIGKILL, and no test cuts the machine's power."""

Store = Literal["etcd", "etcd3", "served"]


class Metadata:
    """Where the cluster's metadata is: one etcd, three, or this process, which serves it from its memory."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.kind = store
        self.members = Members(directory, 3 if store == "etcd3" else 1, _UNSYNCED) if store != "served" else None
        self.addresses: list[tuple[str, int]] = []
        self._server: MetadataServer | None = None

    async def start(self) -> None:
        """Serves when it returns."""
        if self.members is not None:
            await asyncio.to_thread(self.members.start)
            self.addresses = self.members.addresses
            return
        store = MemoryStore(Authority(), "cluster", asyncio.get_running_loop().time)
        self._server = MetadataServer(store, lambda: "of this run")
        self.addresses = [await self._server.start("127.0.0.1", 0)]

    def url(self, ports: Sequence[int]) -> str:
        """For a node that reaches it at these ports."""
        scheme = "cohort" if self.members is None else "etcd"
        return f"{scheme}://{','.join(f'127.0.0.1:{port}' for port in ports)}/tests"

    async def stop(self) -> None:
        """Ends it."""
        if self.members is not None:
            await asyncio.to_thread(self.members.close)
        if self._server is not None:
            await self._server.close()


class Node(DaemonProcess):
    """One daemon. Clients reach it at ``client_proxy``, others and the metadata through proxies of its own.

    With ``kafka`` it has a port for Kafka's clients, which are told of ``kafka_proxy``.
    """

    def __init__(self, number: int, directory: Path, options: Sequence[str], *, kafka: bool = False) -> None:
        super().__init__(directory / f"node-{number}", *options)
        self.number = number
        self.port, self.peer_port, self.kafka_port = free_ports(3)
        self.client_proxy = Proxy(free_ports(1)[0], self.port)
        self.kafka_proxy = Proxy(free_ports(1)[0], self.kafka_port) if kafka else None
        self.to_nodes: dict[int, Proxy] = {}
        self.to_metadata: list[Proxy] = []
        self.metadata_url = ""
        self.running = False
        self.turn = asyncio.Lock()
        self.in_fault = False

    @property
    def public_address(self) -> str:
        """Where clients are told to connect."""
        return f"127.0.0.1:{self.client_proxy.port}"

    @property
    def for_clients(self) -> list[Proxy]:
        """Before each port for clients, Kafka's among them where there is one."""
        return [self.client_proxy] if self.kafka_proxy is None else [self.client_proxy, self.kafka_proxy]

    @property
    def _routes(self) -> dict[str, int]:
        return {f"127.0.0.1:{proxy.upstream_port}": proxy.port for proxy in self.to_nodes.values()}

    def command(self) -> Sequence[str]:
        """What is run."""
        return [
            *(sys.executable, "-m", "tests.cluster.node", json.dumps(self._routes)),
            *("--data-dir", str(self.data_dir), "--port", str(self.port), "--log-level", "info"),
            *("--node-id", str(self.number), "--metadata", self.metadata_url, "--peer-port", str(self.peer_port)),
            *("--node-session-ms", str(SESSION_MS)),
            *("--advertised-host", "127.0.0.1", "--advertised-port", str(self.client_proxy.port)),
            *self._for_kafka,
            *self.options,
        ]

    @property
    def _for_kafka(self) -> Sequence[str]:
        if self.kafka_proxy is None:
            return ()
        told = ("--kafka-advertised-host", "127.0.0.1", "--kafka-advertised-port", str(self.kafka_proxy.port))
        return ("--kafka-port", str(self.kafka_port), *told, "--kafka-min-session-timeout-ms", "3000")


class Nodes:
    """The cluster. ``start`` all, then hurt single nodes and ways between them."""

    def __init__(
        self, directory: Path, *options: str, count: int = 3, store: Store | None = None, kafka: bool = False
    ) -> None:
        self.metadata = Metadata(directory, store or available_store())
        replicas = str(min(3, count))
        given = ("--default-replication-factor", replicas, "--offsets-replication-factor", replicas, *options)
        self.nodes = [Node(number, directory, given, kafka=kafka) for number in range(count)]

    @property
    def address(self) -> str:
        """What clients are given."""
        return ",".join(node.public_address for node in self.nodes)

    @property
    def kafka_address(self) -> str:
        """What Kafka's clients are given."""
        return ",".join(f"127.0.0.1:{node.kafka_proxy.port}" for node in self.nodes if node.kafka_proxy is not None)

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    async def start(self) -> None:
        """Metadata, proxies, nodes."""
        await self.metadata.start()
        for node in self.nodes:
            node.to_metadata = [Proxy(free_ports(1)[0], port) for _, port in self.metadata.addresses]
            node.metadata_url = self.metadata.url([proxy.port for proxy in node.to_metadata])
            node.to_nodes = {
                other.number: Proxy(free_ports(1)[0], other.peer_port) for other in self.nodes if other is not node
            }
            for proxy in node.to_metadata:
                await proxy.accept()
        await asyncio.gather(*(self.start_node(node) for node in self.nodes))

    async def start_node(self, node: Node) -> None:
        """Starts one (again)."""
        for proxy in self._peers_towards(node):
            await proxy.accept()  # a node listens before it registers: no other one is refused between
        async with asyncio.timeout(START_TIMEOUT_S):
            await asyncio.to_thread(node.start)
        node.running = True
        for proxy in node.for_clients:
            await proxy.accept()

    async def kill(self, node: Node) -> None:
        """SIGKILL; connections to it are refused from then on."""
        node.running = False
        await asyncio.to_thread(node.kill)
        await self._refuse(node)

    async def terminate(self, node: Node) -> int:
        """SIGTERM; returns the exit status."""
        node.running = False
        status = await asyncio.to_thread(node.terminate)
        await self._refuse(node)
        return status

    def pause(self, node: Node) -> None:
        """SIGSTOP."""
        node.send(signal.SIGSTOP)

    def resume(self, node: Node) -> None:
        """SIGCONT."""
        with contextlib.suppress(ProcessLookupError):
            node.send(signal.SIGCONT)

    # The network

    def cut_from_metadata(self, node: Node) -> None:
        """Silently: what it sends and what it is sent waits."""
        for proxy in node.to_metadata:
            proxy.stall("up", "down")

    def cut_from_nodes(self, node: Node) -> None:
        """Silently, both ways, whoever connected."""
        for other in self.nodes:
            if other is not node:
                self.cut(node, other)
                self.cut(other, node)

    def cut(self, source: Node, target: Node) -> None:
        """What ``source`` sends does not reach ``target``, over connections of either."""
        source.to_nodes[target.number].stall("up")
        target.to_nodes[source.number].stall("down")

    def cut_from_clients(self, node: Node) -> None:
        """Silently."""
        for proxy in node.for_clients:
            proxy.stall("up", "down")

    async def heal(self) -> None:
        """Takes back every cut; what waited arrives now, late."""
        for node in self.nodes:
            for proxy in (*node.to_metadata, *node.for_clients, *node.to_nodes.values()):
                proxy.delay_s = 0.0
                proxy.release()

    def drop_waiting(self, node: Node) -> None:
        """What waits at the cuts around a node never arrives: its connections end."""
        for proxy in (*self._towards(node), *node.to_nodes.values(), *node.to_metadata):
            proxy.reset(1.0)

    def _towards(self, node: Node) -> list[Proxy]:
        return [*node.for_clients, *self._peers_towards(node)]

    def _peers_towards(self, node: Node) -> list[Proxy]:
        return [other.to_nodes[node.number] for other in self.nodes if other is not node]

    async def _refuse(self, node: Node) -> None:
        for proxy in self._towards(node):
            await proxy.refuse()

    async def stop(self) -> list[str]:
        """Ends everything; returns what was wrong with how the nodes ended."""
        wrong = await asyncio.gather(*(self._stop_node(node) for node in self.nodes))
        for node in self.nodes:
            for proxy in (*node.to_metadata, *node.for_clients, *node.to_nodes.values()):
                await proxy.close()
        await self.metadata.stop()
        return [text for text in wrong if text]

    async def _stop_node(self, node: Node) -> str:
        if not node.running:
            return ""
        node.running = False
        self.resume(node)
        try:
            async with asyncio.timeout(40):
                status = await asyncio.to_thread(node.terminate)
        except Exception as error:
            await asyncio.to_thread(node.kill)
            return f"node {node.number} did not end: {error!r}"
        if status != 0:
            return f"node {node.number} ended with {status}: {''.join(node.output[-10:])}"
        text = "".join(node.output)
        return f"node {node.number} printed a traceback: {text[-3000:]}" if "Traceback" in text else ""


@contextlib.asynccontextmanager
async def running(
    directory: Path, *options: str, store: Store | None = None, kafka: bool = False
) -> AsyncIterator[Nodes]:
    """Three nodes for one test; they ended well, or the test fails."""
    nodes = Nodes(directory, *options, store=store, kafka=kafka)
    try:
        await nodes.start()
        yield nodes
        await nodes.heal()
    finally:
        wrong = await nodes.stop()
        for node in nodes.nodes:
            (directory / f"node-{node.number}.stderr").write_text("".join(node.output))
    assert not wrong, wrong


def available_store() -> Store:
    """etcd where there is one that may be used."""
    try:
        build.find()
    except build.EtcdMissingError:
        return "served"
    return "etcd"


async def lasting(coroutine: Coroutine[Any, Any, None], undo: Callable[[], None], seconds: float) -> None:
    """Does something, and undoes it after a time, whatever happens."""
    try:
        await coroutine
        await asyncio.sleep(seconds)
    finally:
        undo()
