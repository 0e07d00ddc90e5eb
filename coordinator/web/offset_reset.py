"""A reset of a group's offsets: what it would do, and then exactly that, if nothing has changed since it was shown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from coordinator.groups.group import Group
from coordinator.log.errors import LogError
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Topic
from coordinator.runtime.effects import RequestContext
from coordinator.web.cluster_views import find_topic
from coordinator.web.group_views import find_group
from coordinator.web.view import Pace, PageSources, Query, ViewError, exact
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from protocol.names import clipped

log = get_logger()

MAX_PARTITIONS: Final = 2_000
"""Partitions of one reset."""
COMMIT_S: Final = 20.0
"""Less than a connection of the port may last."""
_CLIENT_ID: Final = "cohort-page"
_NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class _Target:
    """Where offsets go: ``to`` is one of earliest, latest, offset, time and shift, the last three with a ``value``."""

    to: str
    value: int


async def plan(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
    """What a reset of ``group`` would do, of all its partitions or of those of ``topic``. Changes nothing."""
    group = find_group(sources, query.required("group"))
    to = query.choice("to", "earliest", "latest", "offset", "time", "shift")
    target = _Target(to, query.number("value", 0, -(2**63) if to == "shift" else 0))
    rows = []
    for topic, partition in _partitions(sources, group, query.text("topic")):
        committed = group.offsets.get(topic, {}).get(partition)
        current = _NO_OFFSET if committed is None else committed[0]
        new, note = await _decided(sources, topic, partition, current, target, pace)
        rows.append(
            {"topic": topic, "partition": partition, "current": exact(current), "new": exact(new), "note": note}
        )
        await pace.worked(5)
    return {
        "group": group.group_id,
        "rows": rows,
        "blocked": _blocked(group),
        "admin": sources.node.settings.http_admin == "yes",
    }


def _partitions(sources: PageSources, group: Group, topic: str) -> list[tuple[str, int]]:
    if topic:
        places = [(topic, index) for index in range(len(find_topic(sources, topic).partitions))]
    else:
        places = sorted((name, partition) for name, offsets in group.offsets.items() for partition in offsets)
    if len(places) > MAX_PARTITIONS:
        raise ViewError(
            400,
            f"a reset of {len(places)} partitions is more than the page does ({MAX_PARTITIONS}): choose a topic, or use "
            "cohort groups reset-offsets",
        )
    return places


async def _decided(
    sources: PageSources, topic: str, partition: int, current: int, target: _Target, pace: Pace
) -> tuple[int, str]:
    """The new offset, -1 for a partition that is left out, and a note."""
    found = sources.node.logs.led.get((topic, partition))
    if found is None:
        known = sources.node.catalog.topics.get(topic)
        return _NO_OFFSET, _why_left_out(known, partition)
    first, end = found.start_offset, found.high_watermark
    if target.to == "earliest":
        return first, ""
    if target.to == "latest":
        return end, ""
    wanted = target.value
    if target.to == "shift":
        if current < 0:
            return _NO_OFFSET, "left out: there is no committed offset to shift"
        wanted += current
    elif target.to == "time":
        try:
            record = await pace.rest(found.offset_for_timestamp(target.value))
        except (LogError, OSError) as error:
            return _NO_OFFSET, f"left out: {clipped(str(error), 300)}"
        if record is None:
            return found.high_watermark, "no record is that new: the end of the log"
        wanted = record[0]
    if wanted < first:
        return first, f"{wanted} is before the beginning of the log"
    if wanted > end:
        return end, f"{wanted} is behind the end of the log"
    return wanted, ""


def _why_left_out(topic: Topic | None, partition: int) -> str:
    if topic is None or partition >= len(topic.partitions):
        return "left out: the partition does not exist any more"
    leader = topic.partitions[partition].leader
    where = "it has no leader at the moment" if leader < 0 else f"node {leader} leads it"
    return f"left out: {where}; cohort groups reset-offsets finds it"


def _blocked(group: Group) -> str:
    if not group.members:
        return ""
    return (
        f"the group has {len(group.members)} members, whose offsets these are: stop them first "
        "(or take them out with cohort groups remove-member)"
    )


async def execute(sources: PageSources, body: object) -> dict[str, Any]:
    """Commits the new offsets of a plan that was shown. Raises ``ViewError`` (409) when something has changed since."""
    group_id, offsets = _asked(body)
    group = find_group(sources, group_id)
    blocked = _blocked(group)
    if blocked:
        raise ViewError(409, blocked)
    request = OffsetCommitRequest(
        group_id,
        -1,
        "",
        None,
        tuple(_checked(sources, group, topic, rows) for topic, rows in offsets.items()),
    )
    response = await _submitted(sources, request)
    refused = [
        f"{clipped(topic.name)}-{row.partition_index}: {row.error_message or response.error_message}"
        for topic in response.topics
        for row in topic.partitions
        if row.error_code != ErrorCode.NONE
    ]
    changed = sum(map(len, offsets.values())) - len(refused)
    log.info("offsets_reset", group=clipped(group_id), partitions=changed, refused=len(refused))
    if not changed:
        raise ViewError(409, refused[0])
    return {"changed": changed, "refused": refused[:20]}


def _asked(body: object) -> tuple[str, dict[str, list[tuple[int, int, int]]]]:
    """The group; by topic: partition, the offset that was shown as committed, and the new one."""
    wrong = ViewError(400, 'a reset is {"group": ..., "offsets": {topic: [[partition, shown, new], ...]}}')
    if not isinstance(body, dict) or not isinstance(body.get("offsets"), dict):
        raise wrong
    group_id, offsets = body.get("group"), dict[str, list[tuple[int, int, int]]]()
    for topic, rows in body["offsets"].items():
        if not isinstance(rows, list):
            raise wrong
        offsets[topic] = []
        for row in rows:
            numbers = [_number(value) for value in row] if isinstance(row, list) else []
            if len(numbers) != 3 or None in numbers:
                raise wrong
            offsets[topic].append(cast("tuple[int, int, int]", tuple(numbers)))
    count = sum(map(len, offsets.values()))
    if not isinstance(group_id, str) or not group_id or not 0 < count <= MAX_PARTITIONS:
        raise wrong
    return group_id, offsets


def _number(value: object) -> int | None:
    """A 64-bit integer, as a number or, where JavaScript would round it, as text; None for anything else."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.removeprefix("-").isdecimal():
        value = int(value)
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def _checked(sources: PageSources, group: Group, topic: str, rows: list[tuple[int, int, int]]) -> OffsetCommitTopic:
    """Offsets of one topic. Raises ``ViewError`` unless all is as it was shown."""
    known = find_topic(sources, topic)
    logs: LogManager = sources.node.logs
    committed: Mapping[int, Any] = group.offsets.get(topic, {})
    for partition, shown, new in rows:
        now, found = committed.get(partition), logs.led.get((topic, partition))
        name = f"{clipped(topic)}-{partition}"
        if (_NO_OFFSET if now is None else now[0]) != shown:
            raise ViewError(409, f"the committed offset of {name} is another than was shown: look again")
        if found is None or not found.start_offset <= new <= found.high_watermark:
            raise ViewError(409, f"offset {new} is not in the log of {name} any more: look again")
    partitions = tuple(OffsetCommitPartition(partition, new) for partition, _, new in rows)
    return OffsetCommitTopic(topic, partitions, known.topic_id)


class _Commit:
    """Asks the group's coordinator."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answered: asyncio.Future[OffsetCommitResponse] = asyncio.get_running_loop().create_future()

    def answer(self, response: Response) -> None:
        """See ``Asker``."""
        if not self.answered.done():
            self.answered.set_result(cast("OffsetCommitResponse", response))


async def _submitted(sources: PageSources, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """The coordinator's answer, which comes once the offsets are on disk."""
    coordinator = sources.node.groups
    shard = coordinator.shard(request.group_id)
    if shard is None:
        raise ViewError(503, "the coordinator of the group has moved; try again")
    asked = _Commit(request)
    shard.submit(request, RequestContext(coordinator.replies.open(asked), _CLIENT_ID, ""))
    try:
        async with asyncio.timeout(COMMIT_S):
            return await asked.answered
    except TimeoutError:
        raise ViewError(504, f"the coordinator has not answered within {COMMIT_S:.0f} s; look at the offsets") from None
