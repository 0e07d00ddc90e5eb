"""The errors that this library raises by itself; ``client.errors`` has the whole tree, and is where to import them from."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protocol.subscription import TopicPartition


class CohortError(Exception):
    """Root of all errors of this library."""

    retriable: bool = False
    """Whether the same call may succeed later without the caller changing anything."""

    abortable: bool = False
    """Whether the transaction is aborted, or has to be, and may be done again with the same producer (KIP-1050).

    An error of a transaction that is neither this nor ``retriable`` is the end of its producer, or a fault of the program.
    """

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

    Records since the last successful commit will be delivered again to the present owners of the partitions.
    ``partitions`` holds the result of every partition that was to be committed: None where the offset is stored,
    otherwise the error that speaks for it, such as ``UnknownMemberIdError``, ``IllegalGenerationError`` or
    ``OffsetMetadataTooLargeError``. Within a transaction it is abortable: the outputs go the way of their offsets (KIP-447).
    """

    abortable = True

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


class TransactionAbortedError(CohortError):
    """The transaction was aborted, or will be: its timeout, an administrator, or an error of one of its records.

    None of its records and offsets takes effect. Futures of its records that were not acknowledged yet fail with it, too
    (KIP-654). The next transaction may do the same work again.
    """

    abortable = True


class TransactionUncertainError(CohortError):
    """No answer to the commit came within ``delivery_timeout_ms``: the transaction may be committed or aborted.

    ``await producer.settle()`` finds out, and so does the next transaction; ``outcome`` of the transaction then tells.
    """


class AlreadyCommittedError(CohortError):
    """A transaction of this ``version``, or of a later one, is committed: the work is done and need not be done again.

    ``committed_version`` is the highest version that the transactional id has committed.
    """

    def __init__(self, message: str = "", version: int = -1, committed_version: int = -1) -> None:
        super().__init__(message)
        self.version, self.committed_version = version, committed_version


class LogTruncatedError(CohortError):
    """Records that this consumer read, or that were committed as read, are no longer in the log (KIP-320).

    They were lost with a leader: by an unclean election, or written with ``acks=1`` to a leader that died before its
    followers had them. ``offset`` is where the consumer stood in ``partition``, ``diverging_offset`` from where on the log
    is another one. It is raised with ``auto_offset_reset="none"``; ``seek(partition, diverging_offset)`` goes on there.
    """

    def __init__(
        self, message: str = "", partition: TopicPartition | None = None, offset: int = -1, diverging_offset: int = -1
    ) -> None:
        super().__init__(message)
        self.partition, self.offset, self.diverging_offset = partition, offset, diverging_offset
