"""A proxy that knows frames and misuses them: answers are lost, requests come late, twice or never, connections break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Self

import msgpack

from protocol.messages import ApiKey

_OWN_IDS: Final = 2**40
"""Correlation ids of the repetitions that the proxy makes up; their answers are its own to swallow."""


@dataclass(frozen=True, slots=True)
class Malice:
    """Shares, 0 to 1: of requests of the ``kinds`` that come twice, late (behind the next ones) or never, of their answers
    that are lost, and of frames of any kind that break the connection. From the first request of kind ``mute_after`` on
    nobody is answered."""

    twice: float = 0.0
    late: float = 0.0
    never: float = 0.0
    answer_lost: float = 0.0
    broken: float = 0.0
    mute_after: ApiKey | None = None
    kinds: frozenset[ApiKey] = frozenset({ApiKey.PRODUCE})


class HostileProxy:
    """Listens on 127.0.0.1 and passes frames to ``upstream_port``, more or less. ``done`` counts what it did."""

    def __init__(self, malice: Malice, random: Random) -> None:
        self.malice = malice
        self.done: dict[str, int] = {}
        self.upstream_port = 0
        self._random = random
        self._next_id = _OWN_IDS
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def hang_up(self) -> None:
        """Breaks all connections."""
        for task in list(self._connections):
            task.cancel()

    def _happens(self, what: str) -> bool:
        if self._random.random() >= getattr(self.malice, what):
            return False
        self.done[what] = self.done.get(what, 0) + 1
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        produces: set[int] = set()
        upstream: asyncio.StreamWriter | None = None
        try:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self.upstream_port)
            pumps = (
                asyncio.create_task(self._requests(reader, upstream, produces)),
                asyncio.create_task(self._answers(upstream_reader, writer, produces)),
            )
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:  # the daemon is down: the client finds its connection closed
            self.done["refused"] = self.done.get("refused", 0) + 1
        finally:
            self._connections.discard(task)
            for each in (writer, upstream):
                if each is not None:
                    each.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, produces: set[int]) -> None:
        held: bytes | None = None
        async for frame in frames(reader):
            if self._happens("broken"):
                return
            fields = msgpack.unpackb(frame)
            if fields[0] == self.malice.mute_after:
                self.done["muted"] = self.done.get("muted", 0) + 1
            if fields[0] not in self.malice.kinds:
                send(upstream, frame)
                continue
            produces.add(fields[2])
            if self._happens("never"):
                continue
            if held is None and self._happens("late"):
                held = frame
                continue
            send(upstream, frame)
            if self._happens("twice"):
                self._next_id += 1
                send(upstream, msgpack.packb([*fields[:2], self._next_id, *fields[3:]]))
            if held is not None:
                send(upstream, held)
                held = None

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, produces: set[int]) -> None:
        async for frame in frames(reader):
            if self._happens("broken"):
                return
            if self.malice.mute_after is not None and "muted" in self.done:
                continue
            correlation_id: Any = msgpack.unpackb(frame)[0]
            if correlation_id > _OWN_IDS or (correlation_id in produces and self._happens("answer_lost")):
                continue
            send(writer, frame)


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            yield await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(len(frame).to_bytes(4, "big") + frame)
