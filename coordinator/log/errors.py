"""What a partition log can refuse.

::

    LogError
    |-- LogDamagedError       what is stored is not what was written; the partition does not serve
    |-- LogWriteError         nothing of this append was kept; the log serves on unless it says otherwise
    |-- LogClosedError        the log was closed or deleted
    |-- LogTruncatedError     the end of the log was given up, as its leader has another
    |-- NotLeaderError        another node leads the partition now, or may: what becomes of what was appended is its business
    |-- NotEnoughInSyncError  fewer replicas are in sync than have to be: what was appended is not committed for now
    |-- OffsetNotInLogError   a read outside the log
    `-- ProducerStateError    a batch does not continue what its idempotent producer wrote before; nothing was appended
        |-- InvalidProducerEpochError     a later epoch of the producer has written here
        |-- OutOfOrderSequenceError       batches are missing before it, or it repeats an older one than is remembered
        |-- UnknownProducerIdError        the producer is not known, and the batch does not begin with sequence 0
        |-- InvalidTransactionStateError  a batch outside of the transaction that the producer has open here
        `-- ConcurrentTransactionsError   the producer's transaction before this one has not ended here yet
"""

from __future__ import annotations


class LogError(Exception):
    """Root of all errors of a partition log."""


class LogDamagedError(LogError):
    """What is stored is not what was written. ``where`` names the file and place, ``why`` what is wrong with it."""

    def __init__(self, directory: str, where: str, why: str) -> None:
        super().__init__(f"{directory} is damaged at {where}: {why}. Restore it from a copy, or delete the partition")
        self.directory = directory
        self.where = where
        self.why = why


class LogWriteError(LogError):
    """An append failed and left nothing in the log. The text carries the operating system's reason."""


class LogClosedError(LogError):
    """The log was closed or deleted and takes no calls any more."""


class LogTruncatedError(LogError):
    """What was waited for, or read, may be gone: the log was truncated or begun anew, as its leader has other records."""


class NotLeaderError(LogError):
    """This node does not lead the partition any more. What was appended is in its log, and may stay there or not."""


class NotEnoughInSyncError(LogError):
    """Fewer replicas are in sync than have to be. What was appended is in the log, and committed once there are enough."""


class OffsetNotInLogError(LogError):
    """A read asked for an offset outside ``[start, end]``."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is not in the log, which holds {start} to {end}")
        self.offset = offset
        self.start = start
        self.end = end


class ProducerStateError(LogError):
    """A batch does not continue what its idempotent producer wrote before. Nothing of the call was appended."""


class InvalidProducerEpochError(ProducerStateError):
    """Another epoch has replaced that of the batch: a later instance of the producer has taken over."""


class OutOfOrderSequenceError(ProducerStateError):
    """A batch leaves sequences out or repeats them, or begins a new epoch with anything but 0."""


class UnknownProducerIdError(ProducerStateError):
    """A producer that is not known (any more) begins with anything but sequence 0."""


class InvalidTransactionStateError(ProducerStateError):
    """A batch without the attribute TRANSACTIONAL, of a producer that has a transaction open in this partition."""


class ConcurrentTransactionsError(ProducerStateError):
    """A batch of a later epoch than the transaction that is open here: its end marker is still to come."""
