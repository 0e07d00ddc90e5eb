"""The consumer as a participant of its group: what happens to its partitions at a rebalance, in which order.

::

    eager         give up all -> (join, sync) -> take all
    cooperative   (join, sync; everything flows on) -> give up what went -> take what came -> (join again if any went)
    process()     as cooperative, whatever the assignor: the plan's leader withholds what is held

    give up       hand out no more -> wait for the program -> commit -> on_partitions_revoked
    take          committed offsets -> on_partitions_assigned -> hand out
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from client.assignors import Assignor
from client.consumer.assignment import Assignment
from client.consumer.config import ConsumerSettings
from client.consumer.fetcher import Fetcher
from client.consumer.leader_assignor import is_cooperative, noted_as_new
from client.consumer.offset_commits import OffsetCommits
from client.consumer.positions import Positions
from client.consumer.rebalance_listener import RebalanceListener, listener_method
from client.errors import CohortError
from client.group import Generation, Session, call_program
from client.log import get_logger
from client.transport.deadline import Deadline
from client.types.records import ConsumerRecord, OffsetAndMetadata
from protocol.subscription import Subscription, TopicPartition, decode_assignment, encode_subscription


class Work(Protocol):
    """Tasks that work on records, known by the partitions of these. Called on the user's loop; no call raises."""

    by_key: bool
    """Whether records of one partition are done in any order, so that one of them says nothing of those before it."""

    async def wind_down(self, tps: frozenset[TopicPartition], deadline: Deadline) -> None:
        """``tps`` are about to be given up: returns when no task works on them any more.

        Tasks may finish until ``deadline`` and are cancelled then. What was finished counts as done before this returns,
        so that the commit which follows covers it; what was cancelled does not. No new task begins on ``tps``.
        """
        ...

    def abandon(self, tps: frozenset[TopicPartition]) -> None:
        """``tps`` belong to others already: cancels their tasks at once. Nothing of theirs can be committed any more."""
        ...

    def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Up to where the work on each partition is done."""
        ...

    async def commit(self, deadline: Deadline) -> bool:
        """Commits what is done, if the work does that by itself; False when that did not come to an end by ``deadline``."""
        ...

    def lease(self, record: ConsumerRecord, seconds: float) -> bool:
        """Gives the work on ``record`` so many seconds from now; returns whether there is any."""
        ...


_NAMED: Final = 10

log = get_logger()


class ConsumerParticipant:
    """Gives up and takes partitions when the membership says so.

    Cooperative when all assignors are: the group may choose any of them, so all must keep the promise that a partition which
    one member still holds is not given to another (KIP-429). Otherwise all partitions are given up at every rebalance,
    unless ``process`` has handlers at work: it tells the leader that it holds on to its partitions, and leaders keep that
    promise for it whatever the assignor (``withhold_what_is_held``). A handler then sees nothing of a rebalance that leaves
    its partition here.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        assignment: Assignment,
        positions: Positions,
        commits: OffsetCommits,
        fetcher: Fetcher,
        topics: Callable[[], tuple[str, ...]],
        learn_first_seen: Callable[[Mapping[str, int]], None],
        news: asyncio.Event,
    ) -> None:
        self.listener: RebalanceListener | None = None
        self.joined_topics: tuple[str, ...] = ()
        self.closing: Deadline | None = None
        self.enforced = 0  # rebalances asked for by the program: counted in the blob, so that the group sees a change
        self.work: Work | None = None
        self.awaited = 0  # calls of the program that wait for a rebalance
        self.certain: Callable[[], Awaitable[bool]] = _at_once
        """Waited for before the program is told of an assignment; see ``Membership.certain``."""
        self._settings = settings
        self._assignment = assignment
        self._positions = positions
        self._commits = commits
        self._fetcher = fetcher
        self._topics = topics
        self._learn_first_seen = learn_first_seen
        self._news = news
        self._session: Session | None = None
        self._had: tuple[tuple[TopicPartition, ...], int] = (), -1  # the last share, and its generation
        self._errors: list[Exception] = []

    @property
    def cooperative(self) -> bool:
        """See ``Participant.cooperative``. What ``prepare`` has left is held, whatever the assignors."""
        return bool(self._assignment.states) or self._assignors_are_cooperative()

    def _assignors_are_cooperative(self) -> bool:
        return all(is_cooperative(assignor) for assignor in self._settings.assignors)

    def protocols(self) -> Sequence[tuple[str, bytes]]:
        """See ``Participant.protocols``."""
        self.joined_topics = self._topics()
        return self._encoded()

    def standing_protocols(self) -> Sequence[tuple[str, bytes]] | None:
        """See ``Participant.standing_protocols``. Only reads, and one thing at a time."""
        return self._encoded() if self.work is not None or self._assignors_are_cooperative() else None

    def _encoded(self) -> Sequence[tuple[str, bytes]]:
        return [
            (assignor.name, encode_subscription(self._subscription(assignor))) for assignor in self._settings.assignors
        ]

    def _subscription(self, assignor: Assignor) -> Subscription:
        """What the leader is told for one assignor.

        What is held at this moment, as a member of the last generation joined, is not given to other members. A sticky one
        is told what was held last, given up or not: a wish. A member that claims nothing names no generation, for a blob
        that changed is a change of subscription to the coordinator.
        """
        told = Subscription(self.joined_topics, self._enforced(), rack=self._settings.client_rack)
        share = tuple(sorted(self._assignment.states))
        if share or is_cooperative(assignor):
            held, generation = share, -1
            told = replace(told, holds=bool(held))
            if self._session is not None:
                generation = self._session.latest.generation
        elif getattr(assignor, "uses_owned_partitions", True):
            held, generation = self._had
        else:
            return told
        return replace(told, owned_partitions=held, generation=generation) if held else told

    def _enforced(self) -> bytes:
        return b"enforced %d" % self.enforced if self.enforced else b""

    def raise_error(self) -> None:
        """Raises what a listener raised, once."""
        if self._errors:
            raise self._errors.pop(0)

    def detach(self, assignment: Assignment, commits: OffsetCommits, deadline: Deadline) -> None:
        """From now on this is about ``assignment`` only, and about giving it up by ``deadline``."""
        self._assignment, self._commits, self.closing = assignment, commits, deadline

    def log_errors(self) -> None:
        """Logs what listeners raised and no call is left to raise."""
        for error in self._errors:
            log.error("rebalance_listener_failed", group=self._settings.group_id, error=repr(error), exc_info=error)
        self._errors.clear()

    async def prepare(self, reason: str) -> None:
        """See ``Participant.prepare``. A cooperative consumer gives up the topics it is not subscribed to any more."""
        tps = frozenset(self._assignment.states)
        if self.work is not None or self._assignors_are_cooperative():
            topics = frozenset(self._topics())
            tps = frozenset(tp for tp in tps if tp.topic not in topics)
        await self._revoke(tps, reason)

    async def revoke(self, reason: str) -> None:
        """See ``Participant.revoke``."""
        await self._revoke(frozenset(self._assignment.states), reason, asked=True)
        self._assignment.forget_pauses()

    async def _revoke(self, tps: frozenset[TopicPartition], reason: str, *, asked: bool = False) -> None:
        if not tps:
            return
        self._assignment.freeze(tps)  # from here on no record of theirs is handed out
        await self._let_program_finish(tps, asked=asked)
        if self.work is not None and self._ended() is None:
            await self.work.commit(self._commit_deadline())
        if self._settings.enable_auto_commit and self._ended() is None:
            try:
                await self._commits.commit_done(self._commit_deadline())
            except CohortError as error:
                log.warning(
                    "last_commit_failed",
                    when="partitions were revoked",
                    group=self._settings.group_id,
                    error=str(error),
                )
        ended = self._ended()
        if ended is not None:
            await self._lose(tps, ended)
            return
        await self._tell("on_partitions_revoked", tps, reason)
        self._give_up(tps, f"it was revoked after generation {self._generation()} because {reason}")

    async def lose(self, reason: str) -> None:
        """See ``Participant.lose``."""
        await self._lose(frozenset(self._assignment.states), reason)

    async def _lose(self, tps: frozenset[TopicPartition], reason: str) -> None:
        if not tps:
            return
        self._assignment.freeze(tps)
        if self.work is not None:
            self.work.abandon(tps)
        await self._tell("on_partitions_lost", tps, reason)
        self._give_up(tps, f"it was lost after generation {self._generation()} because {reason}")

    async def accept(self, generation: Generation) -> str | None:
        """See ``Participant.accept``."""
        self._session = session = generation.session
        tps = decode_assignment(generation.assignment)
        self._had = tps, session.generation
        self._learn_first_seen(noted_as_new(generation.assignment))
        self._assignment.forget_pauses(but=tps)
        revoked = frozenset(self._assignment.states).difference(tps)
        if revoked:
            await self._revoke(revoked, session.reason)
            if self._ended() is not None:
                return None
        news = frozenset(tps).difference(self._assignment.states)
        ended: str | None = "taking it was broken off"
        try:
            ended = await self._take(news)
        finally:
            # Also when the program is not to wait for it any more: of what it was not told nothing is revoked or lost.
            if ended is not None:
                self._give_up(
                    news, f"it was lost in generation {session.generation} before it was handed over: {ended}"
                )
        if ended is not None:
            return None
        await self._tell("on_partitions_assigned", news, session.reason)
        self._assignment.freeze(news, frozen=False)
        self._positions.wake()
        self._fetcher.wake()
        return f"gave up {_named(revoked)}" if revoked else None

    async def _take(self, news: frozenset[TopicPartition]) -> str | None:
        """Finds where the consumer goes on in new partitions. Says why these are not its own, None when they are: the answer
        to the join may have taken longer than the session."""
        added = self._assignment.add(sorted(news), "committed", frozen=True)
        try:
            await self._positions.resolve(added, Deadline(self._settings.request_timeout_ms), patient=False)
        except CohortError as error:
            log.info("positions_unknown", group=self._settings.group_id, error=str(error))
        certain = await self.certain()
        return self._ended() or (None if certain else "its time is over by its own clock")

    async def commit_last(self) -> None:
        """The commit at the end of a consumer that has a group but no membership."""
        try:
            await self._commits.commit_done(self._commit_deadline())
        except CohortError as error:
            log.warning(
                "last_commit_failed", when="partitions were dropped", group=self._settings.group_id, error=str(error)
            )

    def _ended(self) -> str | None:
        session = self._session
        return session.ended or session.latest.ended if session is not None else None

    def _generation(self) -> int:
        return self._session.generation if self._session is not None else -1

    def _give_up(self, tps: frozenset[TopicPartition], why: str) -> None:
        self._commits.remember(sorted(tps), why)
        self._assignment.remember_pauses(sorted(tps))
        self._assignment.remove(sorted(tps), taken_away=True)
        self._fetcher.wake()

    async def _let_program_finish(self, tps: frozenset[TopicPartition], *, asked: bool) -> None:
        """A short wait for a program that is busy with records: what it finishes need not be delivered twice.

        One that has ``asked`` to give them up is not busy, unless by handlers of ``process``.
        """
        if self.work is not None:
            await self.work.wind_down(tps, self.work_deadline())
            return
        assignment = self._assignment
        if asked or self.closing is not None:
            return
        try:
            async with asyncio.timeout(self._settings.revoke_grace_ms / 1000):
                while not self.awaited and self.closing is None and assignment.in_hand_of(tps):
                    assignment.came_back.clear()
                    self._news.set()
                    await assignment.came_back.wait()
        except TimeoutError:
            log.debug("revoke_grace_passed", group=self._settings.group_id)

    def work_deadline(self) -> Deadline:
        """Until when tasks may finish what they have in work: ``revoke_grace_ms``, or a third of what ``stop`` has left."""
        grace_ms = self._settings.revoke_grace_ms
        return Deadline(grace_ms if self.closing is None else min(grace_ms, self.closing.remaining_ms() / 3))

    def _commit_deadline(self) -> Deadline:
        limit_ms = min(self._settings.request_timeout_ms, self._settings.rebalance_timeout_ms / 2)
        if self.closing is not None:
            limit_ms = min(5_000, self.closing.remaining_ms() / 2)
        return Deadline(limit_ms)

    async def _tell(self, what: str, tps: frozenset[TopicPartition], reason: str) -> None:
        callback = listener_method(self.listener, what)
        if callback is None:
            return
        error = await call_program(
            f"{what} of the rebalance listener of group {self._settings.group_id!r}", lambda: callback(tps, reason)
        )
        if error is not None:
            # The rebalance goes on, since the group waits for it; the user's next call raises this.
            self._errors.append(error)
            self._news.set()


async def _at_once() -> bool:
    """Nothing is uncertain without a membership."""
    return True


def _named(tps: Iterable[TopicPartition]) -> str:
    names = [f"{topic}-{partition}" for topic, partition in sorted(tps)]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} partition{'s' if len(names) > 1 else ''}: {', '.join(names[:_NAMED])}{more}"
