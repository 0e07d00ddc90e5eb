"""What a consumer reads and as whom: its subscription or assignment, and the membership and the commits that go with it.

As Kafka's class of this name: it joins and leaves the group as the subscription asks for, follows changes of topics, and
stores offsets under the member's generation. What happens at a rebalance is in ``client.consumer.rebalance``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from random import Random
from typing import Any, Final

from client.consumer.arguments import Commitable, offsets_to_commit
from client.consumer.assignment import Assignment
from client.consumer.config import ConsumerSettings
from client.consumer.fetcher import Fetcher
from client.consumer.leader_assignor import LeaderAssignor
from client.consumer.offset_commits import OffsetCommits
from client.consumer.positions import Positions
from client.consumer.rebalance import ConsumerParticipant, Work
from client.consumer.rebalance_listener import RebalanceListener, check_listener
from client.consumer.subscription import TopicSelection
from client.errors import ClosedError, IllegalStateError
from client.group import DEFAULT_STOP_S, Membership, State
from client.log import get_logger
from client.transport.background_loop import Background
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.metadata import Topology, missing_topic, unmatched_pattern
from client.types.records import ConsumerRecord, GroupMetadata, OffsetAndMetadata
from protocol.subscription import TopicPartition

_MAX_LEASE_S: Final = 86_400

log = get_logger()


class Departures:
    """Memberships and last commits that end by themselves while the consumer goes on with another assignment."""

    def __init__(self) -> None:
        self.tasks: dict[asyncio.Task[None], None] = {}

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins it; needs a running loop."""
        task = asyncio.create_task(work, name="cohort-consumer-leaving")
        self.tasks[task] = None
        task.add_done_callback(lambda done: self.tasks.pop(done, None))

    async def wait(self) -> None:
        """Returns when those that are under way have ended; the calling one is not waited for."""
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks)


class ConsumerCoordinator:
    """Subscription, membership and commits of one consumer. ``work`` is what ``process`` has under way."""

    def __init__(
        self,
        settings: ConsumerSettings,
        cluster: Cluster,
        selection: TopicSelection,
        assignment: Assignment,
        positions: Positions,
        fetcher: Fetcher,
        departures: Departures,
        news: asyncio.Event,
        background: Background | None,
        random: Random,
    ) -> None:
        self.running = self.closed = False
        self.membership: Membership | None = None
        self.work: Work | None = None
        self.commits = OffsetCommits(cluster, assignment, settings, lambda: self.membership, selection.topic_id)
        self.commits.on_error = news.set
        self._settings = settings
        self._cluster = cluster
        self._selection = selection
        self._assignment = assignment
        self._positions = positions
        self._fetcher = fetcher
        self._departures = departures
        self._news = news
        self._background = background
        self._random = random
        self.participant = self._new_participant()
        assignment.owned = self.owns

    # --- where it stands --------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """See ``Consumer.state``."""
        if self.closed:
            return "closed"
        if self.membership is not None:
            return self.membership.state
        return "stable" if self.running and self._selection.kind is not None else "unjoined"

    def owns(self) -> bool:
        """Whether what is assigned is this consumer's for certain."""
        return self.membership is None or self.membership.holds_share()

    @property
    def commits_by_itself(self) -> bool:
        """Whether offsets are committed although the program does not ask for it."""
        return self._settings.group_id is not None and self._settings.enable_auto_commit

    def check_running(self) -> None:
        """Raises ``ClosedError`` before ``start`` and after the end of ``stop``; until then listeners ask and commit."""
        if self.closed and not self.running:
            raise ClosedError("this consumer was stopped")
        if not self.running:
            raise ClosedError("this consumer is not started: 'await consumer.start()' or use it in 'async with'")

    def check_not_stopped(self) -> None:
        """Raises ``ClosedError`` after the end of ``stop``."""
        if self.closed:
            self.check_running()

    def check_not_closed(self) -> None:
        """Raises ``ClosedError`` from the beginning of ``stop`` on."""
        if self.closed:
            raise ClosedError("this consumer was stopped; make a new one")

    def check_can_read(self) -> None:
        """Raises ``ClosedError`` outside ``start`` and ``stop``, ``IllegalStateError`` when there is nothing to read."""
        if self.closed or not self.running:  # asked for each record: a call costs more than the look
            self._check_open()
        if self._selection.kind is None:
            raise IllegalStateError("nothing to read: subscribe() or assign() first")

    def check(self) -> None:
        """Raises what the program is to hear of: the membership's error, a listener's, one of committing by the clock."""
        if self.closed or not self.running:
            self._check_open()
        if self.membership is not None:
            self.membership.check()
        self.participant.raise_error()
        self.commits.raise_error()

    def _check_no_transactions(self, what: str) -> None:
        if self.commits.by_transactions:
            raise IllegalStateError(
                f"{what} takes partitions away that process(producer=...) is at work on: end it first"
            )

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("this consumer was stopped")
        self.check_running()

    # --- what to read -----------------------------------------------------------------------------------------------

    def start(self, *, complete: bool) -> None:
        """Takes up the subscription; the cluster is connected. ``complete``: its picture has every topic there is."""
        self.running = True
        self._selection.track(self._cluster)  # it may have changed meanwhile
        self._look(self._cluster.topology, complete=complete)
        self._selection.created_anew(self._cluster.topology)  # notes which topics these are
        self._cluster.on_change(self._on_topology)
        if self.commits_by_itself:
            self.commits.start()
        self._take_up_subscription()

    def subscribe(self, topics: Iterable[str], pattern: str | None, listener: RebalanceListener | None) -> None:
        """See ``Consumer.subscribe``."""
        self.check_not_closed()
        if listener is not None:
            check_listener(listener)
            if self._settings.group_id is None:
                raise ValueError("a listener hears of rebalances, and without a group_id there are none")
        named = (topics,) if isinstance(topics, str) else tuple(topics or ())
        self._selection.subscribe(named, pattern, self._cluster.topology)
        self.participant.listener = listener
        if self.running:
            self._selection.track(self._cluster)
            self._look(self._cluster.topology)
            self._take_up_subscription()

    def unsubscribe(self) -> None:
        """See ``Consumer.unsubscribe``."""
        self._check_no_transactions("unsubscribe()")
        self._selection.clear()
        self._assignment.forget_pauses()
        if self.membership is not None:
            self.membership.leave("unsubscribed")
        else:
            self._drop(list(self._assignment.states))

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """See ``Consumer.assign``."""
        self.check_not_closed()
        self._check_no_transactions("assign()")
        wanted = dict.fromkeys(tps)
        self._selection.assign({tp.topic for tp in wanted})
        if self.membership is not None:  # left by unsubscribe(), perhaps with partitions that are not given up yet
            self._part_with(self.membership)
        self._drop([tp for tp in self._assignment.states if tp not in wanted])
        self._assignment.add(wanted, "committed")
        if self.running:
            self._selection.track(self._cluster)
            self._look(self._cluster.topology)
            self._positions.changed()

    def _part_with(self, membership: Membership) -> None:
        """What the member still holds goes with it: what is assigned next must not be touched by its end."""
        participant, self.membership = self.participant, None
        tps = sorted(self._assignment.states)
        self.commits.remember(tps, "this consumer unsubscribed")
        apart = self._assignment.split_off(tps, taken_away=True)
        deadline = Deadline(1000 * DEFAULT_STOP_S)
        participant.detach(apart, self.commits.sibling(apart, membership), deadline)
        self.participant = self._new_participant()

        async def leave() -> None:
            try:
                await membership.stop(deadline, "unsubscribed")
            finally:
                participant.log_errors()

        self._departures.add(leave())

    def _drop(self, tps: Iterable[TopicPartition]) -> None:
        """Ends the reading of partitions that were assigned by hand, and commits what the program is done with."""
        apart = self._assignment.split_off(tps)
        if not self.running or not apart.states:
            return
        work, commits = self.work, self.commits_by_itself
        participant = self._new_participant()
        participant.detach(apart, self.commits.sibling(apart, None), Deadline(1000 * DEFAULT_STOP_S))

        async def give_up() -> None:
            if work is not None:
                await work.wind_down(frozenset(apart.states), Deadline(self._settings.revoke_grace_ms))
            if commits:
                await participant.commit_last()

        if work is not None or commits:
            self._departures.add(give_up())

    def _take_up_subscription(self) -> None:
        if self._selection.kind != "subscription":
            self._positions.changed()
        elif self._settings.group_id is None:
            self._read_alone(self._cluster.topology)
        elif self.membership is None:
            assigner = LeaderAssignor(self._settings.group_id, self._settings.assignors, self._selection.first_seen)
            self.membership = Membership(
                self._settings.membership(),
                self.participant,
                assigner,
                on_news=self._news.set,
                background=self._background,
                random=self._random,
            )
            self.participant.certain = self.membership.certain
            self.membership.start()
        else:
            self.membership.come_back()
            self.membership.rejoin("the subscription changed")

    def _look(self, topology: Topology, *, complete: bool = False) -> None:
        """Notes which topics there are, and warns of those that are subscribed to and are not, named or by a pattern."""
        self._selection.look(topology, complete=complete)
        for name in self._selection.newly_missing(topology):
            log.warning(
                "subscribed_topic_missing",
                topic=name,
                reason=missing_topic(name),
                group=self._settings.group_id,
                client_id=self._settings.client_id,
            )
        pattern = self._selection.newly_unmatched(topology)
        if pattern is not None:
            log.warning(
                "subscribed_pattern_unmatched",
                pattern=pattern,
                reason=unmatched_pattern(pattern),
                group=self._settings.group_id,
                client_id=self._settings.client_id,
            )

    def _on_topology(self, topology: Topology) -> None:
        self._look(topology)
        for name in self._selection.created_anew(topology):
            self._begin_anew(name)
        self._fetcher.wake()
        if self._selection.kind != "subscription":
            return
        if self.membership is None:
            self._read_alone(topology)
            return
        change = self._selection.change(self.participant.joined_topics, topology)
        if change is not None:
            self.membership.rejoin(change)

    def _begin_anew(self, topic: str) -> None:
        """An offset of a topic that was deleted means nothing in another one of the same name."""
        tps = [tp for tp in self._assignment.states if tp.topic == topic]
        if tps:
            log.warning(
                "topic_recreated",
                hint="all its records are new, and are read unless auto_offset_reset is 'none'",
                group=self._settings.group_id,
                topic=topic,
                auto_offset_reset=self._settings.auto_offset_reset,
            )
        self.commits.remember(tps, "the topic was deleted and created anew")
        self._assignment.renew(tps)
        self._positions.changed()

    def _read_alone(self, topology: Topology) -> None:
        wanted = self._selection.partitions(topology)
        self._assignment.remove([tp for tp in self._assignment.states if tp not in wanted])
        self._assignment.add(wanted, "reset")
        self._positions.changed()

    # --- the group --------------------------------------------------------------------------------------------------

    def group_metadata(self) -> GroupMetadata:
        """See ``Consumer.group_metadata``."""
        if self._settings.group_id is None:
            raise IllegalStateError("without a group_id there is no group")
        session = self.membership.session if self.membership is not None else None
        generation, member_id = (-1, "") if session is None else (session.generation, session.member_id)
        instance_id, topic_ids = self._settings.group_instance_id, self._selection.topic_ids()
        return GroupMetadata(self._settings.group_id, generation, member_id, instance_id, topic_ids)

    async def enforce_rebalance(self, reason: str) -> None:
        """See ``Consumer.enforce_rebalance``."""
        if self.membership is None:
            raise IllegalStateError("only a consumer that subscribes with a group_id can rebalance")
        participant = self.participant
        deadline = Deadline(self._settings.rebalance_timeout_ms + self._settings.request_timeout_ms)
        participant.enforced += 1
        self.membership.rejoin(reason)
        participant.awaited += 1  # the program waits here: it has no records in work to be given time for
        self._assignment.came_back.set()
        try:
            await self.membership.next_generation(deadline)
        finally:
            participant.awaited -= 1

    async def commit(self, offsets: Commitable) -> None:
        """See ``Consumer.commit``."""
        if offsets is None:
            stored = self.consumed_offsets()
        elif isinstance(offsets, ConsumerRecord):
            if self.work is not None and self.work.by_key:
                raise IllegalStateError(
                    "commit(record) says that all records before it are done too, which process(order='key') does not know: "
                    "with enable_auto_commit what is done is committed, and commit() stores it now"
                )
            self.commits.check_handed_out(offsets)
            stored = self.commits.after(offsets)
        else:
            stored = offsets_to_commit(offsets)
        await self.commits.commit(stored, Deadline(self._settings.request_timeout_ms))

    def consumed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """See ``Consumer.consumed_offsets``."""
        if self.work is None:
            return self.commits.positions()
        return self.commits.done(self._assignment.state(tp) for tp in self.work.finished())

    def lease(self, record: ConsumerRecord, seconds: float) -> None:
        """See ``Consumer.lease``."""
        if not 0 < seconds <= _MAX_LEASE_S:
            raise ValueError(
                f"a lease of {seconds} seconds: it must be above 0 and at most {_MAX_LEASE_S}, and can be renewed"
            )
        self.check_running()
        tp = TopicPartition(record.topic, record.partition)
        if self.work is not None:
            in_work = self.work.lease(record, seconds)
        else:
            state = self._assignment.states.get(tp)
            in_work = state is not None and record.offset < state.handed_to
            if in_work and self.membership is not None:
                self.membership.progress.lease(seconds)
        if not in_work:
            raise IllegalStateError(
                f"the record at offset {record.offset} of {tp.topic}-{tp.partition} is not in work at this consumer: its "
                "partition was given up, or it is done. Its work may stop"
            )

    def set_work(self, work: Work | None) -> None:
        """``process`` begins or has ended; a rebalance waits for its handlers."""
        self.work = self.participant.work = work

    def _new_participant(self) -> ConsumerParticipant:
        participant = ConsumerParticipant(
            self._settings,
            self._assignment,
            self._positions,
            self.commits,
            self._fetcher,
            lambda: self._selection.topics(self._cluster.topology),
            self._selection.learn_first_seen,
            self._news,
        )
        participant.work = self.work
        return participant
