"""The API keys that Kafka's clients are served, and in which versions: one table, of which ApiVersions is made.

The first versions are the least that clients of Kafka 4 can send. Those above the last are not served yet: clients take the
highest that both sides know.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.kafka import (
    cluster,
    configs,
    fetch,
    group_administration,
    groups,
    logs,
    offsets,
    producers,
    topic_descriptions,
    topics,
    transaction_admin,
    transactions,
)
from coordinator.kafka.calls import Api
from coordinator.kafka.heartbeats import Heartbeats
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.kafka.refused_batches import RefusedBatches


def apis(node: KafkaNode, heartbeats: Heartbeats, refused: RefusedBatches) -> Mapping[int, Api]:
    """By API key."""
    served: dict[int, Api] = {}
    altering = configs.alter_configs(node)
    table = (
        Api(0, 3, 13, producers.produce(node, refused)),
        Api(1, 4, 18, fetch.fetch(node)),
        Api(2, 1, 10, offsets.list_offsets(node)),
        Api(3, 0, 13, cluster.metadata(node)),
        Api(8, 2, 9, offsets.offset_commit(node)),
        Api(9, 1, 9, offsets.offset_fetch(node)),
        Api(10, 0, 6, cluster.find_coordinator(node)),
        Api(11, 0, 9, groups.join_group(node)),
        Api(12, 0, 4, heartbeats.translator()),
        Api(13, 0, 5, groups.leave_group(node)),
        Api(14, 0, 5, groups.sync_group(node)),
        Api(15, 0, 6, group_administration.describe_groups(node)),
        Api(16, 0, 5, group_administration.list_groups(node)),
        Api(18, 0, 4, cluster.api_versions(served)),
        Api(19, 2, 7, topics.create_topics(node)),
        Api(20, 1, 6, topics.delete_topics(node)),
        Api(21, 0, 2, logs.delete_records(node)),
        Api(22, 0, 5, producers.init_producer_id(node)),
        Api(23, 2, 4, logs.offset_for_leader_epoch(node)),
        Api(32, 1, 4, configs.describe_configs(node)),
        Api(33, 0, 2, altering[33]),
        Api(35, 1, 4, logs.describe_log_dirs(node)),
        Api(37, 0, 3, topics.create_partitions(node)),
        Api(42, 0, 3, group_administration.delete_groups(node)),
        Api(44, 0, 1, altering[44]),
        Api(47, 0, 0, offsets.offset_delete(node)),
        Api(60, 0, 1, cluster.describe_cluster(node)),
        Api(24, 0, 3, transactions.add_partitions_to_txn(node)),
        Api(25, 0, 4, transactions.add_offsets_to_txn(node)),
        Api(26, 0, 5, transactions.end_txn(node)),
        Api(27, 1, 2, transaction_admin.write_txn_markers(node)),
        Api(28, 0, 5, transactions.txn_offset_commit(node)),
        Api(61, 0, 0, transaction_admin.describe_producers(node)),
        Api(65, 0, 0, transaction_admin.describe_transactions(node)),
        Api(66, 0, 1, transaction_admin.list_transactions(node)),
        Api(75, 0, 0, topic_descriptions.describe_topic_partitions(node)),
    )
    served.update({api.key: api for api in table})
    return served
