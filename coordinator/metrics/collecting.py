"""Collects a snapshot of all metrics, from what the daemon has anyway, in slices of about a millisecond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from coordinator.groups.group import Group
from coordinator.groups.state import GroupState
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.partitions import NO_LEADER
from coordinator.metrics.snapshot import Snapshot
from coordinator.metrics.sources import Sources
from coordinator.runtime.shard import ShardState
from coordinator.transactions.describe import STATES, state_of
from protocol.errors import ErrorCode


async def collect(sources: Sources) -> Snapshot:
    """All metrics of a node. Other requests are served meanwhile, so what is told is of a few moments, not of one."""
    snapshot = Snapshot(sources.max_series)
    snapshot.add("cohort_build_info", 1, sources.version)
    _requests(sources, snapshot)
    _server(sources, snapshot)
    _disk(sources, snapshot)
    await _groups(sources, snapshot)
    await _logs(sources, snapshot)
    await _transactions(sources, snapshot)
    if sources.is_clustered:
        await _replication(sources, snapshot)
    for name, count in snapshot.left_out.items():
        snapshot.add("cohort_metrics_left_out", count, name)
    return snapshot


def _requests(sources: Sources, snapshot: Snapshot) -> None:
    for meter in sources.meters:
        for api, counts in sorted(meter.by_api().items()):
            snapshot.add("cohort_requests_total", counts.requests, meter.port, api)
            snapshot.add("cohort_request_duration_seconds", counts.seconds.now(), meter.port, api)
            for code, count in sorted(counts.errors.items()):
                snapshot.add("cohort_request_errors_total", count, meter.port, api, _error_name(code, meter.names))


def _error_name(code: int, names: Mapping[int, str]) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return names.get(code, str(code))


def _server(sources: Sources, snapshot: Snapshot) -> None:
    listener = sources.listener
    received, sent = listener.traffic()
    snapshot.add("cohort_received_bytes_total", received)
    snapshot.add("cohort_sent_bytes_total", sent)
    snapshot.add("cohort_connections", listener.connections)
    snapshot.add("cohort_connections_accepted_total", listener.accepted)
    snapshot.add("cohort_loop_lag_seconds", sources.loop_lag.seconds.now())
    budget, arrivals, unread = listener.budget, listener.arrivals, listener.unread
    for name, used, limit in (
        ("requests", budget.used, budget.limit),
        ("arriving", arrivals.held, arrivals.limit),
        ("unread_answers", unread.held, unread.limit),
    ):
        snapshot.add("cohort_memory_bytes", used, name)
        snapshot.add("cohort_memory_limit_bytes", limit, name)


def _disk(sources: Sources, snapshot: Snapshot) -> None:
    for lane, calls in sources.disk.pending().items():
        snapshot.add("cohort_disk_pending_calls", calls, lane)
    if sources.syncs is not None:
        snapshot.add("cohort_disk_sync_seconds", sources.syncs.now())
    maintenance = sources.maintenance
    snapshot.add("cohort_retention_expired_records_total", maintenance.expired_records)
    snapshot.add("cohort_retention_failures_total", maintenance.retention_failures)
    snapshot.add("cohort_compactions_total", maintenance.compactions)
    snapshot.add("cohort_compaction_failures_total", maintenance.compaction_failures)


async def _groups(sources: Sources, snapshot: Snapshot) -> None:
    counts = sources.groups.rebalance_counts
    for kind, count in counts.begun.items():
        snapshot.add("cohort_rebalances_total", count, kind)
    snapshot.add("cohort_rebalance_duration_seconds", counts.seconds.now())
    states = Counter[str]()
    groups: list[tuple[str, Group]] = []
    for shard in sources.groups.shards():
        if shard.state is ShardState.ACTIVE:
            groups += shard.core.groups.items()
    groups.sort(key=lambda entry: entry[0])
    await snapshot.worked(len(groups) // 4)
    for name, group in groups:
        states[group.state.value] += 1
        snapshot.add_bounded("cohort_group_members", len(group.members), name)
        snapshot.add_bounded("cohort_group_generation", group.generation, name)
        await snapshot.worked()
        await _offsets(sources.logs, group, snapshot)
    for state in GroupState:
        snapshot.add("cohort_groups", states[state.value], state.value)


async def _offsets(logs: LogManager, group: Group, snapshot: Snapshot) -> None:
    for topic in sorted(group.offsets):
        partitions = group.offsets.get(topic, {})
        for partition in sorted(partitions):
            committed = partitions.get(partition)
            if committed is None:
                continue  # erased while others had their turn
            offset, labels = committed[0], (group.group_id, topic, str(partition))
            snapshot.add_bounded("cohort_group_committed_offset", offset, *labels)
            log = logs.logs.get((topic, partition))
            if log is not None:
                snapshot.add_bounded("cohort_group_lag_records", max(0, log.high_watermark - offset), *labels)
            await snapshot.worked()


async def _logs(sources: Sources, snapshot: Snapshot) -> None:
    producers = faulty = 0
    opened = sorted(sources.logs.opened(), key=lambda entry: entry[:2])
    await snapshot.worked(len(opened) // 4)
    for topic, partition, log in opened:
        producers += len(log.producers)
        faulty += bool(log.fault)
        labels = topic, str(partition)
        snapshot.add_bounded("cohort_log_size_bytes", log.size, *labels)
        snapshot.add_bounded("cohort_log_start_offset", log.start_offset, *labels)
        snapshot.add_bounded("cohort_log_end_offset", log.high_watermark, *labels)
        await snapshot.worked(4)
    snapshot.add("cohort_log_producers", producers)
    snapshot.add("cohort_logs_faulty", faulty)


async def _transactions(sources: Sources, snapshot: Snapshot) -> None:
    for how, count in sources.transactions.ended.items():
        snapshot.add("cohort_transactions_ended_total", count, how.name.lower())
    states = Counter[str]()
    for shard in sources.transactions.shards():
        if shard.state is ShardState.ACTIVE:
            for state in tuple(shard.core.transactions.values()):
                states[state_of(state)] += state.is_known
                await snapshot.worked()
    for name in sorted(STATES):
        snapshot.add("cohort_transactional_ids", states[name], name)


async def _replication(sources: Sources, snapshot: Snapshot) -> None:
    """As the metadata says it; what only the replicas know is which of this node's logs are not open."""
    me, led, behind, under_min, leaderless, offline = sources.node_id, 0, 0, 0, 0, 0
    opened = sources.logs.logs
    for name in sorted(sources.catalog.topics):
        topic = sources.catalog.topics.get(name)
        for index, state in enumerate(() if topic is None else topic.partitions):
            await snapshot.worked()
            leaderless += state.leader == NO_LEADER
            offline += me in state.replicas and (name, index) not in opened
            if state.leader == me:
                led += 1
                behind += len(state.isr) < len(state.replicas)
                under_min += state.lacks_replicas(state.min_isr)
                snapshot.add_bounded("cohort_partition_in_sync_replicas", len(state.isr), name, str(index))
    snapshot.add("cohort_partitions_led", led)
    snapshot.add("cohort_partitions_under_replicated", behind)
    snapshot.add("cohort_partitions_under_min_isr", under_min)
    snapshot.add("cohort_partitions_without_leader", leaderless)
    snapshot.add("cohort_replicas_offline", offline)
