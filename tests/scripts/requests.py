"""Steps of a script as requests: short words and defaults become the fields of a message."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from protocol.errors import ErrorCode
from protocol.messages.api import Request, Response
from protocol.messages.groups import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from protocol.messages.transactions import (
    StagedPartition,
    StagedTopic,
    StageOffsetsRequest,
    TxnOffsetCommitRequest,
)
from protocol.subscription import Subscription, TopicPartition, encode_subscription
from tests.scripts.script import Happened, ScriptError, Step

DEFAULT_GROUP: Final = "g"
SIMPLE_CLIENTS: Final = ("nobody", "admin")
"""Names that are in no group: they commit without a generation and leave without a member id."""

LONG: Final = 1000
"""Names of groups from this length on mean themselves."""

ALONE: Final = (
    "wait",
    "restart",
    "unload",
    "expire",
    "describe",
    "list",
    "delete-group",
    "delete-offsets",
    "delete-topic",
    "end",
)
"""Steps that no member takes."""

FUTURE_VERSION: Final = 9
"""A version of subscriptions that is not there yet."""

_BETWEEN_PROTOCOLS: Final = re.compile(r",(?![^(]*\))")
_CALLED: Final = re.compile(r"(topics|future|bytes)\((.*)\)")


@dataclass(frozen=True, slots=True)
class Asked:
    """A step taken apart: who asks for what, and the words that say more."""

    who: str
    verb: str
    words: tuple[str, ...]

    @property
    def options(self) -> dict[str, str]:
        """The words of the form ``name=value``."""
        return {name: value for name, found, value in (word.partition("=") for word in self.words) if found}

    @property
    def names(self) -> list[str]:
        """The other words."""
        return [word for word in self.words if "=" not in word]

    @property
    def group(self) -> str:
        """The group it is about."""
        return repeated(self.options.get("group", DEFAULT_GROUP))


def asked(step: Step) -> Asked:
    """Takes a step apart. Raises ``ScriptError`` when it is none."""
    if step.words[0] in ALONE:
        return Asked("", step.words[0], step.words[1:])
    if len(step.words) < 2:
        raise ScriptError(f"line {step.line}: a step is WHO VERB ..., or one of {', '.join(ALONE)}")
    return Asked(step.words[0], step.words[1], step.words[2:])


@dataclass(slots=True)
class Client:
    """A member as it sees itself: what it was told by the last good answer to a join."""

    member_id: str = ""
    generation: int = -1
    session_ms: int = 10_000
    rebalance_ms: int = 60_000
    protocols: str = "range:topics"
    instance: str | None = None

    def hear(self, response: Response) -> None:
        """Remembers what an answer tells."""
        if isinstance(response, JoinGroupResponse):
            if response.error_code == ErrorCode.NONE:
                self.member_id, self.generation = response.member_id, response.generation_id
            elif response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id


class Clients:
    """All clients that ask, by name, and what their words mean.

    A script names member ids A, A2, ...; ``real`` has the ids that stand behind them where they are others. All ids of
    groups begin with ``prefix``.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.real: dict[str, str] = {}
        self._members: dict[tuple[str, str], Client] = {}

    def hear(self, name: str, group: str, response: Response) -> None:
        """A client gets an answer about a group."""
        if (name, group) in self._members:
            self._members[name, group].hear(response)

    def group_id(self, name: str) -> str:
        """The id behind the name of a group. No name is no id, and one that tries how long an id may be stays as it is."""
        return self.prefix + name if 0 < len(name) < LONG else name

    def request(self, asked: Asked) -> Request:
        """The request of a step. Options that are left out are what the client said or heard last."""
        options, group = asked.options, self.group_id(asked.group)
        client = self._client(asked)
        member = self._id(options["member"]) if "member" in options else client.member_id
        generation = int(options.get("generation", client.generation))
        if asked.verb in ("join", "ask-id"):
            return _join(client, options, group, "" if asked.verb == "ask-id" else member)
        instance = _none(options["instance"]) if "instance" in options else client.instance
        if asked.verb == "sync":
            shares = [word.split("=") for word in asked.words if word[0].isupper()]
            assignments = tuple(SyncGroupAssignment(self._id(name), repeated(share).encode()) for name, share in shares)
            kind, protocol = options.get("type"), options.get("protocol")
            return SyncGroupRequest(group, generation, member, instance, kind, protocol, assignments)
        if asked.verb == "heartbeat":
            return HeartbeatRequest(group, generation, member, instance, int(options.get("wait", 0)))
        if asked.verb in ("leave", "remove"):
            return LeaveGroupRequest(group, self._leaving(asked))
        if asked.verb == "commit":
            return OffsetCommitRequest(group, generation, member, instance, _offsets(asked))
        if asked.verb == "txn-commit":
            producer_id, epoch = transaction(options["txn"])
            told, staged = _offsets(asked), "staged" in asked.words
            return TxnOffsetCommitRequest(group, "id", producer_id, epoch, generation, member, instance, told, staged)
        if asked.verb == "stage":
            return StageOffsetsRequest(group, generation, member, instance, _batch(asked))
        if asked.verb == "fetch":
            topics = tuple(OffsetFetchTopic(*place) for place in _places(asked))
            return OffsetFetchRequest(group, None if "all" in asked.words else topics, "stable" in asked.words)
        if asked.verb == "list":
            states = tuple(name.replace("_", " ") for name in asked.names)
            return ListGroupsRequest(states, tuple(filter(None, options.get("types", "").split(","))))
        if asked.verb == "delete-group":
            return DeleteGroupsRequest(tuple(self.group_id(repeated(name)) for name in asked.names or [asked.group]))
        if asked.verb == "delete-offsets":
            return OffsetDeleteRequest(group, tuple(OffsetDeleteTopic(*place) for place in _places(asked)))
        raise ScriptError(f"no such verb: {asked.verb}")

    def _leaving(self, asked: Asked) -> tuple[LeavingMember, ...]:
        options = asked.options
        reason = _reason(options)
        if asked.verb == "remove":
            return tuple(LeavingMember("", instance, reason) for instance in asked.names[0].split(","))
        leaving = []
        for name in asked.who.split(","):
            client = self._members.get((name, asked.group), Client())
            member = self._id(options["member"]) if "member" in options else client.member_id or self._id(name)
            instance = _none(options["instance"]) if "instance" in options else client.instance
            leaving.append(LeavingMember(member, instance, reason))
        return tuple(leaving)

    def _client(self, asked: Asked) -> Client:
        """Who asks, as a member of the group; those that are in no group remember nothing."""
        if asked.who in SIMPLE_CLIENTS or "," in asked.who:
            return Client()
        return self._members.setdefault((asked.who, asked.group), Client())

    def _id(self, name: str) -> str:
        return "" if name == "none" else self.real.get(name, name)


def _none(word: str) -> str | None:
    return None if word == "none" else repeated(word)


def _join(client: Client, options: dict[str, str], group: str, member: str) -> JoinGroupRequest:
    client.session_ms = int(options.get("session", client.session_ms))
    client.rebalance_ms = int(options.get("rebalance", client.rebalance_ms))
    client.protocols = options.get("protocols", client.protocols)
    if "instance" in options:
        client.instance = _none(options["instance"])
    protocols = tuple(
        JoinGroupProtocol(repeated(one.partition(":")[0]), metadata(one.partition(":")[2]))
        for one in _BETWEEN_PROTOCOLS.split(client.protocols)
        if one
    )
    return JoinGroupRequest(
        group,
        client.session_ms,
        client.rebalance_ms,
        member,
        client.instance,
        options.get("type", "consumer"),
        protocols,
        _reason(options),
    )


def _reason(options: dict[str, str]) -> str:
    return repeated(options.get("reason", "").replace("\\n", "\n"))


def metadata(text: str) -> bytes:
    """What a member says to a protocol.

    ``topics(t,u)`` is a subscription and ``topics(t|t/0,t/1)`` one that names owned partitions, ``future(t,u)`` one of a
    later version with fields that this version does not know, ``bytes(ff00)`` are bytes in hex; any other text is itself.
    """
    called = _CALLED.fullmatch(text)
    if called is None:
        return repeated(text).encode()
    if called[1] == "bytes":
        return bytes.fromhex(called[2])
    names, _, places = called[2].partition("|")
    topics = tuple(filter(None, names.split(",")))
    if called[1] == "topics":
        owned = [place.rpartition("/") for place in filter(None, places.split(","))]
        partitions = tuple(TopicPartition(topic, int(partition)) for topic, _, partition in owned)
        return encode_subscription(Subscription(topics, owned_partitions=partitions))
    known = encode_subscription(Subscription(topics))
    return bytes((0, FUTURE_VERSION)) + known[2:] + b"a field of tomorrow"


def _offsets(asked: Asked) -> tuple[OffsetCommitTopic, ...]:
    options = asked.options
    text = options.get("metadata", "")
    topics: list[OffsetCommitTopic] = []
    for word in asked.words:
        place, _, offset = word.partition("=")
        topic, slash, partition = place.rpartition("/")
        if slash:
            epoch = int(options.get("epoch", -1))
            stored = None if text == "null" else repeated(text)
            topics.append(
                OffsetCommitTopic(topic, (OffsetCommitPartition(int(partition), int(offset), epoch, stored),))
            )
    return tuple(topics)


def _batch(asked: Asked) -> tuple[StagedTopic, ...]:
    """``t/0=5..9``: a batch reads partition 0 of topic t from offset 5 up to the record before 9."""
    topics = []
    for place, read in asked.options.items():
        topic, slash, partition = place.rpartition("/")
        if slash:
            start, _, end = read.partition("..")
            topics.append(StagedTopic(topic, "", (StagedPartition(int(partition), int(start), int(end)),)))
    return tuple(topics)


def transaction(text: str) -> tuple[int, int]:
    """``7/0``: the transaction of producer 7 in epoch 0."""
    producer_id, _, epoch = text.partition("/")
    return int(producer_id), int(epoch)


def _places(asked: Asked) -> list[tuple[str, tuple[int, ...]]]:
    places = [name.rpartition("/") for name in asked.names if "/" in name]
    return [(topic, (int(partition),)) for topic, _, partition in places]


def repeated(text: str) -> str:
    """``x*5000`` is x five thousand times; anything else is itself."""
    head, star, count = text.rpartition("*")
    return head * int(count) if star and count.isdigit() else text


def settling(what: Asked) -> list[Asked]:
    """``A,B settle``, step by step: they join, the first one again, and all sync; the shares are p0, p1, ..."""
    names = what.who.split(",")
    options = [word for word in what.words if "=" in word and not word[0].isupper()]
    group = [word for word in options if word.startswith("group=")]
    shares = [word for word in what.words if "=" in word and word[0].isupper()]
    shares = shares or [f"{name}=p{number}" for number, name in enumerate(names)]
    own = {name: [f"instance={name.lower()}"] if "static" in what.words else [] for name in names}
    joins = [Asked(name, "join", (*options, *own[name])) for name in names]
    if len(names) > 1:
        joins.append(Asked(names[0], "join", tuple(options)))
    syncs = [Asked(name, "sync", (*group, *(shares if name == names[0] else ()))) for name in names]
    return joins + syncs


def must_be_good(what: Asked, happened: list[Happened]) -> None:
    """Raises ``ScriptError`` if settling a group met an error."""
    for one in happened:
        if one.kind == "->" and ": NONE" not in one.text:
            raise ScriptError(f"{what.who} cannot settle: {one.text} because {one.reason!r}")


def must_ask_again(response: Response) -> bool:
    """Whether this answer to a join only gives the id to join with (KIP-394)."""
    return isinstance(response, JoinGroupResponse) and response.error_code == ErrorCode.MEMBER_ID_REQUIRED


def with_id(asked: Asked) -> Asked:
    """The same join, with the id that the client was given."""
    return replace(asked, words=tuple(word for word in asked.words if not word.startswith("member=")))


def next_id(given: dict[str, int], name: str) -> str:
    """The name in scripts of the next member id that ``name`` gets: A, then A2, A3, ..."""
    given[name] = given.get(name, 0) + 1
    return name if given[name] == 1 else f"{name}{given[name]}"
