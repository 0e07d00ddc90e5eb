"""What only Kafka's clients are told: error codes, as Cohort's own requests cannot fail in these ways, and the operations
that a client may do with a topic, a group or the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class KafkaCode(IntEnum):
    """Kafka's numbers and names, beside those of ``protocol.errors.ErrorCode``."""

    OPERATION_NOT_ATTEMPTED = 55
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    UNSUPPORTED_ENDPOINT_TYPE = 115


CODE_NAMES: Final[Mapping[int, str]] = {code.value: code.name for code in KafkaCode}


class Operation(IntEnum):
    """Kafka's numbers and names of what may be done with a resource (``AclOperation``)."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_CONFIGS: Final = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
_CHANGES: Final = (Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, *_CONFIGS)
TOPIC_OPERATIONS: Final = _bits(Operation.READ, Operation.WRITE, Operation.DELETE, *_CHANGES)
"""All of a topic, a bit each: as from a Kafka that has no access control lists."""
CLUSTER_OPERATIONS: Final = _bits(Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE, *_CHANGES)
"""All of the cluster."""
GROUP_OPERATIONS: Final = _bits(Operation.READ, Operation.DELETE, Operation.DESCRIBE, *_CONFIGS)
"""All of a group, as in Kafka 4: before groups had settings it was without the two of these."""
