"""A network of named hosts: latency, split data, resets, cuts in one or both directions, flow control.

Bytes of one direction arrive in order and in portions of any size. A cut stalls them; a reset drops what is under way and
tells both ends, each at its own time. A host without power says nothing at all, until it runs again and answers bytes for a
connection it does not know with a reset.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final

from tests.simulation.loop import PROCESS, Process, SimLoop

_RETRY_S: Final = 0.3
"""How often something that the network holds up is tried again."""
_HIGH_BYTES: Final = 64 * 1024


class NetProcess(Process):
    """A process with a place on the network."""

    def __init__(self, name: str, host: str) -> None:
        super().__init__(name)
        self.host = host
        self.transports: list[SimTransport] = []


class Network:
    """All links. ``latency_s`` is the base of each delivery's latency, ``split`` the chance that a portion is cut."""

    def __init__(self, loop: SimLoop, random: Random, *, latency_s: float = 0.0005, split: float = 0.1) -> None:
        self.loop = loop
        self.random = random
        self.base_latency_s = latency_s
        self.split = split
        self.slow: dict[str, float] = {}
        """Additional seconds of everything from or to a host."""
        self.connections: list[tuple[SimTransport, SimTransport]] = []
        self.meddle: Callable[[SimTransport, bytes], bool] = lambda sender, data: False  # True: it has taken the data
        self._cut: dict[tuple[str, str], None] = {}
        self._down: dict[str, None] = {}
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._next_port = 30_000

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cut, and nothing slow."""
        return not self._cut and not any(self.slow.values())

    def cut(self, source: str, target: str) -> None:
        """Stalls everything from ``source`` to ``target``."""
        self._cut[source, target] = None

    def heal(self, source: str | None = None, target: str | None = None) -> None:
        """Ends one cut, or all without arguments."""
        if source is None or target is None:
            self._cut.clear()
        else:
            self._cut.pop((source, target), None)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing travels from ``source`` to ``target``."""
        return (source, target) in self._cut or source in self._down or target in self._down

    def host_down(self, host: str) -> None:
        """The host lost its power."""
        self._down[host] = None

    def host_up(self, host: str) -> None:
        """The host runs again."""
        self._down.pop(host, None)

    def reset(self, host: str, other: str | None = None) -> int:
        """Breaks the connections between two hosts, or all of one; returns how many."""
        broken = 0
        for pair in self.connections:
            hosts = {end.process.host for end in pair}
            if host in hosts and (other is None or other in hosts) and all(not end.lost for end in pair):
                broken += 1
                for end in pair:
                    end.outgoing.break_off()
                    end.lose_later(ConnectionResetError("connection reset"), self.latency(host))
        self.prune()
        return broken

    def prune(self) -> None:
        """Forgets connections that ended."""
        self.connections = [pair for pair in self.connections if not all(end.lost for end in pair)]

    def latency(self, *hosts: str) -> float:
        """Draws the latency of one delivery."""
        draw = self.random.random()
        tail = 20.0 if draw > 0.98 else 1.0
        return self.base_latency_s * (0.5 + draw) * tail + sum(self.slow.get(host, 0.0) for host in hosts)

    def listen(self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> _Listener:
        """See ``loop.create_server``. Port 0 is one that nothing listens on."""
        process = _running()
        if port == 0:
            self._next_port += 1
            port = self._next_port
        key = (host, port)
        known = self._listeners.get(key)
        if known is not None and known.open and not known.process.dead:
            raise OSError(98, f"{host}:{port} is in use")
        listener = self._listeners[key] = _Listener(protocol_factory, process, key)
        return listener

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """See ``loop.create_connection``. A host that does not answer is tried until the caller gives up."""
        process = _running()
        await asyncio.sleep(self.latency(process.host, host))
        while self.is_cut(process.host, host) or self.is_cut(host, process.host):
            await asyncio.sleep(_RETRY_S)
        listener = self._listeners.get((host, port))
        if listener is None or not listener.open or listener.process.dead:
            raise ConnectionRefusedError(111, f"nothing listens on {host}:{port}")
        self._next_port += 1
        near_name, far_name = (process.host, self._next_port), (host, port)
        near = SimTransport(self, process, near_name, far_name, copy_context())
        far = SimTransport(self, listener.process, far_name, near_name, listener.context)
        near.outgoing.target, far.outgoing.target = far, near
        self.connections.append((near, far))
        if len(self.connections) > 64:
            self.prune()
        self.loop.call_soon(far.open, listener.protocol_factory, context=listener.context)
        await asyncio.sleep(self.latency(process.host, host))
        if near.lost:
            raise ConnectionResetError(104, "connection reset by peer")
        protocol = protocol_factory()
        near.open(lambda: protocol)
        return near, protocol

    def process_ended(self, process: NetProcess, *, silent: bool) -> None:
        """The kernel closes the sockets of a killed process; after a power cut (``silent``) nobody does."""
        for transport in process.transports:
            if transport.lost:
                continue
            transport.lost = True
            transport.outgoing.target.outgoing.wake()
            if silent or self.random.random() < 0.5:
                transport.outgoing.drop()
            if not silent:
                transport.outgoing.finish(_RESET)
        process.transports.clear()


class _Listener:
    """What ``create_server`` returns."""

    def __init__(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], process: NetProcess, name: tuple[str, int]
    ) -> None:
        self.protocol_factory = protocol_factory
        self.process = process
        self.context = copy_context()
        self.open = True
        self.sockets = [self]
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        """Host and port."""
        return self._name

    def close(self) -> None:
        """Takes no more connections."""
        self.open = False

    async def wait_closed(self) -> None:
        """Returns at once."""


_FIN: Final = "fin"
_RESET: Final = "reset"


class _Direction:
    """Bytes on their way from one end to the other, and the end of them."""

    def __init__(self, network: Network, source: SimTransport) -> None:
        self.target: SimTransport
        self.bytes = 0
        self._network = network
        self._source = source
        self._pieces: deque[bytes] = deque()
        self._end: str | None = None
        self._due = False
        self._is_broken = False

    def write(self, data: bytes) -> None:
        """Takes bytes."""
        if self._is_broken:
            return
        self._pieces.append(data)
        self.bytes += len(data)
        self._schedule(self._latency())

    def finish(self, how: str) -> None:
        """Nothing comes after what is under way; a reset overtakes it."""
        self._end = how
        self._schedule(self._latency())

    def drop(self) -> None:
        """Loses everything under way."""
        self._pieces.clear()
        self.bytes = 0

    def break_off(self) -> None:
        """Loses everything under way and all that is written from now on: nothing comes behind bytes that are missing."""
        self.drop()
        self._is_broken = True

    def wake(self) -> None:
        """The target reads again, or is gone."""
        if self._pieces or self._end:
            self._schedule(0.0)

    def _latency(self) -> float:
        return self._network.latency(self._source.process.host, self.target.process.host)

    def _schedule(self, delay_s: float) -> None:
        if not self._due:
            self._due = True
            self._network.loop.call_later(delay_s, self._deliver, context=_WORLD)

    def _deliver(self) -> None:
        self._due = False
        source, target = self._source, self.target
        if self._network.is_cut(source.process.host, target.process.host):
            self._schedule(_RETRY_S)
            return
        if target.lost:  # the other host knows no such connection (any more): it answers with a reset
            dropped, self._end = bool(self._pieces), None
            self.drop()
            if dropped and not source.lost:
                source.lose_later(ConnectionResetError("connection reset by peer"), self._latency())
            return
        if not target.opened:
            # Of a process that is paused thousands may wait, which takes steps and no time.
            self._schedule(self._latency() if target.process.held is None else _RETRY_S)
            return
        if self._end == _RESET and not self._pieces:
            target.lose_later(ConnectionResetError("connection reset by peer"), 0.0)
            return
        if self._pieces:
            if target.reading:
                self._hand_over(target)
        elif self._end == _FIN:
            if target.process.held is not None:
                self._schedule(_RETRY_S)
                return
            self._end = None
            target.context.run(target.end_of_data)
            return
        if (self._pieces and target.reading) or (not self._pieces and self._end):
            self._schedule(self._latency())

    def _hand_over(self, target: SimTransport) -> None:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        random = self._network.random
        if len(data) > 1 and random.random() < self._network.split:
            size = 1 + int(random.random() * (len(data) - 1))
            self._pieces.append(data[size:])
            data = data[:size]
        self.bytes -= len(data)
        if target.process.held is not None:  # the kernel keeps it
            target.keep(data)
        else:
            target.context.run(target.receive, data)
        self._source.drained()


_WORLD: Final[Context] = Context()


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: Network,
        process: NetProcess,
        name: tuple[str, int],
        peer: tuple[str, int],
        context: Context,
    ) -> None:
        super().__init__({"sockname": name, "peername": peer})
        self.process = process
        self.context = context
        self.outgoing = _Direction(network, self)
        self.reading = True
        self.opened = False
        self.lost = False
        self._network = network
        self._protocol: Any = None
        self._closing = False
        self._high = _HIGH_BYTES
        self._paused = False
        self._received: deque[bytes] = deque()
        process.transports.append(self)
        if len(process.transports) > 64:
            process.transports[:] = [kept for kept in process.transports if not kept.lost]

    def open(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Makes the protocol and tells it."""
        if self.lost:
            return
        self._protocol = protocol_factory()
        self.opened = True
        self._protocol.connection_made(self)

    def receive(self, data: bytes) -> None:
        """Bytes arrive; kept while the protocol does not read."""
        if self.lost or self._closing:
            return
        self._received.append(data)
        while self._received and self.reading and not self._closing:
            self._received_by_protocol(self._received.popleft())

    def keep(self, data: bytes) -> None:
        """Bytes arrive for a process that is stopped."""
        self._received.append(data)
        self._network.loop.call_soon(self.receive_kept, context=self.context)

    def end_of_data(self) -> None:
        """The other side has closed."""
        if not self.lost and not self._protocol.eof_received():
            self.close()

    def drained(self) -> None:
        """Some of the outgoing bytes are gone."""
        if self.lost:
            return
        if self._paused and self.outgoing.bytes <= self._high // 4:
            self._paused = False
            self._network.loop.call_soon(self._resume, context=self.context)
        if self._closing and not self.outgoing.bytes:
            self.outgoing.finish(_FIN)
            self.lose_later(None, 0.0)

    def _resume(self) -> None:
        if not self.lost:
            self._protocol.resume_writing()

    def lose_later(self, error: Exception | None, delay_s: float) -> None:
        """Tells the protocol after ``delay_s`` that the connection is gone."""
        self._network.loop.call_later(delay_s, self._lose, error, context=self.context)

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        self.outgoing.target.outgoing.wake()
        if self.opened:
            self._protocol.connection_lost(error)

    # asyncio.Transport

    def write(self, data: Any) -> None:
        """See asyncio."""
        if self.lost or self._closing or self.process.dead:
            return
        if not self._network.meddle(self, data := bytes(data)):
            self.outgoing.write(data)
        if not self._paused and self.outgoing.bytes > self._high:
            self._paused = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        self._high = _HIGH_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self.outgoing.bytes

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._closing or self.lost

    def close(self) -> None:
        """See asyncio: sends what is queued first."""
        if self._closing or self.lost:
            return
        self._closing = True
        if not self.outgoing.bytes:
            self.outgoing.finish(_FIN)
            self.lose_later(None, 0.0)

    def abort(self) -> None:
        """See asyncio: drops what is queued."""
        if self.lost:
            return
        self._closing = True
        self.outgoing.drop()
        self.outgoing.finish(_RESET)
        self.lose_later(None, 0.0)

    def pause_reading(self) -> None:
        """See asyncio."""
        self.reading = False

    def resume_reading(self) -> None:
        """See asyncio."""
        self.reading = True
        if self._received:
            self._network.loop.call_soon(self.receive_kept, context=self.context)
        self.outgoing.target.outgoing.wake()

    def receive_kept(self) -> None:
        """Hands over what arrived while the protocol did not read."""
        while self._received and self.reading and not self._closing and not self.lost:
            self._received_by_protocol(self._received.popleft())

    def _received_by_protocol(self, data: bytes) -> None:
        """As a loop does: into the memory of a protocol that has its own, as much at a time as fits there."""
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        while data and not self._closing and not self.lost:
            space = memoryview(protocol.get_buffer(len(data)))
            portion, data = data[: len(space)], data[len(space) :]
            space[: len(portion)] = portion
            protocol.buffer_updated(len(portion))


def _running() -> NetProcess:
    process = PROCESS.get()
    assert isinstance(process, NetProcess), "only processes have sockets"
    return process
