"""One module for each API key, named as the key is; ``handler`` of each makes what ``Dispatcher`` calls."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.server.call import Handler
from coordinator.server.handlers import (
    abort_transaction,
    add_partitions_to_txn,
    alter_partition_reassignments,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    join_transaction,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    stage_offsets,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    write_txn_markers,
)
from coordinator.server.node import Node
from protocol.messages import REQUESTS, ApiKey, Request

_MODULES = {
    ApiKey.ABORT_TRANSACTION: abort_transaction,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.END_TXN: end_txn,
    ApiKey.FETCH: fetch,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.JOIN_TRANSACTION: join_transaction,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
    ApiKey.METADATA: metadata,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_DELETE: offset_delete,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.PRODUCE: produce,
    ApiKey.STAGE_OFFSETS: stage_offsets,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.UNREGISTER_BROKER: unregister_broker,
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
}


def handlers(node: Node) -> Mapping[type[Request], Handler]:
    """The handler of each kind of request."""
    return {REQUESTS[key]: module.handler(node) for key, module in _MODULES.items()}
