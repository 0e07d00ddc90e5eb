"""Metadata answers, packed: what did not change since the last answer is not described again.

Every client asks for the same topics again and again, and with ten thousand partitions an answer is hundreds of kilobytes. A
topic is described and packed once for as long as it stays what it is, and the list of all topics once a revision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from coordinator.metadata.catalog import Catalog, Topic, TopicError, check_topic_name
from coordinator.metadata.partitions import NO_LEADER
from coordinator.server.call import NO_ERRORS
from coordinator.server.dispatch import STEP
from protocol.codec import encode_message, pack
from protocol.errors import ErrorCode
from protocol.messages.cluster import BrokerMetadata, MetadataRequest, TopicMetadata

_ARRAY_OF_SIX: Final = 0x96
"""The fields of a ``MetadataResponse``: four of the answer's own, the topics and ``since_revision`` behind them."""
_ARRAY_32: Final = b"\xdd"
_PARTITIONS_PER_STEP: Final = 16 * STEP


class Packed(NamedTuple):
    """Some of an answer, packed: ``errors`` says how often each error code is in it."""

    content: bytes
    errors: Mapping[int, int] = NO_ERRORS


class MetadataAnswers:
    """Makes the answers of one node."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._packed: dict[str, tuple[Topic, Packed]] = {}
        self._everything = (-1, Packed(b""))

    def is_news(self, request: MetadataRequest) -> bool:
        """Whether nodes changed after the revision that the client knows, or where any of the topics asked for is found.

        That other replicas are in sync is told with the next news.
        """
        changed = self._catalog.routed_after(request.known_revision)
        if changed is None or request.known_revision < self._catalog.nodes_revision:
            return True
        return bool(changed) and (request.topics is None or not changed.keys().isdisjoint(request.topics))

    def make(
        self, request: MetadataRequest, host: str, port: int
    ) -> Iterator[tuple[bytes, bytes, Mapping[int, int]] | None]:
        """The answer in two parts, the second of which is shared with other answers, and how often each error code is in it;
        None before that after each step.

        ``host`` and ``port`` are what the client has reached this node by, for a node that announces no address.
        """
        catalog = self._catalog
        revision, topics, cluster_id = catalog.revision, catalog.topics, catalog.cluster_id
        nodes, controller = catalog.nodes, catalog.controller  # all of one revision, also when the answer takes long
        changed = catalog.changed_after(request.known_revision) if request.accepts_changes else None
        if changed is not None:
            names = sorted(changed if request.topics is None else changed.keys() & set(request.topics))
        elif request.topics is None:
            names = []
        else:
            names = list(dict.fromkeys(request.topics))  # a name given twice is answered once
        if changed is None and request.topics is None:
            for _ in self._pack_all(revision, topics):
                yield None
            body = self._everything[1]
        else:
            array = _Array()
            for piece in self._pieces(names, topics):
                if piece is None:
                    yield None
                else:
                    array.add(piece)
            body = array.ended(-1 if changed is None else request.known_revision)
        brokers = [
            encode_message(BrokerMetadata(node, info.host or host, info.port or port, info.rack or None))
            for node, info in sorted(nodes.items())
        ]
        fields = (pack(field) for field in (revision, cluster_id, controller, brokers))
        yield bytes((_ARRAY_OF_SIX,)) + b"".join(fields), body.content, body.errors

    def _pack_all(self, revision: int, topics: Mapping[str, Topic]) -> Iterator[None]:
        if self._everything[0] == revision:
            return
        array = _Array()
        for piece in self._pieces(sorted(topics), topics):
            if piece is None:
                yield None
                if self._everything[0] == revision:
                    return  # another client's answer was made meanwhile: all of them share one
            else:
                array.add(piece)
        self._everything = revision, array.ended(-1)
        self._packed = {name: known for name, known in self._packed.items() if name in topics}

    def _pieces(self, names: Iterable[str], topics: Mapping[str, Topic]) -> Iterator[Packed | None]:
        """Each topic as it is packed, and None now and then: time for others."""
        done = 0
        for name in names:
            topic, known = topics.get(name), self._packed.get(name)
            if topic is not None and known is not None and known[0] is topic:
                done += 1
                yield known[1]
            elif topic is not None:
                done += STEP + len(topic.partitions)
                packed = _packed(topic)
                self._packed[name] = topic, packed
                yield packed
            else:
                done += STEP // 4
                unknown = _unknown(name)
                yield Packed(pack(encode_message(unknown)), {unknown.error_code: 1})
            if done >= _PARTITIONS_PER_STEP:
                done = 0
                yield None


class _Array:
    """The topics of an answer, one after the other."""

    def __init__(self) -> None:
        self._content: list[bytes] = []
        self._errors = Counter[int]()

    def add(self, topic: Packed) -> None:
        """The next one."""
        self._content.append(topic.content)
        if topic.errors:
            self._errors.update(topic.errors)

    def ended(self, since_revision: int) -> Packed:
        """All of them, and the field behind them."""
        size = len(self._content).to_bytes(4)
        return Packed(b"".join((_ARRAY_32, size, *self._content, pack(since_revision))), self._errors)


def _packed(topic: Topic) -> Packed:
    """A ``TopicMetadata``: written out as lists, for there may be ten thousand partitions."""
    partitions = [
        (_code(state.leader), index, state.leader, state.leader_epoch, state.replicas, state.isr)
        for index, state in enumerate(topic.partitions)
    ]
    content = pack((ErrorCode.NONE.value, topic.name, topic.topic_id, topic.internal, partitions))
    leaderless = sum(state.leader == NO_LEADER for state in topic.partitions)
    return Packed(content, {ErrorCode.LEADER_NOT_AVAILABLE: leaderless} if leaderless else NO_ERRORS)


def _code(leader: int) -> int:
    return (ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE).value


def _unknown(name: str) -> TopicMetadata:
    try:
        check_topic_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except TopicError as error:
        code = error.code
    return TopicMetadata(code, name, "", False, ())
