"""Errors that arise in the client itself; ``client.errors`` has them all, with those that a daemon answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protocol.subscription import TopicPartition


class CohortError(Exception):
    """Root of all errors of this library."""

    retriable: bool = False
    """Whether the same call may succeed later without the caller changing anything."""

    failures: Mapping[Any, CohortError] = MappingProxyType({})
    """What failed in a call about several things: the error of each group, topic, partition or member. See ``Admin``."""


class ConnectionLostError(CohortError):
    """No connection to a daemon could be made, or it broke before the answer came."""

    retriable = True


class NotADaemonError(ConnectionLostError):
    """Another program than a Cohort daemon listens at an address; the text has what it answered.

    Not ``retriable`` for a client that has not reached a daemon yet: it does not start then. One that lost its daemon goes
    on trying, as the daemon may come back to its address.
    """


class CommitFailedError(CohortError):
    """Offsets were not committed, mostly because the group gave the partitions to others; the text names the true cause.

    Records since the last successful commit will be delivered again to whoever owns the partitions now. ``partitions`` holds
    the result of every partition that was to be committed: None where the offset is stored, otherwise the error that speaks
    for it, such as ``UnknownMemberIdError``, ``IllegalGenerationError`` or ``OffsetMetadataTooLargeError``.
    """

    def __init__(
        self, message: str = "", partitions: Mapping[TopicPartition, CohortError | None] | None = None
    ) -> None:
        super().__init__(message)
        self.partitions: Mapping[TopicPartition, CohortError | None] = partitions or {}


class NoOffsetForPartitionError(CohortError):
    """A partition has no committed offset (or one that is gone), and ``auto_offset_reset`` is "none"."""


class RecordDeserializationError(CohortError):
    """A deserializer failed on the record at ``offset``; its error is the cause. ``seek(tp, offset + 1)`` passes over it."""

    def __init__(self, what: str, topic: str, partition: int, offset: int) -> None:
        super().__init__(
            f"the {what} failed at offset {offset} of {topic}-{partition}; seek(tp, {offset + 1}) passes over that record"
        )
        self.topic, self.partition, self.offset = topic, partition, offset


class HandlerError(CohortError):
    """The handler of ``Consumer.process`` failed on the record at ``offset``; its error is the cause."""

    def __init__(self, message: str, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic, self.partition, self.offset = topic, partition, offset


class MaxPollIntervalExceededError(CohortError):
    """The program did not ask for records within ``max_poll_interval_ms``, so its partitions went to other members.

    The next call joins the group again.
    """


class ClosedError(CohortError):
    """A client was used before ``start()`` or after ``stop()``."""


class IllegalStateError(CohortError):
    """A call that does not fit what was called before, such as ``seek`` on a partition that is not assigned."""
