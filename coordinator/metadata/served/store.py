"""The metadata store that another node serves: one connection, and a mirror that is kept by it.

While there is no connection the mirror stays as it is. A new one brings all keys, and what has changed meanwhile is told as
one delta.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from coordinator.log_output import get_logger
from coordinator.metadata.authority import Change, Compare, Delta, KeyValue, Operation, TransactionError, check
from coordinator.metadata.mirror import Mirrored
from coordinator.metadata.served import messages
from coordinator.metadata.served.messages import Answer, Outcome, Request
from coordinator.metadata.store import TIMEOUT_MS, Lease, MetadataUnavailableError
from protocol.errors import ProtocolError
from protocol.framing import FrameReader

log = get_logger()

_PAUSE_S: Final = (0.0, 0.05, 0.1, 0.2, 0.5)
"""Before a connection is tried again, by how many brought nothing; the last one from then on."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take, in ms."""

    connect: int = 2_000
    """A connection, and all keys."""
    silence: int = 1_500
    """A connection that brings nothing for so long, though it was asked whether it is there, is given up."""
    ping: int = 400
    """How often it is asked."""


class ServedStore(Mirrored):
    """Implements ``MetadataStore``. Make one with ``ServedStore.open``."""

    def __init__(self, host: str, port: int, name: str, pace: Pace | None = None) -> None:
        super().__init__()
        self.address = f"{host}:{port}"
        self._host = host
        self._port = port
        self._name = name
        self._on_fatal: Callable[[str], None] | None = None  # before it is open, there is no node to end
        self._pace = pace or Pace()
        self._cluster_id = ""
        self._connection: _Connection | None = None
        self._connected = asyncio.Event()
        self._unavailable = "not asked yet"
        self._failure = ""
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        name: str,
        on_fatal: Callable[[str], None],
        *,
        timeout_ms: int = TIMEOUT_MS,
        pace: Pace | None = None,
    ) -> ServedStore:
        """The store that is served at an address; all keys are known then.

        ``on_fatal`` is called with the reason when it cannot be followed any more; it must end the node. Raises
        ``MetadataUnavailableError``.
        """
        store = cls(host, port, name, pace)
        store._task = asyncio.create_task(store._follow(), name="cohort-metadata")
        try:
            await store._ready(asyncio.get_running_loop().time() + timeout_ms / 1000)
        except BaseException:
            await store.close()
            raise
        store._on_fatal = on_fatal
        return store

    @property
    def cluster_id(self) -> str:
        """The identity of the cluster."""
        return self._cluster_id

    async def transaction(
        self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int = TIMEOUT_MS
    ) -> int | None:
        """See ``MetadataStore.transaction``. Sent once."""
        check(compare, operations)
        answer = await self._asked(messages.transaction(compare, operations, timeout_ms), timeout_ms, repeatable=False)
        return None if answer.outcome == Outcome.REFUSED else answer.revision

    async def catch_up(self, *, timeout_ms: int = TIMEOUT_MS) -> int:
        """See ``MetadataStore.catch_up``."""
        await self._asked(messages.CatchUp(timeout_ms), timeout_ms)
        return self.revision

    async def grant(self, ttl_ms: int, *, timeout_ms: int = TIMEOUT_MS) -> Lease:
        """See ``MetadataStore.grant``. A lease that was granted in an answer that got lost ends by itself."""
        answer = await self._asked(messages.Grant(ttl_ms, timeout_ms), timeout_ms)
        return Lease(self, answer.number)

    async def renew(self, lease: int, *, timeout_ms: int = TIMEOUT_MS) -> bool:
        """See ``Lease.renew``."""
        return (await self._asked(messages.Renew(lease), timeout_ms)).outcome == Outcome.DONE

    async def revoke(self, lease: int, *, timeout_ms: int = TIMEOUT_MS) -> None:
        """See ``Lease.revoke``. The mirror shows it."""
        await self._asked(messages.Revoke(lease), timeout_ms)

    async def close(self) -> None:
        """Ends the connection. Leases go on until their time is over."""
        self._failure = self._failure or "the store is closed"
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._connected.set()

    # Asking

    async def _asked(self, request: Request, timeout_ms: int, *, repeatable: bool = True) -> Answer:
        """The answer; what is not ``repeatable`` is sent once, over a connection that was open."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            connection = await self._ready(deadline)
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await connection.ask(request)
            except TimeoutError as error:
                raise MetadataUnavailableError(
                    f"the metadata store at {self.address} did not answer within {timeout_ms} ms", "unknown"
                ) from error
            except _ConnectionOverError as error:
                if repeatable:
                    continue
                raise MetadataUnavailableError(
                    f"the connection to the metadata store at {self.address} ended before the answer: {error}",
                    "unknown",
                ) from error
            return _checked(answer)

    async def _ready(self, deadline: float) -> _Connection:
        try:
            async with asyncio.timeout_at(deadline):
                while self._connection is None and not self._failure:
                    await self._connected.wait()
        except TimeoutError as error:
            raise MetadataUnavailableError(
                f"no connection to the metadata store at {self.address}: {self._unavailable}", "none"
            ) from error
        if self._connection is None:
            raise MetadataUnavailableError(f"metadata store at {self.address}: {self._failure}", "none")
        return self._connection

    # Following

    async def _follow(self) -> None:
        quiet = 0
        try:
            while not self._failure:
                before = self._mirror.revision
                reason = await self._connect()
                if reason != self._unavailable:  # one that stays the same is said once
                    log.warning("metadata_connection_lost", address=self.address, reason=reason, revision=self.revision)
                self._unavailable = reason
                quiet = 0 if self._mirror.revision > before else min(quiet + 1, len(_PAUSE_S) - 1)
                await asyncio.sleep(_PAUSE_S[quiet])
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the mirror would silently grow old
            log.exception("metadata_not_followed")
            self._give_up(f"{type(error).__name__}: {error}")

    async def _connect(self) -> str:
        """Until the connection ends; says why."""
        loop = asyncio.get_running_loop()
        connection = _Connection(self._take, self._lost)
        try:
            async with asyncio.timeout(self._pace.connect / 1000):
                await loop.create_connection(lambda: connection, self._host, self._port)
                connection.send(
                    messages.Hello(messages.MAGIC, messages.VERSION, self._name, self._cluster_id, self.revision)
                )
                await connection.known.wait()
            if connection.over is None and not self._failure:
                self._connection = connection
                self._connected.set()
                await connection.keep(self._pace)
        except TimeoutError:
            return f"nothing was answered within {self._pace.connect} ms"
        except (OSError, _ConnectionOverError) as error:
            return str(error)
        finally:
            connection.end("it was given up")
        if isinstance(connection.over, Exception):
            raise connection.over
        return connection.over or "it ended"

    def _lost(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self._connected.clear()

    def _take(self, connection: _Connection, message: messages.Message) -> None:
        """What the connection brings that is no answer."""
        match message:
            case messages.Welcome():
                self._welcomed(connection, message)
            case messages.Keys():
                connection.listed += map(_read, message.entries)
                if not message.more:
                    listed, connection.listed = connection.listed, []
                    self._tell(self._mirror.replace(listed, connection.revision))
                    connection.known.set()
            case messages.Changes():
                changes = tuple(
                    Change(each.key, self._mirror.get(each.key), messages.key_value(each)) for each in message.entries
                )
                delta = Delta(message.revision, changes)
                if self._mirror.apply(delta):
                    self._tell(delta)
            case Answer():  # all up to there was told before
                self._mirror.apply(Delta(message.revision, ()))
            case _:
                raise ProtocolError(f"{type(message).__name__} is nothing that a store says")

    def _welcomed(self, connection: _Connection, welcome: messages.Welcome) -> None:
        if welcome.refusal:
            self._give_up(welcome.refusal)
        elif self._cluster_id not in ("", welcome.cluster_id):
            self._give_up(f"it is of another cluster now, {welcome.cluster_id} and not {self._cluster_id}")
        elif welcome.revision < self.revision:
            self._give_up(
                f"it is at revision {welcome.revision}, this node has seen {self.revision}: it was restored from an older "
                "backup. What was decided meanwhile is lost. Restore the newest one, or stop all nodes and start them anew"
            )
        self._cluster_id = self._cluster_id or welcome.cluster_id
        connection.revision = welcome.revision
        if self._failure or not welcome.listed:
            connection.known.set()

    def _tell(self, delta: Delta | None) -> None:
        if delta is not None and delta.changes:
            self._watchers.tell(delta)

    def _give_up(self, reason: str) -> None:
        if not self._failure:
            self._failure = reason
            self._connected.set()
            if self._on_fatal is not None:
                self._on_fatal(f"the metadata store at {self.address} cannot be followed: {reason}")


class _ConnectionOverError(Exception):
    """The connection ended before an answer came."""


class _Connection(asyncio.Protocol):
    """To the node that serves. ``known`` is set once all keys are, or it is over; ``over`` says why it is."""

    def __init__(
        self, take: Callable[[_Connection, messages.Message], None], on_over: Callable[[_Connection], None]
    ) -> None:
        self.known = asyncio.Event()
        self.over: str | Exception | None = None
        self.revision = 0
        self.listed: list[KeyValue] = []
        self._take = take
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._ended = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._next = 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not of that class

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's."""
        self.end(str(error or "the other side closed it"))

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        self._heard = self._loop.time()
        try:
            for payload in self._reader.feed(data):
                if self.over is not None:
                    return
                correlation_id, message = messages.decode(payload)
                self._take(self, message)
                if isinstance(message, Answer):
                    waiting = self._waiting.pop(correlation_id, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(message)
        except ProtocolError as error:
            self.end(str(error))
        except Exception as error:  # of a watcher: whoever follows is told
            self.end(error)

    def send(self, message: messages.Message, correlation_id: int = 0) -> None:
        """Sends it. Raises ``_ConnectionOverError``."""
        if self._transport is None or self.over is not None:
            raise _ConnectionOverError(str(self.over or "it is not open"))
        self._transport.write(messages.encode(message, correlation_id))

    async def ask(self, request: Request) -> Answer:
        """The answer to a request. Raises ``_ConnectionOverError``."""
        number, self._next = self._next, self._next + 1
        waiting: asyncio.Future[Answer] = self._loop.create_future()
        self.send(request, number)
        self._waiting[number] = waiting
        try:
            return await waiting
        finally:
            self._waiting.pop(number, None)

    async def keep(self, pace: Pace) -> None:
        """Until it is over; a connection that says nothing is."""
        while self.over is None:
            try:
                async with asyncio.timeout(pace.ping / 1000):
                    await self._ended.wait()
            except TimeoutError:
                if self._loop.time() - self._heard > pace.silence / 1000:
                    self.end(f"silent for {pace.silence} ms")
                    return
                if self.over is None:
                    self.send(messages.Ping())

    def end(self, reason: str | Exception) -> None:
        """Closes it; what waits fails."""
        if self.over is None:
            self.over = reason
            self._on_over(self)
        if self._transport is not None:
            self._transport.abort()
        self.known.set()
        self._ended.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(_ConnectionOverError(str(self.over)))


def _checked(answer: Answer) -> Answer:
    if answer.outcome == Outcome.INVALID:
        raise TransactionError(answer.text)
    if answer.outcome in (Outcome.NOT_DONE, Outcome.UNKNOWN):
        raise MetadataUnavailableError(answer.text, "none" if answer.outcome == Outcome.NOT_DONE else "unknown")
    return answer


def _read(found: messages.Entry) -> KeyValue:
    known = messages.key_value(found)
    if known is None:
        raise ProtocolError(f"the key {found.key} is listed without a value")
    return known
