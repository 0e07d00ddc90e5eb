"""The node, its cluster, its topics and its transactions, as this node knows them."""

from __future__ import annotations

import heapq
from collections import Counter
from operator import itemgetter
from typing import Any, Final

from coordinator.log.partition import PartitionLog
from coordinator.metadata.catalog import INTERNAL_TOPICS, Topic, TopicError
from coordinator.runtime.shard import ShardState
from coordinator.transactions.describe import ONGOING, STATES, describe, state_of
from coordinator.transactions.transaction import TransactionalId
from coordinator.web.group_views import rebalance_rows
from coordinator.web.view import Pace, PageSources, Query, ViewError, chunks, exact
from protocol.errors import ErrorCode
from protocol.names import clipped

MAX_PARTITIONS: Final = 1_000
"""Partitions of one topic in one answer."""
MAX_NODES: Final = 100
_RECENT: Final = 20
_COUNTED: Final = 5_000
"""Partitions of a topic up to which a list counts its records and bytes."""
_MAX_MEMBERS: Final = 50
_MAX_WAITS: Final = 20


async def cluster(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
    """The node and its cluster in a few numbers, the last rebalances, and the time: rates can be made of two answers."""
    node, catalog = sources.node, sources.node.catalog
    states, members = Counter[str](), 0
    for shard in node.groups.shards():
        if shard.state is ShardState.ACTIVE:
            for some in chunks(shard.core.groups.values()):
                states.update(group.state.value for group in some)
                members += sum(len(group.members) for group in some)
                await pace.worked(len(some) // 4)
    records = size = led = 0
    for logs in chunks(log for (topic, _), log in node.logs.led.items() if topic not in INTERNAL_TOPICS):
        led += len(logs)
        records += sum(log.high_watermark for log in logs)
        size += sum(log.size for log in logs)
        await pace.worked(len(logs) // 2)
    return {
        "cluster_id": catalog.cluster_id,
        "node_id": sources.node_id,
        "version": sources.version,
        "at_ms": node.wall_ms(),
        "started_ms": sources.started_wall_ms,
        "clustered": sources.is_clustered,
        "metadata": clipped(node.settings.metadata.partition("://")[0]),
        "controller": catalog.controller,
        "nodes": [
            {
                "node": info.node_id,
                "host": info.host,
                "port": info.port,
                "rack": info.rack,
                "draining": not info.accepting,
            }
            for _, info in sorted(catalog.nodes.items())[:MAX_NODES]
        ],
        "nodes_total": len(catalog.nodes),
        "admin": node.settings.http_admin == "yes",
        "connections": sources.listener.connections,
        "groups": sum(states.values()),
        "group_states": dict(states),
        "members": members,
        "topics": sum(not topic.internal for topic in catalog.topics.values()),
        "partitions_led": led,
        "bytes": size,
        "records_ever": exact(records),
        "rebalances": rebalance_rows(sources.history.recent, _RECENT),
        "damage": node.groups.damage() or node.transactions.damage() or "",
    }


async def topics(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
    """The topics whose name contains ``filter``, by name; internal ones with ``internal=yes`` only."""
    part, rows = query.text("filter").casefold(), query.rows()
    internal = query.choice("internal", "no", "yes") == "yes"
    found = []
    for some in chunks(sources.node.catalog.topics.values()):
        found += [(one.name, one) for one in some if part in one.name.casefold() and (internal or not one.internal)]
        await pace.worked(len(some))
    shown = []
    for _, topic in heapq.nsmallest(rows.stop, found, key=itemgetter(0))[rows]:
        shown.append(_topic_row(sources, topic))
        await pace.worked(10 + len(topic.partitions) // 2)
    return {"topics": shown, "start": rows.start, "total": len(found)}


def _topic_row(sources: PageSources, topic: Topic) -> dict[str, Any]:
    led, records, size, here = sources.node.logs.led, 0, 0, 0
    if len(topic.partitions) <= _COUNTED:
        for index in range(len(topic.partitions)):
            log = led.get((topic.name, index))
            if log is not None:
                here += 1
                records += log.high_watermark - log.start_offset
                size += log.size
    else:
        records = size = -1
    return {
        "topic": topic.name,
        "internal": topic.internal,
        "partitions": len(topic.partitions),
        "replicas": len(topic.partitions[0].replicas) if topic.partitions else 0,
        "led": here,
        "records": exact(records),
        "bytes": size,
        "cleanup": sources.node.catalog.config(topic).cleanup_policy,
    }


async def topic(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
    """One topic with its partitions, from ``start`` on."""
    found = find_topic(sources, query.required("topic"))
    first = query.number("start", 0, high=2**31)
    rows = []
    for index, state in list(enumerate(found.partitions))[first : first + MAX_PARTITIONS]:
        log = sources.node.logs.led.get((found.name, index))
        rows.append(
            {
                "partition": index,
                "leader": state.leader,
                "replicas": list(state.replicas),
                "in_sync": list(state.isr),
                **_log_row(log),
            }
        )
        await pace.worked(4)
    return {
        **_topic_row(sources, found),
        "topic_id": found.topic_id,
        "settings": {name: str(value) for name, value in sorted(found.config.items())},
        "start": first,
        "rows": rows,
    }


def _log_row(log: PartitionLog | None) -> dict[str, Any]:
    if log is None:
        return {"first": -1, "end": -1, "stable": -1, "bytes": -1, "fault": ""}
    return {
        "first": exact(log.start_offset),
        "end": exact(log.high_watermark),
        "stable": exact(log.last_stable_offset),
        "bytes": log.size,
        "fault": clipped(log.fault, 300),
    }


def find_topic(sources: PageSources, name: str) -> Topic:
    """A topic. Raises ``ViewError`` when there is none of this name."""
    try:
        return sources.node.catalog.topic(name)
    except TopicError as error:
        raise ViewError(404, str(error)) from error


async def transactions(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
    """The transactional ids whose name contains ``filter`` and whose state is ``state``: open ones first, by age."""
    part, state, rows = query.text("filter").casefold(), query.text("state"), query.rows()
    states, found = Counter[str](), list[tuple[int, int, str, TransactionalId]]()
    for shard in sources.node.transactions.shards():
        if shard.state is ShardState.ACTIVE:
            for some in chunks(shard.core.transactions.items()):
                for name, known in some:
                    if not known.is_known:
                        continue
                    where = state_of(known)
                    states[where] += 1
                    if part in name.casefold() and state in ("", where):
                        since = known.open_since_wall_ms if where == ONGOING else 0
                        found.append((where != ONGOING, since, name, known))
                await pace.worked(len(some))
    shown = []
    for _, since, name, known in heapq.nsmallest(rows.stop, found, key=itemgetter(0, 1, 2))[rows]:
        identity = known.identity
        shown.append(
            {
                "id": name,
                "state": state_of(known),
                "producer_id": exact(identity.producer_id),
                "epoch": identity.epoch,
                "timeout_ms": identity.timeout_ms,
                "since_ms": since if since > 0 else -1,
                "waits": len(known.markers),
            }
        )
        await pace.worked(5)
    return {
        "transactions": shown,
        "start": rows.start,
        "total": len(found),
        "states": {name: states[name] for name in sorted(STATES) if states[name]},
        "ended": {how.name.lower(): count for how, count in sorted(sources.node.transactions.ended.items())},
        "damage": sources.node.transactions.damage() or "",
    }


async def transaction(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
    """One transactional id: who writes where, and which end markers are not written yet."""
    name, coordinator = query.required("id"), sources.node.transactions
    fault = coordinator.fault(name)
    if fault is not None:
        raise ViewError(400, fault[1])
    shard = coordinator.shard(name)
    known = None if shard is None or shard.state is not ShardState.ACTIVE else shard.core.transactions.known(name)
    if known is None:
        raise ViewError(404, f"this node has no transactional id {clipped(name)!r}")
    told = describe(known, name)
    await pace.worked(len(told.members) * 10)
    if told.error_code != ErrorCode.NONE:
        raise ViewError(404, told.error_message)
    return {
        "id": name,
        "state": told.state,
        "producer_id": exact(told.producer_id),
        "epoch": told.producer_epoch,
        "timeout_ms": told.transaction_timeout_ms,
        "since_ms": told.transaction_start_ms,
        "previous": told.previous_outcome,
        "waits_for": [clipped(text, 300) for text in told.waits_for[:_MAX_WAITS]],
        "members": [
            {
                "producer_id": exact(member.producer_id),
                "name": member.name,
                "since_ms": member.started_ms,
                "topics": [
                    {"topic": one.name, "partitions": list(one.partitions[:MAX_NODES])}
                    for one in member.topics[:MAX_NODES]
                ],
            }
            for member in told.members[:_MAX_MEMBERS]
        ],
        "members_total": len(told.members),
    }
