"""Error codes that only Kafka's clients are told: Cohort's own requests cannot fail in these ways."""

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
