"""Error codes that only Kafka's clients are told: Cohort's own requests cannot fail in these ways."""

from __future__ import annotations

from enum import IntEnum


class KafkaCode(IntEnum):
    """Kafka's numbers and names, beside those of ``protocol.errors.ErrorCode``."""

    FETCH_SESSION_ID_NOT_FOUND = 70
    UNKNOWN_TOPIC_ID = 100
    UNSUPPORTED_ENDPOINT_TYPE = 115
