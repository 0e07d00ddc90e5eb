"""Messages of Kafka's protocol, one module each, and the table of their API keys. Made from the schemas by
``tests/protocol/kafka/message_modules.py``."""

from __future__ import annotations

from typing import Final, NamedTuple


class Api(NamedTuple):
    """What the schemas say of one API key, both directions."""

    name: str
    versions: tuple[int, int]
    """The first and the last that the schemas describe; which of them are served is said elsewhere."""
    flexible_from: int
    """The first flexible version; 32767 where there is none."""


APIS: Final[dict[int, Api]] = {
    0: Api("Produce", (3, 13), 9),
    1: Api("Fetch", (4, 18), 12),
    2: Api("ListOffsets", (1, 11), 6),
    3: Api("Metadata", (0, 13), 9),
    8: Api("OffsetCommit", (2, 10), 8),
    9: Api("OffsetFetch", (1, 10), 6),
    10: Api("FindCoordinator", (0, 6), 3),
    11: Api("JoinGroup", (0, 9), 6),
    12: Api("Heartbeat", (0, 4), 4),
    13: Api("LeaveGroup", (0, 5), 4),
    14: Api("SyncGroup", (0, 5), 4),
    15: Api("DescribeGroups", (0, 6), 5),
    16: Api("ListGroups", (0, 5), 3),
    17: Api("SaslHandshake", (0, 1), 32767),
    18: Api("ApiVersions", (0, 5), 3),
    19: Api("CreateTopics", (2, 7), 5),
    20: Api("DeleteTopics", (1, 6), 4),
    21: Api("DeleteRecords", (0, 2), 2),
    22: Api("InitProducerId", (0, 6), 2),
    23: Api("OffsetForLeaderEpoch", (2, 4), 4),
    24: Api("AddPartitionsToTxn", (0, 5), 3),
    25: Api("AddOffsetsToTxn", (0, 4), 3),
    26: Api("EndTxn", (0, 5), 3),
    27: Api("WriteTxnMarkers", (1, 2), 1),
    28: Api("TxnOffsetCommit", (0, 6), 3),
    32: Api("DescribeConfigs", (1, 4), 4),
    33: Api("AlterConfigs", (0, 2), 2),
    35: Api("DescribeLogDirs", (1, 5), 2),
    36: Api("SaslAuthenticate", (0, 2), 2),
    37: Api("CreatePartitions", (0, 3), 2),
    42: Api("DeleteGroups", (0, 3), 2),
    44: Api("IncrementalAlterConfigs", (0, 1), 1),
    47: Api("OffsetDelete", (0, 0), 32767),
    60: Api("DescribeCluster", (0, 2), 0),
    61: Api("DescribeProducers", (0, 0), 0),
    65: Api("DescribeTransactions", (0, 0), 0),
    66: Api("ListTransactions", (0, 2), 0),
    75: Api("DescribeTopicPartitions", (0, 0), 0),
}
