"""Serves this node's metadata store to other nodes, on a port of its own.

For several nodes on one machine, for trying out and for tests: while this node is away, the metadata is. It takes any
``MetadataStore``; leases that it grants end by its own time, whatever the store's leases do.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.log_output import get_logger
from coordinator.metadata.authority import MAX_OPERATIONS, MIN_TTL_MS, Delta, Operation, Put, TransactionError
from coordinator.metadata.served import messages
from coordinator.metadata.served.messages import Answer, Outcome, Request
from coordinator.metadata.store import Lease, MetadataStore, MetadataUnavailableError
from protocol.errors import ProtocolError
from protocol.framing import FrameReader

log = get_logger()

MAX_CONNECTIONS: Final = 128
MAX_LEASES: Final = 1024
MAX_UNDER_WAY: Final = 64
"""Requests of one connection; above it the connection is not read."""
MAX_UNSENT_BYTES: Final = 128 * 1024 * 1024
"""A node that does not read what it is told is cut off: it lists all keys when it comes again."""
PAGE: Final = 1000
_MAX_TTL_MS: Final = 24 * 3600 * 1000
_MAX_TIMEOUT_MS: Final = 60_000
_TICK_S: Final = 0.1
_STALL_S: Final = 0.5
"""A loop that is so late has not heard renewals meanwhile: that time does not count."""
_SILENCE_S: Final = 10.0
"""A connection on which so long nothing comes is closed. Nodes say something several times a second."""


@dataclass(slots=True)
class _Held:
    """A lease of another node. Once ``over`` it is not renewed, even if the store has not removed its keys yet."""

    lease: Lease
    ttl_s: float
    deadline: float
    over: bool = False


class MetadataServer:
    """Offers ``store`` from ``start`` to ``close``. ``name`` is that of the cluster; a node that asks for another one is
    refused, and without a name none is."""

    def __init__(self, store: MetadataStore, new_id: Callable[[], str], name: str = "") -> None:
        self.store = store
        self.name = name
        self._first_lease = (
            zlib.crc32(new_id().encode()) << 24
        )  # no lease of another run of this server is taken for one
        self._granted = 0
        self._leases: dict[int, _Held] = {}
        self._numbers: dict[int, int] = {}  # by the store's number
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._stop_watching: Callable[[], None] | None = None

    async def start(self, host: str, port: int, *, is_reserved: bool = False) -> tuple[str, int]:
        """Listens; returns the address. Raises ``OSError`` when it cannot be had.

        ``is_reserved``: another process of this user has bound the port with SO_REUSEPORT, to keep it for this one.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, reuse_port=is_reserved or None)
        self._stop_watching = self.store.watch("", self._tell)
        self._ticking = asyncio.create_task(self._tick(), name="cohort-metadata-leases")
        taken = self._server.sockets[0].getsockname()
        log.warning(
            "metadata_served",
            host=taken[0],
            port=taken[1],
            reason="not replicated: while this node is away no node of the cluster can change anything; use etcd in "
            "production",
        )
        return taken[0], taken[1]

    async def close(self) -> None:
        """Closes all connections. Leases of others are left to the store, which ends them when it is opened anew."""
        if self._server is not None:
            self._server.close()
        if self._stop_watching is not None:
            self._stop_watching()
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        tasks = [task for connection in tuple(self._connections) for task in connection.end()]
        await asyncio.gather(*tasks, return_exceptions=True)

    # What connections ask

    def admit(self, connection: _Connection) -> bool:
        """Whether one more may be served."""
        if len(self._connections) >= MAX_CONNECTIONS:
            log.warning("metadata_connection_refused", connections=len(self._connections))
            return False
        self._connections.add(connection)
        return True

    def leave(self, connection: _Connection) -> None:
        """This one is over."""
        self._connections.discard(connection)

    async def carry_out(self, request: Request) -> Answer:
        """Does what is asked, and says what became of it."""
        try:
            match request:
                case messages.Transaction():
                    return await self._transaction(request)
                case messages.CatchUp():
                    await self.store.catch_up(timeout_ms=_bounded(request.timeout_ms))
                case messages.Grant():
                    return await self._grant(request)
                case messages.Renew():
                    return self._answer(Outcome.DONE if await self._renew(request.lease) else Outcome.REFUSED)
                case messages.Revoke():
                    held = self._leases.get(request.lease)
                    if held is not None:
                        await self._end(request.lease, held)
                case messages.Ping():
                    pass
        except TransactionError as error:
            return self._answer(Outcome.INVALID, text=str(error))
        except MetadataUnavailableError as error:
            return self._answer(Outcome.UNKNOWN if error.outcome == "unknown" else Outcome.NOT_DONE, text=str(error))
        except OSError as error:
            outcome = Outcome.UNKNOWN if isinstance(error, WriteInDoubtError) else Outcome.NOT_DONE
            return self._answer(outcome, text=f"the disk of the node that serves the metadata failed: {error}")
        return self._answer(Outcome.DONE)

    async def _transaction(self, request: messages.Transaction) -> Answer:
        if max(len(request.conditions), len(request.steps)) > MAX_OPERATIONS:
            raise TransactionError(f"more than {MAX_OPERATIONS} operations or conditions in a transaction")
        operations = [self._with_lease(operation) for operation in messages.operations_of(request)]
        revision = await self.store.transaction(
            messages.conditions_of(request), operations, timeout_ms=_bounded(request.timeout_ms)
        )
        if revision is None:
            return self._answer(Outcome.REFUSED)
        return Answer(Outcome.DONE, revision, 0, "")

    def _with_lease(self, operation: Operation) -> Operation:
        if not isinstance(operation, Put) or not operation.lease:
            return operation
        held = self._leases.get(operation.lease)
        if held is None or held.over:
            raise TransactionError(f"the key {operation.key} is to go with lease {operation.lease}, which is over")
        return operation._replace(lease=held.lease.id)

    def _answer(self, outcome: Outcome, text: str = "", number: int = 0) -> Answer:
        return Answer(outcome, self.store.revision, number, text[:1000])

    # Leases

    async def _grant(self, request: messages.Grant) -> Answer:
        if len(self._leases) >= MAX_LEASES:
            raise MetadataUnavailableError(f"{MAX_LEASES} leases are granted already", "none")
        ttl_ms = min(max(request.ttl_ms, MIN_TTL_MS), _MAX_TTL_MS)
        lease = await self.store.grant(ttl_ms, timeout_ms=_bounded(request.timeout_ms))
        self._granted += 1
        number = self._first_lease + self._granted
        now = asyncio.get_running_loop().time()
        self._leases[number] = _Held(lease, ttl_ms / 1000, now + ttl_ms / 1000)
        self._numbers[lease.id] = number
        return self._answer(Outcome.DONE, number=number)

    async def _renew(self, number: int) -> bool:
        held = self._leases.get(number)
        asked_at = asyncio.get_running_loop().time()
        if held is None or held.over or not await held.lease.renew() or held.over:
            return False
        held.deadline = max(held.deadline, asked_at + held.ttl_s)
        return True

    async def _end(self, number: int, held: _Held) -> None:
        held.over = True
        await held.lease.revoke()
        self._leases.pop(number, None)
        self._numbers.pop(held.lease.id, None)

    async def _tick(self) -> None:
        """Ends leases whose time is over, and connections that say nothing."""
        loop = asyncio.get_running_loop()
        due = loop.time() + _TICK_S
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            now = loop.time()
            if now - due > _STALL_S:
                log.warning("metadata_leases_prolonged", seconds=round(now - due, 1), leases=len(self._leases))
                self._prolong(now - due)
            due = now + _TICK_S
            for connection in tuple(self._connections):
                connection.look(now - _SILENCE_S)
            for number, held in list(self._leases.items()):
                if held.deadline <= now:
                    await self._expire(number, held)

    def _prolong(self, seconds: float) -> None:
        for held in self._leases.values():
            held.deadline += seconds
        for connection in self._connections:
            connection.heard += seconds

    async def _expire(self, number: int, held: _Held) -> None:
        try:
            await self._end(number, held)
        except (OSError, MetadataUnavailableError) as error:  # its time is over all the same; the next tick tries again
            log.warning("metadata_lease_not_ended", lease=number, error=str(error))
        else:
            log.info("metadata_lease_expired", lease=number)

    # Telling

    def welcome(self, hello: messages.Hello) -> list[bytes]:
        """What a new connection is told first; a refusal alone when it is of no use."""
        refusal = self._refusal(hello)
        if refusal:
            return [messages.encode(messages.Welcome(self.store.cluster_id, 0, False, refusal))]
        revision = self.store.revision
        listed = (hello.cluster_id, hello.revision) != (self.store.cluster_id, revision)
        frames = [messages.encode(messages.Welcome(self.store.cluster_id, revision, listed, ""))]
        if listed:
            entries = [self._named(messages.entry(known)) for known in self.store.range("")]
            for first in range(0, max(1, len(entries)), PAGE):
                page = tuple(entries[first : first + PAGE])
                frames.append(messages.encode(messages.Keys(page, first + PAGE < len(entries))))
        return frames

    def _refusal(self, hello: messages.Hello) -> str:
        if hello.magic != messages.MAGIC or hello.version != messages.VERSION:
            return f"this node speaks version {messages.VERSION} of {messages.MAGIC}, not {hello.version}"
        if self.name and hello.name and hello.name != self.name:
            return f"the metadata served here is of the cluster {self.name}, not of {hello.name}"
        return ""

    def _tell(self, delta: Delta) -> None:
        entries = tuple(map(self._named, messages.entries(delta.changes)))
        frame = messages.encode(messages.Changes(delta.revision, entries))
        for connection in tuple(self._connections):
            connection.tell(frame)

    def _named(self, found: messages.Entry) -> messages.Entry:
        """With the lease's number as its holder has it."""
        if found.lease not in self._numbers:
            return found
        return messages.Entry(
            found.key, found.value, found.create_revision, found.mod_revision, found.version, self._numbers[found.lease]
        )


def _bounded(timeout_ms: int) -> int:
    return min(max(timeout_ms, 1), _MAX_TIMEOUT_MS)


class _Connection(asyncio.Protocol):
    """One node that asks."""

    def __init__(self, server: MetadataServer) -> None:
        self.heard = asyncio.get_running_loop().time()
        self._server = server
        self._reader = FrameReader(messages.MAX_REQUEST_BYTES)
        self._transport: asyncio.Transport | None = None
        self._welcomed = False
        self._is_paused = False
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not of that class
        if not self._server.admit(self):
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's. What is under way is carried out; its answers have no reader."""
        self._transport = None
        self._server.leave(self)

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        self.heard = asyncio.get_running_loop().time()
        try:
            for payload in self._reader.feed(data):
                correlation_id, message = messages.decode(payload)
                self._take(correlation_id, message)
        except ProtocolError as error:
            log.warning("metadata_connection_closed", reason=str(error))
            self.end()

    def tell(self, frame: bytes) -> None:
        """What happened, if this node knows what was before."""
        if self._welcomed:
            self._send(frame)

    def look(self, since: float) -> None:
        """Ends the connection if nothing came since then."""
        if self.heard < since:
            log.warning("metadata_connection_closed", reason=f"silent for {_SILENCE_S:.0f} s")
            self.end()

    def end(self) -> set[asyncio.Task[None]]:
        """Closes it; returns what is still under way."""
        if self._transport is not None:
            self._transport.abort()
        return set(self._tasks)

    def _take(self, correlation_id: int, message: messages.Message) -> None:
        if not self._welcomed:
            if not isinstance(message, messages.Hello):
                raise ProtocolError("a connection begins with a hello")
            for frame in self._server.welcome(message):
                self._send(frame)
            self._welcomed = True
            return
        if not isinstance(message, Request):
            raise ProtocolError(f"{type(message).__name__} is no request")
        task = asyncio.create_task(self._serve(correlation_id, message), name="cohort-metadata-request")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if len(self._tasks) >= MAX_UNDER_WAY and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    async def _serve(self, correlation_id: int, request: Request) -> None:
        try:
            answer = await self._server.carry_out(request)
        except ProtocolError as error:
            log.warning("metadata_connection_closed", reason=str(error))
            self.end()
            return
        self._send(messages.encode(answer, correlation_id))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("metadata_request_failed", exc_info=task.exception())
            self.end()  # the outcome is unknown, and the other side learns that from the end of the connection
        if self._is_paused and len(self._tasks) < MAX_UNDER_WAY and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def _send(self, frame: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            log.warning("metadata_connection_closed", reason=f"{MAX_UNSENT_BYTES} bytes are not read")
            self.end()
