"""The floor of replication: bare processes that do nothing but frame, write, sync and acknowledge the same bytes.

``leader DIRECTORY PORT...`` hands each frame to the followers before it writes and syncs itself, and acknowledges when all
have it; ``follower DIRECTORY`` writes, syncs and acknowledges. Blocking calls, one connection, no checks.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path
from typing import Final

from client.bench.disk import make_durable

LENGTH: Final = struct.Struct(">I")
ACK: Final = b"\x01"


def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes; fewer when the other side has ended."""
    buffer = bytearray(size)
    view, there = memoryview(buffer), 0
    while there < size:
        got = connection.recv_into(view[there:])
        if not got:
            return bytes(buffer[:there])
        there += got
    return bytes(buffer)


def serve(directory: Path, followers: list[socket.socket]) -> None:
    """Serves one connection to its end."""
    listening = socket.create_server(("127.0.0.1", 0))
    host, port = listening.getsockname()
    print(f"listening on {host}:{port}", file=sys.stderr, flush=True)
    connection, _ = listening.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    file = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    while head := receive(connection, LENGTH.size):
        content = receive(connection, LENGTH.unpack(head)[0])
        for follower in followers:
            follower.sendall(head + content)
        os.write(file, content)
        make_durable(file)
        for follower in followers:
            receive(follower, len(ACK))
        connection.sendall(ACK)


def main(role: str, directory: str, *ports: str) -> int:
    """A leader or a follower."""
    followers = [socket.create_connection(("127.0.0.1", int(port))) for port in ports]
    for follower in followers:
        follower.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    path = Path(directory, role if ports else f"{role}-{os.getpid()}")
    path.mkdir()
    serve(path, followers)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
