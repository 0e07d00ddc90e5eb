"""The settings of topics: what is legal, what a refusal says, what holds where a topic says nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.config import ConfigurationError, Settings, settings_from
from coordinator.metadata.topic_config import (
    TOPIC_SETTINGS,
    TopicConfigError,
    check_together,
    effective_config,
    parse_setting,
)

DEFAULTS = Settings().topic_defaults


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", "-1", -1),
        ("retention.ms", "0", 0),
        ("retention.bytes", "9223372036854775807", 2**63 - 1),
        ("segment.ms", "1", 1),
        ("cleanup.policy", "delete", "delete"),
        ("cleanup.policy", "compact", "compact"),
        ("cleanup.policy", "compact,delete", "compact,delete"),
        ("cleanup.policy", " delete, compact ", "compact,delete"),
        ("cleanup.policy", "", ""),
        ("min.cleanable.dirty.ratio", "0", 0.0),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("min.cleanable.dirty.ratio", ".5", 0.5),
        ("min.cleanable.dirty.ratio", str(0.00001), 0.00001),  # as it is shown
        ("min.cleanable.dirty.ratio", str(1.2345678901234567e-100), 1.2345678901234567e-100),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("min.insync.replicas", "2", 2),
        ("min.insync.replicas", "-1", -1),
    ],
)
def test_legal_values(name: str, text: str, value: object) -> None:
    assert parse_setting(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("retention.ms", "-2", "a whole number from -1 to 9223372036854775807"),
        ("retention.ms", "7d", "a whole number"),
        ("retention.ms", "", "a whole number"),
        ("retention.ms", "-", "a whole number"),
        ("retention.ms", "--1", "a whole number"),
        ("retention.ms", "9223372036854775808", "a whole number"),
        ("segment.bytes", "1023", "from 1024 to"),
        ("cleanup.policy", "compress", "delete or compact or compact,delete"),
        ("cleanup.policy", "delete,", "delete or compact or compact,delete or nothing"),
        ("cleanup.policy", "delete,delete", "delete or compact"),
        ("cleanup.policy", "compact," * 1000, "delete or compact"),
        ("min.cleanable.dirty.ratio", "1.01", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "-0.5", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "1e1", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "e-1", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", ".", "a number from 0 to 1"),
        ("message.timestamp.type", "logappendtime", "CreateTime or LogAppendTime"),
        ("min.insync.replicas", "0", "from 1 to"),
        ("min.insync.replicas", "-2", "or -1: a majority of the replicas from 3 on, else 1"),
        ("retention.mss", "1", "did you mean 'retention.ms'"),
        ("retention_ms", "1", "did you mean 'retention.ms'"),
        ("cleanup", "compact", "did you mean 'cleanup.policy'"),
        ("colour", "blue", "known are cleanup.policy, delete.retention.ms"),
    ],
)
def test_a_refusal_names_what_is_legal(name: str, text: str, says: str) -> None:
    with pytest.raises(TopicConfigError) as refused:
        parse_setting(name, text)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 400


@given(st.sampled_from(sorted(TOPIC_SETTINGS)), st.text())
def test_whatever_is_given_is_a_value_or_refused(name: str, text: str) -> None:
    try:
        value = parse_setting(name, text)
    except TopicConfigError:
        return
    assert parse_setting(name, str(value)) == value


def test_what_a_topic_says_comes_before_what_the_daemon_says() -> None:
    config = effective_config({"retention.ms": 5, "cleanup.policy": "compact"}, DEFAULTS)
    assert (config.retention_ms, config.segment_ms) == (5, DEFAULTS["segment.ms"])
    assert (config.compact, config.delete) == (True, False)
    log = config.log_config("os")
    assert (log.retention_ms, log.compact, log.delete, log.flush) == (5, True, False, "os")


def test_a_topic_of_an_earlier_version_takes_no_batch_that_no_answer_can_bring() -> None:
    assert effective_config({"max.message.bytes": 2**26}, DEFAULTS).max_message_bytes == 2**26 - 2**20


def test_lags_that_exclude_one_another_are_refused() -> None:
    with pytest.raises(TopicConfigError, match=r"above max\.compaction\.lag\.ms"):
        check_together(effective_config({"min.compaction.lag.ms": 6, "max.compaction.lag.ms": 5}, DEFAULTS))
    with pytest.raises(ConfigurationError, match="above max_compaction_lag_ms"):
        settings_from({"min_compaction_lag_ms": 6, "max_compaction_lag_ms": 5})


def test_every_setting_has_a_default_for_the_daemon_that_is_legal() -> None:
    for name, value in DEFAULTS.items():
        assert parse_setting(name, str(value)) == value
    assert settings_from({"min_cleanable_dirty_ratio": 1}).topic_defaults["min.cleanable.dirty.ratio"] == 1
    for wrong in (1.5, "0.5"):
        with pytest.raises(ConfigurationError, match="min_cleanable_dirty_ratio"):
            settings_from({"min_cleanable_dirty_ratio": wrong})
