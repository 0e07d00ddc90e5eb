"""The asyncio side of a client's connection: bytes between the transport and the ``ServerConnection``, back-pressure, turns.

An ``asyncio.Protocol``, not a stream: the hot path is one call from the socket to the handler. At a bound of what a
connection may hold it is not read until there is room. When more is asked than one turn of the loop may do, the first
request of each connection waits in the fair queue under its group's name, or else under its connection's.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from sys import intern
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from coordinator.log_output import RateLimitedLog, get_logger
from coordinator.runtime.fair_queue import HEAVY, FairQueue
from coordinator.server.budget import Arrivals, ByteBudget
from coordinator.server.call import StepsLeft
from coordinator.server.dispatch import SteppedCall, WireCall
from coordinator.server.request_meter import RequestMeter
from coordinator.server.server_connection import Codec, ServerConnection
from coordinator.server.unread_answers import Reading, UnreadAnswers
from protocol.errors import ProtocolError
from protocol.framing import RequestFrame
from protocol.messages import Request

log = get_logger()

CLOSE_TIMEOUT_S: Final = 30.0  # how long a closing connection may take to send what is queued


_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,58}[a-zA-Z0-9])?")
"""What a client may say that its name or its version is, as in Kafka, but bounded: it is shown beside each member."""

CallT = TypeVar("CallT", bound=WireCall)
Handle = Callable[[CallT], StepsLeft]
"""Where a port's requests go; returns the steps that are left to do, if there are any."""


@dataclass(frozen=True, slots=True)
class Port(Generic[CallT]):
    """What is spoken by clients that connect to one port: how each connection reads and writes, what becomes of an envelope,
    its request and the charge, and where that goes."""

    new_codec: Callable[[], Codec]
    new_call: Callable[[Connection, RequestFrame, Request, int], CallT]
    handle: Handle[CallT]
    meter: RequestMeter | None = None
    """Counts its requests; None where that is not asked for. ``handle`` notes when a call that is timed begins."""
    on_closed: Callable[[int], object] = lambda number: None
    """Called with the number of each of its connections that has ended."""
    answer_repeated: Callable[[Connection, bytes], bool] | None = None
    """Answers what came if it is one request that is like the last and is answered at once; False for all else."""


class ConnectionOwner(Protocol):
    """What a connection needs of the listener that made it: bounds, admission, and where requests go."""

    max_in_flight: int
    budget: ByteBudget
    arrivals: Arrivals[Connection]
    unread: UnreadAnswers[Connection]
    warnings: RateLimitedLog
    fair_queue: FairQueue
    sweep: int  # how many times the listener has looked for idle connections

    def admit(self, connection: Connection) -> bool:
        """Counts a new connection; False when there are too many."""

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""


class Connection(asyncio.Protocol):
    """See the module text. Made by the listener."""

    def __init__(self, listener: ConnectionOwner, port: Port[Any]) -> None:
        self.peer = "unknown"
        self.host = "unknown"
        self.client_id = ""  # of the last request
        self.software = ""
        self.number = 0  # given by the listener, to no other connection
        self.local: tuple[str, int] = ("", 0)
        self.budget = listener.budget
        self.unread = listener.unread
        self.fair_queue = listener.fair_queue
        self.sending = asyncio.Lock()
        """Held while an answer of records is read and sent, so that one client's fetches pile up on disk, not in memory."""
        self.heard_at_sweep = listener.sweep
        self.frame_begun_at_sweep = -1  # -1: no frame is half there
        self.transport: asyncio.Transport | None = None
        self.wire: ServerConnection[WireCall] = ServerConnection(
            port.new_codec(),
            partial(port.new_call, self),
            listener.budget,
            listener.max_in_flight,
        )
        self.reads = True
        """Whether the transport is read."""
        self._listener = listener
        self._handle = port.handle
        self._on_closed = port.on_closed
        self._answer_repeated = port.answer_repeated
        self.meter = port.meter
        self.received = 0
        """Bytes that came from the client."""
        self._arrived = 0
        self._in_preparation = 0
        self._held_back = 0  # as it was counted last
        self._turns: dict[int, asyncio.Event] = {}
        """By correlation id: requests whose answers are put together once they can leave."""
        self._written = 0  # bytes of answers since the client connected
        self._fillings = 0
        self._queued = 0  # bytes of answers since the client was last seen to read all
        self._uncongested = asyncio.Event()
        self._uncongested.set()
        self._taking = False
        self._waits_for_turn = False
        self._aborting: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: such a connection may be closed when it stays silent."""
        return not self.wire.calls and not self.wire.pending

    @property
    def sent(self) -> int:
        """Bytes of answers, those included that are not on their way yet."""
        return self._written

    @property
    def was_answered(self) -> bool:
        """Whether anything was sent to the client."""
        return self._written > 0

    def introduce(self, name: str, version: str) -> None:
        """Notes what the client runs; not what no client may be called (KIP-511)."""
        if all(map(_SOFTWARE.fullmatch, filter(None, (name, version)))):
            self.software = intern(f"{name} {version}".strip())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        if peer:
            self.host = peer[0]
            self.peer = f"{peer[0]}:{peer[1]}"
        if local:
            self.local = (local[0], local[1])
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a peer that lost power must not stay for ever
        if not self._listener.admit(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop, also when a client shut its sending side down: everything under way is abandoned."""
        self.transport = None
        if self._aborting is not None:
            self._aborting.cancel()  # or it would keep all of this in memory until then
        self.budget.forget(self._take_pending)
        self._uncongested.set()
        for call in self.wire.abandon():
            call.abandon()
        self._on_closed(self.number)
        self._listener.forget(self)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self.heard_at_sweep = sweep = self._listener.sweep
        self.received += len(data)
        if self._answer_repeated is not None and self._answer_repeated(self, data):
            return
        wire = self.wire
        malformed = ""  # not the error, which knows this call of the function: a circle
        try:
            if wire.receive(data):
                self.frame_begun_at_sweep = -1
        except ProtocolError as error:
            malformed = str(error)
        self._take_pending()
        if malformed:
            self.close_with(f"malformed input: {malformed}")
            return
        if wire.buffered_bytes and self.frame_begun_at_sweep < 0:
            self.frame_begun_at_sweep = sweep

    def pause_writing(self) -> None:
        """Called by the loop: the client does not read its answers; its requests wait."""
        self.wire.congested = True
        self._fillings += 1
        self._uncongested.clear()
        self.count_unread()
        self._adjust_reading()

    def resume_writing(self) -> None:
        """Called by the loop."""
        self.wire.congested = False
        self._uncongested.set()
        self.count_unread()
        self._take_pending()

    def count_unread(self) -> None:
        """Says what is held of answers; after one that was added to those that the client does not read, too.

        An answer counts in full until its last byte is sent: event loops keep it in one piece.
        """
        held = self._queued if self.wire.congested and self.transport is not None else 0
        self.unread.holds(self, held + self._held_back + self._in_preparation)

    @property
    def reading(self) -> Reading:
        """How far the client is with reading its answers."""
        unsent = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return Reading(self._written - unsent, unsent, self._fillings)

    def prepare(self, size: int) -> None:
        """Counts an answer of ``size`` bytes that is being put together; 0 when it is sent, or not wanted any more."""
        self._in_preparation = size
        self.count_unread()

    async def until_uncongested(self) -> None:
        """Returns once the client has read its earlier answers, or is gone."""
        await self._uncongested.wait()

    async def until_turn(self, correlation_id: int) -> None:
        """Returns once the answer to this request would leave at once: where answers leave in the order of their requests,
        once all before it have left."""
        if self.wire.is_next(correlation_id):
            return
        event = self._turns[correlation_id] = asyncio.Event()
        try:
            await event.wait()
        finally:
            del self._turns[correlation_id]

    def send(self, pieces: list[bytes]) -> None:
        """Queues bytes for the client, none of which is copied where the event loop can do without."""
        if self.transport is None or not pieces:
            return
        if len(pieces) == 1:
            size = len(pieces[0])
            self.transport.write(pieces[0])
        else:
            size = sum(map(len, pieces))
            self.transport.writelines(pieces)
        self._written += size
        if self.wire.congested:
            self._queued += size
            self.count_unread()
        else:
            self._queued = size

    def ended(self, pieces: list[bytes]) -> None:
        """A call has its answer, which leaves now; there may be room for another call."""
        self.send(pieces)
        if self.wire.held_back != self._held_back:
            self._held_back = self.wire.held_back
            self.count_unread()
        if self._turns:
            self._wake_next()
        if not self.reads:
            self._take_pending()

    def _wake_next(self) -> None:
        for correlation_id, event in self._turns.items():
            if self.wire.is_next(correlation_id):
                event.set()

    def stop_reading(self) -> None:
        """Takes no further requests; those under way are answered."""
        self.wire.stop()
        self._count_arrived()
        self._adjust_reading()

    def close(self) -> None:
        """Closes once everything queued is sent, or after ``CLOSE_TIMEOUT_S`` when the client does not read."""
        self.stop_reading()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
            self._aborting = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    def close_with(self, reason: str) -> None:
        """Closes because of what the client did, and says so in the log."""
        self._listener.warnings.tell("connection_closed", peer=self.peer, reason=reason)
        self.close()

    def abort(self) -> None:
        """Closes at once; what is queued is lost."""
        if self.transport is not None:
            self.transport.abort()

    def _take_pending(self) -> None:
        """Takes the requests that there is room and time for."""
        wire = self.wire
        if self._taking:
            return  # an answer given at once brought us back here: the loop below goes on by itself
        self._taking = True
        try:
            while wire.pending and not self._waits_for_turn and wire.has_room():
                weight = wire.weight()
                if (weight > 1 and wire.is_large()) or not self.fair_queue.try_acquire(self, weight):
                    self._wait_for_turn()
                    break
                self._take()
        except ProtocolError as error:
            self._flush()
            self.close_with(f"malformed input: {error}")
        finally:
            self._taking = False
        if wire.outgoing:
            self._flush()
        if wire.pending_bytes or wire.buffered_bytes or self._arrived:
            self._count_arrived()
        if wire.calls or wire.pending or not self.reads:  # with nothing under way there is room, and reading goes on
            self._adjust_reading()

    def _take(self) -> None:
        wire = self.wire
        call = wire.take()
        if wire.hidden_weight:
            self.fair_queue.charge(wire.hidden_weight)
            wire.hidden_weight = 0
        if call is None:
            self._flush()
            return
        self.client_id = call.client_id
        steps = self._handle(call)
        if steps is not None:
            wire.busy = True
            SteppedCall(call, steps, self._on_last_step).begin()

    def _on_last_step(self) -> None:
        self.wire.busy = False
        self._take_pending()

    def _wait_for_turn(self) -> None:
        """The first request waits until there is time for it; one at a time, so that their order is kept."""
        wire = self.wire
        while not self._waits_for_turn and wire.may_take():
            weight, key = wire.weight(), cast("Hashable", self)
            if weight <= HEAVY and not wire.is_large():  # else even to look at it takes time
                frame = wire.prepare()
                self.fair_queue.charge(wire.hidden_weight)
                wire.hidden_weight = 0
                if frame is None:
                    self._flush()
                    continue
                group_id = wire.codec.group_id(frame)
                key = self if group_id is None else group_id
            self._waits_for_turn = True
            self.fair_queue.put(key, self._on_turn, weight)

    def _on_turn(self) -> bool:
        """Takes the one request whose turn it is; the next one waits behind those of others.

        Returns whether it has to come back for it: a large one is decoded in turns of its own.
        """
        wire = self.wire
        self._taking = True
        try:
            if wire.may_take() and wire.decode_step():
                return True
            self._waits_for_turn = False
            if wire.outgoing:  # it was refused
                self._flush()
            elif wire.may_take():
                self._take()
            self._wait_for_turn()
        except ProtocolError as error:
            self._waits_for_turn = False
            self._flush()
            self.close_with(f"malformed input: {error}")
        finally:
            self._taking = False
        self._count_arrived()
        self._adjust_reading()
        return False

    def _flush(self) -> None:
        """Sends what is no answer of a call."""
        wire = self.wire
        if wire.refused:
            for text in wire.refused:
                log.debug("request_refused", peer=self.peer, reason=text)
            wire.refused.clear()
        if wire.outgoing:
            pieces, wire.outgoing = wire.outgoing, []
            self.send(pieces)
            self._wake_next()

    def _count_arrived(self) -> None:
        """Says what is held of requests that are not complete or not taken: the largest holder may have to give way.

        A turn that comes after the client has gone counts nothing: the listener has forgotten this connection.
        """
        arrived = self.wire.pending_bytes + self.wire.buffered_bytes
        if arrived != self._arrived and self.transport is not None:
            self._arrived = arrived
            self._listener.arrivals.holds(self, arrived)

    def _adjust_reading(self) -> None:
        wire = self.wire
        wanted = not wire.pending and wire.has_room()
        if self.transport is None or self.transport.is_closing():
            return
        if not wanted and not wire.closing and self.budget.exhausted:
            self.budget.when_there_is_room(self._take_pending)
        if wanted == self.reads:
            return
        self.reads = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()
