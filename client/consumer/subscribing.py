"""The consumer's calls that say what to read, and as whom: subscriptions, assignments by hand, the group."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from random import Random
from typing import Any

from client.consumer.calls import partitions_of
from client.consumer.handling import ProcessCalls
from client.consumer.leader_assignor import ConsumerAssigner
from client.consumer.rebalance import Participation
from client.consumer.rebalance_listener import RebalanceListener, check_listener
from client.errors import ClosedError, IllegalStateError
from client.group import DEFAULT_STOP_S, Membership
from client.log import get_logger
from client.transport.background_loop import Background
from client.transport.deadline import Deadline
from client.transport.metadata import Topology, missing_topic
from client.types.records import GroupMetadata
from protocol.subscription import TopicPartition

log = get_logger()


class SubscriptionCalls(ProcessCalls):
    """Base of ``Consumer``. Makes and ends memberships as the subscription asks for."""

    _background: Background | None
    _random: Random
    _leaving: dict[asyncio.Task[None], None]
    _topic_ids: dict[str, str]

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads ``topics``, or every topic whose whole name matches the regular expression ``pattern``.

        Replaces an earlier subscription. Topics that appear later, and partitions that are added, are picked up and read
        from their beginning, unless ``auto_offset_reset`` is "none". A warning tells once of a named topic that does not
        exist. Raises ``ValueError`` for both or none, ``TypeError`` for names that are no text and for a ``listener`` whose
        methods do not take what they are given, ``IllegalStateError`` after ``assign``, ``ClosedError`` after ``stop``.
        """
        self._check_not_closed()
        if listener is not None:
            check_listener(listener)
            if self._settings.group_id is None:
                raise ValueError("a listener hears of rebalances, and without a group_id there are none")
        named = (topics,) if isinstance(topics, str) else tuple(topics or ())
        self._selection.subscribe(named, pattern, self._cluster.topology)
        self._participation.listener = listener
        if self._running:
            self._selection.track(self._cluster)
            self._look(self._cluster.topology)
            self._take_up_subscription()

    def unsubscribe(self) -> None:
        """Ends the subscription or the assignment; a member gives up its partitions and leaves its group.

        A static member stays in it until its session is over, as after ``stop``.
        """
        self._selection.clear()
        self._assignment.forget_pauses()
        if self._membership is not None:
            self._membership.leave("unsubscribed")
        else:
            self._drop(list(self._assignment.states))

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions, without membership. Offsets of ``group_id``, if given, are used and committed.

        Replaces an earlier assignment; partitions that stay keep their position. Raises ``IllegalStateError`` after
        ``subscribe``, ``TypeError`` for what is no partition, ``ClosedError`` after ``stop``. For a partition that does not
        exist each poll raises ``UnknownTopicOrPartitionError``, and the others are read.
        """
        self._check_not_closed()
        wanted = dict.fromkeys(partitions_of(tps))
        self._selection.assign({tp.topic for tp in wanted})
        if self._membership is not None:  # left by unsubscribe(), perhaps with partitions that are not given up yet
            self._part_with(self._membership)
        self._drop([tp for tp in self._assignment.states if tp not in wanted])
        self._assignment.add(wanted, "committed")
        if self._running:
            self._selection.track(self._cluster)
            self._look(self._cluster.topology)
            self._changed()

    def _check_not_closed(self) -> None:
        if self._closed:
            raise ClosedError("this consumer was stopped; make a new one")

    def _part_with(self, membership: Membership) -> None:
        """What the member still holds goes with it: what is assigned next must not be touched by its end."""
        participation, self._membership = self._participation, None
        tps = sorted(self._assignment.states)
        self._commits.remember(tps, "this consumer unsubscribed")
        apart = self._assignment.split_off(tps, taken_away=True)
        deadline = Deadline(1000 * DEFAULT_STOP_S)
        participation.detach(apart, self._commits.sibling(apart, membership), deadline)
        self._participation = self._new_participation()

        async def leave() -> None:
            try:
                await membership.stop(deadline, "unsubscribed")
            finally:
                participation.log_errors()

        self._finish_later(leave())

    def _drop(self, tps: Iterable[TopicPartition]) -> None:
        """Ends the reading of partitions that were assigned by hand, and commits what the program is done with."""
        apart = self._assignment.split_off(tps)
        if not self._running or not apart.states:
            return
        processing, settings = self._processing, self._settings
        commits = settings.group_id is not None and settings.enable_auto_commit
        participation = self._new_participation()
        participation.detach(apart, self._commits.sibling(apart, None), Deadline(1000 * DEFAULT_STOP_S))

        async def give_up() -> None:
            if processing is not None:
                await processing.wind_down(frozenset(apart.states), Deadline(settings.revoke_grace_ms))
            if commits:
                await participation.commit_last()

        if processing is not None or commits:
            self._finish_later(give_up())

    def _finish_later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="cohort-consumer-leaving")
        self._leaving[task] = None
        task.add_done_callback(lambda done: self._leaving.pop(done, None))

    async def _left(self) -> None:
        tasks = [task for task in self._leaving if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks)

    def _take_up_subscription(self) -> None:
        if self._selection.kind != "subscription":
            self._changed()
        elif self._settings.group_id is None:
            self._read_alone(self._cluster.topology)
        elif self._membership is None:
            assigner = ConsumerAssigner(self._settings.group_id, self._settings.assignors, self._selection.first_seen)
            self._membership = Membership(
                self._settings.membership(),
                self._participation,
                assigner,
                on_news=self._news.set,
                background=self._background,
                random=self._random,
            )
            self._participation.certain = self._membership.certain
            self._membership.start()
        else:
            self._membership.come_back()
            self._membership.rejoin("the subscription changed")

    def _look(self, topology: Topology, *, complete: bool = False) -> None:
        """Notes which topics there are, and warns of those that are subscribed to and are not."""
        self._selection.look(topology, complete=complete)
        for name in self._selection.newly_missing(topology):
            log.warning(
                f"subscribed to a topic without records: {missing_topic(name)}",
                group=self._settings.group_id,
                client_id=self._settings.client_id,
            )

    def _on_topology(self, topology: Topology) -> None:
        self._look(topology)
        self._begin_anew(topology)
        self._fetcher.wake()
        if self._selection.kind != "subscription":
            return
        if self._membership is None:
            self._read_alone(topology)
            return
        change = self._selection.change(self._participation.joined_topics, topology)
        if change is not None:
            self._membership.rejoin(change)

    def _begin_anew(self, topology: Topology) -> None:
        """An offset of a topic that was deleted means nothing in another one of the same name."""
        for name, topic in topology.topics.items():
            before, self._topic_ids[name] = self._topic_ids.get(name), topic.topic_id
            if before in (None, topic.topic_id):
                continue
            self._selection.replaced(name)
            tps = [tp for tp in self._assignment.states if tp.topic == name]
            if tps:
                log.warning(
                    "a topic was deleted and created anew: all it holds is new, and read unless auto_offset_reset is 'none'",
                    group=self._settings.group_id,
                    topic=name,
                    auto_offset_reset=self._settings.auto_offset_reset,
                )
            self._commits.remember(tps, "the topic was deleted and created anew")
            self._assignment.renew(tps)
            self._changed()

    def _read_alone(self, topology: Topology) -> None:
        wanted = self._selection.partitions(topology)
        self._assignment.remove([tp for tp in self._assignment.states if tp not in wanted])
        self._assignment.add(wanted, "reset")
        self._changed()

    # --- the group --------------------------------------------------------------------------------------------------

    def group_metadata(self) -> GroupMetadata:
        """This member's identity in its group. Raises ``IllegalStateError`` without a ``group_id``."""
        if self._settings.group_id is None:
            raise IllegalStateError("without a group_id there is no group")
        session = self._membership.session if self._membership is not None else None
        generation, member_id = (-1, "") if session is None else (session.generation, session.member_id)
        return GroupMetadata(self._settings.group_id, generation, member_id, self._settings.group_instance_id)

    async def enforce_rebalance(self, reason: str) -> None:
        """Makes the group rebalance, and returns when this member has its new share (KIP-568).

        ``reason`` is shown to people. Raises ``IllegalStateError`` without membership and ``RequestTimedOutError`` when the
        group does not settle within the rebalance timeout.
        """
        self._check_running()
        self._check_outside_handlers("enforce_rebalance()")
        if self._membership is None:
            raise IllegalStateError("only a consumer that subscribes with a group_id can rebalance")
        deadline = Deadline(self._settings.rebalance_timeout_ms + self._settings.request_timeout_ms)
        self._participation.enforced += 1
        self._membership.rejoin(reason)
        self._participation.awaited += 1  # nobody works on records meanwhile who could be given time to finish
        self._assignment.came_back.set()
        try:
            await self._membership.next_generation(deadline)
        finally:
            self._participation.awaited -= 1

    def _new_participation(self) -> Participation:
        participation = Participation(
            self._settings,
            self._assignment,
            self._positions,
            self._commits,
            self._fetcher,
            lambda: self._selection.topics(self._cluster.topology),
            self._selection.learn_first_seen,
            self._news,
        )
        participation.work = self._processing
        return participation
