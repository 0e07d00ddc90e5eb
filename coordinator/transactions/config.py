"""What the transaction core is given: its bounds, and the step of a decision."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from coordinator.runtime.effects import Step

LAST_EPOCH: Final = 32_766
"""After this epoch of a producer id comes epoch 0 of a new one, as in Kafka."""

PARTS_OF_A_BOUND: Final = 2
"""Ids spread over the partitions by their hash: one partition may take twice its even share."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Bounds on what producers may ask for. Raises ``ValueError`` when a bound is below 1."""

    transaction_max_timeout_ms: int = 900_000
    """Longest transaction timeout, in ms (15 minutes, as in Kafka): so long a dead producer holds up readers."""

    max_transactional_ids: int = 100_000
    """Most transactional ids (Kafka sets no bound). It stops a program that makes up a new id for each transaction; a
    partition of ``__transaction_state`` takes twice its even share at most."""

    transaction_partitions: int = 50
    """Partitions of ``__transaction_state``, as the topic was made."""

    max_transaction_members: int = 10_000
    """Most producers that join one transaction. Each is a record, and part of the decision's."""

    max_transaction_partitions: int = 10_000
    """Most partitions that one member writes to in a transaction: they are one record of the log, written anew by each Add,
    and each gets an end marker."""

    max_transaction_writes: int = 1_000_000
    """Most pairs of a member and a partition it writes to in a transaction: each is an end in an end marker."""

    max_transactional_id_bytes: int = 1024
    """Longest transactional id, scope or name of a member, in bytes of UTF-8. They are part of keys and values."""

    transactional_id_expiration_ms: int = 604_800_000
    """How long a transactional id is kept that is not used, in ms (7 days, as in Kafka). Never while a transaction is open
    or its markers are being written."""

    transactional_id_expiration_check_interval_ms: int = 3_600_000
    """Pause between two looks for ids that have expired, in ms (an hour, as in Kafka)."""

    max_wait_ms: int = 5_000
    """How long a request waits for end markers before it is answered with CONCURRENT_TRANSACTIONS, in ms."""

    completion_delay_ms: int = 200
    """How long the record that a transaction is complete waits for others to share a write with, in ms. Nothing waits for
    it."""

    carried_ms: int = 5_000
    """How long the partitions of a transaction are kept for the next one of the same producer before it writes, in ms. A
    daemon that starts again takes what it finds for written, so that less is to be found the shorter it is."""

    last_epoch: int = LAST_EPOCH
    """The last epoch of a producer id; tests set a small one."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}, but it must be at least 1")
        if self.last_epoch > LAST_EPOCH:
            raise ValueError(f"last_epoch is {self.last_epoch}, but it must be at most {LAST_EPOCH}")

    @property
    def max_ids_of_a_partition(self) -> int:
        """Most transactional ids of one core."""
        return max(1, PARTS_OF_A_BOUND * self.max_transactional_ids // self.transaction_partitions)


TransactionStep = Step[TransactionConfig]
"""One decision of the transaction core."""
