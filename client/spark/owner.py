"""Speaking in the name of a query that owns a group, from another process: what the listener of a session does.

The source tells, in the offsets that it reports for the progress of its query, as which member of which group it reads. A
commit in the name of a query that has been fenced is refused like one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from client.errors import error_for
from client.spark.options import ConnectionOptions
from client.spark.ownership import BY_QUERY, INSTANCE_ID, offset_commit_topics
from client.spark.positions import KEY
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.tasks.blocking_connection import BlockingConnection, Until
from client.transport.request_limits import joined, pieces_of
from protocol.errors import ErrorCode
from protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse, LeavingMember
from protocol.messages.offsets import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse
from protocol.subscription import TopicPartition

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


def commit(owner: Owner, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits in the name of a query, within its ``request.timeout.ms`` and five seconds at most.

    Never back: when Spark tells of a batch late, the source may have committed more. And nothing that was committed with the
    rows of a batch. Raises ``FencedInstanceIdError``,
    ``UnknownMemberIdError`` or ``IllegalGenerationError`` when the query is not the owner any more, and the last error of
    the connection when no daemon answers.
    """
    until = Until(min(_MOST_MS, owner.request_timeout_ms))
    cluster = BlockingCluster(ConnectionOptions(owner.bootstrap_servers, owner.client_id, owner.request_timeout_ms))

    def once() -> None:
        connection = cluster.connection_to_coordinator(owner.group_id, until)
        before = _committed(connection, owner.group_id, until)
        ahead = {
            partition: offset
            for partition, offset in offsets.items()
            if (at := before.get(partition, -1)) is not None and at < offset
        }
        if ahead:
            topics = offset_commit_topics(ahead)
            request = OffsetCommitRequest(owner.group_id, owner.generation, owner.member_id, INSTANCE_ID, topics)
            answer = joined(
                request, [connection.call(piece, OffsetCommitResponse, until) for piece in pieces_of(request)]
            )
            for code in (partition.error_code for topic in answer.topics for partition in topic.partitions):
                if code != ErrorCode.NONE:
                    raise error_for(code, f"group {owner.group_id!r}: {answer.error_message}")

    try:
        cluster.retrying(once, until, f"the commit of a query for group {owner.group_id!r}")
    finally:
        cluster.close()


def leave(owner: Owner) -> None:
    """Gives up a group in the name of a query that has ended; nothing happens if the group has another owner by now.

    Raises the last error of the connection when no daemon answers in time.
    """
    until = Until(min(_MOST_MS, owner.request_timeout_ms))
    cluster = BlockingCluster(ConnectionOptions(owner.bootstrap_servers, owner.client_id, owner.request_timeout_ms))
    request = LeaveGroupRequest(owner.group_id, (LeavingMember(owner.member_id, INSTANCE_ID, "the query ended"),))
    try:
        cluster.retrying(
            lambda: cluster.connection_to_coordinator(owner.group_id, until).call(request, LeaveGroupResponse, until),
            until,
            f"leaving group {owner.group_id!r} for a query that ended",
        )
    finally:
        cluster.close()


def _committed(connection: BlockingConnection, group_id: str, until: Until) -> dict[TopicPartition, int | None]:
    """What the query committed by itself; None for an offset that a transaction or somebody else committed, or may yet."""
    answer = connection.call(OffsetFetchRequest(group_id, None, require_stable=True), OffsetFetchResponse, until)
    if answer.error_code != ErrorCode.NONE:
        raise error_for(answer.error_code, f"group {group_id!r}: {answer.error_message}")
    return {
        TopicPartition(topic.name, found.partition_index): (
            found.committed_offset if found.error_code == ErrorCode.NONE and found.metadata == BY_QUERY else None
        )
        for topic in answer.topics
        for found in topic.partitions
    }
