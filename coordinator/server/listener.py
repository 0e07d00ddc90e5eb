"""The listening sockets, and the connections that came through them: those of all ports share their bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from coordinator.log_output import RateLimitedLog, get_logger
from coordinator.runtime.fair_queue import FairQueue
from coordinator.server.budget import Arrivals, ByteBudget
from coordinator.server.connection import Connection, Handle, Port
from coordinator.server.dispatch import WireCall
from coordinator.server.native_codec import CLIENT_PORT, NativeCodec, Spoken
from coordinator.server.repeated_heartbeats import RepeatedHeartbeats
from coordinator.server.request_meter import RequestMeter
from coordinator.server.unread_answers import SlowReaders, UnreadAnswers

log = get_logger()

_SWEEPS_PER_LIMIT = 4

READING_GRACE_S: Final = 2.0
LEAST_READ_BYTES: Final = 64 * 1024
ANSWER_TIMEOUT_S: Final = 30.0
"""While answers wait for room in memory, a client has to read so many bytes in each time of grace, and each of its answers
within the timeout: else those that read almost nothing could make the others wait for ever."""
_RELIEF_PAUSE_S: Final = 0.25
_CLOSING_S: Final = 1.0
"""For the transports of connections that have nothing unsent, which close in the next turns of the loop."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of connections, each alone and all together; times in ms."""

    max_connections: int
    max_frame_bytes: int
    max_in_flight: int
    max_request_memory_bytes: int
    frame_timeout_ms: int
    max_idle_ms: int
    first_answer_ms: int | None = None
    """How long a connection may take to ask for something that it is answered; None for as long as one may be idle."""


def native_port(
    handle: Handle[WireCall],
    max_frame_bytes: int,
    spoken: Spoken = CLIENT_PORT,
    meter: RequestMeter | None = None,
    heartbeats: RepeatedHeartbeats | None = None,
) -> Port[WireCall]:
    """A port that speaks Cohort's own protocol; ``spoken`` are the requests that it knows, ``meter`` counts them.

    ``heartbeats`` answers those that are like the last of their connection.
    """
    answer_repeated = None if heartbeats is None else heartbeats.answer
    return Port(lambda: NativeCodec(max_frame_bytes, spoken), WireCall, handle, meter, answer_repeated=answer_repeated)


class Listener:
    """Accepts the connections of one port or several, and passes the number of each that has closed to ``on_closed``.

    ``on_exhausted`` is called when requests take all the memory that they may: what only waits should be answered.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        on_closed: Callable[[int], object] = lambda number: None,
        on_exhausted: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_closed = on_closed
        self._numbers = count(1)
        self._accepted = 0
        self.max_in_flight = limits.max_in_flight
        self.budget = ByteBudget(limits.max_request_memory_bytes)
        self.arrivals = Arrivals(limits.max_request_memory_bytes, self._give_way)
        self.unread: UnreadAnswers[Connection] = UnreadAnswers(limits.max_request_memory_bytes, self._relieve_soon)
        self.warnings = RateLimitedLog(lambda: asyncio.get_running_loop().time())
        self.fair_queue = FairQueue()
        self.budget.on_exhausted = on_exhausted
        self.sweep = 0
        self._limits = limits
        self._connections: dict[Connection, None] = {}
        self._closed_received = self._closed_sent = 0
        self._servers: list[asyncio.Server] = []
        self._accepts = True
        self._sweeping: asyncio.Task[None] | None = None
        self._relieving: asyncio.Task[None] | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    async def start(self, port: Port[Any], host: str, number: int) -> tuple[str, int]:
        """Listens on a port, one more than before; returns the host and the port number taken.

        Raises ``OSError`` when the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(self, port), host, number, backlog=1024)
        self._servers.append(server)
        address = server.sockets[0].getsockname()
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_forever(), name="cohort-idle-connections")
        return address[0], address[1]

    def admit(self, connection: Connection) -> bool:
        """Counts a new connection; False, which closes it, when there are too many or no more are taken."""
        if not self._accepts:
            return False
        if len(self._connections) >= self._limits.max_connections:
            self.warnings.tell(
                "connection_refused",
                peer=connection.peer,
                connections=len(self._connections),
                max_connections=self._limits.max_connections,
            )
            return False
        connection.number = self._accepted = next(self._numbers)
        self._connections[connection] = None
        self._all_closed.clear()
        return True

    def forget(self, connection: Connection) -> None:
        """A connection is gone, and what it asked is abandoned."""
        if connection in self._connections:
            del self._connections[connection]
            self._closed_received += connection.received
            self._closed_sent += connection.sent
        self.arrivals.holds(connection, 0)
        self.unread.holds(connection, 0)
        self._on_closed(connection.number)
        if not self._connections:
            self._all_closed.set()

    @property
    def accepted(self) -> int:
        """How many connections have been taken since the start."""
        return self._accepted

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    def traffic(self) -> tuple[int, int]:
        """Bytes received and sent since the start, over all connections, those that have closed included."""
        here = self._connections
        received = self._closed_received + sum(connection.received for connection in here)
        return received, self._closed_sent + sum(connection.sent for connection in here)

    def stop_accepting(self) -> None:
        """Takes no further connections and no further requests."""
        self._accepts = False
        servers, self._servers = self._servers, []
        for server in servers:
            _close(server)
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._relieving is not None:
            self._relieving.cancel()
        for connection in tuple(self._connections):
            connection.stop_reading()

    async def close(self, timeout_s: float) -> None:
        """Closes every connection once its answers are sent. After ``timeout_s`` seconds, which may be 0, those are dropped
        whose clients have not taken theirs."""
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()
        except TimeoutError:
            slow = [connection for connection in self._connections if connection.reading.unsent]
            if slow:
                log.warning("connections_aborted_at_stop", connections=len(slow))
            for connection in slow:
                connection.abort()
            try:
                async with asyncio.timeout(_CLOSING_S):
                    await self._all_closed.wait()
            except TimeoutError:
                self.abort()

    def abort(self) -> None:
        """Drops every connection at once."""
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.abort()

    def _give_way(self, connection: Connection) -> None:
        """Requests that have not arrived in full take too much memory, and this connection's take most."""
        self.warnings.tell(
            "connection_closed",
            peer=connection.peer,
            reason=f"its unfinished requests are the largest, and all of them together take more than "
            f"{self.arrivals.limit} bytes (max_request_memory_bytes)",
        )
        connection.abort()

    def _relieve_soon(self) -> None:
        if (self._relieving is None or self._relieving.done()) and self._accepts:
            self._relieving = asyncio.create_task(self._relieve(), name="cohort-unread-answers")

    async def _relieve(self) -> None:
        """While answers have no room, closes connections whose clients read theirs too slowly, the largest first."""
        slow: SlowReaders[Connection] = SlowReaders(READING_GRACE_S, LEAST_READ_BYTES, ANSWER_TIMEOUT_S)
        loop = asyncio.get_running_loop()
        while self.unread.pressed:
            readings = [(connection, connection.reading) for connection in self.unread.holders()]
            for connection in slow.found(readings, loop.time()):
                if self.unread.pressed:
                    self.warnings.tell(
                        "slow_reader_closed",
                        peer=connection.peer,
                        client_id=connection.client_id,
                        unsent_bytes=connection.reading.unsent,
                        unread_answers_bytes=self.unread.held,
                        max_request_memory_bytes=self.unread.limit,
                        reason=f"other answers wait for memory, and its client has read less than {LEAST_READ_BYTES} bytes "
                        f"in {READING_GRACE_S:g} s or has not read an answer within {ANSWER_TIMEOUT_S:g} s",
                    )
                    self.unread.holds(connection, 0)
                    connection.abort()
            await asyncio.sleep(_RELIEF_PAUSE_S)

    async def _sweep_forever(self) -> None:
        """Closes connections that stay silent, and those that begin a frame and do not finish it."""
        first_answer_ms = self._limits.first_answer_ms or self._limits.max_idle_ms
        pause_ms = min(self._limits.frame_timeout_ms, self._limits.max_idle_ms, first_answer_ms) / _SWEEPS_PER_LIMIT
        while True:
            await asyncio.sleep(pause_ms / 1000)
            self.sweep += 1
            self.warnings.sum_up()
            for connection in tuple(self._connections):
                begun = connection.frame_begun_at_sweep
                if begun >= 0 and (self.sweep - begun - 1) * pause_ms >= self._limits.frame_timeout_ms:
                    connection.close_with(f"a frame was not complete within {self._limits.frame_timeout_ms} ms")
                    continue
                most_ms = self._limits.max_idle_ms if connection.was_answered else first_answer_ms
                if connection.idle and (self.sweep - connection.heard_at_sweep - 1) * pause_ms >= most_ms:
                    connection.close_with(f"nothing was asked for {most_ms} ms")


def _close(server: asyncio.Server, turns: int = 3) -> None:
    """Closes a server. asyncio's own loop makes a connection in turns of it, and one whose server closes between them stays
    open until it is collected: so nothing is accepted any more, and the server closes when those have come."""
    loop = asyncio.get_running_loop()
    if turns and isinstance(loop, asyncio.SelectorEventLoop):
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
        loop.call_soon(_close, server, turns - 1)
    else:
        server.close()
