"""What tests of ownership share: a register of who holds what, and a cooperative assignor of a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final

from client import RebalanceListener, TopicPartition
from protocol.subscription import Subscription


class Register:
    """Who holds which partition by the word of the listeners; ``faults`` names each that two held at a time."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, str] = {}
        self.faults: list[str] = []

    def listener(self, name: str) -> Registered:
        return Registered(name, self)


class Registered(RebalanceListener):
    """Enters what one consumer is told, and keeps it as ``(what, partitions)``; empty sets are left out."""

    def __init__(self, name: str, register: Register) -> None:
        self.name = name
        self.events: list[tuple[str, list[int]]] = []
        self.reasons: list[str] = []
        self._register = register

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
        for tp in tps:
            other = self._register.owners.get(tp)
            if other is not None:
                self._register.faults.append(f"{tp} came to {self.name} while {other} held it ({reason})")
            self._register.owners[tp] = self.name
        self._note("assigned", tps, reason)

    def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        self._gone(tps)
        self._note("revoked", tps, reason)

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> None:
        self._gone(tps)
        self._note("lost", tps, reason)

    def _gone(self, tps: frozenset[TopicPartition]) -> None:
        for tp in tps:
            if self._register.owners.get(tp) == self.name:
                del self._register.owners[tp]

    def _note(self, what: str, tps: frozenset[TopicPartition], reason: str) -> None:
        if tps:
            self.events.append((what, sorted(tp.partition for tp in tps)))
            self.reasons.append(reason)


class KeepingAssignor:
    """Owners keep their partitions up to a fair share; the others are dealt out at once to members that may have them."""

    name: Final = "keeping"
    cooperative: Final = True

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Subscription]] = []

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        self.asked.append(members)
        plan: dict[str, list[TopicPartition]] = {member_id: [] for member_id in sorted(members)}
        for topic in sorted(partitions):
            takers = [member_id for member_id in plan if topic in members[member_id].topics]
            free = [TopicPartition(topic, partition) for partition in range(partitions[topic])]
            share = ceil(len(free) / max(1, len(takers)))
            for member_id in takers:
                kept = [tp for tp in members[member_id].owned_partitions if tp in free][:share]
                plan[member_id] += kept
                free = [tp for tp in free if tp not in kept]
            for tp in free:
                least = min(takers, key=lambda member_id: len([tp for tp in plan[member_id] if tp.topic == topic]))
                plan[least].append(tp)
        return plan
