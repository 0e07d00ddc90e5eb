"""Where a query stands: an offset for each partition, as Spark keeps it in the checkpoint. Pure.

The JSON is that of Spark's Kafka source with one more key; ``$`` is in no topic's name::

    {"$cohort": {"cluster": "c-7f3a", "ids": {"orders": "0b1f"}, "v": 1}, "orders": {"0": 1200, "1": 1188}}

A group whose name was made up for the query stands there as well, as ``group``.

Spark compares offsets as text, so equal positions must give equal text: topics sorted, partitions by number. The ids of
topics tell a topic that was deleted and created again from the one that the query read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.subscription import TopicPartition

KEY: Final = "$cohort"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset of each partition, the ids of their topics, the cluster these belong to, and a group made up."""

    offsets: Mapping[TopicPartition, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    cluster_id: str = ""
    group_id: str = ""

    def known_to(self, other: Positions) -> dict[TopicPartition, int]:
        """The offsets of partitions that ``other`` has as well, without those of a topic that was created again since."""
        return {
            partition: offset
            for partition, offset in self.offsets.items()
            if partition in other.offsets
            and self.ids.get(partition.topic, "") in ("", other.ids.get(partition.topic, ""))
        }

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps; the same for equal positions, to the order of its keys."""
        topics = sorted({partition.topic for partition in self.offsets})
        about: dict[str, Any] = {
            "cluster": self.cluster_id,
            "ids": {topic: self.ids[topic] for topic in topics if topic in self.ids},
            "v": VERSION,
        }
        described: dict[str, Any] = {KEY: ({"group": self.group_id} if self.group_id else {}) | about}
        for partition, offset in sorted(self.offsets.items()):
            described.setdefault(partition.topic, {})[str(partition.partition)] = offset
        return described

    @staticmethod
    def from_json(described: Mapping[str, Any]) -> Positions:
        """What ``to_json`` gave; also without its own key, as Kafka's source writes it.

        Raises ``ValueError`` when it is something else, or of a later version.
        """
        about = described.get(KEY, {})
        try:
            if about.get("v", VERSION) > VERSION:
                raise ValueError(f"version {about['v']} of a later release")
            offsets = {
                TopicPartition(topic, int(partition)): int(offset)
                for topic, partitions in described.items()
                if topic != KEY
                for partition, offset in partitions.items()
            }
            return Positions(
                offsets, dict(about.get("ids", {})), str(about.get("cluster", "")), str(about.get("group", ""))
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"offsets of another source, or damaged: {described!r} ({error})") from error
