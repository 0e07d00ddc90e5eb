"""What a consumer was asked to read: topics by name, topics by pattern, or partitions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from client.cluster import Cluster
from client.errors import IllegalStateError
from client.topology import Topology
from protocol.subscription import TopicPartition

Kind = Literal["subscription", "assignment"]


class TopicSelection:
    """A subscription or a manual assignment, never both."""

    def __init__(self) -> None:
        self.kind: Kind | None = None
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None

    def subscribe(self, topics: Iterable[str], pattern: str | None) -> None:
        """Selects topics. Raises ``ValueError`` unless exactly one of ``topics`` and ``pattern`` is given."""
        named = tuple(sorted(set(topics)))
        if bool(named) == (pattern is not None):
            raise ValueError("subscribe to topics by name or by pattern: exactly one of the two is needed")
        if any(not isinstance(topic, str) or not topic for topic in named):
            raise ValueError(f"topics are {list(named)}; each is a name")
        self._become("subscription", "assign")
        try:
            self._pattern = re.compile(pattern) if pattern is not None else None
        except re.error as error:
            raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from error
        self._topics = named

    def assign(self, topics: Iterable[str]) -> None:
        """Selects single partitions; ``topics`` are those they belong to."""
        self._become("assignment", "subscribe")
        self._topics = tuple(sorted(topics))

    def clear(self) -> None:
        """Selects nothing."""
        self.kind, self._topics, self._pattern = None, (), None

    def track(self, cluster: Cluster) -> None:
        """Has the cluster keep what this selection needs to see."""
        cluster.track(None if self._pattern is not None else self._topics)

    def topics(self, topology: Topology) -> tuple[str, ...]:
        """The topics subscribed to, sorted: those named, whether they exist or not, or those that match."""
        pattern = self._pattern
        if pattern is None:
            return self._topics
        return tuple(
            sorted(name for name, topic in topology.topics.items() if not topic.is_internal and pattern.match(name))
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

    def _become(self, kind: Kind, other: str) -> None:
        if self.kind not in (None, kind):
            raise IllegalStateError(f"this consumer was given partitions by {other}(); call unsubscribe() first")
        self.kind = kind
