"""Some cases of the suites of Kafka's clients, seconds each; ``python -m tests.kafka.suites NAME`` runs all of one.

Left out where there is no toolchain, or no network to get a suite with; librdkafka's also until that command has built it.
"""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from tests.kafka.suites.__main__ import broker
from tests.kafka.suites.exceptions import judged, named_for
from tests.kafka.suites.go_modules import FEW_RECORDS, FRANZ_GO, KAFKA_GO
from tests.kafka.suites.java import KAFKA_TOOLS
from tests.kafka.suites.librdkafka import LIBRDKAFKA
from tests.kafka.suites.suite import MissingError, Suite

pytestmark = [
    pytest.mark.kafka_suites,
    pytest.mark.timeout(900),
]  # a Go suite is built first, jars are downloaded, once

KAFKA_GO_PORT = 9092


def passes(suite: Suite, only: str, at_least: int) -> None:
    """Runs a choice of the cases of a suite, of which so many have to pass, and none may fail that is not named."""
    try:
        directory = suite.prepare()
        with broker(suite, None) as bootstrap:
            judgement = judged(suite.run(directory, bootstrap, only), named_for(suite.name))
    except MissingError as error:
        pytest.skip(f"{suite.name} cannot be run here: {error}")
    assert not judgement.unexpected, "".join(f"{case.name}: {case.said}" for case in judgement.unexpected)
    assert judgement.counts["passed"] >= at_least, judgement.counts


def test_franz_go_s_groups_hand_records_on() -> None:
    """Three pipelines of groups, under range, cooperative-sticky and with static members; each checks every record."""
    passes(replace(FRANZ_GO, environment={**FRANZ_GO.environment, **FEW_RECORDS}), "^TestGroupETL$", at_least=4)


def test_kafka_go_s_client_and_its_readers() -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", KAFKA_GO_PORT))
        except OSError as error:
            pytest.skip(f"kafka-go's tests need port {KAFKA_GO_PORT}: {error}")
    cases = "Client(Fetch|Produce|RawProduce|ListOffsets|Metadata|JoinGroup|Heartbeat|OffsetCommit|DescribeConfigs).*"
    passes(KAFKA_GO, f"^Test({cases}|Reader|ConsumerGroup)$", at_least=20)


def test_kafka_s_command_line_tools() -> None:
    """Each record of a verified producer is read by a verified consumer in a group; groups and their offsets."""
    passes(KAFKA_TOOLS, "kafka-(verifiable-producer|consumer-groups)", at_least=2)


def test_librdkafka_s_consumers_and_producers() -> None:
    """Order, batches, offsets, seeks, compression, pauses, committed offsets."""
    if not LIBRDKAFKA.is_built:
        pytest.skip("librdkafka is not built here; python -m tests.kafka.suites librdkafka does it, in minutes")
    passes(LIBRDKAFKA, "^00(05|12|13|15|17|26|29|30|31)$", at_least=9)
