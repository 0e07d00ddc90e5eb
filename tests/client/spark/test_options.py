"""Options of format("cohort"): names as in Spark's Kafka source, and every fault told at once."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.spark.errors import OptionsError
from client.spark.options import duration_s, sink_options, source_options
from protocol.messages.records import READ_UNCOMMITTED
from protocol.subscription import TopicPartition


def test_a_job_for_kafka_moves_by_changing_its_format() -> None:
    options = source_options(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "kafka.group.id": "g",
            "groupIdPrefix": "not needed",
            "fetchOffset.numRetries": "3",
            "fetchOffset.retryIntervalMs": "20",
            "kafkaConsumer.pollTimeoutMs": "90000",
            "kafka.max.poll.records": "500",
            "kafka.security.protocol": "PLAINTEXT",
            "kafka.isolation.level": "read_uncommitted",
            "subscribePattern": "log.*",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "1000",
            "failOnDataLoss": "false",
            "includeHeaders": "true",
            "checkpointLocation": "/somewhere",
        },
        streaming=True,
    )
    assert (options.connection.bootstrap_servers, options.group_id, options.max_offsets) == ("a:1,b:2", "g", 1000)
    assert (options.fail_on_data_loss, options.include_headers, options.starting) == (False, True, "earliest")
    assert (options.group_id_prefix, options.offset_retries, options.offset_retry_interval_s) == (None, 3, 0.02)
    assert options.connection.request_timeout_ms == 90_000
    assert options.isolation == READ_UNCOMMITTED
    assert options.subscribed.takes("logs")
    assert not options.subscribed.takes("my logs")
    assert not options.subscribed.takes("__consumer_offsets")


def test_names_count_in_any_case_because_spark_lowers_them() -> None:
    options = source_options({"SUBSCRIBE": "b, a,", "maxoffsetspertrigger": "5"}, streaming=True)
    assert (options.subscribed.topics, options.max_offsets) == (("a", "b"), 5)


@pytest.mark.parametrize(("streaming", "starting"), [(True, "latest"), (False, "earliest")])
def test_a_stream_begins_at_the_end_and_a_batch_at_the_start(streaming: bool, starting: str) -> None:
    assert source_options({"subscribe": "t"}, streaming=streaming).starting == starting


def test_offsets_as_json_with_the_key_of_a_checkpoint_or_without() -> None:
    for text in ('{"t": {"0": 23, "1": -2}}', '{"$cohort": {"v": 1}, "t": {"0": 23, "1": -2}}'):
        options = source_options({"subscribe": "t", "startingOffsets": text}, streaming=False)
        assert options.starting == {TopicPartition("t", 0): 23, TopicPartition("t", 1): -2}


def test_one_time_for_all_goes_before_a_time_for_each() -> None:
    given = {"subscribe": "t", "startingTimestamp": "5", "startingOffsetsByTimestamp": '{"t": {"0": 9}}'}
    assert source_options(given, streaming=True).starting_timestamps == 5
    del given["startingTimestamp"]
    assert source_options(given, streaming=True).starting_timestamps == {TopicPartition("t", 0): 9}


@pytest.mark.parametrize(
    ("given", "streaming", "said"),
    [
        ({}, True, "none of them is given"),
        ({"topic": "t"}, True, "none of them is given; topic 't' names nothing for a source"),
        ({"path": "t"}, False, "none of them is given; path 't' names nothing for a source"),
        ({"subscribe": "t", "session.timeout.ms": "2147483648"}, True, "from 1 to 2147483647"),
        ({"subscribe": "t", "assign": '{"t": [0]}'}, True, "subscribe and assign are given"),
        ({"subscribePattern": "("}, True, "no regular expression"),
        ({"assign": '{"t": 0}'}, True, "it must be JSON"),
        ({"assign": "nonsense"}, True, "it must be JSON"),
        ({"assign": '{"t": []}'}, True, "it must be JSON"),
        ({"subscribe": " , "}, True, "names no topic"),
        (
            {"subscribe": "t", "group.id": "a", "kafka.group.id": "b"},
            True,
            "group.id is 'a', and kafka.group.id is 'b'",
        ),
        ({"subscribe": "t", "kafka.bootstrap.servers": "a:1", "bootstrap.servers": "b:1"}, True, "give one of them"),
        ({"subscribe": "t", "startingOffsets": "soon"}, True, "startingOffsets is 'soon'; it must be earliest"),
        ({"subscribe": "t", "startingOffsets": "latest"}, False, "with which a batch reads nothing"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": -1}}'}, False, "it must be earliest"),
        ({"subscribe": "t", "startingOffsets": "committed"}, True, "needs group.id"),
        ({"subscribe": "t", "endingOffsets": '{"t": {"0": -2}}'}, False, "endingOffsets is"),
        ({"subscribe": "t", "endingOffsets": "earliest"}, False, "must be latest, or JSON"),
        ({"subscribe": "t", "endingOffsets": "latest"}, True, "a stream has no end"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "0"}, True, "a whole number of at least 1"),
        ({"subscribe": "t", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, True, "is above"),
        ({"subscribe": "t", "maxTriggerDelay": "soon"}, True, "a time such as 30s"),
        ({"subscribe": "t", "failOnDataLoss": "perhaps"}, True, "true or false"),
        ({"subscribe": "t", "bootstrap.servers": "no where"}, True, "HOST:PORT"),
        ({"subscribe": "t", "bootstrap.servers": "a..b:1"}, True, "'a..b' cannot be the name of a host"),
        ({"subscribe": "t", "bootstrap.servers": "\ud800:1"}, True, "cannot be the name of a host"),
        ({"subscribe": "t", "kafka.security.protocol": "SASL_SSL"}, True, "neither TLS nor SASL"),
        ({"subscribe": "t", "startingOffset": "earliest"}, True, "is startingOffsets meant"),
        ({"subscribe": "t", "groupIdPrefix": "p"}, False, "a batch commits to none"),
        *(
            ({"subscribe": "t", name: value}, False, f"{name} is for streams; a batch reads everything")
            for name, value in (
                ("maxOffsetsPerTrigger", "5"),
                ("minOffsetsPerTrigger", "5"),
                ("maxBytesPerTrigger", "5"),
                ("maxTriggerDelay", "5s"),
            )
        ),
        ({"subscribe": "t", "startingOffsetsByTimestampStrategy": "guess"}, True, "error or latest"),
        ({"subscribe": "t", "isolation.level": "serializable"}, True, "read_committed or read_uncommitted"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(given: dict[str, str], streaming: bool, said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        source_options(given, streaming=streaming)


def test_all_faults_are_told_at_once_and_survive_the_way_from_a_task() -> None:
    with pytest.raises(OptionsError) as caught:
        source_options({"minPartitions": "none", "includeHeaders": "2", "bootstrap.servers": "x:"}, streaming=True)
    assert len(caught.value.faults) == 4
    assert pickle.loads(pickle.dumps(caught.value)).faults == caught.value.faults


def test_options_of_a_sink() -> None:
    options = sink_options({"kafka.bootstrap.servers": "a:1", "topic": "t", "compression.type": "gzip"})
    assert (options.topic, options.compression, options.batch_bytes) == ("t", "gzip", 1_000_000)
    assert sink_options({}).compression is None
    with pytest.raises(OptionsError, match=r"compression\.type is 'snappy'"):
        sink_options({"compression.type": "snappy"})
    with pytest.raises(OptionsError, match="asyncProgressTrackingEnabled"):
        sink_options({"asyncprogresstrackingenabled": "true"})
    for name, high in (("transaction.timeout.ms", 2**31 - 1), ("transaction.version", 2**63 - 1)):
        with pytest.raises(OptionsError, match=rf"{name} is '{high + 1}'; .* to {high}"):
            sink_options({"transactional.id": "t", "transaction.version": "1", name: f"{high + 1}"})


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2 h", 7200), ("1d", 86400)])
def test_times(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["subscribe", "assign", "startingOffsets", "maxTriggerDelay", "minPartitions"]), st.text()
    )
)
def test_nothing_but_a_refusal_comes_of_nonsense(given: dict[str, str]) -> None:
    with contextlib.suppress(OptionsError):
        source_options(given, streaming=True)


def test_how_rows_are_delivered() -> None:
    options = sink_options({"delivery": "Exactly-Once", "group.id": " b,a, ", "topic": "t"}, streaming=True)
    assert (options.exactly_once, options.group_ids, options.transaction_timeout_ms) == (True, ("a", "b"), 600_000)
    assert (options.transactional_id, options.version) == (None, None)
    options = sink_options({"delivery": "exactly-once", "transactional.id": "x", "transaction.version": "0"})
    assert (options.transactional_id, options.version) == ("x", 0)
    assert not sink_options({"delivery": "at-least-once", "group.id": "of the source"}).exactly_once
    assert not options.by_default
    for named, streaming, once in (
        ({}, True, True),
        ({}, False, False),
        ({"transactional.id": "x", "transaction.version": "0"}, False, True),
    ):
        options = sink_options({"topic": "t", **named}, streaming=streaming)
        assert (options.exactly_once, options.by_default) == (once, once)


@pytest.mark.parametrize(
    ("given", "streaming", "said"),
    [
        ({"delivery": "once"}, True, "delivery is 'once'; it must be exactly-once or at-least-once"),
        ({"delivery": "at-least-once", "transactional.id": "x"}, True, "transactional.id is for delivery=exactly-once"),
        ({"transaction.version": "1"}, True, "a stream has Spark's batch ids"),
        ({"transaction.version": "1"}, False, "transaction.version needs transactional.id"),
        ({"transactional.id": "x"}, False, "transactional.id needs transaction.version"),
        ({"group.id": "g"}, False, "group.id is for streams"),
        ({"transaction.timeout.ms": "0"}, True, "a whole number from 1 to 2147483647"),
        ({"asyncProgressTrackingEnabled": "true"}, True, "asyncProgressTrackingEnabled is not supported"),
    ],
)
def test_options_of_transactions_that_make_no_sense(given: dict[str, str], streaming: bool, said: str) -> None:
    with pytest.raises(OptionsError) as raised:
        sink_options({"delivery": "exactly-once", **given}, streaming=streaming)
    assert said in str(raised.value)
