"""Several daemons on one event loop, for tests and notebooks: a cluster whose nodes can be killed."""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from coordinator.config import Settings, settings_from
from coordinator.daemon import Daemon, DaemonFailedError
from coordinator.embedded import SYSTEM_ORIGINS
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.storage import File, WriteInDoubtError
from coordinator.log_output import set_level
from coordinator.metadata.memory import SharedMemory, SharedMemoryStore
from coordinator.metadata.store import MetadataStore

_IN_MEMORY: Final = "cohort://in-this-process:0/memory"
_KILLED: Final = "the node was killed"
_DEFAULTS: Final = {"node_session_ms": 2_000, "drain_timeout_ms": 1_000}


class Cluster:
    """Whole daemons on the running event loop, with a metadata store in the process's memory::

        async with Cluster(nodes=3) as cluster:
            ...  # connect clients to cluster.address
            await cluster.kill(1)  # what it led is led by others some seconds later
            await cluster.start(1)

    ``settings`` are those of ``coordinator.config.Settings``, for all nodes. Topics have as many replicas as there are
    nodes, three at most, unless ``default_replication_factor`` says otherwise, and the session of a node is two seconds.
    Data lies in temporary directories, which are removed at exit. Raises ``ConfigurationError`` for unknown or absurd
    settings, and at exit ``DaemonFailedError`` if a daemon had to end that was not killed.
    """

    def __init__(self, nodes: int = 3, **settings: Any) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster of {nodes} nodes")
        replicas = min(3, nodes)
        self._sets_level = "log_level" in settings
        given = {
            **_DEFAULTS,
            "default_replication_factor": replicas,
            "offsets_replication_factor": replicas,
            "host": "127.0.0.1",
            **settings,
        }
        self._settings = [
            settings_from(
                {**given, "port": 0, "node_id": number, "data_dir": "(temporary)", "metadata": "cohort://in:1/memory"}
            )
            for number in range(nodes)
        ]
        self._nodes: list[_Node] = []
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """All addresses, with commas between them: what clients are given."""
        return ",".join(self.addresses)

    @property
    def addresses(self) -> Sequence[str]:
        """``"host:port"`` of each node, which it keeps while it is killed or stopped. Raises ``RuntimeError`` outside
        ``async with``."""
        if not self._nodes:
            raise RuntimeError("the cluster is not running: use it inside 'async with'")
        return [node.address for node in self._nodes]

    @property
    def kafka_address(self) -> str:
        """As ``address``, for Kafka's clients: where the setting ``kafka_port`` gives them ports, -1 free ones."""
        if not self._nodes:
            raise RuntimeError("the cluster is not running: use it inside 'async with'")
        return ",".join(node.kafka_address for node in self._nodes)

    @property
    def http_addresses(self) -> Sequence[str]:
        """``"host:port"`` of metrics, health and page of each node that runs, with the setting ``http="127.0.0.1:0"``.
        Raises ``RuntimeError`` outside ``async with``, and without that setting."""
        if not self._nodes:
            raise RuntimeError("the cluster is not running: use it inside 'async with'")
        if not self._settings[0].http:
            raise RuntimeError("the cluster serves no pages: give it http='127.0.0.1:0'")
        return [node.http_address for node in self._nodes if node.is_running]

    def is_running(self, node: int) -> bool:
        """Whether a node is neither killed nor stopped."""
        return self._nodes[node].is_running

    async def kill(self, node: int) -> None:
        """Ends a node as SIGKILL does: no answer leaves it any more, nothing is written, flushed or given back.

        Others notice when its session is over.
        """
        await self._nodes[node].kill()

    async def stop(self, node: int) -> None:
        """Stops a node in order, as SIGTERM does: it hands over what it leads first."""
        await self._nodes[node].stop()

    async def start(self, node: int) -> None:
        """Starts a node that was killed or stopped, with its directory and its address."""
        await self._nodes[node].start()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._sets_level:
                stack.callback(set_level, set_level(self._settings[0].log_level))
            directory = Path(tempfile.mkdtemp(prefix="cohort-"))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            shared = await stack.enter_async_context(SharedMemory(SYSTEM_ORIGINS.new_id()))
            self._nodes = [
                _Node(settings, directory / f"node-{settings.node_id}", shared) for settings in self._settings
            ]
            stack.push_async_callback(self._end)
            await asyncio.gather(*(node.start() for node in self._nodes))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        nodes = self._nodes
        await self._stack.aclose()
        failed = [reason for node in nodes if (reason := node.failure)]
        if failed and error is None:
            raise DaemonFailedError("; ".join(failed))

    async def _end(self) -> None:
        nodes, self._nodes = self._nodes, []
        # All at once, and without handing anything over: nobody is left who could take it.
        results = await asyncio.gather(*(node.end() for node in nodes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


class _Node:
    """One daemon after the other on one directory."""

    def __init__(self, settings: Settings, directory: Path, shared: SharedMemory) -> None:
        self.failure = ""
        self._settings = settings
        self._directory = directory
        self._shared = shared
        self._daemon: Daemon | None = None
        self._storage: _Severable | None = None
        self._store: SharedMemoryStore | None = None
        self._turn = asyncio.Lock()

    @property
    def is_running(self) -> bool:
        return self._daemon is not None

    @property
    def address(self) -> str:
        return f"{self._settings.host}:{self._settings.port}"

    @property
    def kafka_address(self) -> str:
        return f"{self._settings.kafka_host or self._settings.host}:{self._settings.kafka_port}"

    @property
    def http_address(self) -> str:
        assert self._daemon is not None, "a node that runs is asked"
        assert self._daemon.http_address is not None, "with the setting there is a port"
        host, port = self._daemon.http_address
        return f"{host}:{port}"

    async def start(self) -> None:
        async with self._turn:
            if self._daemon is not None:
                return
            self._storage = _Severable(self._directory)
            daemon = Daemon(self._settings, self._storage, SYSTEM_ORIGINS, open_metadata=self._open_store)
            await daemon.start()
            self._daemon = daemon
            self._settings = replace(self._settings, port=daemon.address[1])
            if daemon.kafka_address is not None:
                self._settings = replace(self._settings, kafka_port=daemon.kafka_address[1])

    async def kill(self) -> None:
        async with self._turn:
            daemon, self._daemon = self._daemon, None
            if daemon is None:
                return
            self._note_failure(daemon)
            if self._storage is not None and self._store is not None:
                self._storage.sever()
                self._store.cut_off()
            daemon.fail(_KILLED)
            await daemon.stop()

    async def stop(self) -> None:
        async with self._turn:
            daemon, self._daemon = self._daemon, None
            if daemon is not None:
                self._note_failure(daemon)
                await daemon.stop()

    async def end(self) -> None:
        """Stops it in order, without handing over."""
        if self._daemon is not None:
            self._daemon.settings = replace(self._daemon.settings, controlled_shutdown_ms=0)
        await self.stop()

    async def _open_store(self, new_cluster_id: Callable[[], str], on_fatal: Callable[[str], None]) -> MetadataStore:
        self._store = self._shared.open()
        return self._store

    def _note_failure(self, daemon: Daemon) -> None:
        if daemon.failed.done():
            self.failure = f"node {self._settings.node_id}: {daemon.failed.result()}"


class _Severable(FileStorage):
    """Real files, until the node is killed: nothing is written from then on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._severed = False

    def sever(self) -> None:
        """Has every further change fail."""
        self._severed = True

    def check(self) -> None:
        """Raises ``WriteInDoubtError`` once it is severed."""
        if self._severed:
            raise WriteInDoubtError(errno.EIO, _KILLED)

    def open(self, path: str, create: bool = False) -> File:
        """See ``Storage``."""
        if create:
            self.check()
        return _SeverableFile(super().open(path, create), self)

    def make_directory(self, path: str) -> None:
        """See ``Storage``."""
        self.check()
        super().make_directory(path)

    def remove(self, path: str) -> None:
        """See ``Storage``."""
        self.check()
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        """See ``Storage``."""
        self.check()
        super().remove_tree(path)

    def rename(self, source: str, target: str) -> None:
        """See ``Storage``."""
        self.check()
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        """See ``Storage``."""
        self.check()
        super().sync_directory(path)

    def write_file(self, path: str, data: bytes) -> None:
        """See ``Storage``."""
        self.check()
        super().write_file(path, data)


class _SeverableFile:
    """An open file of one."""

    def __init__(self, file: File, storage: _Severable) -> None:
        self._file = file
        self._storage = storage
        self.read = file.read
        self.size = file.size
        self.close = file.close

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        self._storage.check()
        self._file.append(pieces)

    def sync(self) -> None:
        self._storage.check()
        self._file.sync()

    def truncate(self, size: int) -> None:
        self._storage.check()
        self._file.truncate(size)
