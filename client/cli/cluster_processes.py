"""A cluster of one's own as child processes, for the demonstration and the benchmarks.

Its metadata is in an etcd, where one is installed; else the first node serves its own to the others.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, Self

from client.cli.failure import CommandError
from client.cli.processes import ServerProcess

_ETCD_START_S: Final = 30.0
_ANSWER_S: Final = 1.0


class ClusterProcess:
    """Daemons with numbers from 0 on; each keeps its directory and its address when it is started again.

    Use as an async context manager. ``metadata`` says for people where the metadata is, and ``serving`` which node has it,
    -1 for none: the others can be killed.
    """

    def __init__(self, directory: Path, nodes: int, *options: str) -> None:
        self.metadata = ""
        self.serving = -1
        self._directory = directory
        self._options = options
        self._urls: list[Sequence[str]] = []
        self._ports = [0] * nodes
        self._nodes: dict[int, ServerProcess] = {}
        self._count = nodes
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """All addresses, with commas between them."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def running(self) -> list[int]:
        """The nodes that run."""
        return sorted(self._nodes)

    def __getitem__(self, node: int) -> ServerProcess:
        return self._nodes[node]

    async def start(self, node: int) -> None:
        """Starts one that does not run. Raises ``CommandError``."""
        arguments = (
            *(
                "-m",
                "coordinator",
                "--port",
                str(self._ports[node]),
                "--data-dir",
                str(self._directory / f"node-{node}"),
            ),
            *("--node-id", str(node), *self._urls[node], *self._options),
        )
        process = ServerProcess(f"node {node}", *arguments)
        await process.start()
        self._nodes[node] = process
        self._ports[node] = int(process.address.rpartition(":")[2])

    async def kill(self, node: int) -> None:
        """SIGKILL; returns when the process is gone."""
        process = self._nodes.pop(node)
        await process.kill()
        await process.__aexit__()

    async def stop(self, node: int) -> None:
        """SIGTERM, and waits."""
        await self._nodes.pop(node).__aexit__()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(_etcd(self._directory))
            if url:
                self.metadata = f"etcd at {url.partition('//')[2].partition('/')[0]}"
                self._urls = [("--metadata", url)] * self._count
            else:
                port = free_port()
                self.metadata, self.serving = "node 0, which serves it to the others: no etcd is installed", 0
                others = ("--metadata", f"cohort://127.0.0.1:{port}/cluster")
                self._urls = [("--serve-metadata", f"127.0.0.1:{port}"), *[others] * (self._count - 1)]
            stack.push_async_callback(self._end)
            await self.start(0)
            await asyncio.gather(*(self.start(node) for node in range(1, self._count)))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _end(self) -> None:
        """The one that has the metadata last, as the others still write there."""
        await asyncio.gather(*(self.stop(node) for node in self.running if node != self.serving))
        for node in self.running:
            await self.stop(node)


@asynccontextmanager
async def _etcd(directory: Path) -> AsyncIterator[str]:
    """An etcd of one member, and its URL; empty where none can be had."""
    program = os.environ.get("COHORT_ETCD") or shutil.which("etcd")
    if not program or importlib.util.find_spec("grpc") is None:
        yield ""
        return
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    process = await asyncio.create_subprocess_exec(
        *(program, "--name", "only", "--data-dir", str(directory / "etcd"), "--log-level", "error"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"only={peer}"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_ETCD_START_S):
            while not await asyncio.to_thread(_is_healthy, client):
                if process.returncode is not None:
                    raise CommandError(f"etcd ({program}) ended with status {process.returncode} before it served")
                await asyncio.sleep(0.1)
        yield f"etcd://{client.removeprefix('http://')}/cluster"
    except TimeoutError:
        raise CommandError(f"etcd ({program}) did not serve within {_ETCD_START_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=_ANSWER_S) as answer:
            return b'"true"' in answer.read()
    except OSError:
        return False


def free_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
