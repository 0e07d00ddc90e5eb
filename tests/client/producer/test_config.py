"""What a producer can be told is checked before it does anything."""

from __future__ import annotations

from typing import Any

import pytest

from client.producer.producer import Producer


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"acks": 2}, "acks is 2; it can be 'all', 1 or 0"),
        ({"acks": "1"}, "acks is '1'"),
        ({"acks": True}, "acks is True"),
        ({"acks": []}, r"acks is \[\]"),
        ({"enable_idempotence": "yes"}, "enable_idempotence is 'yes'; it can be True or False"),
        ({"compression": "lz4"}, "compression is 'lz4'; it can be None, 'gzip' or 'zstd'"),
        ({"batch_size": 0}, "batch_size is 0; it must be a number from 1"),
        ({"batch_size": 2**40}, "batch_size is"),
        ({"linger_ms": -1}, "linger_ms is -1"),
        ({"max_in_flight": 0}, "max_in_flight is 0"),
        ({"max_request_bytes": 10}, "max_request_bytes is 10"),
        ({"max_request_bytes": 2**31}, "max_request_bytes is"),
        ({"buffer_bytes": True}, "buffer_bytes is True"),
        ({"request_timeout_ms": 0}, "request_timeout_ms is 0"),
        ({"delivery_timeout_ms": "5"}, "delivery_timeout_ms is '5'"),
        ({"linger_ms": 120_000}, "linger_ms is 120000 and delivery_timeout_ms 120000: no record would be sent in time"),
        ({"retries": -1}, "retries is -1; it must be a whole number from 0, or None"),
        ({"retries": 1.5}, "retries is 1.5"),
        ({"bootstrap_servers": "nowhere:"}, "is not of the form HOST:PORT"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named_with_what_would(setting: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Producer(**setting)


def test_constructing_one_needs_no_loop_and_no_daemon() -> None:
    Producer("127.0.0.1:1", "name", acks=1, retries=0, linger_ms=0.5)


@pytest.mark.parametrize(
    ("settings", "numbered"),
    [
        ({}, True),
        ({"enable_idempotence": True}, True),
        ({"enable_idempotence": True, "retries": 0, "max_in_flight": 1}, True),
        ({"enable_idempotence": True, "max_in_flight": 50}, True),  # five batches of a partition in any case
        ({"enable_idempotence": False}, False),
        ({"acks": 1}, False),
        ({"acks": 0}, False),
        ({"acks": 0, "enable_idempotence": True}, False),  # what is not waited for cannot be seen to
    ],
)
def test_records_are_stored_once_unless_that_is_given_up(settings: dict[str, Any], numbered: bool) -> None:
    assert (Producer(**settings)._identity is not None) == numbered
