"""What a producer can be told, checked when it is constructed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Final, Literal

from client.producer.batch import BATCH_OVERHEAD_BYTES, RECORD_MEMORY_BYTES
from client.transport.request_limits import text_fault
from protocol.compression import Compression
from protocol.framing import DEFAULT_MAX_FRAME_BYTES


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


Acks = Literal["all", 1, 0]

_ACKS_ON_THE_WIRE: Final[dict[Any, int]] = {"all": -1, 1: 1, 0: 0}
MAX_REQUEST_BYTES: Final = DEFAULT_MAX_FRAME_BYTES - 1024 * 1024
"""Leaves room in a frame for the names of topics and partitions."""
MAX_TRANSACTIONAL_ID_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings of a producer; ``Producer`` says what they mean. Sizes are bytes, times milliseconds."""

    acks: Acks
    enable_idempotence: bool
    partitioner_adaptive: bool
    partitioner_availability_timeout_ms: float
    batch_size: int
    linger_ms: float
    compression: Compression | None
    max_in_flight: int
    max_request_bytes: int
    buffer_bytes: int
    retries: int | None
    request_timeout_ms: int
    delivery_timeout_ms: int
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000

    def check(self) -> ProducerSettings:
        """This object. Raises ``ValueError`` naming the first setting that makes no sense, and what would."""
        if not isinstance(self.acks, int | str) or isinstance(self.acks, bool) or self.acks not in _ACKS_ON_THE_WIRE:
            raise ValueError(f"acks is {self.acks!r}; it can be 'all', 1 or 0")
        if not isinstance(self.enable_idempotence, bool):
            raise ValueError(f"enable_idempotence is {self.enable_idempotence!r}; it can be True or False")
        if self.compression not in (None, "gzip", "zstd"):
            raise ValueError(f"compression is {self.compression!r}; it can be None, 'gzip' or 'zstd'")
        if self.compression == "zstd" and importlib.util.find_spec("zstandard") is None:
            raise ModuleNotFoundError("compression='zstd' needs the zstandard package: pip install 'aiocohort[zstd]'")
        for name, low, high in (
            ("batch_size", 1, MAX_REQUEST_BYTES),
            ("linger_ms", 0, 3_600_000),
            ("partitioner_availability_timeout_ms", 0, 3_600_000),
            ("max_in_flight", 1, 1000),
            ("max_request_bytes", 2 * BATCH_OVERHEAD_BYTES, MAX_REQUEST_BYTES),
            ("buffer_bytes", 1024, 2**50),
            ("request_timeout_ms", 1, 2**31 - 1),
            ("delivery_timeout_ms", 1, 2**31 - 1),
            ("transaction_timeout_ms", 1, 2**31 - 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ValueError(f"{name} is {value!r}; it must be a number from {low} to {high}")
        if self.linger_ms >= self.delivery_timeout_ms:
            raise ValueError(
                f"linger_ms is {self.linger_ms} and delivery_timeout_ms {self.delivery_timeout_ms}: no record would be sent "
                "in time; let them linger for less"
            )
        if self.retries is not None and (not isinstance(self.retries, int) or self.retries < 0):
            raise ValueError(
                f"retries is {self.retries!r}; it must be a whole number from 0, or None: no limit but time"
            )
        if self.transactional_id is not None:
            self._check_transactional(self.transactional_id)
        return self

    def _check_transactional(self, transactional_id: object) -> None:
        if (
            not isinstance(transactional_id, str)
            or text_fault(transactional_id)
            or not 0 < len(transactional_id.encode()) <= MAX_TRANSACTIONAL_ID_BYTES
        ):
            raise ValueError(
                f"transactional_id is {transactional_id!r:.100}; it must be a text of 1 to "
                f"{MAX_TRANSACTIONAL_ID_BYTES} bytes"
            )
        if not self.idempotent:
            raise ValueError(
                "a producer with a transactional_id needs acks='all' and enable_idempotence=True: otherwise nobody knows "
                "which records belong to a transaction"
            )
        if not isinstance(self.transaction_timeout_ms, int):
            raise ValueError(f"transaction_timeout_ms is {self.transaction_timeout_ms!r}; it must be a whole number")

    @property
    def idempotent(self) -> bool:
        """Whether batches have sequences: what is stored must be known, so only with all acknowledgements (KIP-679)."""
        return self.enable_idempotence and self.acks == "all"

    @property
    def batch_bytes(self) -> int:
        """The bound of a batch: ``batch_size``, as far as a request and the buffer can take it."""
        return min(self.batch_size, self.max_request_bytes, self.buffer_bytes)

    @property
    def max_record_bytes(self) -> int:
        """The bound of a single record with its overhead in a batch."""
        return min(self.max_request_bytes - BATCH_OVERHEAD_BYTES, self.buffer_bytes - RECORD_MEMORY_BYTES)

    def for_sender(self) -> SenderSettings:
        """The part that the sender needs."""
        return SenderSettings(
            acks=_ACKS_ON_THE_WIRE[self.acks],
            compression=self.compression,
            max_in_flight=self.max_in_flight,
            max_request_bytes=self.max_request_bytes,
            retries=self.retries,
            availability_timeout_s=self.partitioner_availability_timeout_ms / 1000,
            request_timeout_s=self.request_timeout_ms / 1000,
            delivery_timeout_s=self.delivery_timeout_ms / 1000,
        )
