"""Commits of a group as soon as a batch is complete: what only the program that started the query is told in time.

The source sees that a batch is complete when Spark plans the next one. With a trigger of a minute that is a minute later,
and after the last batch never. Spark tells its listeners at once; the source tells them, in the offsets that it reports for
the progress of the query, as which member of which group it reads, and so the listener commits in its name. A commit in the
name of a query that has been fenced is refused like one of its own.

When a query ends, Spark may kill the process of the source without a word; then the listener gives up the group for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from client.errors import CohortError, error_for
from client.log import get_logger
from client.spark.leaders import Leaders
from client.spark.options import ConnectionOptions
from client.spark.ownership import INSTANCE_ID, offset_commit_topics
from client.spark.positions import KEY, Positions
from client.spark.wire import Until, Wire
from protocol.errors import ErrorCode
from protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse, LeavingMember
from protocol.messages.offsets import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse
from protocol.subscription import TopicPartition

log = get_logger()

_OWNER: Final = "owner"
_MOST_MS: Final = 5_000
"""Spark tells its listeners one thing after the other, and none may keep the others waiting for long."""


class Owner(NamedTuple):
    """As whom a query reads: a member of a group, and how to reach the daemon."""

    group_id: str
    generation: int
    member_id: str
    bootstrap_servers: str
    client_id: str
    request_timeout_ms: int

    def reported(self, ends: Mapping[str, Any]) -> dict[str, Any]:
        """``ends``, the offsets that are reported, with this in them."""
        return {**ends, KEY: {**ends[KEY], _OWNER: list(self)}}

    @staticmethod
    def of(reported: Mapping[str, Any]) -> Owner | None:
        """Whom the offsets of a progress name; None when the query has no group."""
        given = reported.get(KEY, {}).get(_OWNER)
        return None if given is None else Owner(*given)


class GroupCommits(StreamingQueryListener):
    """Commits what each query with a ``group.id`` has completed. One for each session; see ``commit_as_batches_complete``.

    A commit that fails is logged and left to the source, which commits when the next batch is planned. A group that could
    not be given up is free when the session of the query is over.
    """

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, tuple[Owner, Positions]]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing is complete yet."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing has changed."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A batch is complete: Spark has written so to the checkpoint."""
        for source in event.progress.sources:
            reached, reported = _offsets(source.endOffset), _offsets(source.latestOffset)
            owner = None if reported is None else Owner.of(reported)
            if reached is None or reported is None or owner is None:
                continue
            known = Positions.from_json(reported).offsets
            positions = Positions({tp: at for tp, at in Positions.from_json(reached).offsets.items() if tp in known})
            groups = self._runs.setdefault(str(event.progress.runId), {})
            if groups.get(owner.group_id) == (owner, positions):
                continue
            groups[owner.group_id] = owner, Positions({})
            try:
                commit(owner, positions.offsets)
            except CohortError as error:
                log.info("a batch is complete, and its offsets follow later", group=owner.group_id, error=str(error))
            else:
                groups[owner.group_id] = owner, positions

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """The query has ended, and so has its source, which may have had no time for a goodbye."""
        for owner, _ in self._runs.pop(str(event.runId), {}).values():
            try:
                leave(owner)
            except CohortError as error:
                log.info("a query ended without a goodbye to its group", group=owner.group_id, error=str(error))


def commit(owner: Owner, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits in the name of a query, within its ``request.timeout.ms`` and five seconds at most.

    Never back: when Spark tells of a batch late, the source may have committed more. Raises ``FencedInstanceIdError``,
    ``UnknownMemberIdError`` or ``IllegalGenerationError`` when the query is not the owner any more, and the last error of
    the connection when no daemon answers.
    """
    until = Until(min(_MOST_MS, owner.request_timeout_ms))
    leaders = Leaders(ConnectionOptions(owner.bootstrap_servers, owner.client_id, owner.request_timeout_ms))

    def once() -> None:
        wire = leaders.wire_to_coordinator(owner.group_id, until)
        before = _committed(wire, owner.group_id, until)
        ahead = {partition: offset for partition, offset in offsets.items() if offset > before.get(partition, -1)}
        if ahead:
            topics = offset_commit_topics(ahead)
            request = OffsetCommitRequest(owner.group_id, owner.generation, owner.member_id, INSTANCE_ID, topics)
            answer = wire.call(request, OffsetCommitResponse, until)
            for code in (partition.error_code for topic in answer.topics for partition in topic.partitions):
                if code != ErrorCode.NONE:
                    raise error_for(code, f"group {owner.group_id!r}: {answer.error_message}")

    try:
        leaders.retrying(once, until, f"the commit of a query for group {owner.group_id!r}")
    finally:
        leaders.close()


def leave(owner: Owner) -> None:
    """Gives up a group in the name of a query that has ended; nothing happens if the group has another owner by now.

    Raises the last error of the connection when no daemon answers in time.
    """
    until = Until(min(_MOST_MS, owner.request_timeout_ms))
    leaders = Leaders(ConnectionOptions(owner.bootstrap_servers, owner.client_id, owner.request_timeout_ms))
    request = LeaveGroupRequest(owner.group_id, (LeavingMember(owner.member_id, INSTANCE_ID, "the query ended"),))
    try:
        leaders.retrying(
            lambda: leaders.wire_to_coordinator(owner.group_id, until).call(request, LeaveGroupResponse, until),
            until,
            f"the goodbye of a query to group {owner.group_id!r}",
        )
    finally:
        leaders.close()


def _committed(wire: Wire, group_id: str, until: Until) -> dict[TopicPartition, int]:
    answer = wire.call(OffsetFetchRequest(group_id, None), OffsetFetchResponse, until)
    if answer.error_code != ErrorCode.NONE:
        raise error_for(answer.error_code, f"group {group_id!r}: {answer.error_message}")
    return {
        TopicPartition(topic.name, partition.partition_index): partition.committed_offset
        for topic in answer.topics
        for partition in topic.partitions
    }


def _offsets(text: Any) -> Mapping[str, Any] | None:
    """Offsets of a source of Cohort; None for those of others, which may be anything."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get(KEY), dict) else None
