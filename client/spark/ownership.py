"""A query that owns a group: other members are refused with the reason, and its offsets are the group's.

The query is the one static member of a group of protocol type ``spark-query``. So ordinary members are told that the group
is of another type; a second query, which comes with the same instance id, takes the place of the first, and the first is
fenced at its next heartbeat or commit (KIP-345); and a driver that is started again owns the group at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from client.admin.group_reports import committed_offsets, describe_group
from client.errors import CohortError, FencedInstanceIdError, RequestTimedOutError, error_for
from client.group.member import Member
from client.spark.errors import QueryFencedError
from client.spark.options import ConnectionOptions
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.group_offsets import fetch_committed
from client.transport.retry import retrying
from protocol.errors import ErrorCode
from protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse, LeavingMember
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from protocol.messages.transactions import StagedPartition, StagedTopic, StageOffsetsRequest, StageOffsetsResponse
from protocol.subscription import SPARK_PROTOCOL_TYPE, TopicPartition, encode_assignment, group_by_topic

BY_QUERY: Final = "spark-query"
"""The metadata of an offset that a query committed by itself: it may replace it, as its checkpoint counts."""
IN_TRANSACTION: Final = "spark-transaction"
"""The metadata of one that was committed with the rows of a batch. Only such a commit replaces it, since it compares them
with what the batch read."""
INSTANCE_ID: Final = "spark-query"
"""The one place in the group: the source that joined with this id last has it."""

_SHOWN: Final = 5
_LOOK_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.1
"""How long a source that lost its group looks for the new owner, who may still be joining."""
_JOINS_AGAIN: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
)


class Ownership:
    """Lives on one event loop. ``acquire`` before anything else."""

    def __init__(self, cluster: Cluster, group_id: str, options: ConnectionOptions, session_timeout_ms: int) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._partitions: tuple[TopicPartition, ...] = ()
        self._member = Member(
            group_id,
            bootstrap_servers=options.bootstrap_servers,
            client_id=f"{options.client_id}-{socket.gethostname()}-{os.getpid()}",
            protocol_type=SPARK_PROTOCOL_TYPE,
            protocols=lambda: [(SPARK_PROTOCOL_TYPE, encode_assignment(self._partitions))],
            assign=lambda members: dict(members),
            group_instance_id=INSTANCE_ID,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=min(3_000, max(1, session_timeout_ms // 3)),
            request_timeout_ms=options.request_timeout_ms,
        )
        self._watch: asyncio.Task[None] | None = None
        self._first = asyncio.Event()
        self._owns = False
        self._error: CohortError | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._left: dict[TopicPartition, int] = {}
        self._staged: tuple[str, Mapping[TopicPartition, tuple[int, int]]] | None = None

    async def acquire(self, partitions: tuple[TopicPartition, ...], deadline: Deadline) -> None:
        """Joins the group, or checks that the query still owns it; ``partitions`` is what people see it read.

        Raises ``QueryFencedError`` when another query has taken over, ``InconsistentGroupProtocolError`` when the group has
        ordinary members, ``RequestTimedOutError`` when no daemon answers.
        """
        changed = partitions != self._partitions
        self._partitions = partitions
        if self._watch is None:
            await self._member.start()
            self._watch = asyncio.create_task(self._follow(), name=f"cohort-spark-owner-{self._group_id}")
        elif changed and self._owns:
            self._member.rejoin("the query reads other partitions")
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await self._first.wait()
        except TimeoutError as error:
            raise RequestTimedOutError(
                f"group {self._group_id!r} was not taken over within {deadline.timeout_ms:.0f} ms"
            ) from error
        self.check()

    @property
    def member(self) -> tuple[str, int, str] | None:
        """Group, generation and member id of the query while it owns the group."""
        owns = self._owns and self._error is None
        return (self._group_id, self._member.generation, self._member.member_id) if owns else None

    def check(self) -> None:
        """Raises what has ended the ownership, if anything has."""
        if self._error is not None:
            raise self._error

    async def commit(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> None:
        """Stores where the query stands, and skips what is stored already. Raises as ``acquire`` does.

        Partitions that are not among ``offsets`` are forgotten, as the daemon forgets those of a topic
        that is deleted.
        """
        self._committed = {partition: at for partition, at in self._committed.items() if partition in offsets}
        self._left = {partition: at for partition, at in self._left.items() if partition in offsets}
        changed = {
            partition: offset for partition, offset in offsets.items() if self._committed.get(partition) != offset
        }
        if not changed:
            return
        own = await self._to_commit(changed, deadline)
        if own:
            topics = offset_commit_topics(own)
            what = f"the commit of a query for group {self._group_id!r}"
            await self._as_member(lambda member: self._commit(member, topics, deadline), deadline, what)
            self._committed |= own

    async def _to_commit(self, changed: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, int]:
        """Which offsets the query commits by itself: not those that are committed with the rows of batches.

        What neither did is left for one batch: a transaction has to find it if somebody moved the offsets, and a query
        without transactions goes on from its checkpoint.
        """
        undecided: dict[TopicPartition, CohortError] = {}
        found = await fetch_committed(self._cluster, self._group_id, changed, deadline, undecided)
        own: dict[TopicPartition, int] = {}
        for partition, offset in changed.items():
            there = found.get(partition)
            if there is not None and there.offset == offset:
                self._committed[partition] = offset
            elif partition in undecided or (there is not None and there.metadata == IN_TRANSACTION):
                continue
            elif there is None or there.metadata == BY_QUERY or self._left.get(partition, offset) != offset:
                own[partition] = offset
            else:
                self._left[partition] = offset
        return own

    async def stage(
        self, spans: Mapping[TopicPartition, tuple[int, int]], ids: Mapping[str, str], deadline: Deadline
    ) -> None:
        """Says what the next batch reads, from where to where: its transaction commits that. ``ids`` are those of topics.

        What is staged already is not staged again. Raises as ``acquire`` does.
        """
        if self._staged == (self._member.member_id, spans):
            return
        topics = tuple(
            StagedTopic(
                topic,
                ids.get(topic, ""),
                tuple(
                    StagedPartition(number, *spans[TopicPartition(topic, number)], IN_TRANSACTION) for number in numbers
                ),
            )
            for topic, numbers in group_by_topic(spans).items()
        )
        what = f"staging what a batch of group {self._group_id!r} reads"
        await self._as_member(lambda member: self._stage(member, topics, deadline), deadline, what)
        self._staged = self._member.member_id, dict(spans)

    async def release(self, deadline: Deadline) -> None:
        """Leaves the group, so that others may have it at once and not when the session is over."""
        if self._watch is None:
            return
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        member_id = self._member.member_id
        try:
            await self._member.stop(deadline.remaining_s())
            if member_id and self._error is None:
                leaving = LeavingMember(member_id, INSTANCE_ID, "the query ended")
                request = LeaveGroupRequest(self._group_id, (leaving,))
                await self._cluster.call_coordinator(self._group_id, request, LeaveGroupResponse, deadline=deadline)
                await self._set_right(deadline)
        except CohortError:
            return  # the session ends by itself
        finally:
            self._watch = None

    async def _set_right(self, deadline: Deadline) -> None:
        """Commits once more what was moved back in this query's name, now that no commit in its name is taken any more.

        That is a listener which was told late of an earlier batch (``client.spark.listener``): it looks at what is committed
        before it commits, and this query may have committed in between. Refused if the group has a new owner.
        """
        found = await committed_offsets(self._cluster, self._group_id, deadline)
        behind = {
            partition: offset
            for partition, offset in self._committed.items()
            if partition in found and found[partition].offset < offset and found[partition].metadata == BY_QUERY
        }
        if behind:
            request = OffsetCommitRequest(self._group_id, -1, "", None, offset_commit_topics(behind))
            await self._cluster.call_coordinator(self._group_id, request, OffsetCommitResponse, deadline=deadline)

    async def _follow(self) -> None:
        """Takes note of what becomes of the membership: it joins again by itself, unless another query has its place."""
        failures = 0
        while True:
            try:
                await anext(self._member)
                self._owns, self._error, failures = True, None, 0
            except StopAsyncIteration:
                return
            except FencedInstanceIdError:
                self._error = await self._fenced(Deadline(_LOOK_S * 1000))
                return
            except CohortError as error:
                self._error = error
                failures += 1
            finally:
                self._first.set()
            if failures:  # asking for the next assignment joins again, at once
                await asyncio.sleep(self._cluster.backoff.delay_s(failures))

    async def _fenced(self, deadline: Deadline) -> QueryFencedError:
        """Says whose the group is now. Two sources of one query look like a query that was started twice: each takes over
        from the other, and the daemon cannot tell them apart, so people are told of both.
        """
        mine = _topics(self._partitions)
        try:
            theirs, client_id = await self._owner(deadline)
        except CohortError:
            theirs, client_id = "", ""
        who = f"{client_id}, which reads {theirs or 'nothing yet'}, " if client_id else "another source "
        if theirs and theirs != mine:
            advice = "Sources of one query need a group.id each, or groupIdPrefix, which makes one up"
        else:
            advice = (
                "If the query was started twice, stop one; sources of one query need a group.id or groupIdPrefix each"
            )
        return QueryFencedError(
            f"{who}has taken over group {self._group_id!r} from this source, which reads {mine} and must not go on. {advice}"
        )

    async def _owner(self, deadline: Deadline) -> tuple[str, str]:
        """The topics and the client id of the group's member."""
        while True:
            group = await describe_group(self._cluster, self._group_id, deadline)
            for member in group.members:
                if member.assignment or deadline.remaining_s() <= _LOOK_EVERY_S:
                    return _topics(member.assignment), member.client_id
            if deadline.remaining_s() <= _LOOK_EVERY_S:
                return "", ""
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _as_member(
        self, once: Callable[[tuple[int, str]], Awaitable[None]], deadline: Deadline, what: str
    ) -> None:
        """Asks as the group's owner, again while the member is on its way back into the group."""

        async def attempt() -> None:
            self.check()
            generation, member_id = self._member.generation, self._member.member_id
            if generation < 0 or not member_id:  # without these it is taken from any client once the group is empty
                away = error_for(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"the query is not a member of group {self._group_id!r} just now"
                )
                away.retriable = True
                raise away
            await once((generation, member_id))

        await retrying(attempt, deadline=deadline, backoff=self._cluster.backoff, what=what)

    async def _commit(self, member: tuple[int, str], topics: tuple[OffsetCommitTopic, ...], deadline: Deadline) -> None:
        request = OffsetCommitRequest(self._group_id, *member, INSTANCE_ID, topics)
        answer = await self._cluster.call_coordinator(self._group_id, request, OffsetCommitResponse, deadline=deadline)
        codes = {partition.error_code for topic in answer.topics for partition in topic.partitions}
        for code in sorted(codes - {ErrorCode.NONE}):
            raise await self._refused(code, answer.error_message, deadline)

    async def _stage(self, member: tuple[int, str], topics: tuple[StagedTopic, ...], deadline: Deadline) -> None:
        self._staged = None
        request = StageOffsetsRequest(self._group_id, *member, INSTANCE_ID, topics)
        answer = await self._cluster.call_coordinator(self._group_id, request, StageOffsetsResponse, deadline=deadline)
        if answer.error_code != ErrorCode.NONE:
            raise await self._refused(answer.error_code, answer.error_message, deadline)

    async def _refused(self, code: int, message: str, deadline: Deadline) -> CohortError:
        """The error for a request that was refused; retriable when the member is on its way back."""
        error = error_for(code, f"group {self._group_id!r}: {message}")
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self._error = await self._fenced(Deadline(min(_LOOK_S * 1000, deadline.remaining_ms())))
            return self._error
        if code in _JOINS_AGAIN:
            error.retriable = True
        return error


def _topics(partitions: Iterable[TopicPartition]) -> str:
    """Their topics for people, the first few of many."""
    names = sorted({partition.topic for partition in partitions})
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def offset_commit_topics(offsets: Mapping[TopicPartition, int]) -> tuple[OffsetCommitTopic, ...]:
    """Offsets as a commit of a query has them."""
    return tuple(
        OffsetCommitTopic(
            topic,
            tuple(
                OffsetCommitPartition(number, offsets[TopicPartition(topic, number)], committed_metadata=BY_QUERY)
                for number in numbers
            ),
        )
        for topic, numbers in group_by_topic(offsets).items()
    )
