"""What is said to those whose records were not acknowledged: what happened, and whether they may be in the log."""

from __future__ import annotations

from client.errors import CohortError, RequestTimedOutError
from client.producer_batch import ProducerBatch
from protocol.subscription import TopicPartition


def name_of(partition: TopicPartition) -> str:
    """A partition as people write it."""
    return f"{partition.topic}-{partition.partition}"


def refused(batch: ProducerBatch, error: CohortError) -> CohortError:
    """The daemon does not take this batch."""
    doubt = ". An earlier attempt was not answered: they may or may not be in the log" if batch.unanswered else ""
    refusal = type(error)(f"{batch.count} records for {name_of(batch.partition)} were not stored: {error}{doubt}")
    refusal.__cause__ = error
    return refusal


def out_of_time(batch: ProducerBatch, error: CohortError, now: float, delivery_timeout_s: float) -> CohortError:
    """Its time, or its attempts, are used up; ``error`` is what the last one met."""
    waited_ms = (now - batch.created_at) * 1000
    failure = RequestTimedOutError(
        f"{batch.count} records for {name_of(batch.partition)} were not acknowledged in {waited_ms:.0f} ms and "
        f"{batch.attempts} attempts (delivery_timeout_ms={delivery_timeout_s * 1000:.0f}); the last error was "
        f"{type(error).__name__}: {error}. They {_whereabouts(batch)}"
    )
    failure.__cause__ = error
    return failure


def doubtful(batch: ProducerBatch) -> CohortError:
    """The daemon takes its number no more, and under another it might be in the log twice."""
    return RequestTimedOutError(
        f"{batch.count} records for {name_of(batch.partition)} were sent {batch.attempts} times without an answer, and the "
        f"daemon does not know the records before them, or this producer, any more. They {_whereabouts(batch)}; sent again "
        "they might be there twice"
    )


def copy_of(error: CohortError) -> CohortError:
    """The same error as an object of its own."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def _whereabouts(batch: ProducerBatch) -> str:
    return "may or may not be in the log" if batch.unanswered else "are not in the log"
