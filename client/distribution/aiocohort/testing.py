"""For tests of programs that use Cohort: pytest fixtures that are a whole coordinator, or a cluster, fresh for each test.

pytest finds it by itself once Cohort is installed::

    async def test_bills_every_order(cohort_coordinator):           # with pytest-asyncio, anyio, or asyncio.run
        async with Producer(cohort_coordinator.address) as producer:
            ...

    def test_the_command(cohort_coordinator):                       # or without
        subprocess.run(["billing", "--bootstrap", cohort_coordinator.address], check=True)

The coordinator runs in a thread with an event loop of its own, so a test may block, and may bring any loop or none. It
starts in some tens of milliseconds, listens on a free port of 127.0.0.1, and keeps its data in a temporary directory.
Override the fixture ``cohort_settings`` to start it with other settings. Nothing here is loaded before a test asks for it.

``cohort_cluster`` is three of them, whose nodes a test can kill, stop and start::

    def test_survives_a_node(cohort_cluster):
        bill(cohort_cluster.address)
        cohort_cluster.kill(0)
        bill(cohort_cluster.address)

``kafka_bootstrap_servers`` is a Kafka for tests of programs that use a Kafka client, of whatever kind. It needs
``aiocohort[kafka]``, no JVM and no container::

    def test_bills_every_order(kafka_bootstrap_servers):
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka_bootstrap_servers})
        ...
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import pytest

if TYPE_CHECKING:
    from coordinator.cluster import Cluster
    from coordinator.embedded import Coordinator

_PATIENCE_S: Final = 30.0


class RunningCoordinator:
    """A coordinator in a thread. ``address`` is ``"host:port"``, for ``bootstrap_servers``; ``data_dir`` holds its logs."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.address: str = coordinator.address
        self.data_dir: str = coordinator.data_dir
        self._coordinator = coordinator

    @property
    def kafka_address(self) -> str:
        """``"host:port"`` for Kafka's clients. Raises ``RuntimeError`` without the setting ``kafka_port``."""
        return self._coordinator.kafka_address

    def __repr__(self) -> str:
        return f"<coordinator at {self.address}>"


class RunningCluster:
    """A cluster in a thread. ``address`` has all nodes, for ``bootstrap_servers``; nodes have numbers from 0 on."""

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self.address: str = cluster.address
        self._cluster = cluster
        self._loop = loop

    def kill(self, node: int) -> None:
        """Ends a node as SIGKILL does."""
        self._do(self._cluster.kill(node))

    def stop(self, node: int) -> None:
        """Stops a node in order; it hands over what it leads."""
        self._do(self._cluster.stop(node))

    def start(self, node: int) -> None:
        """Starts a node that was killed or stopped."""
        self._do(self._cluster.start(node))

    def __repr__(self) -> str:
        return f"<cluster at {self.address}>"

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)


RunningT = TypeVar("RunningT")


class _Background(ABC, Generic[RunningT]):
    """The thread, from its start to its end."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.running: RunningT | None = None
        self.failure: BaseException | None = None
        self._settings = settings
        self._settled = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="cohort-coordinator", daemon=True)

    def start(self) -> RunningT:
        """Returns when it serves. Raises what kept it from that."""
        self._thread.start()
        if not self._settled.wait(_PATIENCE_S):
            raise TimeoutError(f"the coordinator did not start within {_PATIENCE_S:.0f} s")
        if self.running is None:
            assert self.failure is not None
            raise self.failure
        return self.running

    def stop(self) -> None:
        """Returns when it has stopped. Raises what went wrong in it meanwhile."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the coordinator did not stop within {_PATIENCE_S:.0f} s")
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # raised in the thread of the test, by start or stop
            self.failure = error
        finally:
            self._settled.set()

    async def _work(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self.serve(self._loop, self._stop)

    def serves(self, running: RunningT) -> None:
        """The test may begin."""
        self.running = running
        self._settled.set()

    @abstractmethod
    async def serve(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        """Serves until ``stop``."""


class _OneCoordinator(_Background[RunningCoordinator]):
    async def serve(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        from aiocohort import Coordinator

        async with Coordinator(**self._settings) as coordinator:
            self.serves(RunningCoordinator(coordinator))
            await stop.wait()


class _OneCluster(_Background[RunningCluster]):
    async def serve(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        from aiocohort import Cluster

        async with Cluster(**self._settings) as cluster:
            self.serves(RunningCluster(cluster, loop))
            await stop.wait()


@pytest.fixture
def cohort_settings() -> dict[str, Any]:
    """What ``cohort_coordinator`` passes to ``Coordinator``: nothing. Override it in a ``conftest.py`` or a test module."""
    return {}


@pytest.fixture
def cohort_coordinator(cohort_settings: dict[str, Any]) -> Iterator[RunningCoordinator]:
    """A coordinator of this test's own: ``cohort_coordinator.address`` is what clients connect to."""
    background = _OneCoordinator(cohort_settings)
    running = background.start()
    try:
        yield running
    finally:
        background.stop()


@pytest.fixture
def cohort_cluster(cohort_settings: dict[str, Any]) -> Iterator[RunningCluster]:
    """A cluster of three nodes of this test's own: ``cohort_cluster.address`` is what clients connect to."""
    background = _OneCluster(cohort_settings)
    running = background.start()
    try:
        yield running
    finally:
        background.stop()


@pytest.fixture
def kafka_bootstrap_servers(cohort_settings: dict[str, Any]) -> Iterator[str]:
    """``"host:port"`` of a coordinator of this test's own, as bootstrap servers for Kafka's clients.

    Topics appear when they are asked for, and sessions may be as short as tests want; ``cohort_settings`` can say otherwise.
    """
    background = _OneCoordinator({"kafka_port": -1, "kafka_min_session_timeout_ms": 100, **cohort_settings})
    running = background.start()
    try:
        yield running.kafka_address
    finally:
        background.stop()
