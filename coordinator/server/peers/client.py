"""Connections to other nodes of the cluster: requests out, answers back in any order, every wait bounded.

A connection is made to one incarnation of a node by one incarnation of this one; both say so when they greet. It is shared
by all that ask for it with the same purpose, so that a pair of nodes has a connection a purpose and not one a caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast

from coordinator.nodes.membership import Membership
from coordinator.replication.partition import Incarnation
from protocol.errors import ErrorCode, ProtocolError
from protocol.exchanges import Exchanges, Refusal
from protocol.messages import Request, Response
from protocol.messages.replication import PeerErrorCode, PeerHandshakeRequest, PeerHandshakeResponse

CONNECT_TIMEOUT_S: Final = 2.0
"""For the connection, and as long again for the greeting: a stopped node takes connections and says nothing."""
SILENCE_S: Final = 2.0
"""A request that times out after at least so many seconds without a byte from the node ends its connection."""
MAX_UNDER_WAY: Final = 64
"""Requests of one connection without an answer; another one is refused at once. The other node reads no more, either."""

_PAUSED_BYTES: Final = 1024 * 1024
"""Bytes waiting to be sent above which requests wait."""

ResponseT = TypeVar("ResponseT", bound=Response)


class PeerLostError(ConnectionError):
    """A node did not answer: it cannot be reached, the connection broke, or time ran out. Whether it acted is unknown."""


class PeerRefusedError(PeerLostError):
    """A node refused a request as a whole, or the greeting; nothing was done."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class PeerAddress(Protocol):
    """Where a live node takes connections of other nodes."""

    @property
    def broker_epoch(self) -> int:
        """That of its registration."""

    @property
    def peer_host(self) -> str:
        """Host of its port for nodes."""

    @property
    def peer_port(self) -> int:
        """Its port for nodes."""


class PeerDirectory(Protocol):
    """The live nodes, as the metadata has them."""

    @property
    def nodes(self) -> Mapping[int, PeerAddress]:
        """By node id."""


class _Waiter:
    """A request that waits for its answer."""

    __slots__ = ("name", "tell", "timer")

    def __init__(self, name: str, tell: Callable[[Any], None]) -> None:
        self.name = name
        self.tell = tell
        self.timer: asyncio.TimerHandle | None = None

    def end(self, outcome: Response | PeerLostError) -> None:
        """Tells the outcome."""
        if self.timer is not None:
            self.timer.cancel()
        self.tell(outcome)


class PeerConnection(asyncio.BufferedProtocol):
    """An open connection to a node. Made by ``Peers``."""

    def __init__(self, me: Incarnation, peer: Incarnation, address: str) -> None:
        self.me = me
        self.peer = peer
        self.on_lost: Callable[[], None] | None = None
        """Called once when the connection is gone; at once by ``close``."""
        self._name = f"node {peer.node} at {address}"
        self._loop = asyncio.get_running_loop()
        self._exchanges: Exchanges[_Waiter] = Exchanges(f"node-{me.node}")
        self._transport: asyncio.Transport | None = None
        self._failure: str | None = None
        self._heard = 0
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def closed(self) -> bool:
        """Whether the connection is of no more use."""
        return self._failure is not None

    async def request(self, request: Request, response_type: type[ResponseT], *, timeout_s: float) -> ResponseT:
        """Sends a request and returns its answer, which is of ``response_type``.

        Raises ``PeerRefusedError`` when the node refused the request as a whole, and ``PeerLostError`` when the connection
        broke or the time was over. When it is cancelled the answer is dropped.
        """
        assert request.response is response_type, f"{type(request).__name__} has another response"
        if not self._writable.is_set():
            began_s = self._loop.time()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._writable.wait()
            except TimeoutError:
                raise self._silent(type(request).__name__, timeout_s, self._heard) from None
            timeout_s = max(0.0, timeout_s - (self._loop.time() - began_s))
        answer: asyncio.Future[Response | PeerLostError] = self._loop.create_future()

        def tell(outcome: Response | PeerLostError) -> None:
            if not answer.done():
                answer.set_result(outcome)

        forget = self.begin(request, tell, timeout_s=timeout_s)
        try:
            outcome = await answer
        finally:
            forget()
        if isinstance(outcome, PeerLostError):
            raise outcome
        return cast("ResponseT", outcome)

    def begin(self, request: Request, tell: Callable[[Any], None], *, timeout_s: float) -> Callable[[], None]:
        """Sends a request; ``tell`` is called once with the answer, or with the error that ``request`` would raise.

        Returns what makes that it is not called any more. Raises ``PeerLostError`` when the connection is gone.
        """
        name = type(request).__name__
        if self._failure is not None or self._transport is None:
            raise PeerLostError(f"{name} cannot be sent to {self._name}: {self._failure or 'not connected'}")
        if len(self._exchanges) >= MAX_UNDER_WAY:
            raise PeerLostError(f"{name} cannot be sent to {self._name}: {MAX_UNDER_WAY} requests have no answer yet")
        waiter = _Waiter(name, tell)
        correlation_id, frame = self._exchanges.begin(request, waiter)
        heard = self._heard

        def expire() -> None:
            self._exchanges.forget(correlation_id)
            waiter.end(self._silent(name, timeout_s, heard))

        def forget() -> None:
            self._exchanges.forget(correlation_id)
            if waiter.timer is not None:
                waiter.timer.cancel()

        waiter.timer = self._loop.call_later(timeout_s, expire)
        self._transport.write(frame)
        return forget

    def close(self) -> None:
        """Closes at once; what waits for an answer is told ``PeerLostError``."""
        self._give_up("closed by this node")

    def _silent(self, name: str, timeout_s: float, heard: int) -> PeerLostError:
        if self._heard == heard and timeout_s >= SILENCE_S:
            self._give_up(f"it was silent for {timeout_s * 1000:.0f} ms")
        return PeerLostError(f"{self._name} did not answer {name} within {timeout_s * 1000:.0f} ms")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_PAUSED_BYTES)
        if self._failure is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the loop: megabytes of records come straight to where they are decoded."""
        return self._exchanges.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop; tells the answers that ``nbytes`` more bring."""
        self._heard += 1
        try:
            for waiter, outcome in self._exchanges.received(nbytes):
                if isinstance(outcome, Refusal):
                    waiter.end(self._refused(waiter.name, outcome.code, outcome.message))
                else:
                    waiter.end(outcome)
        except ProtocolError as error:
            self._give_up(f"it sent bytes that are no valid answer: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None
        self._fail("it closed the connection" if exc is None else str(exc))

    def pause_writing(self) -> None:
        """Called by the loop when too much waits to be sent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by the loop when there is room again."""
        self._writable.set()

    async def greet(self, cluster_id: str) -> None:
        """Says who connects, and makes sure that the right node of the right cluster is there.

        Raises ``PeerLostError``, and ``PeerRefusedError`` when either side is not who the other one expects.
        """
        request = PeerHandshakeRequest(cluster_id, self.me.node, self.me.broker_epoch)
        answer = await self.request(request, PeerHandshakeResponse, timeout_s=CONNECT_TIMEOUT_S)
        if answer.error_code != PeerErrorCode.NONE:
            raise self._refused("PeerHandshake", answer.error_code, answer.error_message)
        found = Incarnation(answer.node_id, answer.broker_epoch)
        if found != self.peer:
            text = f"{self._name} with broker epoch {self.peer.broker_epoch} was expected, but node {found.node} with "
            raise PeerRefusedError(f"{text}broker epoch {found.broker_epoch} answers there", ErrorCode.NONE)

    def _refused(self, name: str, code: int, message: str) -> PeerRefusedError:
        return PeerRefusedError(f"{self._name} refused {name}: {message}", code)

    def _give_up(self, reason: str) -> None:
        self._fail(reason)
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        if self._failure is not None:
            return
        self._failure = reason
        self._writable.set()
        for waiter in self._exchanges.abandon():
            waiter.end(PeerLostError(f"{self._name} did not answer {waiter.name}: {reason}"))
        if self.on_lost is not None:
            self.on_lost()


class Peers:
    """Connections to the other nodes, made when they are asked for. ``close`` ends them all."""

    def __init__(self, directory: PeerDirectory, membership: Membership, cluster_id: str) -> None:
        self._directory = directory
        self._membership = membership
        self._cluster_id = cluster_id
        self._connections: dict[tuple[int, str], PeerConnection] = {}
        self._attempts: dict[tuple[int, str], asyncio.Task[PeerConnection]] = {}
        self._closed = False

    @property
    def me(self) -> Incarnation:
        """This node, as its connections greet."""
        return self._membership.me

    def incarnation(self, node: int) -> Incarnation | None:
        """A node as the metadata has it now; None when it is not registered."""
        known = self._directory.nodes.get(node)
        return None if known is None else Incarnation(node, known.broker_epoch)

    async def connect(self, node: int, purpose: str) -> PeerConnection:
        """The connection to a node's present incarnation for a purpose; made and greeted unless it is there.

        Raises ``PeerLostError`` within twice ``CONNECT_TIMEOUT_S`` when the node is not registered or does not answer, and
        ``PeerRefusedError`` when it refuses this one.
        """
        attempt = self._attempts.get((node, purpose))
        if attempt is None:
            connection = self._known(node, purpose)
            if connection is not None:
                return connection
            attempt = asyncio.create_task(self._connect(node, purpose), name=f"cohort-connect-{node}-{purpose}")
            attempt.add_done_callback(partial(self._ended, (node, purpose)))
            self._attempts[node, purpose] = attempt
        return await asyncio.shield(attempt)  # others wait for it too

    def _known(self, node: int, purpose: str) -> PeerConnection | None:
        connection, peer = self._connections.get((node, purpose)), self.incarnation(node)
        if connection is None:
            return None
        if not connection.closed and (connection.me, connection.peer) == (self.me, peer):
            return connection
        del self._connections[node, purpose]
        connection.close()
        return None

    def _ended(self, key: tuple[int, str], attempt: asyncio.Task[PeerConnection]) -> None:
        del self._attempts[key]
        if not attempt.cancelled():
            attempt.exception()  # all that asked for it may have been cancelled

    async def _connect(self, node: int, purpose: str) -> PeerConnection:
        address = self._directory.nodes.get(node)
        if address is None:
            raise PeerLostError(f"node {node} is not registered, as far as this node knows")
        stopping = PeerLostError(f"node {node} is not asked any more: this node stops")
        if self._closed:
            raise stopping
        try:
            connection = await self._open(Incarnation(node, address.broker_epoch), address.peer_host, address.peer_port)
        except asyncio.CancelledError:
            if self._closed:
                raise stopping from None  # those that wait are not cancelled themselves
            raise
        self._connections[node, purpose] = connection
        return connection

    async def _open(self, peer: Incarnation, host: str, port: int) -> PeerConnection:
        connection = PeerConnection(self.me, peer, f"{host}:{port}")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(lambda: connection, host, port)
            await connection.greet(self._cluster_id)
        except PeerLostError:
            connection.close()
            raise
        except TimeoutError:
            connection.close()
            raise PeerLostError(
                f"node {peer.node} at {host}:{port} took no connection within {CONNECT_TIMEOUT_S} s"
            ) from None
        except OSError as error:
            connection.close()
            raise PeerLostError(f"node {peer.node} at {host}:{port} cannot be reached: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Closes all connections, gives up those that are being made, and makes no other."""
        self._closed = True
        for attempt in self._attempts.values():
            attempt.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
