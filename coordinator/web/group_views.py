"""The groups that this node coordinates: a list of them, and one with its members, shares, lag and rebalances."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from coordinator.groups.describe import empty_since_ms, reason_and_waits, waiting_for
from coordinator.groups.group import Group
from coordinator.groups.rebalance_history import Rebalance
from coordinator.groups.state import GroupState
from coordinator.metadata.catalog import OFFSETS_TOPIC
from coordinator.runtime.shard import ShardState
from coordinator.web.lag_history import Lag, lag_of
from coordinator.web.view import Pace, PageSources, Query, ViewError, chunks, exact
from protocol.errors import ProtocolError
from protocol.names import clipped
from protocol.subscription import CONSUMER_PROTOCOL_TYPE, SPARK_PROTOCOL_TYPE, decode_assignment

MAX_MEMBERS: Final = 500
MAX_PARTITIONS: Final = 1_000
"""Members and partitions of one group that an answer has; of the partitions those with the largest lag."""
_MAX_ASSIGNMENT_BYTES: Final = 64 * 1024
_MAX_ASSIGNMENTS_BYTES: Final = 1024 * 1024
_COUNTED: Final = 5_000
"""Partitions of a group up to which a list counts its lag anew; that of larger ones is as old as the last sample."""
_READ_WORK: Final = 20
_MAX_REASON: Final = 300
_MAX_WAITING: Final = 100


async def groups(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
    """The groups whose name contains ``filter`` and whose state is ``state``, sorted by ``sort``."""
    part, state = query.text("filter").casefold(), query.text("state")
    by, rows = query.choice("sort", "name", "lag", "members"), query.rows()
    states, found = Counter[str](), list[tuple[str, Group]]()
    for shard in sources.node.groups.shards():
        if shard.state is ShardState.ACTIVE:
            for some in chunks(shard.core.groups.items()):
                for name, group in some:
                    states[group.state.value] += 1
                    if (not part or part in name.casefold()) and state in ("", group.state.value):
                        found.append((name, group))
                await pace.worked(len(some) // 4)
    if by == "name":
        first = heapq.nsmallest(rows.stop, found, key=itemgetter(0))
    elif by == "lag":
        last = sources.lags.last
        first = heapq.nsmallest(rows.stop, found, key=lambda entry: (-last(entry[0]), entry[0]))
    else:
        first = heapq.nsmallest(rows.stop, found, key=lambda entry: (-len(entry[1].members), entry[0]))
    shown = []
    for name, group in first[rows]:
        shown.append(_row(sources, name, group))
        await pace.worked(10 + shown[-1]["partitions"] // 2)
    return {
        "groups": shown,
        "start": rows.start,
        "total": len(found),
        "states": {one.value: states[one.value] for one in GroupState if states[one.value]},
        "lag_every_s": sources.lags.every_s,
        "damage": sources.node.groups.damage() or "",
    }


def _row(sources: PageSources, name: str, group: Group) -> dict[str, Any]:
    partitions = sum(map(len, group.offsets.values()))
    lag = sources.lags.last(name)
    elsewhere = 0
    if partitions <= _COUNTED:
        counted = lag_of(sources.node.logs, group)
        lag, elsewhere = counted.records if partitions else -1, counted.elsewhere
    history = sources.history.of(name)
    return {
        "group": name,
        "state": group.state.value,
        "members": len(group.members),
        "generation": group.generation,
        "protocol_type": clipped(group.protocol_type),
        "lag": exact(lag),
        "lags": list(map(exact, sources.lags.of(name))),
        "partitions": partitions,
        "elsewhere": elsewhere,
        "reason": clipped(group.reason, _MAX_REASON),
        "rebalances": len(history),
    }


async def group(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
    """One group. Raises ``ViewError`` where this node does not coordinate it, or there is none."""
    name = query.required("group")
    found = find_group(sources, name)
    members, owners, unread = await _members(found, pace)
    partitions, lag = await _partitions(sources, found, owners, pace)
    reason = clipped(reason_and_waits(found), 1_000)
    await pace.worked(len(found.members) // 4)
    return {
        "group": name,
        "state": found.state.value,
        "generation": found.generation,
        "protocol_type": clipped(found.protocol_type),
        "protocol": clipped(found.protocol_name or ""),
        "leader": found.leader or "",
        "reason": reason,
        "waiting_for": waiting_for(found)[:_MAX_WAITING],
        "members": members,
        "members_total": len(found.members),
        "shares_unread": unread,
        "pending_members": len(found.pending),
        "empty_since_ms": empty_since_ms(found),
        "transactions": len(found.pending_offsets),
        "partitions": partitions,
        "partitions_total": lag.partitions,
        "lag": exact(lag.records),
        "elsewhere": lag.elsewhere,
        "lags": list(map(exact, sources.lags.of(name))),
        "lag_every_s": sources.lags.every_s,
        "rebalances": [rebalance_row(one, found.reason) for one in reversed(list(sources.history.of(name)))],
    }


def find_group(sources: PageSources, name: str) -> Group:
    """A group that this node coordinates. Raises ``ViewError`` which says where it is, or that there is none."""
    coordinator = sources.node.groups
    fault = coordinator.fault(name)
    if fault is not None:
        raise ViewError(400, fault[1])
    shard = coordinator.shard(name)
    if shard is None:
        if not sources.is_clustered:
            raise ViewError(404, f"there is no group {clipped(name)!r} on this node")
        partition = coordinator.partition_of(name)
        leader = coordinator.leader_of(partition)
        where = f"node {leader} coordinates it: open the page of that node"
        if leader in (-1, sources.node_id):
            where = f"{OFFSETS_TOPIC}-{partition} has no coordinator at the moment; try again"
        raise ViewError(404, f"group {clipped(name)!r} is not coordinated here; {where}")
    if shard.state is not ShardState.ACTIVE:
        raise ViewError(503, f"the coordinator of group {clipped(name)!r} is {shard.state.value}; try again")
    found = shard.core.groups.get(name)
    if found is None:
        raise ViewError(404, f"there is no group {clipped(name)!r} on this node")
    return found


async def _members(found: Group, pace: Pace) -> tuple[list[dict[str, Any]], dict[tuple[str, int], int], int]:
    """Members; the place among them of each partition's owner; and how many shares could not be read.

    Shares belong to the generation that was settled last, so they are shown in Stable only.
    """
    readable = found.protocol_type in (CONSUMER_PROTOCOL_TYPE, SPARK_PROTOCOL_TYPE)
    shares = found.assignments if found.state is GroupState.STABLE else {}
    rows, owners, unread, room = list[dict[str, Any]](), dict[tuple[str, int], int](), 0, _MAX_ASSIGNMENTS_BYTES
    for place, member in enumerate(tuple(islice(found.members.values(), MAX_MEMBERS))):
        blob, share = shares.get(member.member_id, b""), -1
        if readable and blob and len(blob) <= min(_MAX_ASSIGNMENT_BYTES, room):
            room -= len(blob)
            try:
                owned = decode_assignment(blob)
            except ProtocolError:
                unread += 1  # it is between the members: the coordinator carries it without looking inside
            else:
                share = len(owned)
                for topic, partition in owned:
                    owners[topic, partition] = place
                await pace.worked(share)
        elif blob:
            unread += 1
        rows.append(
            {
                "member": member.member_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "software": member.client_software,
                "instance": member.group_instance_id or "",
                "share": share,
            }
        )
        await pace.worked(_READ_WORK)
    return rows, owners, unread


async def _partitions(
    sources: PageSources, found: Group, owners: dict[tuple[str, int], int], pace: Pace
) -> tuple[list[dict[str, Any]], Lag]:
    """Partitions that have an owner or a committed offset, those with the largest lag if there are too many; and the whole
    lag, -1 when nothing is committed."""
    records, elsewhere = -1, 0
    here, rows = sources.node.logs.logs, list[tuple[int, str, int, int, int]]()
    places = {(topic, partition) for topic, offsets in found.offsets.items() for partition in offsets} | owners.keys()
    await pace.worked(len(places) // 4)
    for some in chunks(places):
        for topic, partition in some:
            committed = found.offsets.get(topic, {}).get(partition)
            log = here.get((topic, partition))
            offset, end = -1 if committed is None else committed[0], -1 if log is None else log.high_watermark
            lag = -1 if committed is None or log is None else max(0, end - offset)
            rows.append((lag, topic, partition, offset, end))
            if lag >= 0:
                records = max(0, records) + lag
            elsewhere += log is None
        await pace.worked(len(some))
    shown = sorted(heapq.nlargest(MAX_PARTITIONS, rows), key=itemgetter(1, 2))
    await pace.worked(len(shown))
    listed = [
        {
            "topic": topic,
            "partition": partition,
            "owner": owners.get((topic, partition), -1),
            "committed": exact(offset),
            "end": exact(end),
            "lag": exact(lag),
        }
        for lag, topic, partition, offset, end in shown
    ]
    return listed, Lag(records, len(rows), elsewhere)


def rebalance_row(one: Rebalance, reason_now: str = "") -> dict[str, Any]:
    """A rebalance as the page shows it; ``reason_now`` is what the group says of one that goes on."""
    return {
        "group": one.group_id,
        "kind": one.kind,
        "reason": one.reason if one.outcome or not reason_now else clipped(reason_now, 1_000),
        "began_ms": one.began_wall_ms,
        "took_ms": one.took_ms,
        "outcome": one.outcome,
        "generation": one.generation,
        "before": one.members_before,
        "members": one.members,
        "joined": list(one.joined),
        "joined_more": one.joined_more,
        "left": [list(entry) for entry in one.left],
        "left_more": one.left_more,
    }


def rebalance_rows(rebalances: Iterable[Rebalance], most: int) -> list[dict[str, Any]]:
    """The last of these, the newest first."""
    return [rebalance_row(one) for one in reversed(list(rebalances)[-most:])]
