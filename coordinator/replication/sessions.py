"""Replica sessions of a leader's node: one a follower, which is one connection (instead of KIP-227's ids and epochs).

A follower names a partition when there is something new to say about it. What it named is armed until it was delivered; idle
partitions cost nothing. TCP keeps the order within a connection, and a connection that breaks ends its session.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from coordinator.replication.fetch import FetchPartition
from coordinator.replication.partition import Incarnation

Key = TypeVar("Key", bound=Hashable)


class ReplicaSession(Generic[Key]):
    """The armed partitions of one follower, in the order in which they are served."""

    def __init__(self, follower: Incarnation, number: int) -> None:
        self.follower = follower
        self.number = number
        self.ended = False
        self._armed: dict[Key, FetchPartition] = {}

    def arm(self, partition: Key, request: FetchPartition) -> None:
        """The follower names a partition; what it said before is replaced, its place in the row stays."""
        self._armed[partition] = request

    def forget(self, partitions: Iterable[Key]) -> None:
        """The follower does not follow these any more."""
        for partition in partitions:
            self._armed.pop(partition, None)

    def end(self) -> None:
        """Its connection is gone. The node remembers the number, so that what is still to come of it is refused."""
        self.ended = True
        self._armed.clear()

    def armed(self, partition: Key) -> FetchPartition | None:
        """What the follower asked last, None when it was delivered."""
        return self._armed.get(partition)

    def take(
        self,
        size_of: Callable[[Key, FetchPartition, int], int],
        max_bytes: int,
        partition_bytes: int,
        among: Iterable[Key] | None = None,
    ) -> list[tuple[Key, FetchPartition]]:
        """Disarms and returns what one answer brings: each partition up to ``partition_bytes``, ``max_bytes`` in all.

        ``size_of`` says how many bytes a partition has within a bound, 0 when there is nothing. The first may exceed every
        bound, as a batch is never cut (KIP-74). What finds no room is served first the next time. ``among`` are those to
        look at, in this order, where the caller knows that the others have nothing; they need not be armed.
        """
        taken: list[tuple[Key, FetchPartition]] = []
        room = max_bytes
        for partition in self._armed if among is None else among:
            request = self._armed.get(partition)
            if request is None:
                continue
            size = size_of(partition, request, min(partition_bytes, room))
            if not size or (taken and size > room):
                continue
            taken.append((partition, request))
            room -= size
            if room <= 0:
                break
        self.forget(partition for partition, _ in taken)
        return taken


class ReplicaSessions(Generic[Key]):
    """The sessions of all followers."""

    def __init__(self) -> None:
        self._sessions: dict[int, ReplicaSession[Key]] = {}

    def open(self, follower: Incarnation, number: int) -> ReplicaSession[Key] | None:
        """The session of a request. A new one takes the place of the follower's older ones.

        None for a request of one that is older or has ended: bytes of a former connection that came late.
        """
        known = self._sessions.get(follower.node)
        if known is not None:
            place, opened_at = (follower.broker_epoch, number), (known.follower.broker_epoch, known.number)
            if place <= opened_at:
                return known if place == opened_at and not known.ended else None
        session: ReplicaSession[Key] = ReplicaSession(follower, number)
        self._sessions[follower.node] = session
        return session

    def all(self) -> list[ReplicaSession[Key]]:
        """Those that serve."""
        return [session for session in self._sessions.values() if not session.ended]

    def disarm(self, follower: Incarnation, partition: Key) -> None:
        """A follower was answered about a partition outside of ``take``."""
        session = self._sessions.get(follower.node)
        if session is not None:
            session.forget((partition,))
