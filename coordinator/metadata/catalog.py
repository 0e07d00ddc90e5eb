"""Topics and their partitions, as read from the metadata store, and the rules for changing them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from coordinator.metadata.authority import Change, Compare, Delete, DeletePrefix, Delta, Operation, Put
from coordinator.metadata.encoding import MetadataDamagedError
from coordinator.metadata.store import MetadataStore
from coordinator.metadata.topic_config import (
    TopicConfig,
    TopicConfigError,
    Value,
    check_together,
    effective_config,
    parse_setting,
    setting,
)
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
    "min.insync.replicas": 1,
    "segment.ms": 2**63 - 1,
}
"""What holds for internal topics, whatever the daemon's defaults for topics are."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who leads a partition since which epoch, who has copies, who is in sync."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    def lacks_replicas(self, min_insync: int) -> bool:
        """Whether too few are in sync for a write that asks for all; one never needs more than there are."""
        return len(self.isr) < min(min_insync, len(self.replicas))


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
    ) -> None:
        """``internal_segment_bytes`` says how large segments are, by internal topic."""
        self._config_defaults = config_defaults
        self._internal_config: dict[str, dict[str, Value]] = {
            name: {**INTERNAL_CONFIG, "segment.bytes": size} for name, size in internal_segment_bytes.items()
        }
        self._configs: dict[str, tuple[Mapping[str, Value], TopicConfig]] = {}
        self._store = store
        self.node_id = self._node_id = node_id
        self._max_partitions = max_partitions
        self._max_partitions_per_topic = max_partitions_per_topic
        self._new_topic_id = new_topic_id
        self._listeners: dict[int, Callable[[Sequence[str]], None]] = {}
        self._next_listener = 0
        self.lock = asyncio.Lock()
        self.topics: dict[str, Topic] = {}
        self._names: dict[str, str] = {}  # by topic id
        self._values: dict[str, Mapping[str, Any] | None] = {}  # of topics' keys, by name; None while it is taken out
        self._states: dict[str, dict[int, PartitionState]] = {}  # by topic id and number
        self._created: set[str] = set()
        self._deleting: dict[str, tuple[str, str, int]] = {}  # by key
        self._partitions = 0
        """How many partitions the topics of clients have."""
        self._changes = Changes(store.revision)
        self._read(Delta(store.revision, tuple(Change(known.key, None, known) for known in store.range(""))))
        store.watch("", self._read)

    @property
    def revision(self) -> int:
        """The revision of the newest change."""
        return self._store.revision

    @property
    def cluster_id(self) -> str:
        """The identity of the cluster."""
        return self._store.cluster_id

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Calls ``listener`` with the names of the topics that came, changed or went; returns what ends this."""
        number = self._next_listener
        self._next_listener += 1
        self._listeners[number] = listener
        return lambda: self._listeners.pop(number, None) and None

    def changed_after(self, revision: int) -> dict[str, None] | None:
        """Names of the topics that came, changed or went after ``revision``; None when that is not known any more, or when
        there has been no such revision here."""
        return None if revision > self.revision else self._changes.after(revision)

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
        if replication_factor not in (-1, 1):
            raise TopicError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"topic {name!r} asks for {replication_factor} replicas; this cluster has 1 node",
            )

    def draft(self, name: str, partitions: int, config: Mapping[str, Value]) -> Topic:
        """A topic that clients do not see yet; ``check_new`` comes first, ``commit`` makes it real."""
        return Topic(name, self._new_topic_id(), (self._new_partition(),) * partitions, config)

    def draft_growth(self, topic: Topic, partitions: int) -> Topic:
        """The topic with more partitions, which clients do not see yet; ``check_growth`` comes first."""
        fresh = (self._new_partition(),) * (partitions - len(topic.partitions))
        return Topic(topic.name, topic.topic_id, topic.partitions + fresh, topic.config)

    def draft_config(self, topic: Topic, changes: Mapping[str, Value | None]) -> Topic:
        """The topic with other settings, which clients do not see yet; None takes one back to the daemon's.

        Raises ``TopicError`` when they do not go together.
        """
        config = {name: value for name, value in {**topic.config, **changes}.items() if value is not None}
        self.check_config(config)
        return Topic(topic.name, topic.topic_id, topic.partitions, config)

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
                compare.append(Compare(f"topics/{topic.name}", "create", 0))
            operations.append(Put(f"topics/{topic.name}", {"id": topic.topic_id, "config": dict(topic.config)}))
            for index in range(len(before.partitions) if before else 0, len(topic.partitions)):
                state = topic.partitions[index]
                partition = {
                    "leader": state.leader,
                    "leader_epoch": state.leader_epoch,
                    "replicas": list(state.replicas),
                    "isr": list(state.isr),
                }
                operations.append(Put(f"partitions/{topic.topic_id}/{index:07}", partition))
        await self._commit(compare, operations)

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
        gone = DeletePrefix(f"partitions/{topic.topic_id}/")
        note = Put(f"deleting/{topic.topic_id}", {"name": topic.name, "partitions": len(topic.partitions)})
        await self._commit([], [Delete(f"topics/{topic.name}"), gone, note])

    async def end_deletion(self, topic_id: str) -> None:
        """Forgets a deleted topic once its files are gone, durably. Until then the name is not free."""
        await self._commit([], [Delete(f"deleting/{topic_id}")])

    def deletions(self) -> list[tuple[str, str, int]]:
        """Id, name and number of partitions of deleted topics of which files may be left."""
        return list(self._deleting.values())

    def is_created(self, name: str, index: int) -> bool:
        """Whether a partition has a log: one of an internal topic is made when it is first needed."""
        topic = self.topics[name]
        return not topic.internal or _created_key(topic, index) in self._created

    async def note_created(self, topic: Topic, index: int) -> None:
        """Notes durably that the log of an internal topic's partition is there; from now on its absence is damage."""
        await self._commit([], [Put(_created_key(topic, index), {})])

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

    def _new_partition(self) -> PartitionState:
        return PartitionState(self._node_id, 0, (self._node_id,), (self._node_id,))

    async def _commit(self, compare: list[Compare], operations: list[Operation]) -> None:
        if await self._store.transaction(compare, operations) is None:
            raise TopicError(ErrorCode.INVALID_REQUEST, "the metadata changed meanwhile: try again")

    def _read(self, delta: Delta) -> None:
        """Takes over what changed, all keys at the start."""
        topic_ids: dict[str, None] = {}
        names: dict[str, None] = {}
        for key, _, after in delta.changes:
            kind, _, rest = key.partition("/")
            if kind == "partitions":
                topic_id, _, index = rest.partition("/")
                topic_ids[topic_id] = None
                states = self._states.setdefault(topic_id, {})
                if after is not None:
                    states[int(index)] = _state(after.value)
                elif states.pop(int(index), None) is not None and not states:
                    del self._states[topic_id]
            elif kind == "topics":
                names[rest] = None
                self._values[rest] = None if after is None else after.value
            elif kind == "created":
                (self._created.discard if after is None else self._created.add)(key)
            elif kind == "deleting" and after is None:
                self._deleting.pop(key, None)
            elif kind == "deleting" and after is not None:
                self._deleting[key] = rest, after.value["name"], after.value["partitions"]
        names |= {self._names[topic_id]: None for topic_id in topic_ids if topic_id in self._names}
        if names:
            topics = dict(self.topics)  # a copy: an answer that is being made goes on with the old one
            for name in names:
                self._read_topic(name, topics)
            self.topics = topics
            self._changes.note(delta.revision, names)
            for listener in tuple(self._listeners.values()):
                listener(tuple(names))

    def _read_topic(self, name: str, topics: dict[str, Topic]) -> None:
        before, value = topics.pop(name, None), self._values[name]
        if before is not None and (value is None or value["id"] != before.topic_id):
            self._names.pop(before.topic_id, None)
            self._configs.pop(name, None)
        if value is None:
            del self._values[name]
        else:
            topic_id, states = value["id"], self._states.get(value["id"], {})
            self._names[topic_id] = name
            partitions = tuple(states[index] for index in sorted(states))
            config = value["config"]
            if before is not None and before.config == config:
                config = before.config  # the same object: settings that did not change need no comparison
            topics[name] = Topic(name, topic_id, partitions, config)
        self._partitions += _size(topics.get(name)) - _size(before)


class Changes:
    """Which topics changed at which revision, the latest ``limit`` times; pure."""

    def __init__(self, revision: int, limit: int = 4096) -> None:
        self._limit = limit
        self._since = revision  # all that changed later is known
        self._noted: deque[tuple[int, str]] = deque()

    def note(self, revision: int, names: Iterable[str]) -> None:
        """These topics changed, came or went with this revision, the highest so far."""
        self._noted.extend((revision, name) for name in names)
        while len(self._noted) > self._limit:
            self._since = self._noted.popleft()[0]

    def after(self, revision: int) -> dict[str, None] | None:
        """What changed after ``revision``, the latest first; None when that is not known any more."""
        if revision < self._since:
            return None
        found: dict[str, None] = {}
        for changed, name in reversed(self._noted):
            if changed <= revision:
                break
            found[name] = None
        return found


def _state(value: Mapping[str, Any]) -> PartitionState:
    return PartitionState(value["leader"], value["leader_epoch"], tuple(value["replicas"]), tuple(value["isr"]))


def _size(topic: Topic | None) -> int:
    """What a topic takes of ``max_partitions``."""
    return 0 if topic is None or topic.internal else len(topic.partitions)


def _created_key(topic: Topic, index: int) -> str:
    return f"created/{topic.topic_id}/{index:07}"
