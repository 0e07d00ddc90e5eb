"""What a query had in front of it and is no longer there: told precisely, and fatal unless it is allowed. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from client.log import get_logger
from client.spark.errors import DataLossError
from client.spark.options import Subscribed
from client.spark.positions import Positions
from client.transport.metadata import Topology
from protocol.subscription import TopicPartition

log = get_logger()

_ADVICE = 'if the query may go on without them, set failOnDataLoss to "false"'


def surviving(
    start: Positions, topology: Topology, ends: Mapping[TopicPartition, int], subscribed: Subscribed, fail: bool
) -> Positions:
    """``start`` without the partitions whose records are gone: deleted, created again under the same name, or cut short.

    Those begin anew at the first offset that is there. Raises ``DataLossError`` naming all of them when ``fail``, and those
    that are not ``subscribed`` any more. ``ends`` are those of the logs.
    """
    if start.cluster_id and topology.cluster_id and start.cluster_id != topology.cluster_id:
        raise DataLossError(
            f"the checkpoint is of cluster {start.cluster_id}, and this is cluster {topology.cluster_id}: connect to the "
            "one before, or begin with a new checkpoint"
        )
    losses: list[str] = []
    kept: dict[TopicPartition, int] = {}
    for partition, offset in sorted(start.offsets.items()):
        why = _loss(partition, offset, start, topology, ends)
        if not subscribed.reads(partition):
            why = f"is not subscribed to any more; the query stood at offset {offset}"
        if why is None:
            kept[partition] = offset
        else:
            losses.append(f"{partition.topic}-{partition.partition} {why}")
    report(losses, fail)
    epochs = {partition: epoch for partition, epoch in start.epochs.items() if partition in kept}
    return Positions(kept, start.ids, start.cluster_id, start.group_id, epochs=epochs)


def report(losses: list[str], fail: bool) -> None:
    """Raises ``DataLossError`` for these, or logs them when the query may go on."""
    if not losses:
        return
    text = "; ".join(losses[:20]) + (f"; and {len(losses) - 20} more" if len(losses) > 20 else "")
    if fail:
        raise DataLossError(f"records that the query was to read are gone: {text}; {_ADVICE}")
    log.warning("records_lost_to_the_query", losses=text)


def _loss(
    partition: TopicPartition, offset: int, start: Positions, topology: Topology, ends: Mapping[TopicPartition, int]
) -> str | None:
    topic = topology.topics.get(partition.topic)
    if topic is None or partition.partition >= len(topic.partitions):
        return f"was deleted; the query stood at offset {offset}"
    known = start.ids.get(partition.topic)
    if known is not None and known != topic.topic_id:
        return f"was deleted and created again (topic id {known} before, {topic.topic_id} now); the query stood at {offset}"
    end = ends.get(partition)
    if end is not None and end < offset:
        return f"ends at offset {end}, before the {offset} at which the query stood: its log was cut short"
    return None
