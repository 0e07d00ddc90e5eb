"""``cohort bench spark_kafka``: skipped with its reason where there is no Kafka, and its jobs on Cohort alone."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from client.admin import Admin
from client.bench.figures import Figure, Kafka, Setting
from client.bench.spark_kafka import (
    BENCH,
    METRICS,
    as_table,
    cohort_peers,
    cohort_topics,
    compared,
    connector_settings,
)
from client.bench.spark_kafka_source import check_came_out, check_same, source_settings
from client.bench.spark_peers import PARTITIONS
from client.cli.failure import CommandError
from client.cli.processes import daemon
from tests.integration.cohort_command import cohort

REFUSED = "127.0.0.1:1"
JARS = ("--kafka-jars", __file__)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((), "there is no Kafka to compare with; --kafka-bootstrap HOST:PORT names one"),
        (
            ("--kafka-bootstrap", REFUSED),
            "Spark has no connector for Kafka; --kafka-package org.apache.spark:spark-sql-kafka",
        ),
    ],
)
def test_without_a_kafka_or_its_connector_it_is_skipped_with_the_reason(given: tuple[str, ...], reason: str) -> None:
    done = cohort("bench", BENCH, "--quick", "--json", *given)
    assert done.returncode == 0
    assert done.stdout == ""
    assert done.stderr.startswith(f"{BENCH} is skipped: {reason}")


def test_it_does_not_keep_other_benchmarks_from_running() -> None:
    done = cohort("bench", BENCH, "send_latency", "--quick")
    assert done.returncode == 0
    assert f"{BENCH} is skipped" in done.stderr
    assert "send_and_wait_p50_ms" in done.stdout


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("--kafka-bootstrap", REFUSED, *JARS), f"no Kafka answers at {REFUSED}"),
        (("--kafka-bootstrap", "nowhere:", *JARS), "--kafka-bootstrap: "),
        (
            ("--kafka-bootstrap", REFUSED, "--kafka-jars", "/no/such.jar"),
            "--kafka-jars names /no/such.jar, which is no file",
        ),
    ],
)
def test_what_was_named_and_is_not_there_is_no_reason_to_skip(given: tuple[str, ...], reason: str) -> None:
    done = cohort("bench", BENCH, "--quick", *given)
    assert done.returncode == 1
    assert f"{BENCH}: {reason}" in done.stderr


def test_what_is_given_reaches_spark() -> None:
    assert connector_settings(Kafka("k:1", jars="a.jar,b.jar")) == {"spark.jars": "a.jar,b.jar"}
    assert connector_settings(Kafka("k:1", package="g:n:1")) == {"spark.jars.packages": "g:n:1"}
    assert connector_settings(Kafka("k:1")) == {}


def test_the_table_has_a_line_a_job() -> None:
    figures = [
        Figure(BENCH, "at_least_once_read_rows_per_s", 2_000_000.4, "1/s", 1_000_000),
        Figure(BENCH, "at_least_once_rows_twice", 7, "rows", 1200),
        Figure(BENCH, "exactly_once_rows_twice", 0, "rows", 1200),
    ]
    heading, read, twice = as_table(figures).splitlines()
    assert heading.split() == ["KAFKA", "AT", "LEAST", "ONCE", "EXACTLY", "ONCE"]
    assert read.split() == ["read_rows_per_s", "1000000", "2000000", "-"]
    assert twice.split() == ["rows_twice", "1200", "7", "0"]


def test_the_kafka_source_beside_ours_is_of_spark_s_own_version_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("client.bench.spark_kafka_source.has_connector", lambda: False)
    own = source_settings(Kafka(source=True))["spark.jars.packages"]
    assert own == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version('pyspark')}"
    assert source_settings(Kafka(package="g:n:1", source=True)) == {"spark.jars.packages": "g:n:1"}
    monkeypatch.setattr("client.bench.spark_kafka_source.has_connector", lambda: True)
    assert source_settings(Kafka(source=True)) == {}


def test_both_sources_have_to_read_the_same_rows() -> None:
    check_same({"cohort": (3, 77), "kafka": (3, 77)}, 3)
    for other, said in (((2, 77), "has read 3 and format"), ((3, 78), "are not the same")):
        with pytest.raises(CommandError, match=said):
            check_same({"cohort": (3, 77), "kafka": other}, 3)
    with pytest.raises(CommandError, match="of 4 rows"):
        check_same({"cohort": (3, 77), "kafka": (3, 77)}, 4)


def test_what_was_written_has_to_come_out() -> None:
    check_came_out("written-by-kafka", "cohort", (6, 77), (6, 77))
    for found, said in (
        ((5, 70), "of 6 rows that were written to written-by-kafka .* read 5"),
        ((6, 78), "not the same"),
    ):
        with pytest.raises(CommandError, match=said):
            check_came_out("written-by-kafka", "cohort", found, (6, 77))


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_killed_driver_leaves_each_row_once(tmp_path: Path) -> None:
    async with daemon(tmp_path / "data", "--log-level", "error") as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics(dict.fromkeys(cohort_topics(), PARTITIONS))
        _, once = cohort_peers(server.address)
        found: dict[str, float] = {}
        async for part in compared([once], {}, Setting(True, tmp_path)):
            found |= part[once.name]
    assert set(found) == set(METRICS)
    assert (found["rows_twice"], found["rows_lost"]) == (0, 0)
    assert all(value > 0 for metric, value in found.items() if not metric.startswith("rows_"))
