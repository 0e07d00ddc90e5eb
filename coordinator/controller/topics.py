"""Topics of a cluster, made, grown, altered and deleted by any node: conditional transactions on the metadata.

A transaction whose answer was lost may have been carried out, or may still be. So each is such that it takes effect once at
most: its conditions do not hold any more after it. It is sent again until it is known what became of it, and whoever finds
it refused looks whether it was the earlier attempt that did it.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from coordinator.controller.placement import NodeLoad, PlacementError, place
from coordinator.log_output import get_logger
from coordinator.metadata.authority import MAX_OPERATIONS, Compare, Delete, DeletePrefix, KeyValue, Operation, Put
from coordinator.metadata.catalog import INTERNAL_TOPICS, Catalog, Topic, TopicError
from coordinator.metadata.keys import (
    creating_key,
    deleting_key,
    encode_state,
    live_key,
    partition_key,
    partitions_prefix,
    reassignments_prefix,
    topic_key,
)
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError
from coordinator.metadata.topic_config import Value
from protocol.errors import ErrorCode

log = get_logger()

T = TypeVar("T")

MAX_REPLICATION_FACTOR: Final = 7
MAX_DELETED: Final = MAX_OPERATIONS // 4
"""Topics that one transaction deletes, with four operations each."""
_PUTS: Final = MAX_OPERATIONS - 1
_ATTEMPTS: Final = 5


class ClusterTopics:
    """What a node does for clients that change topics. The catalog's lock is held by the caller, for each topic."""

    def __init__(self, store: MetadataStore, catalog: Catalog, lease_id: Callable[[], int]) -> None:
        """``lease_id`` is the lease of this node's registration: what it leaves half made ends with it."""
        self._store = store
        self._catalog = catalog
        self._lease_id = lease_id

    # Drafts

    def draft(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, Value],
        beside: Sequence[Topic] = (),
    ) -> Topic:
        """A new topic with replicas on nodes that live; ``beside`` are drafts that are made with it.

        Raises ``TopicError``, which names the live nodes when there are too few.
        """
        if replication_factor == -1:
            replication_factor = self._catalog.default_replication_factor
        placed = self._placed(name, partitions, replication_factor, beside)
        return self._catalog.draft(name, partitions, config, placed)

    def draft_growth(self, topic: Topic, partitions: int) -> Topic:
        """The topic with more partitions; new ones have as many replicas as the first. Raises ``TopicError``."""
        fresh = partitions - len(topic.partitions)
        placed = self._placed(topic.name, fresh, len(topic.partitions[0].replicas), ())
        return self._catalog.draft_growth(topic, partitions, placed)

    def _placed(
        self, name: str, partitions: int, replication_factor: int, beside: Sequence[Topic]
    ) -> list[tuple[int, ...]]:
        if not 1 <= replication_factor <= MAX_REPLICATION_FACTOR:
            raise TopicError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"topic {name!r} cannot have {replication_factor} replicas: from 1 to {MAX_REPLICATION_FACTOR} are allowed",
            )
        try:
            loads = self._loads(beside, has_room=name in INTERNAL_TOPICS)
            return place(loads, partitions, replication_factor, zlib.crc32(name.encode()))
        except PlacementError as error:
            raise TopicError(ErrorCode.INVALID_REPLICATION_FACTOR, f"topic {name!r}: {error}") from error

    def _loads(self, beside: Sequence[Topic], *, has_room: bool) -> list[NodeLoad]:
        """The nodes that accept replicas, with how many each has and of how many it is the preferred leader.

        There is always room for the coordinators' topics: ``has_room``.
        """
        room = {} if has_room else room_left(self._catalog, beside)
        replicas: Counter[int] = Counter()
        leaders: Counter[int] = Counter()
        for topic in (*self._catalog.topics.values(), *beside):
            for state in topic.partitions:
                replicas.update(state.replicas)
                leaders[state.replicas[0]] += 1
        return [
            NodeLoad(info.node_id, info.rack, replicas[info.node_id], leaders[info.node_id], room.get(info.node_id))
            for info in self._catalog.nodes.values()
            if info.accepting
        ]

    # Changes

    async def create(self, topics: Sequence[Topic]) -> None:
        """Makes drafts the truth. Those that fit in one transaction are made together, all or none.

        Raises ``TopicError`` and ``MetadataUnavailableError``: some of many may be there then, and doing it again with the
        same drafts passes over them.
        """
        for some in _together(topics):
            await self._create(some)

    async def _create(self, topics: Sequence[Topic]) -> None:
        for _ in range(_ATTEMPTS):
            topics = [topic for topic in topics if not self._is_there(topic)]
            if not topics or await self._created(topics):
                return
            await self._store.catch_up()
            for topic in topics:
                known = self._catalog.topics.get(topic.name)
                if known is not None and known.topic_id != topic.topic_id:
                    raise TopicError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} exists")
            topics = [topic if self._is_there(topic) else self._placed_anew(topic) for topic in topics]
        names = ", ".join(topic.name for topic in topics)
        raise TopicError(
            ErrorCode.REQUEST_TIMED_OUT, f"{names}: the nodes changed again and again meanwhile: try again"
        )

    def _is_there(self, topic: Topic) -> bool:
        return self._catalog.with_id(topic.topic_id) is not None

    def _placed_anew(self, topic: Topic) -> Topic:
        replicas = len(topic.partitions[0].replicas)
        return self._catalog.placed_anew(topic, self._placed(topic.name, len(topic.partitions), replicas, ()))

    async def _created(self, topics: Sequence[Topic]) -> bool:
        """Whether they are there now; False when a condition did not hold."""
        partitions = [put for topic in topics for put in _puts(topic, 0)]
        named = [_named(topic) for topic in topics]
        compare = [Compare(topic_key(topic.name), "create", 0) for topic in topics]
        compare += self._nodes_unchanged(topics, MAX_OPERATIONS - len(compare) - 1)

        def is_done() -> bool:
            return all(self._is_there(topic) for topic in topics)

        if len(partitions) + len(named) <= _PUTS:
            return await self._carried_out(compare, [*partitions, *named], is_done)
        (topic,) = topics  # several are together only where they fit
        return await self._created_in_steps(topic, partitions, compare, named[0])

    async def _created_in_steps(
        self, topic: Topic, partitions: Sequence[Put], compare: Sequence[Compare], named: Put
    ) -> bool:
        """Partitions first, then the topic, without which they are not seen. The note says that somebody is at it."""
        note = creating_key(topic.topic_id)
        put = Put(note, {"name": topic.name}, self._lease_id())
        if not await self._carried_out([Compare(note, "create", 0)], [put], partial(self._has, note)):
            return False
        known = self._store.get(note)
        if known is None:
            return False
        noted = Compare(note, "create", known.create_revision)
        try:
            for some in _chunks(partitions, _PUTS):
                if not await self._carried_out([noted], some, partial(self._has, some[-1].key)):
                    return False
            final: list[Operation] = [named, Delete(note)]
            return await self._carried_out([noted, *compare], final, lambda: self._is_there(topic))
        finally:
            if not self._is_there(topic):
                await self._tidied(topic, noted)

    async def _tidied(self, topic: Topic, noted: Compare) -> None:
        """Takes back what is half made. If that fails the note ends with this node's lease, and the controller does it."""
        try:
            await self._store.transaction([noted], [Delete(noted.key), DeletePrefix(partitions_prefix(topic.topic_id))])
        except (MetadataUnavailableError, OSError) as error:
            log.warning("half_made_topic_left", topic=topic.name, topic_id=topic.topic_id, error=str(error))

    def _nodes_unchanged(self, topics: Sequence[Topic], most: int) -> list[Compare]:
        """The nodes with replicas live as they did when they were chosen; as many as a transaction takes conditions."""
        nodes = sorted({node for topic in topics for state in topic.partitions for node in state.replicas})
        found = []
        for node in nodes[:most]:
            known = self._store.get(live_key(node))
            found.append(Compare(live_key(node), "mod", -1 if known is None else known.mod_revision))
        return found

    async def grow(self, topic: Topic, grown: Topic) -> None:
        """Adds the partitions that ``grown`` has more, in order: who sees some of them sees all before.

        Raises ``TopicError`` and ``MetadataUnavailableError``; some may be there then.
        """
        exists = Compare(topic_key(topic.name), "create", self._known_topic(topic).create_revision)
        for some in _chunks(_puts(grown, len(topic.partitions)), _PUTS):
            compare = [exists, Compare(some[0].key, "create", 0)]
            compare += self._nodes_unchanged([grown], MAX_OPERATIONS - len(compare))
            if not await self._carried_out(compare, some, partial(self._holds, some[-1])):
                raise _changed_meanwhile(topic)

    async def delete(self, topics: Sequence[Topic]) -> dict[str, TopicError]:
        """Removes topics, at most ``MAX_DELETED``, and notes which nodes may have logs of them: the names are free at once.

        All go with one transaction; where one of them was changed meanwhile, each with its own. Returns why those are there
        still that are. Raises ``MetadataUnavailableError``.
        """
        if await self._deleted(topics):
            return {}
        refused: dict[str, TopicError] = {}
        for topic in filter(self._is_there, topics):
            if not await self._deleted([topic]):
                refused[topic.name] = _changed_meanwhile(topic)
        return refused

    async def _deleted(self, topics: Sequence[Topic]) -> bool:
        targets = self._catalog.reassignments()
        compare: list[Compare] = []
        operations: list[Operation] = []
        for topic in filter(self._is_there, topics):
            nodes = {node for state in topic.partitions for node in (*state.replicas, *state.adding)}
            for index in range(len(topic.partitions)):
                nodes.update(targets.get((topic.topic_id, index), ()))
            note = {"name": topic.name, "partitions": len(topic.partitions), "nodes": sorted(nodes)}
            compare.append(Compare(topic_key(topic.name), "create", self._known_topic(topic).create_revision))
            operations += (
                Delete(topic_key(topic.name)),
                DeletePrefix(partitions_prefix(topic.topic_id)),
                DeletePrefix(reassignments_prefix(topic.topic_id)),
                Put(deleting_key(topic.topic_id), note),
            )
        if not compare:
            return True
        return await self._carried_out(compare, operations, lambda: not any(map(self._is_there, topics)))

    async def deletion_done(self, topic_ids: Sequence[str], node: int) -> None:
        """Notes that a node has no logs of deleted topics any more; the last node removes the note of a topic.

        Raises ``MetadataUnavailableError``: do it again then.
        """
        for some in _chunks(topic_ids, MAX_OPERATIONS):
            while notes := self._notes_with(some, node):
                compare = [Compare(note.key, "mod", note.mod_revision) for note in notes]
                if await self._store.transaction(compare, [_without(note, node) for note in notes]) is None:
                    await self._store.catch_up()  # another node was faster, and there is less to do each time

    def _notes_with(self, topic_ids: Sequence[str], node: int) -> list[KeyValue]:
        notes = [self._store.get(deleting_key(topic_id)) for topic_id in topic_ids]
        return [note for note in notes if note is not None and node in note.value.get("nodes", ())]

    async def alter(self, name: str, change: Callable[[Topic], Topic]) -> Topic:
        """Gives a topic other settings; ``change`` makes of it the draft to be written, again when another was faster.

        The controller follows with ``min.insync.replicas`` in its partitions. Raises ``TopicError`` and
        ``MetadataUnavailableError``.
        """
        for _ in range(_ATTEMPTS):
            topic = self._catalog.topic(name)
            altered = change(topic)
            if altered == topic:
                return topic
            put = _named(altered)
            compare = [Compare(put.key, "mod", self._known_topic(topic).mod_revision)]
            if await self._carried_out(compare, [put], partial(self._holds, put)):
                return altered
        raise _changed_meanwhile(self._catalog.topic(name))

    async def create_internal_topics(self, replication_factor: int) -> None:
        """Makes the topics of the coordinators that are not there. Raises as ``create``."""
        drafts: list[Topic] = []
        for name, partitions in INTERNAL_TOPICS.items():
            if name not in self._catalog.topics:
                drafts.append(self.draft(name, partitions, replication_factor, {}, drafts))
        await self.create(drafts)

    # Transactions

    def _known_topic(self, topic: Topic) -> KeyValue:
        known = self._store.get(topic_key(topic.name))
        if known is None or known.value["id"] != topic.topic_id:
            raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} was deleted meanwhile")
        return known

    def _has(self, key: str) -> bool:
        return self._store.get(key) is not None

    def _holds(self, put: Put) -> bool:
        known = self._store.get(put.key)
        return known is not None and known.value == put.value

    async def _carried_out(
        self, compare: Sequence[Compare], operations: Sequence[Operation], is_done: Callable[[], bool]
    ) -> bool:
        """Whether a transaction took effect, also one whose answer was lost; ``is_done`` looks at what is known then."""
        for _ in range(_ATTEMPTS):
            try:
                if await self._store.transaction(compare, operations) is not None:
                    return True
            except MetadataUnavailableError as error:
                if error.outcome == "none":
                    raise
                log.warning("metadata_transaction_in_doubt", error=str(error))
                await self._store.catch_up()
                if is_done():
                    return True
            else:
                await self._store.catch_up()  # why it was refused may not be known here yet
                return is_done()
        raise MetadataUnavailableError("the metadata store lost its answer again and again", "unknown")


def room_left(catalog: Catalog, beside: Iterable[Topic] = ()) -> dict[int, int]:
    """How many logs of users' topics the nodes may still be given that live and say how many they may open.

    What is to be moved to a node counts there already, and so does ``beside``, which is being made.
    """
    logs: Counter[int] = Counter()
    for topic in (*catalog.topics.values(), *beside):
        if not topic.internal:
            for state in topic.partitions:
                logs.update(state.replicas)
                logs.update(state.adding)
    for (topic_id, index), target in catalog.reassignments().items():
        known = catalog.with_id(topic_id)
        if known is not None and not known.internal and index < len(known.partitions):
            logs.update(node for node in target if not known.partitions[index].has(node))
    return {info.node_id: max(0, info.room - logs[info.node_id]) for info in catalog.nodes.values() if info.room >= 0}


def _named(topic: Topic) -> Put:
    return Put(topic_key(topic.name), {"id": topic.topic_id, "config": dict(topic.config)})


def _puts(topic: Topic, first: int) -> list[Put]:
    return [
        Put(partition_key(topic.topic_id, index), encode_state(topic.partitions[index]))
        for index in range(first, len(topic.partitions))
    ]


def _without(note: KeyValue, node: int) -> Operation:
    left = [other for other in note.value["nodes"] if other != node]
    return Put(note.key, {**note.value, "nodes": left}) if left else Delete(note.key)


def _together(topics: Sequence[Topic]) -> Iterator[list[Topic]]:
    """Cuts topics into groups that one transaction takes."""
    some: list[Topic] = []
    puts = 0
    for topic in topics:
        puts += 1 + len(topic.partitions)
        if some and (puts > _PUTS or len(some) == MAX_OPERATIONS // 2):
            yield some
            some, puts = [], 1 + len(topic.partitions)
        some.append(topic)
    if some:
        yield some


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _changed_meanwhile(topic: Topic) -> TopicError:
    return TopicError(
        ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} was changed by another request meanwhile: try again"
    )
