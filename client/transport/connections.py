"""The connections of one client: one a node, opened when it is needed, and given up when its node says nothing any more.

Where there are several nodes, one that does not answer shall hold up nothing that another could do: who waits for a
connection is told soon that it is not there yet, while the attempt goes on for the next who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from client.errors import ClosedError, CohortError, ConnectionLostError, NetworkExceptionError, copy_of
from client.transport.connection import Connection
from client.transport.metadata import Address
from client.transport.request_limits import checked_frame
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse

_CONNECT_TIMEOUT_S: Final = 10.0
GREETING_TIMEOUT_S: Final = 4.0
"""How long a new connection may be without an answer before it is given up."""
_PATIENCE_S: Final = 1.0
"""So long a call waits for a connection where there are other nodes: meanwhile another may have taken over."""
_NEXT_NODE_S: Final = 0.25
"""Whoever takes any node tries the next one when the first has not answered for so long."""
_AVOIDED_S: Final = 1.0
"""So long a node that could not help is asked last."""
_LOOK_S: Final = 0.5
_DOUBT_S: Final = 1.0
"""A node from which an answer is due and nothing was heard for so long is asked for a sign of life."""
_SUSPECT_S: Final = 1.0
"""One that has not given it for so long is suspected to be gone: others are asked instead."""
_SIGN_OF_LIFE_S: Final = 3.0
"""One that has not given it for so long is given up: its connection is closed."""


class Connections:
    """Connections of one client on one event loop, by the address of the node.

    ``open`` has those that were made, ``request_bytes`` how large a request each node takes, by API key. ``several`` says
    that there is more than one node: only then their silence is watched. ``on_suspect`` is called when a node is suspected
    to be gone.
    """

    def __init__(self, client_id: str, request_timeout_ms: int) -> None:
        self.open: dict[Address, Connection] = {}
        self.request_bytes: dict[Address, dict[int, int]] = {}
        self.several = False
        self.on_suspect: Callable[[], None] = lambda: None
        self._client_id = client_id
        self._limit_s = request_timeout_ms / 1000
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._avoided: dict[Address, float] = {}
        self._pulses: dict[Connection, _Pulse] = {}
        self._watch: asyncio.Task[None] | None = None
        self._started = False

    def start(self) -> None:
        """Connections may be made from now on."""
        self._started = True

    async def close(self) -> None:
        """Closes all; those that are closed are closed before anything is waited for."""
        self._started = False
        for connection in self.open.values():
            connection.close()
        self.open.clear()
        self._pulses.clear()
        ending = [*self._opening.values(), *(task for task in (self._watch,) if task is not None)]
        self._watch = None
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def there(self, address: Address) -> Connection | None:
        """The connection to a node if there is one, now."""
        connection = self.open.get(address)
        return None if connection is None or connection.closed or not self._started else connection

    def is_silent(self, address: Address) -> bool:
        """Whether a node is suspected to be gone."""
        connection = self.open.get(address)
        return connection is not None and connection.suspect

    async def to(self, address: Address) -> Connection:
        """The connection to a node. Raises why there is none, or that it is not there yet."""
        self._check_started()
        connection = self.there(address)
        if connection is not None:
            return connection
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.create_task(self._establish(address), name=f"cohort-connect-{address[0]}:{address[1]}")
            self._opening[address] = opening
            opening.add_done_callback(partial(self._opened, address))
        await asyncio.wait((opening,), timeout=_PATIENCE_S if self.several else None)
        if not opening.done():
            host, port = address
            raise ConnectionLostError(f"{host}:{port} has not answered for {_PATIENCE_S:.0f} s")
        self._check_started()
        if opening.cancelled():
            raise ConnectionLostError("the program cancelled the task that connected")
        error = opening.exception()
        if error is not None:
            raise copy_of(error) if isinstance(error, CohortError) else error
        return opening.result()

    async def any_of(self, addresses: Iterable[Address]) -> Connection:
        """A connection to any node, one that is open rather than another, and one that can help rather than one that could
        not. Raises the first error that trying again does not help, or an ``ExceptionGroup`` of all others.
        """
        self._check_started()
        now_s = asyncio.get_running_loop().time()
        last: list[Address] = []
        for address, connection in self.open.items():
            if not connection.closed:
                if not connection.suspect and self._avoided.get(address, 0.0) <= now_s:
                    return connection
                last.append(address)
        others = [address for address in dict.fromkeys(addresses) if address not in last]
        others.sort(key=lambda address: self._avoided.get(address, 0.0) > now_s)
        try:
            return await self._first_of(others)
        except ExceptionGroup:
            for address in last:  # in doubt, but there
                doubtful = self.there(address)
                if doubtful is not None:
                    return doubtful
            raise

    def avoid(self, connection: Connection, error: CohortError) -> None:
        """Its node could not help just now: another is asked next, if there is one."""
        if self.several or isinstance(error, NetworkExceptionError):  # which is to say: ask another
            address = next((at for at, each in self.open.items() if each is connection), None)
            if address is not None:
                self._avoided[address] = asyncio.get_running_loop().time() + _AVOIDED_S

    def watch_silence(self) -> None:
        """There are several nodes: what says nothing although an answer is due is found out from now on."""
        self.several = True
        if self._started and self._watch is None:
            self._watch = asyncio.create_task(self._watch_silence(), name=f"cohort-silence-{self._client_id}")

    def _check_started(self) -> None:
        if not self._started:
            raise ClosedError("this client is not started, or stopped already: use it inside 'async with'")

    async def _establish(self, address: Address) -> Connection:
        host, port = address
        timeout_s = min(_CONNECT_TIMEOUT_S, self._limit_s)
        connection = await Connection.open(host, port, client_id=self._client_id, timeout_s=timeout_s)
        try:
            said = await connection.greet(timeout_s=min(GREETING_TIMEOUT_S, self._limit_s))
            self._check_started()
        except BaseException:
            connection.close()
            raise
        self.open[address] = connection
        self.request_bytes[address] = {version.api_key: version.max_request_bytes for version in said.api_keys}
        return connection

    def _opened(self, address: Address, opening: asyncio.Task[Connection]) -> None:
        del self._opening[address]
        if not opening.cancelled():
            opening.exception()  # nobody may be left who waits for it

    async def _first_of(self, addresses: list[Address]) -> Connection:
        """The first connection that comes about; each is begun when the one before has failed, or takes long."""
        failures: list[CohortError] = []
        left = list(addresses)
        attempts: list[asyncio.Task[Connection]] = []
        try:
            while left or attempts:
                if left:
                    attempts.append(asyncio.create_task(self.to(left.pop(0))))
                await asyncio.wait(
                    attempts, timeout=_NEXT_NODE_S if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for attempt in [each for each in attempts if each.done()]:
                    attempts.remove(attempt)
                    error = attempt.exception()
                    if error is None:
                        return attempt.result()
                    if not isinstance(error, CohortError) or not error.retriable:
                        raise error
                    failures.append(error)
        finally:
            for attempt in attempts:
                attempt.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)
        raise ExceptionGroup("no node could be reached", failures or [ConnectionLostError("no node is known")])

    async def _watch_silence(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = loop.time()
            connections = [each for each in self.open.values() if not each.closed]
            self._pulses = {each: self._pulses.get(each) or _Pulse(each, now_s) for each in connections}
            # When one is in doubt, the one that brings news of the cluster may be, too, for it is of the same node perhaps.
            doubt = [pulse.in_doubt(now_s) for pulse in self._pulses.values()]
            for pulse in self._pulses.values():
                if pulse.take(now_s, ask=any(doubt)):
                    self.on_suspect()


class _Pulse:
    """What is heard of one connection from which an answer is due."""

    __slots__ = ("_asked_s", "_connection", "_heard", "_since_s")

    def __init__(self, connection: Connection, now_s: float) -> None:
        self._connection = connection
        self._heard = connection.heard
        self._since_s = now_s
        self._asked_s: float | None = None

    def in_doubt(self, now_s: float) -> bool:
        """Whether an answer was due and nothing was heard for a while."""
        connection = self._connection
        if connection.heard != self._heard:
            self._heard, self._since_s, self._asked_s = connection.heard, now_s, None
            connection.suspect = False
        elif self._asked_s is None and not connection.awaits_answer(now_s):
            self._since_s = now_s
        return now_s - self._since_s >= _DOUBT_S

    def take(self, now_s: float, *, ask: bool) -> bool:
        """Asks for a sign of life if that is due. True when there was none, so that the node is suspected from now on."""
        connection = self._connection
        if self._asked_s is None:
            if ask and connection.awaits_any_answer:
                self._asked_s = now_s
                frame = partial(checked_frame, ApiVersionsRequest("aiocohort"))
                connection.begin("ApiVersions", frame, ApiVersionsResponse, _ignore, timeout_s=_SIGN_OF_LIFE_S)
            return False
        if now_s - self._asked_s >= _SIGN_OF_LIFE_S:
            connection.give_up(f"{connection.peer} gave no sign of life for {_SIGN_OF_LIFE_S:.0f} s")
        if connection.suspect or now_s - self._asked_s < _SUSPECT_S:
            return False
        connection.suspect = True
        return True


def _ignore(outcome: ApiVersionsResponse | Exception) -> None:
    """A sign of life is anything that is heard."""
