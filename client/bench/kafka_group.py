"""Members of a group at a Kafka, formed with bare requests of Kafka's protocol, and the frames that load it afterwards.

What ``raw_group`` is for Cohort's protocol. A broker answers one request of a connection after the other, so each member
joins over a connection of its own.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final, Self, TypeVar

from client.bench.closed_loop import Exchange
from client.bench.raw_group import SESSION_TIMEOUT_MS, Formation, RawMember
from client.bench.requests import TIMEOUT_S
from client.cli.failure import CommandError
from client.transport.metadata import parse_bootstrap_servers
from protocol.errors import ErrorCode
from protocol.framing import LENGTH_BYTES
from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.headers import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from protocol.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from protocol.kafka.messages.find_coordinator_response import FindCoordinatorResponse
from protocol.kafka.messages.heartbeat_request import HeartbeatRequest
from protocol.kafka.messages.heartbeat_response import HeartbeatResponse
from protocol.kafka.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.kafka.messages.join_group_response import JoinGroupResponse
from protocol.kafka.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.kafka.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from protocol.kafka.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from protocol.kafka.messages.sync_group_response import SyncGroupResponse
from protocol.kafka.schema import Message

_Answer = TypeVar("_Answer", bound=Message)
_CLIENT_ID: Final = "bench"
_PROTOCOL: Final = "bench"
_REBALANCE_TIMEOUT_MS: Final = 30_000
_CORRELATION_ID: Final = 1
_FIND, _JOIN, _SYNC, _HEARTBEAT, _COMMIT = 4, 7, 5, 4, 9
"""The versions that are asked in: those of Kafka 2.4 to 4, flexible where there is one."""
_LOOK_EVERY_S: Final = 0.02
_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
    }
)


class KafkaConnection:
    """A connection to a broker that sends one request after the other. Use as an async context manager."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        ((host, port),) = parse_bootstrap_servers(self._address)
        self._reader, self._writer = await asyncio.open_connection(host, port)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._writer is not None:
            self._writer.close()

    async def request(self, request: Message, version: int, answer: type[_Answer]) -> _Answer:
        """Sends a request and returns its answer. Raises ``CommandError`` when the broker closes the connection."""
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(_frame(request, version))
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
            payload = await self._reader.readexactly(length)
        except asyncio.IncompleteReadError:
            raise CommandError(f"{self._address} closed the connection upon {type(request).__name__}") from None
        _, at = decode_response_header(request.API_KEY, version, payload)
        return decode(answer, version, payload, at)


async def form_kafka_group(address: str, group_id: str, size: int) -> list[RawMember]:
    """``size`` members of one group at a broker, all in the same stable generation.

    Raises ``CommandError`` when the broker refuses one for good, ``TimeoutError`` after ``TIMEOUT_S``.
    """
    formation = Formation(size)
    async with asyncio.timeout(TIMEOUT_S):
        async with KafkaConnection(address) as connection:
            await find_kafka_coordinator(connection, group_id)
        async with asyncio.TaskGroup() as tasks:
            joining = [tasks.create_task(_join(address, group_id, formation)) for _ in range(size)]
    return [each.result() for each in joining]


async def find_kafka_coordinator(connection: KafkaConnection, group_id: str) -> None:
    """Asks until there is one: the first request of all makes ``__consumer_offsets``.

    Raises ``CommandError`` when the broker refuses it, or has none after ``TIMEOUT_S``.
    """
    began = perf_counter()
    while True:
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
        (found,) = (await connection.request(asked, _FIND, FindCoordinatorResponse)).coordinators
        if found.error_code == ErrorCode.NONE:
            return
        if found.error_code not in _AGAIN or perf_counter() - began > TIMEOUT_S:
            raise _refused(found.error_code, "FindCoordinator")
        await asyncio.sleep(_LOOK_EVERY_S)


async def _join(address: str, group_id: str, formation: Formation) -> RawMember:
    member_id = ""
    async with KafkaConnection(address) as connection:
        while True:
            protocols = [JoinGroupRequestProtocol(_PROTOCOL, b"")]
            asked = JoinGroupRequest(
                group_id, SESSION_TIMEOUT_MS, _REBALANCE_TIMEOUT_MS, member_id, None, _PROTOCOL, protocols
            )
            joined = await connection.request(asked, _JOIN, JoinGroupResponse)
            member_id = joined.member_id or member_id
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            if joined.error_code in _AGAIN:
                await asyncio.sleep(_LOOK_EVERY_S)
                continue
            if joined.error_code:
                raise _refused(joined.error_code, "JoinGroup")
            member = RawMember(group_id, joined.generation_id, member_id)
            if await _sync(connection, member, joined, formation) and await _is_final(connection, member, formation):
                return member


async def _sync(
    connection: KafkaConnection, member: RawMember, joined: JoinGroupResponse, formation: Formation
) -> bool:
    """Whether the member has its assignment in the generation that it joined."""
    leads = joined.leader == member.member_id
    assignments = [SyncGroupRequestAssignment(each.member_id, b"") for each in joined.members] if leads else []
    asked = SyncGroupRequest(
        member.group_id, member.generation, member.member_id, None, _PROTOCOL, _PROTOCOL, assignments
    )
    synced = await connection.request(asked, _SYNC, SyncGroupResponse)
    if synced.error_code in _AGAIN:
        return False
    if synced.error_code:
        raise _refused(synced.error_code, "SyncGroup")
    if leads and len(joined.members) == formation.size:
        formation.generation = joined.generation_id
    return True


async def _is_final(connection: KafkaConnection, member: RawMember, formation: Formation) -> bool:
    """Waits until this generation proves to be the one with all members, or the group calls for another."""
    asked = HeartbeatRequest(member.group_id, member.generation, member.member_id)
    while formation.generation != member.generation:
        beat = await connection.request(asked, _HEARTBEAT, HeartbeatResponse)
        if beat.error_code in _AGAIN:
            return False
        if beat.error_code:
            raise _refused(beat.error_code, "Heartbeat")
        await asyncio.sleep(_LOOK_EVERY_S)
    return True


def heartbeat_exchange(member: RawMember) -> Exchange:
    """A Heartbeat of Kafka's protocol and the one right answer."""
    request = HeartbeatRequest(member.group_id, member.generation, member.member_id)
    return Exchange(_frame(request, _HEARTBEAT), _answer(request, _HEARTBEAT, HeartbeatResponse()))


def commit_exchange(member: RawMember, topic: str, partition: int) -> Exchange:
    """An OffsetCommit of one partition in Kafka's protocol and the one right answer."""
    committed = OffsetCommitRequestPartition(partition, 1, -1, "")
    topics = [OffsetCommitRequestTopic(topic, partitions=[committed])]
    request = OffsetCommitRequest(member.group_id, member.generation, member.member_id, None, topics=topics)
    stored = [OffsetCommitResponseTopic(topic, partitions=[OffsetCommitResponsePartition(partition, 0)])]
    return Exchange(_frame(request, _COMMIT), _answer(request, _COMMIT, OffsetCommitResponse(topics=stored)))


def _frame(request: Message, version: int) -> bytes:
    header = encode_request_header(RequestHeader(request.API_KEY, version, _CORRELATION_ID, _CLIENT_ID))
    payload = header + b"".join(encode(request, version))
    return len(payload).to_bytes(LENGTH_BYTES) + payload


def _answer(request: Message, version: int, answer: Message) -> bytes:
    header = encode_response_header(request.API_KEY, version, _CORRELATION_ID)
    payload = header + b"".join(encode(answer, version))
    return len(payload).to_bytes(LENGTH_BYTES) + payload


def _refused(error_code: int, what: str) -> CommandError:
    return CommandError(f"the Kafka that is compared with refuses {what}: {ErrorCode(error_code).name}")
