"""Steps of a script as requests: short words and defaults become the fields of a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.api import Response
from protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from tests.scripts.script import ScriptError

SIMPLE_CLIENTS = ("nobody", "admin")
"""Names that are in no group: they commit without a generation."""


@dataclass(slots=True)
class Client:
    """A member as it sees itself: what it was told by the last good answer to a join."""

    member_id: str = ""
    generation: int = -1
    session_ms: int = 10_000
    rebalance_ms: int = 60_000
    protocols: str = "range:topics"

    def hear(self, response: Response) -> None:
        """Remembers what an answer tells."""
        if isinstance(response, JoinGroupResponse) and response.error_code == ErrorCode.NONE:
            self.member_id, self.generation = response.member_id, response.generation_id


def request_of(clients: dict[str, Client], who: str, verb: str, words: list[str], group: str) -> Any:
    """The request of a step. Options that are left out are what the client said or heard last."""
    options = dict(word.split("=", 1) for word in words if "=" in word)
    client = Client() if who in SIMPLE_CLIENTS or "," in who else clients.setdefault(who, Client())
    member = options.get("member", client.member_id)
    member = "" if member == "none" else member
    generation = int(options.get("generation", client.generation))
    instance = options.get("instance")
    if verb == "join":
        return _join(client, options, group, member, instance)
    if verb == "sync":
        shares = tuple(
            SyncGroupAssignment(word.split("=")[0], repeated(word.split("=")[1]).encode())
            for word in words
            if word[0].isupper()
        )
        return SyncGroupRequest(
            group, generation, member, instance, options.get("type"), options.get("protocol"), shares
        )
    if verb == "heartbeat":
        return HeartbeatRequest(group, generation, member, instance, int(options.get("wait", 0)))
    if verb == "leave":
        leaving = [_member_id_of(clients, name) for name in who.split(",")]
        return LeaveGroupRequest(
            group, tuple(LeavingMember(one, instance, options.get("reason", "")) for one in leaving)
        )
    if verb == "commit":
        return OffsetCommitRequest(group, generation, member, instance, _offsets(words, options))
    if verb == "fetch":
        wanted = tuple(
            OffsetFetchTopic(word.split("/")[0], (int(word.split("/")[1]),)) for word in words if "/" in word
        )
        return OffsetFetchRequest(group, None if "all" in words else wanted)
    raise ScriptError(f"no such verb: {verb}")


def _join(client: Client, options: dict[str, str], group: str, member: str, instance: str | None) -> JoinGroupRequest:
    client.session_ms = int(options.get("session", client.session_ms))
    client.rebalance_ms = int(options.get("rebalance", client.rebalance_ms))
    client.protocols = options.get("protocols", client.protocols)
    protocols = tuple(
        JoinGroupProtocol(repeated(one.partition(":")[0]), repeated(one.partition(":")[2]).encode())
        for one in client.protocols.split(",")
        if one
    )
    return JoinGroupRequest(
        group,
        client.session_ms,
        client.rebalance_ms,
        member,
        instance,
        options.get("type", "consumer"),
        protocols,
        options.get("reason", ""),
    )


def _member_id_of(clients: dict[str, Client], name: str) -> str:
    return clients[name].member_id or name if name in clients else name


def _offsets(words: list[str], options: dict[str, str]) -> tuple[OffsetCommitTopic, ...]:
    metadata = options.get("metadata", "")
    topics: list[OffsetCommitTopic] = []
    for word in words:
        place, _, offset = word.partition("=")
        if "/" in place:
            topic, partition = place.split("/")
            stored = OffsetCommitPartition(
                int(partition),
                int(offset),
                int(options.get("epoch", -1)),
                None if metadata == "null" else repeated(metadata),
            )
            topics.append(OffsetCommitTopic(topic, (stored,)))
    return tuple(topics)


def repeated(text: str) -> str:
    """``x*5000`` is x five thousand times; anything else is itself."""
    head, star, count = text.rpartition("*")
    return head * int(count) if star and count.isdigit() else text
