"""What a consumer was asked to read, topics by name, by pattern, or partitions, and which of it is new since. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from client.errors import IllegalStateError
from client.transport.cluster import Cluster
from client.transport.metadata import Topology
from client.transport.request_limits import text_fault
from protocol.subscription import TopicPartition

Kind = Literal["subscription", "assignment"]


class TopicSelection:
    """A subscription or a manual assignment, never both.

    ``look`` at each picture of the cluster notes how many partitions a selected topic had when it was first seen, 0 for one
    that appeared later. Those beyond are new: no consumer can have read them yet, so they are read from their beginning.
    """

    def __init__(self) -> None:
        self.kind: Kind | None = None
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._first_seen: dict[str, int] = {}
        self._asked_before: frozenset[str] = frozenset()
        self._sees_all = False  # whether every topic that matches the pattern has been seen, so that any other is new
        self._missing: dict[str, None] = {}
        self._unmatched: str | None = None
        self._topic_ids: dict[str, str] = {}

    def subscribe(self, topics: Iterable[str], pattern: str | None, topology: Topology) -> None:
        """Selects topics. Raises ``ValueError`` unless exactly one of ``topics`` and ``pattern`` is given, and ``TypeError``
        for a topic that is no text."""
        asked = list(topics)
        for topic in asked:
            if not isinstance(topic, str):
                raise TypeError(f"a topic's name is text, not {topic!r}; pass each name by itself: {_example(topic)}")
            fault = text_fault(topic)
            if fault:
                raise ValueError(f"no topic has such a name: {fault}")
        named = tuple(sorted(set(asked)))
        if bool(named) == (pattern is not None):
            raise ValueError("subscribe to topics by name or by pattern: exactly one of the two is needed")
        if "" in named:
            raise ValueError(f"topics are {list(named)}; each is a name, and a name is not empty")
        try:
            compiled = re.compile(pattern) if pattern is not None else None
        except re.error as error:
            raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from error
        self._become("subscription", "assign")
        self._sees_all = self._sees_all and compiled is not None
        self._pattern, self._topics, self._asked_before = compiled, named, topology.asked
        self._keep_selected()

    def assign(self, topics: Iterable[str]) -> None:
        """Selects single partitions; ``topics`` are those they belong to."""
        self._become("assignment", "subscribe")
        self._topics = tuple(sorted(topics))
        self._keep_selected()

    def clear(self) -> None:
        """Selects nothing."""
        self.kind, self._topics, self._pattern, self._sees_all = None, (), None, False
        self._keep_selected()

    def track(self, cluster: Cluster) -> None:
        """Has the cluster keep what this selection needs to see."""
        cluster.track(None if self._pattern is not None else self._topics)

    @property
    def pattern(self) -> str | None:
        """The regular expression subscribed to, if it is one."""
        return self._pattern.pattern if self._pattern is not None else None

    def topics(self, topology: Topology) -> tuple[str, ...]:
        """The topics subscribed to, sorted: those named, whether they exist or not, or those that match."""
        pattern = self._pattern
        if pattern is None:
            return self._topics
        return tuple(
            sorted(name for name, topic in topology.topics.items() if not topic.is_internal and pattern.fullmatch(name))
        )

    def partitions(self, topology: Topology) -> dict[TopicPartition, None]:
        """All partitions of those topics, in order."""
        return {
            TopicPartition(topic, partition): None
            for topic in self.topics(topology)
            if topic in topology.topics
            for partition in range(topology.partitions(topic))
        }

    def change(self, joined: tuple[str, ...], topology: Topology) -> str | None:
        """How the topics differ from those the member joined with, or None."""
        wanted = self.topics(topology)
        if wanted == joined:
            return None
        gone = [topic for topic in joined if topic not in wanted]
        new = [topic for topic in wanted if topic not in joined]
        parts = [f"{what} {', '.join(names[:5])}" for what, names in (("new", new), ("gone", gone)) if names]
        return f"the topics subscribed to changed: {'; '.join(parts)}"

    def look(self, topology: Topology, *, complete: bool = False) -> None:
        """Notes what there is. ``complete`` says that the picture has every topic of the cluster."""
        found = {name: len(topic.partitions) for name, topic in topology.topics.items()}
        for name in self.topics(topology):
            if name in topology.asked:
                self._first_seen.setdefault(name, 0 if self._sees_all else found.get(name, 0))
        self._sees_all = self._pattern is not None and (
            self._sees_all or complete or not topology.asked <= self._asked_before
        )
        for name in self._first_seen:
            if name not in found and (name in topology.asked or self._sees_all):
                self._first_seen[name] = 0  # one that appears under this name will be another topic

    def topic_id(self, topic: str) -> str:
        """The id of the topic of this name as it was seen last, "" for one that was not."""
        return self._topic_ids.get(topic, "")

    def topic_ids(self) -> tuple[tuple[str, str], ...]:
        """All topics that were seen, with their ids."""
        return tuple(self._topic_ids.items())

    def created_anew(self, topology: Topology) -> list[str]:
        """Topics that were deleted and created anew since the last call: all of their partitions are new."""
        anew = []
        for name, topic in topology.topics.items():
            before, self._topic_ids[name] = self._topic_ids.get(name), topic.topic_id
            if before not in (None, topic.topic_id):
                self._first_seen.update({name: 0} if name in self._first_seen else {})
                anew.append(name)
        return anew

    def first_seen(self) -> Mapping[str, int]:
        """How many partitions each topic had when it was first seen; a copy."""
        return dict(self._first_seen)

    def learn_first_seen(self, counts: Mapping[str, int]) -> None:
        """The leader, which has been in the group for longer perhaps, saw only so many partitions at first."""
        for topic, count in counts.items():
            self._first_seen[topic] = min(count, self._first_seen.get(topic, count))

    def is_new(self, tp: TopicPartition) -> bool:
        """Whether a partition has appeared since it was selected."""
        first_seen = self._first_seen.get(tp.topic)
        return self._sees_all if first_seen is None else tp.partition >= first_seen

    def newly_missing(self, topology: Topology) -> list[str]:
        """Topics subscribed to by name that do not exist, each once until it exists."""
        named = self._topics if self.kind == "subscription" else ()
        missing = [name for name in named if name in topology.asked and name not in topology.topics]
        told, self._missing = self._missing, dict.fromkeys(missing)
        return [name for name in missing if name not in told]

    def newly_unmatched(self, topology: Topology) -> str | None:
        """The pattern subscribed to, if no topic matches it: once until one does. None while topics may be unknown."""
        if self._pattern is None:
            self._unmatched = None
        elif topology.whole:
            told, self._unmatched = self._unmatched, None if self.topics(topology) else self._pattern.pattern
            return self._unmatched if self._unmatched != told else None
        return None

    def _keep_selected(self) -> None:
        """What was seen of other topics means nothing when they are selected again later."""
        pattern, named = self._pattern, frozenset(self._topics)
        self._first_seen = {
            name: count
            for name, count in self._first_seen.items()
            if name in named or (pattern is not None and pattern.fullmatch(name))
        }

    def _become(self, kind: Kind, other: str) -> None:
        if self.kind not in (None, kind):
            raise IllegalStateError(f"this consumer was given partitions by {other}(); call unsubscribe() first")
        self.kind = kind


def _example(topic: object) -> str:
    """How to name the topics that were passed in a list where one name belongs."""
    names = [name for name in topic if isinstance(name, str)] if isinstance(topic, Iterable) else []
    shown = names[:2] or ["orders"]
    return f"Consumer({', '.join(map(repr, shown))}) or subscribe({shown!r})"
