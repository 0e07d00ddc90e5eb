"""What is said of records that were not acknowledged: how many, for which partition, why, and where they may be."""

from __future__ import annotations

import pytest

from client.errors import OutOfOrderSequenceNumberError, RequestTimedOutError, copy_of, error_for
from client.producer.batch import ProducerBatch
from client.producer.errors import doubtful, out_of_time, refused, stopped
from protocol.errors import ErrorCode
from protocol.subscription import TopicPartition


def batch(count: int, unanswered: int = 0, attempts: int = 1) -> ProducerBatch:
    made = ProducerBatch(TopicPartition("t", 1), 5.0)
    made.values = [b"v"] * count
    made.unanswered = unanswered
    made.attempts = attempts
    return made


OUT_OF_ORDER = error_for(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "t-1: 7 comes next")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            refused(batch(1), OUT_OF_ORDER),
            "1 record for t-1 was not stored: OUT_OF_ORDER_SEQUENCE_NUMBER: 7 comes next",
        ),
        (
            refused(batch(2, unanswered=1), OUT_OF_ORDER),
            "2 records for t-1 were not stored: OUT_OF_ORDER_SEQUENCE_NUMBER: 7 comes next. An earlier attempt was not "
            "answered: they may or may not be in the log",
        ),
        (
            refused(batch(1, unanswered=1), error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t-11: no such thing")),
            "1 record for t-1 was not stored: UNKNOWN_TOPIC_OR_PARTITION: t-11: no such thing. An earlier attempt was not "
            "answered: it may or may not be in the log",
        ),
        (
            out_of_time(batch(1), RequestTimedOutError("no answer"), 5.25, 0.2),
            "1 record for t-1 was not acknowledged in 250 ms and 1 attempt (delivery_timeout_ms=200); the last error was "
            "RequestTimedOutError: no answer. It is not in the log",
        ),
        (
            out_of_time(batch(3, unanswered=2, attempts=2), RequestTimedOutError("no answer"), 5.25, 0.2),
            "3 records for t-1 were not acknowledged in 250 ms and 2 attempts (delivery_timeout_ms=200); the last error was "
            "RequestTimedOutError: no answer. They may or may not be in the log",
        ),
        (
            stopped(batch(1, unanswered=1)),
            "1 record for t-1 was not acknowledged when the producer was stopped. It may or may not be in the log",
        ),
        (
            doubtful(batch(1, unanswered=1)),
            "1 record for t-1 was sent 1 time without an answer, and the daemon does not know the records before it, or "
            "this producer, any more. It may or may not be in the log; sent again it might be there twice",
        ),
    ],
)
def test_a_failure_reads_like_a_sentence(said: Exception, text: str) -> None:
    assert str(said) == text


def test_a_refusal_is_of_the_kind_that_the_daemon_answered_and_names_it_as_its_cause() -> None:
    error = refused(batch(1), OUT_OF_ORDER)
    assert isinstance(error, OutOfOrderSequenceNumberError)
    assert error.__cause__ is OUT_OF_ORDER
    assert copy_of(error) is not error
    assert copy_of(error).__cause__ is OUT_OF_ORDER
