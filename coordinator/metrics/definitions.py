"""Every metric of the daemon: its name, its kind, its labels, and what it says. docs/operate.md has the same table."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One metric. Counters end in ``_total``; units are base units: seconds, bytes."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str


_API: Final = ("port", "api")
_PARTITION: Final = ("topic", "partition")
_COMMIT: Final = ("group", "topic", "partition")

_ROWS: Final[tuple[tuple[str, Kind, tuple[str, ...], str], ...]] = (
    ("cohort_build_info", "gauge", ("version",), "1, with the version of the daemon"),
    ("cohort_requests_total", "counter", _API, "Requests that were answered, by port (native, kafka) and API key"),
    (
        "cohort_request_errors_total",
        "counter",
        (*_API, "error"),
        "Error codes of answers as a whole, or else those of the topics, partitions, groups and so on within them",
    ),
    (
        "cohort_request_duration_seconds",
        "histogram",
        _API,
        "From a request's handler to its answer, the wait of long polls included; of native Heartbeats one in 64",
    ),
    ("cohort_received_bytes_total", "counter", (), "Bytes received from clients"),
    ("cohort_sent_bytes_total", "counter", (), "Bytes sent to clients"),
    ("cohort_connections", "gauge", (), "Connections of clients now"),
    ("cohort_connections_accepted_total", "counter", (), "Connections of clients that were taken"),
    ("cohort_loop_lag_seconds", "histogram", (), "By how much the event loop was late, asked twice a second"),
    ("cohort_disk_pending_calls", "gauge", ("lane",), "Calls to the disk that wait or run"),
    ("cohort_disk_sync_seconds", "histogram", (), "How long a sync of a log file to the disk took"),
    (
        "cohort_memory_bytes",
        "gauge",
        ("budget",),
        "Memory taken of each budget: requests under way, requests half there, answers that are not read",
    ),
    ("cohort_memory_limit_bytes", "gauge", ("budget",), "The size of each budget (max_request_memory_bytes)"),
    ("cohort_groups", "gauge", ("state",), "Groups that this node coordinates, by state"),
    ("cohort_group_members", "gauge", ("group",), "Members of a group"),
    ("cohort_group_generation", "gauge", ("group",), "The generation of a group"),
    ("cohort_group_committed_offset", "gauge", _COMMIT, "The offset that a group has committed"),
    (
        "cohort_group_lag_records",
        "gauge",
        _COMMIT,
        "From the committed offset to the high watermark, of partitions that the group's coordinator leads or follows",
    ),
    ("cohort_rebalances_total", "counter", ("kind",), "Rebalances begun, by what began them"),
    ("cohort_rebalance_duration_seconds", "histogram", (), "From the first cause to the leader's assignment"),
    ("cohort_log_size_bytes", "gauge", _PARTITION, "Bytes of a partition's log"),
    ("cohort_log_start_offset", "gauge", _PARTITION, "The first offset of a partition"),
    ("cohort_log_end_offset", "gauge", _PARTITION, "The high watermark of a partition: where reads end"),
    ("cohort_log_producers", "gauge", (), "Producer ids that the logs remember"),
    ("cohort_logs_faulty", "gauge", (), "Logs whose last retention or compaction failed"),
    (
        "cohort_retention_expired_records_total",
        "counter",
        (),
        "Offsets by which retention moved the starts of logs",
    ),
    ("cohort_retention_failures_total", "counter", (), "Looks for expired records that failed"),
    ("cohort_compactions_total", "counter", (), "Compactions of logs that were carried out"),
    ("cohort_compaction_failures_total", "counter", (), "Compactions that failed, and are tried again"),
    (
        "cohort_transactional_ids",
        "gauge",
        ("state",),
        "Transactional ids that this node coordinates; Ongoing is open",
    ),
    (
        "cohort_transactions_ended_total",
        "counter",
        ("outcome",),
        "Transactions decided: committed, aborted, timed_out, or ended by an administrator, fencing or a new producer",
    ),
    ("cohort_partitions_led", "gauge", (), "Partitions that this node leads"),
    (
        "cohort_partitions_under_replicated",
        "gauge",
        (),
        "Of those, the ones that have replicas which are not in sync",
    ),
    (
        "cohort_partitions_under_min_isr",
        "gauge",
        (),
        "Of those, the ones with too few replicas in sync for acks=all",
    ),
    (
        "cohort_partitions_without_leader",
        "gauge",
        (),
        "Partitions of the cluster that have no leader, as this node knows",
    ),
    ("cohort_replicas_offline", "gauge", (), "Replicas of this node whose log is not open"),
    (
        "cohort_partition_in_sync_replicas",
        "gauge",
        _PARTITION,
        "Replicas in sync of a partition that this node leads",
    ),
    (
        "cohort_metrics_left_out",
        "gauge",
        ("metric",),
        "Series that this answer leaves out, because metrics_max_series bounds how many one metric has",
    ),
)

METRICS: Final = {row[0]: Metric(*row) for row in _ROWS}
"""By name."""
