"""``cohort bench --quick``: every benchmark runs and prints figures of the agreed form. No figure is judged here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.bench import against_kafka, kafka_memory, spark_kafka
from client.bench.assign_cases import ASSIGNORS, CHANGES
from client.bench.hostile_requests import MAKES
from client.bench.registry import SUMMARIES
from client.cli.processes import daemon
from tests.integration.cohort_command import cohort, objects

FIELDS = {"bench", "metric", "value", "unit", "floor", "floor_name", "ratio", "params"}

METRICS = {
    "heartbeats": {"requests_per_s"},
    "workers": {"heartbeats_1_per_s", "heartbeats_2_per_s"},
    "commits": {"commits_per_s", "p50_ms", "p99_ms"},
    "join": {"all_own_s", "rest_own_after_leave_s", "crowd_own_s"},
    "rebalance_latency": {f"{what}_to_revoke_{quantile}_ms" for quantile in ("p50", "p99")
                          for what in ("eager_join", "eager_leave", "cooperative_join")},
    "large_group": {"missed_sessions", *(f"{change}_{figure}" for change in ("all_join", "one_leaves", "one_joins")
                                         for figure in ("settled_s", "heartbeats_other_shards_p99_ms",
                                                        "heartbeats_same_shard_p99_ms", "loop_late_max_ms"))},
    "many_groups": {f"{change}_{figure}" for change in ("all_join", "one_leaves", "one_joins")
                    for figure in ("stable_s", "missed_sessions")},
    "hostile_requests": {*(f"{kind}_ping_max_ms" for kind in (*MAKES, "produce_bytes")),
                         *(f"worst_{who}_{quantile}_ms" for who in ("ping", "heartbeat") for quantile in ("p99", "max"))},
    "produce": {f"{call}_{size}_{unit}_per_s" for call in ("send", "send_many") for size in (100, 1024)
                for unit in ("records", "mb")},
    "send_latency": {"send_and_wait_p50_ms", "send_and_wait_p99_ms"},
    "flat_memory": {"rss_after_a_tenth_mb", "rss_at_the_end_mb", "peak_rss_mb", "passed_mb_per_s"},
    "replication": {"send_many_mb_per_s", "send_many_cpu_ms_per_mb", "catch_up_mb_per_s",
                    *(f"{what}_{quantile}_ms" for what in ("acks_all", "event_loops", "one_replica")
                      for quantile in ("p50", "p99")),
                    *(f"{who}_cpu_us" for who in ("leader", "follower", "other_follower", "producer"))},
    "failover": {"group_heartbeats_s",
                 *(f"{which}_partition_{figure}_s" for which in ("first", "every") for figure in ("p50", "max"))},
    "metadata": {"created_s", "all_in_sync_s", "memory_of_a_node_mb", "idle_cpu_percent", "all_led_again_s",
                 "all_acknowledged_again_s", "start_of_a_node_s", "in_sync_again_s"},
    "consume": {
        f"{call}_{size}_{unit}_per_s"
        for call in ("getmany", "columns")
        for size in (100, 1024)
        for unit in ("records", "mb")
    },
    "transactions": {
        *("commit_p50_ms", "commit_p99_ms", "readable_p50_ms", "transactions_of_64_producers_per_s"),
        *("send_committed_by_records_per_s", "send_committed_by_time_per_s", "send_many_committed_per_s"),
        *("process_exactly_once_records_per_s", "load_of_ids_s"),
    },
    "transactions_read": {
        f"{what}_{call}_{size}_{unit}_per_s"
        for call in ("getmany", "columns")
        for size in (100, 1024)
        for what, unit in (("read_committed", "records"), ("tenth_aborted", "mb"))
    },
    "spark": {"read_100_rows_per_s", "read_100_mb_per_s", "read_1024_rows_per_s", "read_1024_mb_per_s",
              "read_sql_write_rows_per_s", "exactly_once_read_sql_write_rows_per_s", "micro_batch_p50_ms",
              "write_100_rows_per_s", "python_micro_batch_p50_ms",
              "exactly_once_micro_batch_p50_ms", "two_workers_read_100_rows_per_s"},
    "memory": {*(f"{what}_bytes" for what in ("idle_connection", "member", "group", "committed_offset", "partition",
                                              "producer_id"))},
    "metrics_cost": {"heartbeat_us", "commit_us", "record_us"},
    "tracing_cost": {f"{work}_{way}_us" for work in ("send", "process", "commit") for way in ("recorded", "unrecorded")},
    "load": {"serves_after_sigterm_s", "peak_rss_after_sigterm_mb", "serves_after_sigkill_s", "peak_rss_after_sigkill_mb"},
    "kafka": {*(f"produce_{how}_us" for how in ("confluent", "aiokafka", "requests")),
              *("fetch_confluent_us", "fetch_requests_us", "fetch_columns_confluent_us"),
              *("native_fetch_of_kafka_us", "native_fetch_of_kafka_client_us", "heartbeat_us", "heartbeat_pipelined_us"),
              *("offset_commit_us",),
              *("member_joins_s", "member_leaves_s")},
    "kafka_codec": {*(f"decode_{api}_per_s" for api in ("Produce", "Fetch", "JoinGroup", "OffsetCommit", "Heartbeat")),
                    *(f"encode_{api}_per_s" for api in ("Fetch", "Metadata"))},
    "assign": {f"{assignor.name}_{figure}" for assignor in ASSIGNORS
               for figure in ("loop_late_max_ms", *(f"{change}{path}_{unit}" for change in CHANGES
                                                    for path in ("", "_encoded") for unit in ("ms", "peak_mb")))},
}  # fmt: skip


NEED_A_KAFKA = spark_kafka.BENCH, against_kafka.BENCH, kafka_memory.BENCH  # see below, and spark/test_bench_kafka.py
RUNNABLE = [
    pytest.param(
        name, marks=[pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1600)] if name == "spark" else []
    )
    for name in SUMMARIES
    if name not in NEED_A_KAFKA
]


@pytest.mark.parametrize("name", RUNNABLE)
def test_figures_stand_next_to_their_floors(name: str, tmp_path: Path) -> None:
    spark = name == "spark"
    words = ("bench", name, "--quick", "--dir", str(tmp_path))
    figures = objects(*words, timeout_s=1500 if spark else 60, with_spark=spark)
    for figure in figures:
        assert set(figure) == FIELDS
        assert figure["bench"] == name
        assert (
            figure["value"] > 0 or figure["metric"].endswith("missed_sessions") or name == "memory"
        )  # few fit into what is there
        if figure["floor"] is None:
            assert (figure["floor_name"], figure["ratio"]) == (None, None)
        else:
            assert figure["floor_name"]
            assert figure["ratio"] == pytest.approx(figure["value"] / figure["floor"], rel=1e-3)
    assert {figure["metric"] for figure in figures} == METRICS[name]
    assert list(tmp_path.iterdir()) == []


AGAINST = {
    *(
        "heartbeats_per_s",
        "commits_flushed_per_s",
        "heartbeats_of_groups_per_s_by_workers",
        "commits_of_groups_flushed_per_s_by_workers",
        "send_flushed_p50_ms_vs_confluent",
        "send_flushed_p50_ms_vs_aiokafka",
    ),
    *("send_100_per_s_vs_confluent", "send_100_per_s_vs_aiokafka", "send_many_100_per_s_vs_confluent"),
    *("getmany_100_per_s_vs_confluent", "getmany_100_per_s_vs_aiokafka", "columns_100_per_s_vs_confluent"),
    *("send_many_1024_mb_per_s_vs_confluent", "members_join_s_vs_aiokafka", "member_leaves_s_vs_aiokafka"),
    *("transactions_per_s_vs_confluent", "transactions_flushed_per_s_vs_confluent"),
}


@pytest.mark.timeout(600)
async def test_rows_stand_next_to_those_of_what_speaks_kafkas_protocol(tmp_path: Path) -> None:
    options = ("--kafka-port", "-1", "--kafka-heartbeat-hold-ms", "0", "--log-level", "error")
    (tmp_path / "bench").mkdir()
    async with daemon(tmp_path / "data", *options) as kafka:
        words = ("bench", "--against", "kafka", "--kafka-bootstrap", kafka.kafka_address, "--quick")
        figures = await asyncio.to_thread(objects, *words, "--dir", str(tmp_path / "bench"), timeout_s=500)
    for figure in figures:
        params = figure["params"]
        fast = params["kafka"] / figure["value"] if figure["unit"] in ("s", "ms") else figure["value"] / params["kafka"]
        assert params["times_as_fast"] == pytest.approx(fast, rel=0.01)
    assert {figure["metric"] for figure in figures} == AGAINST
    assert list((tmp_path / "bench").iterdir()) == []


@pytest.mark.timeout(300)
async def test_what_a_kafka_keeps_for_each_thing_stands_beside_what_a_daemon_keeps(tmp_path: Path) -> None:
    options = ("--kafka-port", "-1", "--kafka-heartbeat-hold-ms", "0", "--log-level", "error")
    (tmp_path / "bench").mkdir()
    async with daemon(tmp_path / "data", *options) as kafka:
        words = ("bench", "kafka_memory", "--kafka-bootstrap", kafka.kafka_address, "--kafka-pid", str(kafka.pid))
        figures = await asyncio.to_thread(objects, *words, "--quick", "--dir", str(tmp_path / "bench"), timeout_s=250)
    assert {figure["metric"] for figure in figures} == METRICS["memory"]
    for figure in figures:
        assert figure["params"]["kafka"] == figure["params"]["kafka_resident"]  # there is no heap of a JVM to ask for
    assert any(figure["params"]["kafka"] for figure in figures)


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (("against_kafka",), 0, "there is no Kafka to compare with"),
        (("kafka_memory",), 0, "there is no Kafka to compare with"),
        (("kafka_memory", "--kafka-bootstrap", "127.0.0.1:1"), 1, "no Kafka answers at 127.0.0.1:1"),
        (("--against", "kafka", "--kafka-bootstrap", "127.0.0.1:1"), 1, "no Kafka answers at 127.0.0.1:1"),
        (("--against", "kafka", "commits"), 1, "a benchmark of its own"),
    ],
)
def test_without_a_kafka_there_is_nothing_to_compare_with(words: tuple[str, ...], status: int, reason: str) -> None:
    done = cohort("bench", "--quick", *words)
    assert done.returncode == status
    assert done.stdout == ""
    assert reason in done.stderr


def test_people_read_value_floor_and_ratio() -> None:
    done = cohort("bench", "heartbeats", "--quick")
    assert done.returncode == 0, done.stderr
    assert "floor:" in done.stdout
    assert "asyncio echo of the same frames; ratio" in done.stdout


def test_wrong_names_and_directories_are_refused() -> None:
    unknown = cohort("bench", "weather")
    assert unknown.returncode == 2
    assert "heartbeats" in unknown.stderr
    assert cohort("bench", "--dir", "/no/such/directory").returncode == 1
