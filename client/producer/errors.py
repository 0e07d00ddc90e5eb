"""What is said of records that were not acknowledged: what happened, and whether they may be in the log."""

from __future__ import annotations

from typing import Final

from client.errors import (
    ClosedError,
    CohortError,
    DuplicateSequenceNumberError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    MessageTooLargeError,
    OutOfOrderSequenceNumberError,
    RecordListTooLargeError,
    RequestTimedOutError,
    UnknownProducerIdError,
)
from client.producer.batch import Batch
from protocol.errors import ErrorCode
from protocol.subscription import TopicPartition

TOO_LARGE: Final = (MessageTooLargeError, RecordListTooLargeError)
OF_ONE_BATCH: Final = (*TOO_LARGE, InvalidRecordError, DuplicateSequenceNumberError)
"""What one batch of several may be the reason of."""
OUT_OF_SEQUENCE: Final = (OutOfOrderSequenceNumberError, UnknownProducerIdError, InvalidProducerEpochError)
"""What the daemon says of a sequence that does not come next."""
OUT_OF_SEQUENCE_IN_TRANSACTIONS: Final = (*OUT_OF_SEQUENCE, InvalidTxnStateError)
"""The same where a transaction of the producer is open, but the partition has not got its first batch."""
UNCERTAIN: Final = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Answers that leave open whether the records are in the log; any other refusal says that they are not.

A node that lost its leadership may have appended them, and the new leader may have got them.
"""
WAITED: Final = RequestTimedOutError("no request could take them in time")
NO_ID_YET: Final = RequestTimedOutError("the daemon has not answered yet which producer id this producer gets")


def name_of(partition: TopicPartition) -> str:
    """A partition as people write it."""
    return f"{partition.topic}-{partition.partition}"


def records(count: int) -> str:
    """So many records, in words that go with the number."""
    return "1 record" if count == 1 else f"{count} records"


def refused(batch: Batch, error: CohortError) -> CohortError:
    """The daemon does not take this batch."""
    doubt = f". An earlier attempt was not answered: {_whereabouts(batch)}" if batch.unanswered else ""
    refusal = type(error)(
        f"{records(batch.count)} for {name_of(batch.partition)} {_were(batch)} not stored: "
        f"{_without_name(error, batch)}{doubt}"
    )
    refusal.__cause__ = error
    return refusal


def out_of_time(batch: Batch, error: CohortError, now: float, delivery_timeout_s: float) -> CohortError:
    """Its time, or its attempts, are used up; ``error`` is what the last one met."""
    waited_ms = (now - batch.created_at) * 1000
    failure = RequestTimedOutError(
        f"{records(batch.count)} for {name_of(batch.partition)} {_were(batch)} not acknowledged in "
        f"{waited_ms:.0f} ms and {batch.attempts} attempt{'' if batch.attempts == 1 else 's'} "
        f"(delivery_timeout_ms={delivery_timeout_s * 1000:.0f}); the last error was "
        f"{type(error).__name__}: {_ended(_without_name(error, batch))} {_whereabouts(batch).capitalize()}"
    )
    failure.__cause__ = error
    return failure


def stopped(batch: Batch) -> CohortError:
    """The producer was stopped before it was acknowledged."""
    return ClosedError(
        f"{records(batch.count)} for {name_of(batch.partition)} {_were(batch)} not acknowledged when "
        f"the producer was stopped. {_whereabouts(batch).capitalize()}"
    )


def doubtful(batch: Batch) -> CohortError:
    """The daemon takes its sequence no more, and under another it might be in the log twice."""
    one = batch.count == 1
    return RequestTimedOutError(
        f"{records(batch.count)} for {name_of(batch.partition)} {_were(batch)} sent "
        f"{batch.attempts} time{'' if batch.attempts == 1 else 's'} without an answer, and the daemon does not know the "
        f"records before {'it' if one else 'them'}, or this producer, any more. {_whereabouts(batch).capitalize()}; sent "
        f"again {'it' if one else 'they'} might be there twice"
    )


def _were(batch: Batch) -> str:
    return "was" if batch.count == 1 else "were"


def _without_name(error: CohortError, batch: Batch) -> str:
    """What the daemon says, without the name of the partition at its beginning: that is told already."""
    name = f"{name_of(batch.partition)}: "
    return str(error).removeprefix(name).replace(f": {name}", ": ", 1)


def _ended(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _whereabouts(batch: Batch) -> str:
    they, are = ("it", "is") if batch.count == 1 else ("they", "are")
    return f"{they} may or may not be in the log" if batch.unanswered else f"{they} {are} not in the log"
