"""Topics and their partitions, as read from the metadata store, and the rules for changing them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from coordinator.metadata.authority import Change, Compare, Delete, DeletePrefix, Delta, KeyValue, Operation, Put
from coordinator.metadata.encoding import MetadataDamagedError
from coordinator.metadata.keys import (
    CONTROLLER,
    NodeInfo,
    created_key,
    deleting_key,
    encode_state,
    node_info,
    partition_key,
    partition_state,
    partitions_prefix,
    topic_key,
)
from coordinator.metadata.partitions import MAJORITY, PartitionsByNode, PartitionState, changed, min_in_sync
from coordinator.metadata.store import MetadataStore, Stop
from coordinator.metadata.topic_config import (
    TopicConfig,
    TopicConfigError,
    Value,
    check_together,
    effective_config,
    parse_setting,
    setting,
)
from coordinator.metadata.watchers import Changes, Listeners
from coordinator.replication.partition import LiveNode
from protocol.errors import ErrorCode
from protocol.hashing import GROUP_PARTITIONS, TRANSACTION_PARTITIONS
from protocol.names import is_topic_name

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final[Mapping[str, int]] = {
    OFFSETS_TOPIC: GROUP_PARTITIONS,
    TRANSACTIONS_TOPIC: TRANSACTION_PARTITIONS,
}
"""The topics of coordinators, and how many partitions each has."""

INTERNAL_CONFIG: Final[Mapping[str, Value]] = {
    "cleanup.policy": "compact",
    "delete.retention.ms": 86_400_000,
    "max.compaction.lag.ms": 2**63 - 1,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": 0.5,
    "min.compaction.lag.ms": 0,
    "min.insync.replicas": MAJORITY,
    "segment.ms": 2**63 - 1,
}
"""What holds for internal topics, whatever the daemon's defaults for topics are."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; ``config`` holds the settings that differ from the daemon's."""

    name: str
    topic_id: str
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, Value]

    @property
    def internal(self) -> bool:
        """Whether the topic is the daemon's own; clients may read it but not write or delete it."""
        return self.name in INTERNAL_TOPICS


NO_CONTROLLER: Final = -1


class TopicError(Exception):
    """A change that is refused; ``code`` is what the client is told."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_topic_name(name: str) -> None:
    """Raises ``TopicError`` unless ``name`` is one Kafka allows."""
    if not is_topic_name(name):
        raise TopicError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name[:60]!r} is not allowed: use 1 to 249 ASCII letters, digits, '.', '_' or '-', not '.' or '..'",
        )


def parse_topic_config(config: Mapping[str, str]) -> dict[str, Value]:
    """The settings of a topic. Raises ``TopicError`` for an unknown name or an illegal value."""
    try:
        return {name: parse_setting(name, text) for name, text in sorted(config.items())}
    except TopicConfigError as error:
        raise TopicError(ErrorCode.INVALID_CONFIG, str(error)) from error


def check_setting_name(name: str) -> None:
    """Raises ``TopicError`` unless topics have a setting of this name."""
    try:
        setting(name)
    except TopicConfigError as error:
        raise TopicError(ErrorCode.INVALID_CONFIG, str(error)) from error


class Catalog:
    """The topics of a metadata store, kept up to date by a watch.

    Changes go through one lock: a topic that is created while its namesake is being deleted waits for its turn.
    """

    def __init__(
        self,
        store: MetadataStore,
        node_id: int,
        new_topic_id: Callable[[], str],
        *,
        max_partitions: int,
        max_partitions_per_topic: int,
        config_defaults: Mapping[str, Value],
        internal_segment_bytes: Mapping[str, int] = MappingProxyType({}),
        cluster: bool = False,
        default_replication_factor: int = 1,
        offsets_replication_factor: int = 1,
        awaited_nodes: int = 1,
    ) -> None:
        """``internal_segment_bytes`` says how large segments are, by internal topic. In a ``cluster`` the metadata says
        which nodes live; otherwise this one is all there is."""
        self._config_defaults = config_defaults
        self._internal_config: dict[str, dict[str, Value]] = {
            name: {**INTERNAL_CONFIG, "segment.bytes": size} for name, size in internal_segment_bytes.items()
        }
        self._configs: dict[str, tuple[Mapping[str, Value], TopicConfig]] = {}
        self._store = store
        self.node_id = node_id
        self._max_partitions = max_partitions
        self._max_partitions_per_topic = max_partitions_per_topic
        self._new_topic_id = new_topic_id
        self._topic_listeners: Listeners[[Sequence[str]]] = Listeners()
        self._routing_listeners: Listeners[[Sequence[str]]] = Listeners()
        self._partition_listeners: Listeners[[Sequence[tuple[str, int]]]] = Listeners()
        self._node_listeners: Listeners[[]] = Listeners()
        self.lock = asyncio.Lock()
        self.topics: dict[str, Topic] = {}
        self._names: dict[str, str] = {}  # by topic id
        self._half_made: dict[str, dict[int, PartitionState]] = {}  # of topics, by id, that are not there, or not yet
        self._by_node = PartitionsByNode()
        self._state: PartitionState | None = None  # the last that was read: those of a topic are often alike
        self._reassignments: dict[tuple[str, int], tuple[int, ...]] = {}
        self._created: set[str] = set()
        self._deleting: dict[str, _Deletion] = {}  # by key
        self._partitions = 0  # that the topics of clients have
        self.default_replication_factor = default_replication_factor
        self.offsets_replication_factor = offsets_replication_factor  # of all internal topics
        self.awaited_nodes = max(awaited_nodes, offsets_replication_factor)  # before those are made
        self.cluster = cluster
        self.nodes: Mapping[int, NodeInfo] = {}
        """The nodes that live, by id; another object after each change."""
        self.live: Mapping[int, LiveNode] = {}
        """The same for those who decide about replicas."""
        self.controller = NO_CONTROLLER
        """The node that is the controller, ``NO_CONTROLLER`` while there is none."""
        if not cluster:
            self._set_nodes({node_id: NodeInfo(node_id, 0, "", 0, "", 0, "", 0, accepting=True)})
            self.controller = node_id
        self._changes = Changes(store.revision)
        self._routing_changes = Changes(store.revision)
        self.nodes_revision = store.revision
        """The revision at which the nodes or the controller changed last."""
        self._read(Delta(store.revision, tuple(Change(known.key, None, known) for known in store.range(""))))
        store.watch("", self._read)

    @property
    def revision(self) -> int:
        """The revision of the newest change."""
        return self._store.revision

    async def catch_up(self) -> None:
        """Returns once all is known here that was written before. Raises ``MetadataUnavailableError``."""
        await self._store.catch_up()

    @property
    def cluster_id(self) -> str:
        """The identity of the cluster."""
        return self._store.cluster_id

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> Stop:
        """Calls ``listener`` with the names of the topics that came, changed or went; returns what ends this."""
        return self._topic_listeners.add(listener)

    def on_routing(self, listener: Callable[[Sequence[str]], None]) -> Stop:
        """As ``on_change``, but not when it is only that other replicas are in sync: clients need not know at once."""
        return self._routing_listeners.add(listener)

    def on_partitions(self, listener: Callable[[Sequence[tuple[str, int]]], None]) -> Stop:
        """Calls ``listener`` with topic id and number of the partitions that came, changed, went, or whose reassignment did;
        after those of ``on_change`` have heard of the same."""
        return self._partition_listeners.add(listener)

    def on_nodes(self, listener: Callable[[], None]) -> Stop:
        """Calls ``listener`` when nodes came, changed or went, or there is another controller."""
        return self._node_listeners.add(listener)

    def changed_after(self, revision: int) -> dict[str, None] | None:
        """Names of the topics that came, changed or went after ``revision``; None when that is not known any more, or when
        there has been no such revision here."""
        return None if revision > self.revision else self._changes.after(revision)

    def routed_after(self, revision: int) -> dict[str, None] | None:
        """As ``changed_after``, without topics of which only the replicas in sync changed."""
        return None if revision > self.revision else self._routing_changes.after(revision)

    def partitions_of(self, node: int) -> Iterator[tuple[Topic, int]]:
        """The partitions that a node has a replica of, or is to have one of."""
        return ((self.topics[self._names[topic_id]], index) for topic_id, index in self._by_node.of(node))

    def led_by(self, node: int) -> Iterator[tuple[Topic, int]]:
        """The partitions that a node leads."""
        return ((self.topics[self._names[topic_id]], index) for topic_id, index in self._by_node.led_by(node))

    def reassignment(self, topic_id: str, index: int) -> tuple[int, ...] | None:
        """The replicas that a partition is to have; None when nothing is to be reassigned."""
        return self._reassignments.get((topic_id, index))

    def reassignments(self) -> Mapping[tuple[str, int], tuple[int, ...]]:
        """The replicas that partitions are to have, by topic id and number, of those that are being reassigned."""
        return self._reassignments

    def half_made(self) -> list[str]:
        """Ids of topics that have partitions, but are not there: they are being made, or were left so."""
        return list(self._half_made)

    def topic(self, name: str) -> Topic:
        """A topic by name. Raises ``TopicError`` when there is none."""
        topic = self.topics.get(name)
        if topic is None:
            raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name[:60]!r} does not exist")
        return topic

    def with_id(self, topic_id: str) -> Topic | None:
        """A topic by its id, if there is one."""
        name = self._names.get(topic_id)
        return None if name is None else self.topics.get(name)

    def has(self, name: str, partition: int) -> bool:
        """Whether there is such a partition."""
        topic = self.topics.get(name)
        return topic is not None and 0 <= partition < len(topic.partitions)

    def topic_id(self, name: str) -> str:
        """The id of a topic that exists."""
        return self.topics[name].topic_id

    def is_gone(self, name: str, topic_id: str) -> bool:
        """Whether the topic of this id has been deleted, also when another has its name now.

        ``topic_id`` is "" where it was not noted (version 0.1): then the name tells.
        """
        known = self.topics.get(name)
        return known is None or (bool(topic_id) and known.topic_id != topic_id)

    def config(self, topic: Topic) -> TopicConfig:
        """What holds for a topic: its own settings, and the daemon's where it has none."""
        known = self._configs.get(topic.name)
        if known is None or known[0] is not topic.config:
            own = {**self._internal_config.get(topic.name, {}), **topic.config}
            known = self._configs[topic.name] = topic.config, effective_config(own, self._config_defaults)
        return known[1]

    def check_config(self, config: Mapping[str, Value]) -> None:
        """Raises ``TopicError`` when the settings do not go together, or not with the daemon's."""
        try:
            check_together(effective_config(config, self._config_defaults))
        except TopicConfigError as error:
            raise TopicError(ErrorCode.INVALID_CONFIG, str(error)) from error

    def check_new(self, name: str, partitions: int, replication_factor: int, beside: int = 0) -> None:
        """Raises ``TopicError`` unless a topic of this name and size can be created.

        ``beside`` is the number of partitions of the drafts that will be committed together with it.
        """
        check_topic_name(name)
        if name in self.topics:
            raise TopicError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists")
        self._check_partitions(name, partitions, -beside)
        if not self.cluster and replication_factor not in (-1, 1):
            raise TopicError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"topic {name!r} asks for {replication_factor} replicas; this cluster has 1 node",
            )

    def draft(
        self, name: str, partitions: int, config: Mapping[str, Value], placed: Sequence[tuple[int, ...]] = ()
    ) -> Topic:
        """A topic that clients do not see yet; ``check_new`` comes first, ``commit`` makes it real.

        ``placed`` has the replicas of each partition in a cluster, all of them on nodes that live.
        """
        topic = Topic(name, self._new_topic_id(), (), config)
        return replace(topic, partitions=self._new_partitions(topic, partitions, placed))

    def draft_growth(self, topic: Topic, partitions: int, placed: Sequence[tuple[int, ...]] = ()) -> Topic:
        """The topic with more partitions, which clients do not see yet; ``check_growth`` comes first."""
        fresh = self._new_partitions(topic, partitions - len(topic.partitions), placed)
        return replace(topic, partitions=topic.partitions + fresh)

    def placed_anew(self, draft: Topic, placed: Sequence[tuple[int, ...]]) -> Topic:
        """A draft of a new topic with other replicas: the nodes have changed since."""
        return replace(draft, partitions=self._new_partitions(draft, len(draft.partitions), placed))

    def draft_config(self, topic: Topic, changes: Mapping[str, Value | None]) -> Topic:
        """The topic with other settings, which clients do not see yet; None takes one back to the daemon's.

        Raises ``TopicError`` when they do not go together.
        """
        config = {name: value for name, value in {**topic.config, **changes}.items() if value is not None}
        self.check_config(config)
        return replace(topic, config=config)

    async def commit(self, *topics: Topic) -> None:
        """Makes drafts the truth, all or none; hold ``lock``.

        Raises ``OSError`` when the disk refuses, and nothing has changed then; but ``WriteInDoubtError`` when it is unknown
        whether it has.
        """
        compare: list[Compare] = []
        operations: list[Operation] = []
        for topic in topics:
            before = self.topics.get(topic.name)
            if before is None:
                compare.append(Compare(topic_key(topic.name), "create", 0))
            operations.append(Put(topic_key(topic.name), {"id": topic.topic_id, "config": dict(topic.config)}))
            for index in range(len(before.partitions) if before else 0, len(topic.partitions)):
                operations.append(Put(partition_key(topic.topic_id, index), encode_state(topic.partitions[index])))
        await self._commit(compare, operations)

    def min_isr_of(self, topic: Topic, replicas: int) -> int:
        """How many of so many replicas have to be in sync, by the settings that the topic has now."""
        return min_in_sync(self.config(topic).min_insync_replicas, replicas)

    def check_growth(self, name: str, partitions: int) -> Topic:
        """The topic. Raises ``TopicError`` unless it can grow to ``partitions`` in all."""
        topic = self.topic(name)
        if topic.internal:
            raise TopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal and keeps its partitions")
        if partitions <= len(topic.partitions):
            raise TopicError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} has {len(topic.partitions)} partitions and can only grow; {partitions} is no growth",
            )
        self._check_partitions(name, partitions, len(topic.partitions))
        return topic

    async def begin_deletion(self, topic: Topic) -> None:
        """Takes a topic out of sight and notes durably that its files must go; hold ``lock``."""
        gone = DeletePrefix(partitions_prefix(topic.topic_id))
        note = Put(deleting_key(topic.topic_id), {"name": topic.name, "partitions": len(topic.partitions)})
        await self._commit([], [Delete(topic_key(topic.name)), gone, note])

    async def end_deletion(self, topic_id: str) -> None:
        """Forgets a deleted topic once its files are gone, durably. Until then the name is not free."""
        await self._commit([], [Delete(deleting_key(topic_id))])

    def deletions(self) -> list[tuple[str, str, int]]:
        """Id, name and number of partitions of deleted topics of which files may be left."""
        return [(known.topic_id, known.name, known.partitions) for known in self._deleting.values()]

    def deletions_of(self, node: int) -> list[tuple[str, str, int]]:
        """As ``deletions``, of those whose logs a node of a cluster has not removed yet."""
        waiting = [known for known in self._deleting.values() if node in known.nodes]
        return [(known.topic_id, known.name, known.partitions) for known in waiting]

    def is_deleted(self, topic_id: str) -> bool:
        """Whether a topic was deleted, and some node may have logs of it."""
        return deleting_key(topic_id) in self._deleting

    def is_created(self, name: str, index: int) -> bool:
        """Whether a partition has a log: one of an internal topic is made when it is first needed."""
        topic = self.topics[name]
        return not topic.internal or created_key(topic.topic_id, index) in self._created

    async def note_created(self, topic: Topic, index: int) -> None:
        """Notes durably that the log of an internal topic's partition is there; from now on its absence is damage."""
        await self._commit([], [Put(created_key(topic.topic_id, index), {})])

    def internal_topics_missing(self) -> str:
        """Why there are no topics of the coordinators yet in a cluster, "" when they are there."""
        if all(name in self.topics for name in INTERNAL_TOPICS):
            return ""
        wanted, nodes = self.awaited_nodes, sorted(node for node in self.live if self.live[node].accepting)
        known = ", ".join(map(str, nodes)) or "none"
        return (
            f"the topics of the coordinators are made once {wanted} nodes live (offsets_replication_factor), and "
            f"{len(nodes)} of them live now ({known}): start the others, or lower the setting on all nodes"
        )

    async def ensure_internal_topics(self) -> None:
        """Creates those that a new data directory, or one of an earlier version, does not have.

        Raises ``MetadataDamagedError`` when clients of an earlier version have a topic of such a name.
        """
        for name, partitions in INTERNAL_TOPICS.items():
            found = len(self.topics[name].partitions) if name in self.topics else partitions
            if found != partitions:
                raise MetadataDamagedError(
                    f"the topic {name} has {found} partitions, and the daemon's own topic of that name has {partitions}: "
                    "copy its records to another topic and delete it with the version of Cohort that made it"
                )
        missing = [name for name in INTERNAL_TOPICS if name not in self.topics]
        if missing:
            await self.commit(*(self.draft(name, INTERNAL_TOPICS[name], {}) for name in missing))

    def _check_partitions(self, name: str, partitions: int, present: int) -> None:
        if not 1 <= partitions <= self._max_partitions_per_topic:
            raise TopicError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} cannot have {partitions} partitions: "
                f"from 1 to {self._max_partitions_per_topic} are allowed (max_partitions_per_topic)",
            )
        others = self._partitions - present
        if others + partitions > self._max_partitions:
            raise TopicError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} cannot have {partitions} partitions: the other topics have {others}, and all together may "
                f"have {self._max_partitions} (max_partitions). Delete topics, or raise the setting and the limit of open "
                "files",
            )

    def _new_partitions(
        self, topic: Topic, partitions: int, placed: Sequence[tuple[int, ...]]
    ) -> tuple[PartitionState, ...]:
        return tuple(self._new_partition(topic, replicas) for replicas in placed or ((self.node_id,),) * partitions)

    def _new_partition(self, topic: Topic, replicas: tuple[int, ...]) -> PartitionState:
        joined = tuple(self.nodes[node].broker_epoch for node in replicas)
        min_isr = self.min_isr_of(topic, len(replicas))
        return PartitionState(replicas[0], 0, replicas, replicas, joined[0], joined, min_isr)

    async def _commit(self, compare: list[Compare], operations: list[Operation]) -> None:
        if await self._store.transaction(compare, operations) is None:
            raise TopicError(ErrorCode.INVALID_REQUEST, "the metadata changed meanwhile: try again")

    # Following the store

    def _read(self, delta: Delta) -> None:
        """Takes over what changed, all keys at the start; what did not change costs next to nothing."""
        news = _News()
        nodes: dict[int, NodeInfo] | None = None
        controller = self.controller
        for key, _, after in delta.changes:
            kind, _, rest = key.partition("/")
            if kind == "partitions":
                topic_id, _, index = rest.partition("/")
                news.partitions.setdefault(topic_id, {})[int(index)] = None if after is None else self._shared(after)
            elif kind == "topics":
                news.topics[rest] = None if after is None else after.value
            elif kind == "created":
                (self._created.discard if after is None else self._created.add)(key)
            elif kind == "deleting" and after is None:
                self._deleting.pop(key, None)
            elif kind == "deleting" and after is not None:
                value = after.value
                self._deleting[key] = _Deletion(rest, value["name"], value["partitions"], tuple(value.get("nodes", ())))
            elif kind == "reassignments":
                topic_id, _, index = rest.partition("/")
                news.touched[topic_id, int(index)] = None
                self._read_reassignment((topic_id, int(index)), after)
            elif kind == "live" and self.cluster:
                nodes = dict(self.nodes) if nodes is None else nodes
                nodes.pop(int(rest), None)
                if after is not None:
                    nodes[int(rest)] = node_info(after)
            elif key == CONTROLLER and self.cluster:
                controller = NO_CONTROLLER if after is None else after.value["node"]
        self._read_topics(news)
        is_node_news = (nodes is not None and nodes != self.nodes) or controller != self.controller
        if is_node_news:
            self.controller, self.nodes_revision = controller, delta.revision
            self._set_nodes(self.nodes if nodes is None else nodes)
        self._tell(delta.revision, news, is_node_news)

    def _tell(self, revision: int, news: _News, is_node_news: bool) -> None:
        if news.changed:
            self._changes.note(revision, news.changed)
            self._routing_changes.note(revision, news.routed)
            self._topic_listeners.tell(tuple(news.changed))
        if news.routed:
            self._routing_listeners.tell(tuple(news.routed))
        if news.touched:
            self._partition_listeners.tell(tuple(news.touched))
        if is_node_news:
            self._node_listeners.tell()

    def _shared(self, known: KeyValue) -> PartitionState:
        state = partition_state(known)
        if state != self._state:
            self._state = state
        return self._state

    def _read_reassignment(self, partition: tuple[str, int], after: KeyValue | None) -> None:
        if after is None:
            self._reassignments.pop(partition, None)
        else:
            self._reassignments[partition] = tuple(after.value["target"])

    def _set_nodes(self, nodes: Mapping[int, NodeInfo]) -> None:
        self.nodes = nodes
        self.live = {node: info.live_node for node, info in nodes.items()}

    def _read_topics(self, news: _News) -> None:
        names = news.topics | {self._names[topic_id]: None for topic_id in news.partitions if topic_id in self._names}
        if names:
            topics = dict(self.topics)  # a copy: an answer that is being made goes on with the old one
            for name in names:
                self._read_topic(name, topics, news)
            self.topics = topics
        for topic_id, changes in news.partitions.items():  # those of a topic that is not there, or not yet
            states = {**self._half_made.pop(topic_id, {}), **changes}
            present = {index: state for index, state in states.items() if state is not None}
            if present:
                self._half_made[topic_id] = present

    def _read_topic(self, name: str, topics: dict[str, Topic], news: _News) -> None:
        before = topics.pop(name, None)
        value = news.topics.get(name) if name in news.topics or before is None else _value(before)
        news.changed[name] = None
        if before is not None and (value is None or value["id"] != before.topic_id):
            news.partitions.pop(before.topic_id, None)
            self._place(before, None, range(len(before.partitions)), news)
            del self._names[before.topic_id]
            self._configs.pop(name, None)
            self._partitions -= _size(before)
            before, news.routed[name] = None, None
        if value is None:
            return
        topic_id, config = value["id"], value["config"]
        changes = {**self._half_made.pop(topic_id, {}), **news.partitions.pop(topic_id, {})}
        if before is not None and before.config == config:
            config = before.config  # the same object: settings that did not change need no comparison
        states = changed(before.partitions if before else (), changes)
        topics[name] = topic = Topic(name, topic_id, states, config)
        self._names[topic_id] = name
        self._partitions += _size(topic) - _size(before)
        if not self._place(before, topic, changes, news) or before is None or before.config is not config:
            news.routed[name] = None

    def _place(self, before: Topic | None, after: Topic | None, indexes: Iterable[int], news: _News) -> bool:
        """Notes where partitions are now; whether clients find them where they were."""
        topic_id = after.topic_id if after is not None else before.topic_id if before is not None else ""
        routes_as_before = True
        for index in indexes:
            was, state = _partition(before, index), _partition(after, index)
            self._by_node.note((topic_id, index), was, state)
            routes_as_before = routes_as_before and was is not None and state is not None and was.routes_as(state)
            news.touched[topic_id, index] = None
        return routes_as_before


class _Deletion(NamedTuple):
    topic_id: str
    name: str
    partitions: int
    nodes: tuple[int, ...]


@dataclass(slots=True)
class _News:
    """What a delta says of topics: values by name, partitions by topic id and number; then what became of both."""

    topics: dict[str, Mapping[str, Any] | None] = field(default_factory=dict)
    partitions: dict[str, dict[int, PartitionState | None]] = field(default_factory=dict)
    changed: dict[str, None] = field(default_factory=dict)
    routed: dict[str, None] = field(default_factory=dict)
    touched: dict[tuple[str, int], None] = field(default_factory=dict)


def _value(topic: Topic) -> Mapping[str, Any]:
    return {"id": topic.topic_id, "config": topic.config}


def _partition(topic: Topic | None, index: int) -> PartitionState | None:
    return None if topic is None or index >= len(topic.partitions) else topic.partitions[index]


def _size(topic: Topic | None) -> int:
    """What a topic takes of ``max_partitions``."""
    return 0 if topic is None or topic.internal else len(topic.partitions)
