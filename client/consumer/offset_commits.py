"""Commits offsets under the member's generation, when the program asks for it and every ``auto_commit_interval_ms``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Final

from client.consumer.assignment import Assignment
from client.consumer.config import ConsumerSettings
from client.consumer.partition import PartitionState
from client.errors import (
    CohortError,
    CommitFailedError,
    IllegalStateError,
    OffsetMetadataTooLargeError,
    ProtocolResponseError,
    RequestTimedOutError,
    error_for,
)
from client.group import Membership, Session
from client.log import get_logger
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.group_offsets import offset_commit_topics
from client.types.records import ConsumerRecord, OffsetAndMetadata
from client.types.spans import Spans
from protocol.codec import MAX_STRING_BYTES
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from protocol.subscription import TopicPartition

_PARTITIONS_ARE_GONE: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
_OF_ANOTHER_GENERATION: Final = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS})
_WHAT_FOLLOWS: Final = (
    "Records since the last commit are delivered again to the present owners of the partitions. If this member was too "
    "slow, commit more often, or process less between two polls"
)
_REMEMBERED: Final = 1000

log = get_logger()


class OffsetCommits:
    """Commits of one consumer. ``membership`` tells as whom: None commits for a group without members.

    ``topic_id`` gives the id of the topic that offsets belong to, "" while it is not known: the daemon refuses those of a
    topic that was deleted, also when another one has its name by then.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        settings: ConsumerSettings,
        membership: Callable[[], Membership | None],
        topic_id: Callable[[str], str],
    ) -> None:
        self.topic_id = topic_id
        self._cluster = cluster
        self._assignment = assignment
        self._settings = settings
        self._membership = membership
        self._gave_up: dict[TopicPartition, str] = {}
        self._turn = asyncio.Lock()
        self._error: Exception | None = None
        self.on_error: Callable[[], None] = lambda: None
        """Called when there is something for ``raise_error``."""
        self.by_transactions = False
        """Whether offsets are committed with the outputs of ``process`` and in no other way."""
        self.spans: Spans | None = None
        """Told of each commit that is sent; None where nobody traces."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to commit by the clock; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name=f"cohort-auto-commit-{self._settings.client_id}")

    def sibling(self, assignment: Assignment, membership: Membership | None) -> OffsetCommits:
        """Commits of what was split off this one's assignment, in turn with its own."""
        made = OffsetCommits(self._cluster, assignment, self._settings, lambda: membership, self.topic_id)
        made._turn, made.spans = self._turn, self.spans
        return made

    def end(self) -> None:
        """Ends that at once; ``stop`` waits until it has."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Ends that at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def raise_error(self) -> None:
        """Raises, once, what committing by the clock met and did not expect."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def remember(self, tps: Iterable[TopicPartition], why: str) -> None:
        """Keeps why partitions went, for the error of a commit that comes too late."""
        for tp in tps:
            self._gave_up.pop(tp, None)
            self._gave_up[tp] = why
        while len(self._gave_up) > _REMEMBERED:
            del self._gave_up[next(iter(self._gave_up))]

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """All positions that are known: what a commit without arguments stores.

        Raises ``CommitFailedError`` when records in the program's hands are of partitions that went since.
        """
        for tp in self._assignment.missed:
            raise self._failed(f"{tp.topic}-{tp.partition} is not this consumer's: {self._gave_up[tp]}")
        states = self._assignment.states.values()
        return {state.tp: self._committable(state, state.position) for state in states if state.position >= 0}

    def done(self, states: Iterable[PartitionState]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is done of these partitions: their next offsets, with the leader epochs of what was read (KIP-320)."""
        return {state.tp: self._committable(state, state.done) for state in states if state.done >= 0}

    def after(self, record: ConsumerRecord) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offset behind a record that was handed out."""
        tp = TopicPartition(record.topic, record.partition)
        state = self._assignment.states.get(tp)
        next_offset = record.offset + 1
        return {tp: OffsetAndMetadata(next_offset) if state is None else self._committable(state, next_offset)}

    def _committable(self, state: PartitionState, offset: int) -> OffsetAndMetadata:
        epoch = state.leader_epoch_before(offset) if self._cluster.is_replicated(state.tp) else -1
        return OffsetAndMetadata(offset, leader_epoch=epoch)

    async def give_way(self, deadline: Deadline) -> None:
        """From now on offsets are committed ``by_transactions``; returns when a commit under way has ended."""
        self.by_transactions = True
        async with self._in_turn(deadline):
            return

    def refused(self, error: Exception, session: Session) -> None:
        """A transaction that sent offsets in the name of ``session`` was aborted by ``error``."""
        cause, membership = error.__cause__, self._membership()
        if membership is None or not isinstance(error, CommitFailedError):
            return
        if isinstance(cause, ProtocolResponseError) and cause.code in _PARTITIONS_ARE_GONE:
            self._report(membership, session, cause)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline) -> None:
        """Stores ``offsets``. Raises ``CommitFailedError`` when partitions are not this member's (any more).

        While the group forms a generation that leaves a cooperative member its partitions, this waits until they can be
        committed in it.
        """
        self._check_group()
        if self.by_transactions:
            raise IllegalStateError(
                "process(producer=...) commits offsets together with its outputs; while it runs nothing else does"
            )
        self._check_metadata(offsets)
        states = self._owned_states(offsets)
        async with self._in_turn(deadline):
            try:
                await self._store(offsets, states, deadline)
            except CommitFailedError:
                raise
            except BaseException:
                # Cancelled, or without an answer: it may have been stored, and what is committed by the clock after it must
                # not go back behind it. The program has said that it is done.
                for tp, state in states.items():
                    state.say_done(offsets[tp].offset)
                raise

    def check_handed_out(self, record: ConsumerRecord) -> None:
        """Raises ``CommitFailedError`` for a record from before its partition was lost and came back: it comes again."""
        tp = TopicPartition(record.topic, record.partition)
        state = self._assignment.states.get(tp)
        if self._membership() is not None and state is not None and record.offset >= state.handed_to:
            why = self._gave_up.get(tp, "it was assigned again since")
            raise self._failed(
                f"record {record.offset} of {tp.topic}-{tp.partition} was handed out in an earlier assignment: {why}"
            )

    async def commit_done(self, deadline: Deadline) -> None:
        """Commits what the program is done with; nothing is sent when that is committed already, or ``by_transactions``."""
        if self.by_transactions:
            return
        async with self._in_turn(deadline):
            # Looked at only now: a commit of the program that was under way may have stored more than was done before it.
            done = self.done(state for state in self._assignment.states.values() if state.done != state.committed)
            self._check_group()
            states = {tp: self._assignment.states[tp] for tp in done}
            with nullcontext() if self.spans is None else self.spans.unattended():
                await self._store(done, states, deadline)

    def _check_group(self) -> None:
        if self._settings.group_id is None:
            raise IllegalStateError("committing needs a group: pass group_id to the consumer")

    @asynccontextmanager
    async def _in_turn(self, deadline: Deadline) -> AsyncIterator[None]:
        """One commit after the other, attempts and all: one that is tried again must not overtake a later one."""
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await self._turn.acquire()
        except TimeoutError:
            raise RequestTimedOutError(
                f"offsets of group {self._settings.group_id!r} were not committed within {deadline.timeout_ms:.0f} ms: an "
                "earlier commit of this consumer was still under way"
            ) from None
        try:
            yield
        finally:
            self._turn.release()

    async def _store(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        states: Mapping[TopicPartition, PartitionState],
        deadline: Deadline,
    ) -> None:
        """Commits ``offsets``, if there are any."""
        if not offsets:
            return
        with nullcontext() if self.spans is None else self.spans.commit(self._settings.group_id):
            await self._store_as_holder(offsets, states, deadline)

    async def _store_as_holder(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        states: Mapping[TopicPartition, PartitionState],
        deadline: Deadline,
    ) -> None:
        """Commits as the member that holds ``states``, from one generation to the next if it goes on holding them."""
        membership = self._membership()
        if membership is None:
            refused = await self._request(offsets, None, None, deadline)
            if refused:
                code, error = next((refused[tp].code, refused[tp]) for tp in refused)
                why = (
                    "the group has members, and this consumer is none of them: " if code in _PARTITIONS_ARE_GONE else ""
                )
                raise self._failed(f"{why}{error}", offsets, refused, asked=True)
            return
        while True:
            session = membership.session
            check = partial(self._check_held, offsets, states, session)
            check()
            refused = await self._request(offsets, session, check, deadline)
            if not refused:
                return
            error = next(iter(refused.values()))
            if session is None or error.code not in _PARTITIONS_ARE_GONE:
                raise self._failed(str(error), offsets, refused, asked=True)
            if error.code in _OF_ANOTHER_GENERATION and (membership.rejoining or membership.session is not session):
                await membership.rejoined(deadline)
                continue  # if this is still the owner of the same partitions
            self._report(membership, session, error)
            reason = session.ended or str(error)
            why = f"as member of generation {session.generation}: {reason}"
            raise self._failed(why, offsets, refused, asked=True)

    def _report(self, membership: Membership, session: Session, error: ProtocolResponseError) -> None:
        """Tells the membership that its place is gone, if that is what ``error`` says of the present one."""
        if error.code == ErrorCode.REBALANCE_IN_PROGRESS or session is not membership.session:
            return
        if error.code not in _OF_ANOTHER_GENERATION or not membership.rejoining:
            membership.report_refusal(session, error)

    async def _request(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        session: Session | None,
        check: Callable[[], None] | None,
        deadline: Deadline,
    ) -> dict[TopicPartition, ProtocolResponseError]:
        """One commit, ``check`` before each attempt; returns what was refused."""
        group_id = self._settings.group_id or ""
        generation, member_id = (session.generation, session.member_id) if session is not None else (-1, "")
        instance_id = self._settings.group_instance_id if session is not None else None
        request = OffsetCommitRequest(
            group_id, generation, member_id, instance_id, offset_commit_topics(offsets, self.topic_id)
        )
        response = await self._cluster.call_coordinator(
            group_id, request, OffsetCommitResponse, deadline=deadline, before_attempt=check
        )
        refused = {
            tp: error_for(
                result.error_code, f"{tp.topic}-{tp.partition}: {result.error_message or response.error_message}"
            )
            for topic in response.topics
            for result in topic.partitions
            if result.error_code != ErrorCode.NONE
            for tp in [TopicPartition(topic.name, result.partition_index)]
        }
        for tp, committed in offsets.items():
            if tp not in refused:
                self._assignment.settle(tp, committed.offset)
        return refused

    def _check_metadata(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Raises ``CommitFailedError`` for metadata that no daemon would read. Daemons judge shorter ones."""
        errors: dict[TopicPartition, CohortError] = {
            tp: OffsetMetadataTooLargeError(
                f"the metadata for {tp.topic}-{tp.partition} is longer than {MAX_STRING_BYTES} bytes; send less"
            )
            for tp, committed in offsets.items()
            if len((committed.metadata or "").encode()) > MAX_STRING_BYTES
        }
        if errors:
            raise self._failed(str(next(iter(errors.values()))), offsets, errors)

    def _owned_states(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, PartitionState]:
        """What is held of each partition; without membership all that is assigned, since no rebalance takes it away."""
        held = {tp: self._assignment.states[tp] for tp in offsets if tp in self._assignment.states}
        if self._membership() is not None:
            self._check_all_held(offsets, held)
        return held

    def _check_held(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        states: Mapping[TopicPartition, PartitionState],
        session: Session | None,
    ) -> None:
        # A partition that was lost and came back is another state. Its reading goes on at what was committed by then: an
        # attempt for the time before would move the offsets under its feet.
        self._check_all_held(
            offsets, {tp: state for tp, state in states.items() if self._assignment.states.get(tp) is state}
        )
        ended = (
            session.ended or session.latest.ended
            if session is not None
            else "this consumer has not joined its group yet"
        )
        if ended is not None:
            raise self._failed(ended, offsets)

    def _check_all_held(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], held: Mapping[TopicPartition, PartitionState]
    ) -> None:
        errors: dict[TopicPartition, CohortError] = {}
        for tp in offsets:
            if tp not in held:
                why = self._gave_up.get(tp, "it was never assigned to this consumer")
                errors[tp] = IllegalStateError(f"{tp.topic}-{tp.partition} is not this consumer's: {why}")
        if errors:
            raise self._failed(str(next(iter(errors.values()))), offsets, errors)

    def _failed(
        self,
        why: str,
        offsets: Iterable[TopicPartition] = (),
        refused: Mapping[TopicPartition, CohortError] | None = None,
        *,
        asked: bool = False,
    ) -> CommitFailedError:
        """The error, with the result of each partition; unless the coordinator was ``asked``, none was stored."""
        unsent = None if asked else CohortError(f"not sent: {why}")
        results = {tp: (refused or {}).get(tp, unsent) for tp in offsets}
        text = f"offsets of group {self._settings.group_id!r} were not committed: {why}. {_WHAT_FOLLOWS}"
        error = CommitFailedError(text, results)
        error.__cause__ = next(iter(refused.values())) if refused else None
        return error

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.auto_commit_interval_ms / 1000)
            membership = self._membership()
            if membership is not None and membership.state != "stable" and not membership.rejoining:
                continue  # giving up partitions commits by itself
            try:
                await self.commit_done(Deadline(self._settings.request_timeout_ms))
            except CohortError as error:
                log.warning("auto_commit_failed", group=self._settings.group_id, error=str(error))
            except Exception as error:  # a fault of ours; the next poll raises it, and auto commit goes on
                log.error("auto_commit_broken", group=self._settings.group_id, error=repr(error), exc_info=error)
                self._error = error
                self.on_error()
