"""The world of a script whose clients speak Kafka's protocol, to the port for them; the administrator speaks our own.

Answers of one connection leave in the order of its requests, so a request that is to be answered while another of the same
client waits goes over a connection of its own, and nothing can be asked behind one that waits. That it has been decided is
known otherwise, without sleeping: the daemon, which runs in this process, has taken all bytes that were sent to it and has
no request left to begin; after that a description is asked for, as over sockets; and then all bytes that it has sent have
arrived here.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from coordinator.embedded import Coordinator
from coordinator.server.connection import Connection
from protocol.framing import FrameReader
from protocol.kafka.decoding import decode
from protocol.kafka.headers import decode_response_header
from protocol.messages.api import Request, Response
from protocol.messages.groups import DescribedGroup, JoinGroupRequest, SyncGroupRequest
from protocol.messages.offsets import OffsetFetchRequest
from tests.coordinator.kafka.wire import request_frame, response_kind
from tests.integration.kafka_requests import GROUPS_SINCE, NAMES_PROTOCOL_SINCE, Versions, cannot_say, read, written
from tests.integration.scripts_over_sockets import (
    ADMINISTRATOR,
    TIMEOUT_S,
    Sent,
    SocketWorld,
    create_topics,
    in_order,
    needs_own_daemon,
    visible,
    why_not,
)
from tests.scripts.requests import ALONE, Asked, Clients, asked, settling
from tests.scripts.script import Expectation, Script, Step, compare

OPTIONS: Final[dict[str, Any]] = {
    "log_level": "error",
    "kafka_port": -1,
    "kafka_min_session_timeout_ms": 1,  # the sessions of scripts are bounded by the settings of groups
    "kafka_heartbeat_hold_ms": 0,
}
_OF_ADMINISTRATORS: Final = frozenset(ALONE) - {"delete-group", "delete-offsets"}
SPEAKS_AS_IT_JOINS: Final = "commit/in_each_state"
"""In this script a member commits while its first join waits: a client that is given no id before does not know its own."""
_ABOVE_A_DAY: Final = "join/rebalance_timeout_bounds"
"""In this script a rebalance timeout above a day is refused; that of a Kafka client is one of a day."""
_GIVES_NO_IDS_BEFORE: Final = 4
"""The version of JoinGroup that knows MEMBER_ID_REQUIRED (KIP-394)."""


def why_not_over_kafka(script: Script, versions: Versions) -> str:
    """Why a script cannot be spoken in these versions; "" when it can."""
    if why := why_not(script):
        return why
    knows_ids = versions[JoinGroupRequest] >= _GIVES_NO_IDS_BEFORE
    if not knows_ids and script.name == SPEAKS_AS_IT_JOINS:
        return "a client that is given no id before it joins does not know its own"
    if script.name == _ABOVE_A_DAY:
        return "Kafka's rebalance timeouts have no upper bound"
    clients = Clients()
    for step in script.steps:
        what = asked(step)
        if not knows_ids and ("ask-id" in step.words or any("MEMBER_ID_REQUIRED" in one.text for one in step.expected)):
            return "its clients are given no ids before they join"
        for one in settling(what) if what.verb == "settle" else [what]:
            if one.verb in ("disconnect", "wait") or one.verb in _OF_ADMINISTRATORS:
                continue
            request = clients.request(one)
            if why := cannot_say(request, versions.get(type(request), 0)):
                return why
    return ""


@dataclass(slots=True)
class _Asked:
    """A request whose answer has not come."""

    number: int
    version: int
    request: Request


class KafkaConnection(asyncio.Protocol):
    """One connection, and how many bytes went and came."""

    def __init__(self, heard: Callable[[int, Response], None]) -> None:
        self.sent = 0
        self.received = 0
        self.open: deque[_Asked] = deque()
        self._heard = heard
        self.closed = asyncio.Event()
        self.local = ""
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port = transport.get_extra_info("sockname")[:2]
        self.local = f"{host}:{port}"

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        for frame in self._frames.feed(data):
            asked_for = self.open.popleft()
            kind, version = type(asked_for.request), asked_for.version
            key = kind.api_key
            _, at = decode_response_header(key, version, bytes(frame))
            answer = decode(response_kind(key), version, bytes(frame), at)
            self._heard(asked_for.number, read(asked_for.request, version, answer))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def ask(self, number: int, version: int, client_id: str, request: Request) -> None:
        assert self._transport is not None
        frame = request_frame(written(request, version), version, number, client_id)
        self.open.append(_Asked(number, version, request))
        self.sent += len(frame)
        self._transport.write(frame)

    def shut_down(self) -> None:
        assert self._transport is not None
        self._transport.write_eof()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()


class KafkaClient:
    """One client: as many connections as it has requests that wait, and one more. In place of ``Wire``."""

    def __init__(self, client_id: str, versions: Versions) -> None:
        self.connections: list[KafkaConnection] = []
        self.waiting: dict[int, Sent] = {}
        self._client_id = client_id
        self._versions = versions
        self._numbers = count(1)
        self.arrived: list[tuple[Sent, Response]] = []

    def _hear(self, number: int, response: Response) -> None:
        self.arrived.append((self.waiting.pop(number), response))

    async def connect(self, address: str) -> None:
        """Sees to it that one connection has no request that waits."""
        if any(not connection.open for connection in self.connections):
            return
        host, _, port = address.rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(KafkaConnection, self._hear), host, int(port)
        )
        self.connections.append(connection)

    def send(self, what: Asked, request: Request) -> int:
        """See ``Wire``."""
        number = next(self._numbers)
        self.waiting[number] = Sent(what.who, what.verb, what.group, request.response)
        free = next(connection for connection in self.connections if not connection.open)
        free.ask(number, self._versions[type(request)], self._client_id, request)
        return number

    async def disconnect(self) -> None:
        """See ``Wire``."""
        for connection in self.connections:
            connection.shut_down()
        for connection in self.connections:
            await connection.closed.wait()

    def abort(self) -> None:
        """See ``Wire``."""
        for connection in self.connections:
            connection.abort()


class KafkaWorld(SocketWorld):
    """See the module text."""

    def __init__(self, coordinator: Coordinator, prefix: str, versions: Versions) -> None:
        super().__init__(coordinator, prefix)
        self._versions = versions

    async def wire(self, who: str) -> Any:
        """The administrator's connection, or a client that has a connection free."""
        if who == ADMINISTRATOR:
            return await super().wire(who)
        client = self.wires.setdefault(who, KafkaClient(who, self._versions))  # type: ignore[arg-type]
        assert isinstance(client, KafkaClient)
        await client.connect(self.coordinator.kafka_address)
        return client

    async def _described(self, who: str, group_id: str) -> DescribedGroup:
        """Asked for by the administrator; all answers to what was decided before have arrived after it."""
        group = await self._decided(group_id)
        if self._versions[JoinGroupRequest] < _GIVES_NO_IDS_BEFORE:
            group = await self._decided(group_id)  # an old join is decided twice: for the id, and with it
        return group

    async def _decided(self, group_id: str) -> DescribedGroup:
        while any(
            theirs is None or theirs.received < ours.sent or theirs.wire.pending for ours, theirs in self._both_sides()
        ):
            await asyncio.sleep(0)
        group = await super()._described(ADMINISTRATOR, group_id)
        while any(theirs is not None and ours.received < theirs.sent for ours, theirs in self._both_sides()):
            await asyncio.sleep(0)
        return group

    def _both_sides(self) -> list[tuple[KafkaConnection, Connection | None]]:
        """Each connection of a Kafka client, here and at the daemon, where None is one that it has not taken yet."""
        daemon = self.coordinator._daemon
        assert daemon is not None
        assert daemon._listener is not None
        theirs = {connection.peer: connection for connection in daemon._listener._connections}
        ours = [each for wire in self.wires.values() if isinstance(wire, KafkaClient) for each in wire.connections]
        return [(each, theirs.get(each.local)) for each in ours]


async def run_over_kafka(script: Script, shared: Coordinator, tmp_path: Path, versions: Versions) -> None:
    """Carries out a script. Raises ``ScriptError`` at the first step whose answers or state are others than it says."""
    async with asyncio.timeout(TIMEOUT_S):
        if not needs_own_daemon(script):
            await _run(script, shared, versions)
            return
        async with Coordinator(str(tmp_path / "data"), **{**script.settings, **OPTIONS}) as coordinator:
            await create_topics(coordinator)
            await _run(script, coordinator, versions)


async def _run(script: Script, coordinator: Coordinator, versions: Versions) -> None:
    async with KafkaWorld(coordinator, f"{script.name}/", versions) as world:
        for step in script.steps:
            compare(script, told_by_kafka(visible(step), versions), in_order(await world.run(step)))


def told_by_kafka(step: Step, versions: Versions) -> Step:
    """What of a step's expectations Kafka's answers tell: none says why; the state, which the administrator sees, does."""
    return replace(step, expected=tuple(_told(step, one, versions) for one in step.expected))


def _told(step: Step, expected: Expectation, versions: Versions) -> Expectation:
    if expected.kind != "->":
        return expected
    text = expected.text
    refused = re.search(r" fetch: (?!NONE)(\w+)$", text)
    if refused is not None and versions[OffsetFetchRequest] < GROUPS_SINCE:
        # at each partition too: aiokafka looks nowhere else
        text += "".join(f" {word}={refused[1]}" for word in step.words if re.fullmatch(r"\w+/\d+", word))
    if versions[SyncGroupRequest] < NAMES_PROTOCOL_SINCE:
        text = re.sub(r"( sync: NONE protocol=)\S+", r"\1None", text)
    return replace(expected, text=text, because=None)
