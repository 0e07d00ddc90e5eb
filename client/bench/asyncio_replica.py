"""The floor of replication for daemons on event loops: the hops of one record, and nothing else in them.

As ``bare_replica``, but each process has an asyncio loop, and a thread that writes and syncs, as a daemon does. A record
goes from the client's loop to the leader's, to its thread, which says when it is written, from there to the followers'
loops and threads, and all the way back. What a daemon takes beyond this is its own work and not the price of its hops.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from client.bench.bare_replica import ACK, LENGTH
from client.bench.disk import make_durable
from client.running import loop_factory


class _Acknowledging(asyncio.Protocol):
    """A connection to a follower: ``receive`` is called with the acknowledgements that have come."""

    def __init__(self, replica: _Replica) -> None:
        self._replica = replica

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        for _ in range(len(data)):
            self._replica.stored()


class _Replica(asyncio.Protocol):
    """Stores the frames of one connection, one after the other, and acknowledges each when all copies are on disk."""

    def __init__(self, directory: Path) -> None:
        self.followers: list[asyncio.Transport] = []
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1)
        self._file = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop; the sender waits for each acknowledgement, so that one frame is under way."""
        self._received += data
        if len(self._received) < LENGTH.size or len(self._received) < LENGTH.size + self._length():
            return
        frame = bytes(self._received)
        self._received.clear()
        self._missing = 1 + len(self.followers)
        stored = self._loop.run_in_executor(self._thread, self._store, frame)
        stored.add_done_callback(lambda done: self.stored(done.result()))

    def stored(self, _: None = None) -> None:
        """A copy more is on disk."""
        self._missing -= 1
        if self._missing == 0 and self._transport is not None:
            self._transport.write(ACK)

    def _length(self) -> int:
        length: int = LENGTH.unpack_from(self._received)[0]
        return length

    def _store(self, frame: bytes) -> None:
        """In the thread."""
        os.write(self._file, memoryview(frame)[LENGTH.size :])
        if self.followers:
            self._loop.call_soon_threadsafe(self._hand_on, frame)
        make_durable(self._file)

    def _hand_on(self, frame: bytes) -> None:
        for follower in self.followers:
            follower.write(frame)


async def serve(directory: Path, ports: list[str]) -> int:
    """Serves until SIGTERM."""
    loop = asyncio.get_running_loop()
    replica = _Replica(directory)
    for port in ports:
        transport, _ = await loop.create_connection(lambda: _Acknowledging(replica), "127.0.0.1", int(port))
        replica.followers.append(transport)
    server = await loop.create_server(lambda: replica, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"listening on {host}:{port}", file=sys.stderr, flush=True)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    server.close()
    return 0


def main(role: str, directory: str, *ports: str) -> int:
    """A leader or a follower."""
    path = Path(directory, role if ports else f"{role}-{os.getpid()}")
    path.mkdir()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve(path, list(ports)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
