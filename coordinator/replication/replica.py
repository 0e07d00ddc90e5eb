"""A replica: this node's part in a partition. What it should be is said by the metadata; one task makes it so.

A leadership that is over ends at once, with the delta that says so: requests find the partition not led here, coordinators
hear of it, and what waits for an acknowledgement is told ``NotLeaderError``. What takes time (the end of an order that is
being carried out, a sync before an epoch begins, opening a log) is the task's, which runs only while something changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, Protocol

from coordinator.controller.core import candidates, elect
from coordinator.log.errors import LogError, NotLeaderError
from coordinator.log.leader_epochs import NO_EPOCH
from coordinator.log.partition import PartitionLog
from coordinator.log.producer_snapshots import encode_first
from coordinator.log.progress import Progress
from coordinator.log_output import get_logger
from coordinator.metadata.store import Stop
from coordinator.replication.fetch import FetchAnswer, FetchError, FetchPartition
from coordinator.replication.follower import Follower
from coordinator.replication.following import Following
from coordinator.replication.leader import Leader
from coordinator.replication.leading import Leading, Surroundings
from coordinator.replication.partition import Incarnation, PartitionRegistration, ReplicationConfig
from coordinator.replication.watermarks import Hint

log = get_logger()

PATIENCE_MS: Final = 2_000
"""How long a leader tries to open its log, or to write to a disk that refuses, before another leads."""
NOT_REGISTERED: Final = -1
"""The broker epoch of a node that has none: its replicas have no role."""
HANDED_ON_MS: Final = 30_000
"""When a leadership comes back within so long, others cannot read the log either, and it is not handed over again."""
_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 30.0


class ReplicaError(Exception):
    """A replica that cannot be had; the text says why."""


class Host(Surroundings, Protocol):
    """What a replica asks of the node that it is on."""

    async def open_log(self, replica: Replica) -> PartitionLog:
        """The replica's log, opened, or made. Raises ``LogError``, ``OSError`` and ``ReplicaError``."""

    def config(self, replica: Replica) -> ReplicationConfig:
        """What holds for the replica."""

    async def close_log(self, replica: Replica) -> None:
        """Closes the replica's log, whatever state it is in."""

    async def set_log_aside(self, replica: Replica) -> None:
        """Closes the replica's log, whose directory gets another name: ``open_log`` makes another. Raises ``OSError``."""

    def serving(self, replica: Replica, serves: bool) -> None:
        """The replica leads from now on and requests may use its log; or no more."""

    def asks(self, leader: int) -> None:
        """What is followed of a node, or is to be asked of it, has changed."""


class Replica:
    """See the module text. ``name`` is for people."""

    def __init__(self, topic: str, topic_id: str, index: int, hint: Hint | None, host: Host) -> None:
        """``hint`` is what was noted of it when the node ran last."""
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log: PartitionLog | None = None
        self.offline = "its log has not been opened yet"
        """Why there is no log; "" when there is one."""
        self._offline_since_ms: int | None = None
        """Since when the log could not be opened; None when it can, or was not tried."""
        self.leader_node: Incarnation | None = None
        """Who leads, as the metadata has it."""
        self.leader_epoch = NO_EPOCH
        self.leading: Leading | None = None
        self.following: Following | None = None
        self._hint = hint
        self._host = host
        self._registration: PartitionRegistration | None = None
        self._partition_epoch = 0
        self._serving = False
        self._suspended = False
        self._broken = False
        self._unreadable = ""
        """Why the coordinator cannot read the log that is led here."""
        self._unreadable_ms: int | None = None
        """When a leadership ended in which it could not."""
        self._followed: tuple[Incarnation, int] | None = None
        """As which incarnation a leader was asked last, and in which epoch."""
        self._before: Following | None = None
        """What was followed before: an order of it may still be carried out."""
        self._opening = asyncio.Lock()
        """Held while the log is opened: a start opens it, and a delta may ask for a role meanwhile."""
        self._changed = asyncio.Event()
        self._settled: tuple[object, ...] = ()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._listeners: dict[object, Callable[[], None]] = {}

    @property
    def name(self) -> str:
        """Topic and number."""
        return f"{self.topic}-{self.index}"

    @property
    def leader(self) -> Leader | None:
        """The leader's decisions, when this node leads."""
        return None if self.leading is None else self.leading.core

    @property
    def follower(self) -> Follower | None:
        """The follower's decisions, when this node follows."""
        return None if self.following is None else self.following.core

    @property
    def registration(self) -> PartitionRegistration | None:
        """The partition, as the metadata has it."""
        return self._registration

    @property
    def partition_epoch(self) -> int:
        """The revision of what the metadata has."""
        return self._partition_epoch

    @property
    def serves(self) -> bool:
        """Whether this node leads the partition and requests may use its log."""
        return self._serving

    # What it should be

    def note(self, registration: PartitionRegistration, partition_epoch: int) -> None:
        """What the metadata says; nothing follows from it before ``observe``."""
        self._registration, self._partition_epoch = registration, partition_epoch

    def observe(self, registration: PartitionRegistration, partition_epoch: int) -> None:
        """The metadata says something about the partition, or this node is registered anew."""
        before = self.leader_node, self.leader_epoch
        self.note(registration, partition_epoch)
        leading, following = self.leading, self.following
        same = registration.leader_epoch == self.leader_epoch and registration.leader == self.leader_node
        if leading is not None:
            if same and registration.leads(self._host.me):
                leading.observe(registration, partition_epoch)
                return
            self._resign()
        if following is not None and not (same and self._is_current(following)):
            self._stop_following()
        self.leader_node, self.leader_epoch = registration.leader, registration.leader_epoch
        self._change()
        if before != (self.leader_node, self.leader_epoch):
            self._tell_news()

    def suspend(self) -> None:
        """The node may not answer for a time: nothing is served, and what waits is told so. It leads on in this epoch."""
        self._suspended = True
        self._stop_serving()

    def resume(self) -> None:
        """The node may answer again."""
        self._suspended = False
        if self.leading is not None:
            self._begin_serving()

    def stop(self) -> None:
        """Ends its role, at once and for good."""
        self._closed = True
        self._resign()
        self._stop_following()

    async def close(self) -> None:
        """Returns once nothing of the replica goes on. Its log stays open."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._before is not None:
            await self._before.wait_idle()
        self._tell_news()

    def _is_current(self, following: Following) -> bool:
        return following.me == self._host.me

    def _resign(self) -> None:
        leading, self.leading = self.leading, None
        if leading is not None:
            log.debug("leadership_ended", partition=self.name, leader_epoch=leading.core.leader_epoch)
            self._stop_serving()
            if self._unreadable:
                self._unreadable, self._unreadable_ms = "", self._host.now_ms()
            leading.end()
            self._settled = ()
            self._tell_news()

    def _stop_serving(self) -> None:
        if self._serving:
            self._serving = False
            self._host.serving(self, False)
            assert self.log is not None
            self.log.fail_waiters(NotLeaderError(f"this node does not lead {self.name} any more"))

    def _begin_serving(self) -> None:
        if not self._serving and not self._suspended:
            self._serving = True
            self._host.serving(self, True)

    def _stop_following(self) -> None:
        following, self.following = self.following, None
        if following is not None:
            following.end()
            self._before = following
            self._hint = self.hint()._replace(caught_up_ms=following.core.caught_up_ms)
            self._settled = ()
            if self.leader_node is not None:
                self._host.asks(self.leader_node.node)

    # What makes it so

    async def open(self) -> None:
        """Opens the log, or says why not (``offline``): for a start, which waits for it. The role comes later."""
        try:
            await self._open()
        except (LogError, OSError, ReplicaError) as error:
            self._note_offline(str(error))

    def _change(self) -> None:
        self._changed.set()
        if self._task is None and not self._closed and self._target() != self._settled:
            self._task = asyncio.get_running_loop().create_task(self._settle(), name=f"replica {self.name}")

    def _target(self) -> tuple[object, ...]:
        """What its role follows from; another one begins another role."""
        return self._host.me, self.leader_node, self.leader_epoch, self._broken

    async def _settle(self) -> None:
        pause_s = _RETRY_S
        try:
            while (target := self._target()) != self._settled:
                try:
                    await self._take_role(target)
                except (LogError, OSError, ReplicaError) as error:
                    self._note_offline(str(error))
                except Exception as error:
                    log.exception("replica_failed_unexpectedly", partition=self.name)
                    self._note_offline(repr(error))
                else:
                    pause_s = _RETRY_S
                    continue
                self._changed.clear()
                try:
                    async with asyncio.timeout(pause_s):
                        await self._changed.wait()
                except TimeoutError:
                    pause_s = min(2 * pause_s, _MAX_RETRY_S)
        finally:
            self._task = None

    def _note_offline(self, why: str) -> None:
        if why != self.offline:
            log.error("replica_offline", partition=self.name, reason=why)
        self.offline = why
        self._offline_since_ms = self._offline_since_ms or self._host.now_ms()

    async def _take_role(self, target: tuple[object, ...]) -> None:
        if self._before is not None:
            await self._before.wait_idle()
            self._before = None
        if self._broken:
            self._stop_following()
            self._hint, self.log, self._broken = self.hint(), None, False
            await self._host.close_log(self)
            return
        opened = await self._open()
        if opened.flushed_offset < opened.end_offset:
            await opened.flush()
        registration, me = self._registration, self._host.me
        assert registration is not None
        if self._target() != target:
            return
        if me.broker_epoch == NOT_REGISTERED:
            pass
        elif registration.leads(me):
            await opened.begin_epoch(registration.leader_epoch)
            if self._target() == target and self._registration is not None:
                self._lead(opened, self._registration)
        elif registration.leader is not None and registration.leader.node != me.node:
            if opened.damage is not None and self._is_spare(registration):
                await self._set_aside(opened.damage)
                return
            self._follow(opened, registration.leader)
        if self._target() == target:
            self._settled, self.offline = target, ""

    def _is_spare(self, registration: PartitionRegistration) -> bool:
        """Whether nobody counts on this copy: it is not in sync, and no leader can take it in for what it has said so far,
        as it has not asked the leader of this epoch yet."""
        return self._host.me.node not in registration.isr and self._followed != (self._host.me, self.leader_epoch)

    async def _set_aside(self, damage: LogError) -> None:
        """Begins anew with an empty log, which copies the leader's."""
        log.error("damaged_log_set_aside", partition=self.name, reason=str(damage))
        self._hint, self.log = Hint(0, None), None
        await self._host.set_log_aside(self)
        await self._host.note_high_watermarks()

    async def _open(self) -> PartitionLog:
        async with self._opening:
            if self.log is not None:
                return self.log
            opened = await self._host.open_log(self)
            high_watermark = 0 if self._hint is None else self._hint.high_watermark
            opened.commit_by(Progress(max(opened.start_offset, min(high_watermark, opened.end_offset))))
            self.log, self.offline, self._offline_since_ms = opened, "", None
            return opened

    def _lead(self, opened: PartitionLog, registration: PartitionRegistration) -> None:
        self.leading = leading = Leading(
            self.topic_id,
            self.index,
            opened,
            registration,
            self._partition_epoch,
            self._host.config(self),
            self._host,
            self._tell_news,
        )
        log.debug(
            "leadership_begun",
            partition=self.name,
            leader_epoch=registration.leader_epoch,
            offset=leading.core.start_offset,
            isr=list(registration.isr),
        )
        self._begin_serving()
        self._tell_news()

    def _follow(self, opened: PartitionLog, leader: Incarnation) -> None:
        self._followed = self._host.me, self.leader_epoch
        self.following = Following(
            self.leader_epoch,
            opened,
            self._host.config(self),
            self._host,
            lambda: self._host.asks(leader.node),
            self._reopen,
            caught_up_ms=None if self._hint is None else self._hint.caught_up_ms,
        )
        self._host.asks(leader.node)

    def _reopen(self) -> None:
        self._broken = True
        self._change()

    def reason_to_hand_over(self, unheard: Collection[int]) -> str:
        """Why another should lead although this node is alive; "" without a reason. ``unheard`` are nodes that live and of
        which no follower was heard for too long.
        """
        if self.log is not None and self.leading is None:
            return ""
        if self._registration is None or not self._registration.leads(self._host.me):
            return ""
        if self.log is None:
            refused_ms = self._host.now_ms() - (self._offline_since_ms or self._host.now_ms())
            return f"its log cannot be opened: {self.offline}" if refused_ms >= PATIENCE_MS else ""
        if self.log.refusal is not None:
            return f"the log takes no records: {self.log.refusal}"
        if self._unreadable and self._began_long_after_the_last():
            return f"its coordinator cannot read the log: {self._unreadable}"
        if self.log.damage is not None and self._others_are_enough():
            return f"its log is damaged, and enough other replicas are in sync: {self.log.damage}"
        if self.log.refused_for_s * 1000 >= PATIENCE_MS and self._others_are_enough():
            return "the disk refuses its records, and enough other replicas are in sync"
        if unheard and self.leading is not None and self.leading.is_cut_off(unheard):
            return "no other in-sync replica was heard, and all of them live"
        return ""

    def readable(self, leader_epoch: int, why_not: str) -> None:
        """The coordinator of the partition could not read the log in this epoch, or ("") it could."""
        if self.leading is not None and self.leader_epoch == leader_epoch:
            self._unreadable = why_not

    def _began_long_after_the_last(self) -> bool:
        """Whether others led long enough since this replica gave up: what none can read must not go round and round."""
        if self.leading is None or self._unreadable_ms is None:
            return self.leading is not None
        return self.leading.began_ms - self._unreadable_ms >= HANDED_ON_MS

    def _others_are_enough(self) -> bool:
        """Whether writes with acks=all go on without this replica: else another leader would wait for it, too."""
        registration, me, live = self._registration, self._host.me, self._host.live
        assert registration is not None
        return sum(node != me.node and node in live for node in registration.isr) >= registration.min_isr

    def handed_over(self) -> PartitionRegistration | None:
        """The partition led by the next of those in sync, without this one as far as enough are left; None without one.

        In the order of the replicas and round again, so that each of them is tried where none can lead.
        """
        registration, me, live = self._registration, self._host.me, self._host.live
        assert registration is not None
        found = [node for node in candidates(registration, live) if node != me.node and live[node].accepting]
        order = (*registration.replicas, *registration.adding)
        after = order.index(me.node) if me.node in order else 0
        found.sort(key=lambda node: (order.index(node) - after) % len(order))
        elected = elect(registration, live, found)
        if elected is None or len(elected.isr) <= elected.min_isr:
            return elected
        return replace(elected, isr={node: epoch for node, epoch in elected.isr.items() if node != me.node})

    # The leader's side

    def acknowledged(self, request: FetchPartition) -> FetchAnswer | None:
        """Takes what a follower acknowledges; else how it is refused. Without a leader here that is an error."""
        if self.leading is not None:
            return self.leading.acknowledged(request)
        behind = request.leader_epoch < self.leader_epoch
        error = FetchError.FENCED_LEADER_EPOCH if behind else FetchError.UNKNOWN_LEADER_EPOCH
        echo = request.leader_epoch, request.follower.broker_epoch, request.fetch_offset, request.last_epoch
        return FetchAnswer(*echo, error)

    def has_news(self, request: FetchPartition, told: FetchAnswer | None) -> bool:
        """Whether there is something that the follower has not been told."""
        return self.leading is None or self.leading.has_news(request, told)

    def producers_below(self, offset: int, max_bytes: int) -> bytes:
        """A snapshot of the producers that wrote below ``offset``, for a follower that begins there; the newest that fit."""
        return b"" if self.log is None else encode_first(self.log.producers.below(offset), max_bytes)

    def readable_bytes(self, offset: int, max_bytes: int) -> int:
        """How many bytes an answer from ``offset`` on would have, about, within a bound."""
        return 0 if self.leading is None else self.leading.readable_bytes(offset, max_bytes)

    def just_written(self, offset: int, max_bytes: int) -> tuple[bytes, tuple[tuple[int, int], ...]]:
        """As ``read_for_follower``, of what is at hand because it is being synced; nothing when it has to be read."""
        return (b"", ()) if self.leading is None else self.leading.just_written(offset, max_bytes)

    async def read_for_follower(
        self, offset: int, max_bytes: int, *, checks_bodies: bool = False
    ) -> tuple[bytes, tuple[tuple[int, int], ...]]:
        """Whole batches that begin at exactly ``offset``, and the epochs of these offsets; nothing when that cannot be.

        ``checks_bodies`` is for a follower that asks again for what it was given: it may have found a body that is damaged.
        """
        if self.leading is None:
            return b"", ()
        return await self.leading.read(offset, max_bytes, checks_bodies=checks_bodies)

    def on_news(self, listener: Callable[[], None]) -> Stop:
        """Calls ``listener`` when ``has_news`` may say something else, also when this node leads no more."""
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def _tell_news(self) -> None:
        for listener in tuple(self._listeners.values()):
            listener()

    # The follower's side

    def ask(self) -> FetchPartition | None:
        """What to ask the leader; None when there is nothing."""
        return None if self.following is None else self.following.ask()

    async def take(self, answer: FetchAnswer) -> None:
        """Carries out what an answer orders; returns once the replica may be named again."""
        if self.following is not None:
            await self.following.take(answer)

    def hint(self) -> Hint:
        """What is noted of it for the next start."""
        caught_up_ms = None if self._hint is None else self._hint.caught_up_ms
        if self.following is not None:
            caught_up_ms = self.following.core.caught_up_ms
        if self.log is None:
            return Hint(0 if self._hint is None else self._hint.high_watermark, caught_up_ms)
        return Hint(self.log.high_watermark, caught_up_ms)
