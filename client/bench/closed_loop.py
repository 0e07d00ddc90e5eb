"""A load generator that is the same for a daemon and for its floor: pre-encoded frames, one in flight a connection."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, cast

from client.cli.failure import CommandError
from client.transport.metadata import parse_bootstrap_servers

_IDLE_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request as bytes, and the bytes of the one answer that is right."""

    request: bytes
    answer: bytes


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of load gave: answers, the seconds it took, and each answer's latency in seconds."""

    answers: int
    seconds: float
    latencies: array[float]

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds


class ClosedLoop(asyncio.Protocol):
    """One connection: sends its request again the moment the answer is there, for as long as ``running``."""

    def __init__(self, exchange: Exchange) -> None:
        self.answers = 0
        self.latencies: array[float] = array("d")
        self.running = False
        self.fault: str | None = None
        self.idle: asyncio.Future[None] | None = None
        self._request = exchange.request
        self._answer = exchange.answer
        self._received = b""
        self._loop = asyncio.get_running_loop()
        self._sent_at = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)

    def begin(self) -> None:
        """Sends the first request of a round."""
        self.running = True
        self.answers = 0
        self.latencies = array("d")
        self.idle = self._loop.create_future()
        self._send()

    def data_received(self, data: bytes) -> None:
        """Called by the loop: counts the answer and asks again."""
        if data != self._answer:
            self._received += data
            if len(self._received) < len(self._answer):
                return
            if self._received != self._answer:
                self._end(f"the answer {self._received[:200]!r} is not the one expected, {self._answer[:200]!r}")
                return
            self._received = b""
        self.latencies.append(perf_counter() - self._sent_at)
        self.answers += 1
        if self.running:
            self._send()
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._end(f"the connection was closed: {exc}")

    def close(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        if self._transport is not None:
            self._sent_at = perf_counter()
            self._transport.write(self._request)

    def _end(self, fault: str | None) -> None:
        self.running = False
        self.fault = self.fault or fault
        if self.idle is not None and not self.idle.done():
            self.idle.set_result(None)


class Load:
    """Closed loops over one connection for each exchange."""

    def __init__(self, connections: Sequence[ClosedLoop]) -> None:
        self._connections = connections

    @classmethod
    async def connect(cls, address: str, exchanges: Sequence[Exchange]) -> Load:
        """Opens the connections."""
        ((host, port),) = parse_bootstrap_servers(address)
        loop = asyncio.get_running_loop()
        connections: list[ClosedLoop] = []
        for exchange in exchanges:
            _, connection = await loop.create_connection(lambda one=exchange: ClosedLoop(one), host, port)  # type: ignore[misc]
            connections.append(connection)
        return cls(connections)

    async def round(self, seconds: float) -> Round:
        """Loads the other side for some seconds. Raises ``CommandError`` for a wrong answer or a lost connection."""
        began = perf_counter()
        for connection in self._connections:
            connection.begin()
        await asyncio.sleep(seconds)
        for connection in self._connections:
            connection.running = False
        ended = perf_counter()
        answers = sum(connection.answers for connection in self._connections)
        idle = [connection.idle for connection in self._connections if connection.idle is not None]
        _, pending = await asyncio.wait(idle, timeout=_IDLE_TIMEOUT_S)
        faults = [connection.fault for connection in self._connections if connection.fault is not None]
        if faults or pending:
            raise CommandError(
                faults[0] if faults else f"{len(pending)} requests had no answer in {_IDLE_TIMEOUT_S:.0f} s"
            )
        latencies: array[float] = array("d")
        for connection in self._connections:
            latencies.extend(connection.latencies)
        return Round(answers, ended - began, latencies)

    def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections:
            connection.close()


def percentile(sorted_values: Sequence[float], percent: float) -> float:
    """The value below which ``percent`` of the values lie; they come sorted, and there is at least one."""
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * percent / 100))]
