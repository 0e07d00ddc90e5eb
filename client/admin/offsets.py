"""The admin's calls about committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from client.admin.arguments import checked_group, checked_mapping, checked_offset, checked_partition, checked_text
from client.admin.calls import AdminCalls
from client.admin.failures import raise_failures
from client.admin.group_reports import committed_offsets, describe_group
from client.admin.groups import active_group_error, members_text, raise_for_group, unknown_group
from client.admin.offset_reset import OffsetResetPlan, Reset, ResetTarget, plan_reset
from client.errors import (
    CohortError,
    GroupSubscribedToTopicError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    error_for,
)
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.group_offsets import offset_commit_topics
from client.types.records import OffsetAndMetadata
from protocol.codec import MAX_STRING_BYTES
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopic,
)
from protocol.subscription import TopicPartition, group_by_topic


class OffsetCalls(AdminCalls):
    """Base of ``Admin``: committed offsets are listed, altered, reset and deleted."""

    async def list_offsets(
        self, group: str, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Everything a group has committed, sorted by topic and partition; empty for a group that does not exist."""
        return await committed_offsets(self._cluster, checked_group(group), self._deadline(timeout_ms))

    async def alter_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], *, timeout_ms: int | None = None
    ) -> None:
        """Commits offsets in the name of a group without members; a group that does not exist is created by it.

        Offsets are the next ones to read, from 0; one outside the log is stored all the same, and a consumer that starts
        there goes where its ``auto_offset_reset`` says (``reset_offsets`` looks at the logs). Raises ``NonEmptyGroupError``
        naming the members, in which case nothing is stored; ``UnknownTopicOrPartitionError`` and
        ``OffsetMetadataTooLargeError`` for single partitions, in which case the others are stored; ``ValueError`` and
        ``TypeError`` for what is no offset.
        """
        deadline = self._deadline(timeout_ms)
        checked_group(group)
        example = 'partitions with offsets, such as {TopicPartition("orders", 0): 100}'
        checked_mapping("alter_offsets", offsets, example)
        asked = {checked_partition("alter_offsets", tp): offset for tp, offset in offsets.items()}
        wanted = {tp: _offset(tp, offset) for tp, offset in asked.items()}
        await _alter(self._cluster, group, wanted, deadline)

    async def delete_offsets(
        self, group: str, *targets: TopicPartition | str, timeout_ms: int | None = None
    ) -> list[TopicPartition]:
        """Forgets what a group has committed in some partitions; a topic's name stands for all that it has committed there.

        Returns the partitions asked for, sorted; one that had no offset is no error. Works in an active group too, except
        for topics that a member subscribes to: those raise ``GroupSubscribedToTopicError`` (KIP-496), and a group whose
        members are no consumers ``NonEmptyGroupError``. Raises ``GroupIdNotFoundError``. Consumers begin in such a
        partition where their ``auto_offset_reset`` says.
        """
        deadline = self._deadline(timeout_ms)
        checked_group(group)
        asked = _checked_targets("delete_offsets", targets)
        partitions = {target for target in asked if not isinstance(target, str)}
        topics = {target for target in asked if isinstance(target, str)}
        if topics:
            committed = await committed_offsets(self._cluster, group, deadline)
            partitions |= {tp for tp in committed if tp.topic in topics}
            if not committed and (await describe_group(self._cluster, group, deadline)).state == "Dead":
                raise unknown_group(group)
        if partitions:
            await _delete(self._cluster, group, partitions, deadline)
        return sorted(partitions)

    async def reset_offsets(
        self,
        group: str,
        *targets: TopicPartition | str,
        to: ResetTarget | Mapping[TopicPartition, int] | None = None,
        shift_by: int | None = None,
        dry_run: bool = True,
        timeout_ms: int | None = None,
    ) -> OffsetResetPlan:
        """Plans where a group is to go on reading, and with ``dry_run=False`` commits it.

        ``targets`` are partitions, or topics for all of their partitions; none at all means every topic in which the group
        has committed something. ``to`` is "earliest", "latest", an offset, a ``datetime`` (the first record at or after it;
        the end when there is none; a naive one is in the local time zone), or offsets by partition, which then are the
        targets; ``shift_by`` moves every committed offset by so many records, back when negative. Exactly one of the two is
        given. Offsets are kept within the log as it is now, and the plan's notes say where that, or anything else, changed
        what was asked for.

        Returns the plan; ``blocked`` in it tells why it could not be executed at the moment. Raises ``NonEmptyGroupError``
        when it is executed while the group has members, ``UnknownTopicOrPartitionError`` naming what does not exist,
        ``GroupIdNotFoundError`` for a group that does not exist when ``targets`` are empty too, ``ValueError`` and
        ``TypeError`` for what is no offset or no time. Otherwise a group that does not exist is created when the plan is
        executed.
        """
        deadline = self._deadline(timeout_ms)
        checked_group(group)
        wanted = _checked_targets("reset_offsets", targets)
        reset = Reset.checked(to, shift_by)
        if isinstance(reset.to, Mapping):
            if wanted:
                raise ValueError("offsets by partition name the partitions: give no others")
            if not reset.to:
                raise ValueError("there is no offset to reset: to= holds no partition")
            wanted = list(reset.to)
        plan = await plan_reset(self._cluster, group, wanted, reset, deadline)
        if dry_run:
            return plan
        if plan.blocked:
            raise NonEmptyGroupError(plan.blocked)
        if plan.offsets:
            await _alter(self._cluster, group, plan.offsets, deadline)
        return replace(plan, executed=True)


def _offset(tp: TopicPartition, offset: object) -> OffsetAndMetadata:
    given = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)  # type: ignore[arg-type]
    checked_offset(tp, given.offset)
    if isinstance(given.metadata, str) and len(given.metadata.encode(errors="replace")) > MAX_STRING_BYTES:
        raise OffsetMetadataTooLargeError(
            f"the metadata for {tp.topic}-{tp.partition} is longer than {MAX_STRING_BYTES} bytes and nothing is stored; "
            "send less"
        )
    checked_text(f"the metadata for {tp.topic}-{tp.partition}", given.metadata)
    return given


def _checked_targets(call: str, targets: Iterable[object]) -> list[TopicPartition | str]:
    """Names of topics, and partitions."""
    return [
        checked_text("the name of a topic", target) if isinstance(target, str) else checked_partition(call, target)
        for target in targets
    ]


async def _alter(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline
) -> None:
    """Commits without a member: the coordinator takes that while the group has none."""
    if not offsets:
        return
    request = OffsetCommitRequest(group_id, -1, "", None, offset_commit_topics(offsets))
    response = await cluster.call_coordinator(group_id, request, OffsetCommitResponse, deadline=deadline)
    failures: dict[TopicPartition, CohortError] = {}
    for topic in response.topics:
        for result in topic.partitions:
            if result.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                what = f"no offset of group {group_id!r} was altered"
                raise await active_group_error(cluster, group_id, what, response.error_message, deadline)
            if result.error_code != ErrorCode.NONE:
                tp = TopicPartition(topic.name, result.partition_index)
                text = f"{_named(tp)} of group {group_id!r} was not altered: {_reason(result.error_code, response)}"
                failures[tp] = error_for(result.error_code, text)
                failures[tp].retriable = False  # the daemon has decided: the same request gets the same answer
    raise_failures(failures)


async def _delete(cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition], deadline: Deadline) -> None:
    wanted = group_by_topic(partitions)
    topics = tuple(OffsetDeleteTopic(name, tuple(indexes)) for name, indexes in wanted.items())
    request = OffsetDeleteRequest(group_id, topics)
    response = await cluster.call_coordinator(group_id, request, OffsetDeleteResponse, deadline=deadline)
    what = f"no offset of group {group_id!r} was deleted"
    await raise_for_group(cluster, group_id, what, response.error_code, response.error_message, deadline)
    failures: dict[TopicPartition, CohortError] = {}
    subscribed: list[str] = []
    for topic in response.topics:
        for result in topic.partitions:
            tp = TopicPartition(topic.name, result.partition_index)
            if result.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
                subscribed.append(topic.name)
                failures[tp] = GroupSubscribedToTopicError()
            elif result.error_code != ErrorCode.NONE:
                text = f"{_named(tp)} of group {group_id!r} was not deleted: {_reason(result.error_code, response)}"
                failures[tp] = error_for(result.error_code, text)
                failures[tp].retriable = False
    if subscribed:
        group = await describe_group(cluster, group_id, deadline)
        who = members_text(group.members)
        for tp, failure in failures.items():
            if isinstance(failure, GroupSubscribedToTopicError):
                failures[tp] = GroupSubscribedToTopicError(
                    f"the offsets of topic {tp.topic!r} in group {group_id!r} were not deleted: the group has {who}, "
                    "and subscribes to it. Stop the members, or let them unsubscribe, first"
                )
    raise_failures(failures)


def _named(tp: TopicPartition) -> str:
    return f"the offset of {tp.topic}-{tp.partition}"


def _reason(code: int, response: OffsetCommitResponse | OffsetDeleteResponse) -> str:
    """Why one offset was refused. The daemon's text is about the first that failed, so the commonest has one of its own."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return "there is no such partition; describe_topics (cohort topics describe) shows those there are"
    return response.error_message or "the daemon gave no reason"
