"""What a producer's settings come to for its sender."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.compression import Compression


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """How batches are sent. Times are seconds, sizes bytes; ``retries`` None is as often as the delivery timeout allows."""

    acks: int
    compression: Compression | None
    max_in_flight: int
    max_request_bytes: int
    retries: int | None
    availability_timeout_s: float
    request_timeout_s: float
    delivery_timeout_s: float
