"""The world of a script over real sockets: one connection for each client, and a daemon that knows nothing of scripts.

What a daemon decides about one group it decides in order, and its answers leave in order. So after each request the same
connection asks for a description of the group: once that is there, the request has been decided, and every answer it
brought has been sent before. A description asked for over each connection that still waits then proves that what has not
arrived there has not been sent. Nothing here sleeps to see that nothing comes.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from coordinator.config import Settings
from coordinator.embedded import Coordinator
from protocol.codec import decode_message, encode_message
from protocol.errors import ErrorCode
from protocol.framing import FrameReader, decode_response, encode_request
from protocol.messages.api import Request, Response
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupResponse,
    ListGroupsResponse,
)
from protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tests.scripts import shown
from tests.scripts.requests import Asked, Clients, asked, must_ask_again, must_be_good, next_id, settling, with_id
from tests.scripts.script import Expectation, Happened, Script, ScriptError, Step, compare
from tests.scripts.world import TOPICS, World

ADMINISTRATOR = "admin"
TIMEOUT_S = 30.0
PARKED = ("join", "ask-id", "sync", "heartbeat")
"""Requests that may wait; all others are answered at once."""

GIVES_AN_ID = (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)

ResponseT = TypeVar("ResponseT", bound=Response)


def why_not(script: Script) -> str:
    """Why a script cannot run over sockets; "" when it can."""
    if script.given:
        return "it begins with a log of its own"
    if unknown := sorted(script.settings.keys() - Settings.__dataclass_fields__.keys()):
        return f"a daemon has no setting {unknown[0]}"
    world = World(script)
    for step in script.steps:
        if step.words[0] in ("unload", "expire"):
            return f"nobody outside can ask for {step.words[0]}"
        if step.words[0] == "end" or step.words[1:2] == ("txn-commit",):
            return "the transactions of scripts have no coordinator"
        if step.words[0] == "restart" and len(step.words) > 1:
            return "a daemon that runs keeps its settings"
        if step.words[1:2] == ("disconnect",) and len(step.words) > 2:
            return "each client has one connection for all that it asks"
        world.run(step)
        if world.timers_fired:
            return "a timer fires"
    return ""


def needs_own_daemon(script: Script) -> bool:
    """Whether a script does to its daemon what others would notice."""
    return bool(script.config) or any(step.words[0] in ("restart", "delete-topic") for step in script.steps)


@dataclass(slots=True)
class Sent:
    """A request that has no answer yet: by whom, which, and what its answer is."""

    who: str
    verb: str
    group: str
    response: type[Response]


class Wire(asyncio.Protocol):
    """One client's connection. Answers to ``call`` go to the caller, all others are kept in ``arrived``."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, asyncio.Future[list[object]]] = {}
        self._number = 0
        self._closed = asyncio.Event()
        self.waiting: dict[int, Sent] = {}
        self.arrived: list[tuple[Sent, Response]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for payload in self._frames.feed(data):
            frame = decode_response(payload)
            if frame.error_code != ErrorCode.NONE:
                self._fail(ScriptError(f"the daemon does not take a request of {self._client_id}: {frame}"))
                return
            call = self._calls.pop(frame.correlation_id, None)
            if call is not None:
                call.set_result(frame.body)
            else:
                sent = self.waiting.pop(frame.correlation_id)
                self.arrived.append((sent, decode_message(sent.response, frame.body)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        self._fail(ScriptError(f"the daemon closed the connection of {self._client_id}"))

    def _fail(self, error: ScriptError) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(error)
        self._calls.clear()

    def send(self, what: Asked, request: Request) -> int:
        """Sends a request without waiting for its answer; returns its number."""
        number = self._write(request)
        self.waiting[number] = Sent(what.who, what.verb, what.group, request.response)
        return number

    async def call(self, request: Request, kind: type[ResponseT]) -> ResponseT:
        """Sends a request and waits for its answer."""
        assert request.response is kind
        future: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()
        self._calls[self._write(request)] = future
        return decode_message(kind, await future)

    async def disconnect(self) -> None:
        """Says that this client is done; returns once the daemon has noticed, for it closes its side after that."""
        assert self._transport is not None
        self._transport.write_eof()
        await self._closed.wait()

    def abort(self) -> None:
        """Closes at once."""
        assert self._transport is not None
        self._transport.abort()

    def _write(self, request: Request) -> int:
        assert self._transport is not None
        self._number += 1
        body = encode_message(request)
        self._transport.write(encode_request(request.api_key, request.versions[1], self._number, self._client_id, body))
        return self._number


class SocketWorld:
    """Carries out the steps of one script at a daemon, one after the other. Groups are called ``prefix`` and their name."""

    def __init__(self, coordinator: Coordinator, prefix: str) -> None:
        self.coordinator = coordinator
        self.prefix = prefix
        self.clients = Clients(prefix)
        self.wires: dict[str, Wire] = {}
        self.found: set[str] = set()
        self.ids_of: dict[str, int] = {}
        self.names: dict[str, str] = {}
        self.states: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for wire in self.wires.values():
            wire.abort()

    async def run(self, step: Step) -> list[Happened]:
        """Does what a step says; gives the answers that came by then, in no order, and the state if it changed."""
        what = asked(step)
        group_id = self.clients.group_id(what.group)
        for name in [what.group, *(what.names if what.verb == "delete-group" else ())]:
            await self._find(self.clients.group_id(name))
        happened = await self._do(what, group_id)
        group = await self._described(ADMINISTRATOR, group_id)
        happened += await self._arrived(group_id)
        return [self._translated(one) for one in [*happened, *self._state(what.group, group)]]

    async def _do(self, what: Asked, group_id: str) -> list[Happened]:
        if what.verb == "wait":
            return []
        if what.verb == "settle":
            for one in settling(what):
                must_be_good(what, await self._do(one, group_id) + await self._arrived(group_id))
            return []
        if what.verb == "restart":
            await self._restart()
            await self._find(group_id)
            return []
        if what.verb == "disconnect":
            await self.wires.pop(what.who).disconnect()
            return []
        if what.verb == "describe":
            return [shown.described(await self._described(ADMINISTRATOR, group_id))]
        wire = await self.wire(what.who or ADMINISTRATOR)
        if what.verb == "delete-topic":
            deleted = await wire.call(DeleteTopicsRequest(tuple(what.names)), DeleteTopicsResponse)
            assert not any(result.error_code for result in deleted.responses), deleted
            return []
        request = self.clients.request(what)
        if what.verb == "list":
            while (listed := await wire.call(request, ListGroupsResponse)).error_code:
                assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, listed
                await asyncio.sleep(0.01)  # other logs than that of the script's group are still being read
            return [shown.listed(group for group in listed.groups if group.group_id.startswith(self.prefix))]
        number = wire.send(what, request)
        await self._described(what.who or ADMINISTRATOR, group_id)
        while what.verb not in PARKED and number in wire.waiting:
            await self._described(what.who or ADMINISTRATOR, group_id)
        if what.verb == "join" and wire.arrived and must_ask_again(wire.arrived[-1][1]):
            self._hear(*wire.arrived.pop())
            return await self._do(with_id(what), group_id)
        return []

    async def _arrived(self, group_id: str) -> list[Happened]:
        """Every answer that was sent by now."""
        for who in [who for who, wire in self.wires.items() if wire.waiting]:
            await self._described(who, group_id)
        happened = []
        for wire in self.wires.values():
            for sent, response in wire.arrived:
                self._hear(sent, response)
                happened.append(shown.answered(sent.who, sent.verb, response))
            wire.arrived.clear()
        return happened

    def _hear(self, sent: Sent, response: Response) -> None:
        self.clients.hear(sent.who, sent.group, response)
        if isinstance(response, JoinGroupResponse) and response.error_code in GIVES_AN_ID:
            self._name(response.member_id, sent.who)

    def _name(self, member_id: str, who: str) -> None:
        if member_id not in self.names:
            name = next_id(self.ids_of, who)
            self.names[member_id], self.clients.real[name] = name, member_id

    def _state(self, name: str, group: DescribedGroup) -> list[Happened]:
        state = shown.state(group)
        if group.error_code != ErrorCode.NONE or self._translated(state).text == self.states.get(name, "Dead"):
            return []
        self.states[name] = self._translated(state).text
        return [state]

    def _translated(self, one: Happened) -> Happened:
        def plain(text: str) -> str:
            for member_id, name in self.names.items():
                text = text.replace(member_id, name)
            return text.replace(self.prefix, "")

        return replace(one, text=plain(one.text), reason=plain(one.reason))

    async def _described(self, who: str, group_id: str) -> DescribedGroup:
        wire = await self.wire(who)
        (group,) = (await wire.call(DescribeGroupsRequest((group_id,)), DescribeGroupsResponse)).groups
        for member in group.members:
            self._name(member.member_id, member.client_id)
        return group

    async def _find(self, group_id: str) -> None:
        if not group_id or group_id in self.found:
            return
        wire = await self.wire(ADMINISTRATOR)
        found = await wire.call(FindCoordinatorRequest(group_id), FindCoordinatorResponse)
        assert found.error_code in (ErrorCode.NONE, ErrorCode.INVALID_GROUP_ID), found
        self.found.add(group_id)

    async def wire(self, who: str) -> Wire:
        """The connection of one client."""
        if who not in self.wires:
            host, port = self.coordinator.address.rsplit(":", 1)
            loop = asyncio.get_running_loop()
            _, self.wires[who] = await loop.create_connection(partial(Wire, who), host, int(port))
        return self.wires[who]

    async def _restart(self) -> None:
        """The daemon stops and another one starts in the same directory; what waited is lost.

        Connections are closed after it has stopped: to a daemon that runs it would mean that new members go.
        """
        await self.coordinator.__aexit__(None, None, None)
        for wire in self.wires.values():
            wire.abort()
        self.wires.clear()
        self.found.clear()
        await self.coordinator.__aenter__()


async def create_topics(coordinator: Coordinator) -> None:
    """Makes the topics that scripts speak of."""
    async with SocketWorld(coordinator, "") as world:
        wire = await world.wire(ADMINISTRATOR)
        wanted = tuple(CreatableTopic(name, partitions) for name, partitions in TOPICS.items())
        created = await wire.call(CreateTopicsRequest(wanted), CreateTopicsResponse)
        assert not any(topic.error_code for topic in created.topics), created


async def run_over_sockets(script: Script, shared: Coordinator, tmp_path: Path) -> None:
    """Carries out a script. Raises ``ScriptError`` at the first step whose answers or state are others than it says."""
    async with asyncio.timeout(TIMEOUT_S):
        if not needs_own_daemon(script):
            await _run(script, shared)
            return
        settings: dict[str, Any] = {**script.settings, "log_level": "error"}
        async with Coordinator(str(tmp_path / "data"), **settings) as coordinator:
            await create_topics(coordinator)
            await _run(script, coordinator)


async def _run(script: Script, coordinator: Coordinator) -> None:
    async with SocketWorld(coordinator, f"{script.name}/") as world:
        for step in script.steps:
            compare(script, visible(step), in_order(await world.run(step)))


def visible(step: Step) -> Step:
    """What of a step's expectations can be seen from outside: answers, which come in no order, and the state."""
    seen = [_at_this_host(expected) for expected in step.expected if expected.kind != "++"]
    return replace(step, expected=tuple(sorted(seen, key=_rank)))


def _at_this_host(expected: Expectation) -> Expectation:
    """The scripts give everybody a host of its own; here all come from one."""
    if not expected.because or "host-of-" not in expected.because:
        return expected
    return replace(expected, because=re.sub(r"host-of-[\w,]+", "127.0.0.1", expected.because))


def in_order(happened: list[Happened]) -> list[Happened]:
    """What happened, in the order of ``visible``."""
    return sorted(happened, key=_rank)


def _rank(one: Expectation | Happened) -> tuple[str, str]:
    return one.kind, one.text
