"""Where a query stands: an offset for each partition, as Spark keeps it in the checkpoint. Pure.

The JSON is that of Spark's Kafka source with one more key; ``$`` is in no topic's name::

    {"$cohort": {"cluster": "c-7f3a", "ids": {"orders": "0b1f"}, "v": 1}, "orders": {"0": 1200, "1": 1188}}

A group whose name was made up for the query stands there as well, as ``group``; and as ``from`` where the batch that ends
there begins, of partitions in which it does not go on from the batch before. Of partitions with replicas ``epochs`` has the
epoch of the leader that had everything below the offset (KIP-320); checkpoints of earlier releases have none.

Spark compares offsets as text, so equal positions must give equal text: topics sorted, partitions by number. The ids of
topics tell a topic that was deleted and created again from the one that the query read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from client.spark.errors import CheckpointError
from protocol.subscription import TopicPartition

KEY: Final = "$cohort"
VERSION: Final = 1

_SHOWN: Final = 200
_BEGIN_ANEW: Final = (
    "begin with a new checkpointLocation, and say with startingOffsets or startingTimestamp where the query goes on"
)


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset of each partition, the ids of their topics, the cluster these belong to, and a group made up.

    ``begins`` are those of the batch that ends here, as far as they are not the ends of the one before: Spark keeps no
    others, and a batch that is repeated must begin where it did. ``epochs`` are those of leaders in which the log went up to
    the offset: one that has other records there has another end of that epoch.
    """

    offsets: Mapping[TopicPartition, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    cluster_id: str = ""
    group_id: str = ""
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def known_to(self, other: Positions) -> dict[TopicPartition, int]:
        """The offsets of partitions that ``other`` has as well, without those of a topic that was created again since."""
        return {
            partition: offset
            for partition, offset in self.offsets.items()
            if partition in other.offsets
            and self.ids.get(partition.topic, "") in ("", other.ids.get(partition.topic, ""))
        }

    def epoch_at(self, partition: TopicPartition, offset: int, topic_id: str) -> int:
        """The leader epoch of a position in a topic; -1 unless it is one of these positions and its epoch is known."""
        here = self.offsets.get(partition) == offset and self.ids.get(partition.topic, "") == topic_id
        return self.epochs.get(partition, -1) if here else -1

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps; the same for equal positions, to the order of its keys."""
        topics = sorted({partition.topic for partition in self.offsets})
        about: dict[str, Any] = {
            "cluster": self.cluster_id,
            "ids": {topic: self.ids[topic] for topic in topics if topic in self.ids},
            "v": VERSION,
        }
        described: dict[str, Any] = {KEY: ({"group": self.group_id} if self.group_id else {}) | about}
        if self.begins:
            described[KEY]["from"] = _by_topic(self.begins)
        if self.epochs:
            described[KEY]["epochs"] = _by_topic(self.epochs)
        return described | _by_topic(self.offsets)

    @staticmethod
    def from_json(described: Mapping[str, Any]) -> Positions:
        """What ``to_json`` gave.

        Raises ``CheckpointError`` for offsets of another source, such as Spark's Kafka source, whose numbers mean records of
        another log; for those that a later release wrote; and for what is damaged.
        """
        about = described.get(KEY)
        if about is None:
            raise CheckpointError(_foreign(described))
        try:
            if about["v"] > VERSION:
                raise CheckpointError(
                    f"the checkpoint is of version {about['v']}, which a later release of Cohort wrote; this one reads up "
                    f"to {VERSION}: update Cohort on the driver, or begin with a new checkpointLocation"
                )
            return Positions(
                _of_topics({topic: partitions for topic, partitions in described.items() if topic != KEY}),
                dict(about.get("ids", {})),
                str(about.get("cluster", "")),
                str(about.get("group", "")),
                _of_topics(about.get("from", {})),
                _of_topics(about.get("epochs", {})),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(
                f"the offsets in the checkpoint are damaged: {_shown(described)} ({error!r}); {_BEGIN_ANEW}"
            ) from error


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    described: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        described.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return described


def _of_topics(described: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in described.items()
        for partition, offset in partitions.items()
    }


def _foreign(described: Mapping[str, Any]) -> str:
    """Whose offsets these are, as far as can be told."""
    kafka = bool(described) and all(
        isinstance(partitions, dict)
        and all(str(key).isdigit() and type(offset) is int for key, offset in partitions.items())
        for partitions in described.values()
    )
    whose = "such as Spark's Kafka source writes" if kafka else "of another source than Cohort's"
    return (
        f"the checkpoint has offsets {whose}: {_shown(described)}. A checkpoint belongs to the source and cluster that it "
        f"was made with, and these offsets are other records here; {_BEGIN_ANEW}"
    )


def _shown(described: Mapping[str, Any]) -> str:
    text = json.dumps(described, default=repr)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
