"""What the controller decides about one partition: elections, moves of leaders that stop, steps of a reassignment; pure.

Each decision is one conditional write. ``decide`` looks at one partition as it is and knows no former decision, so that a
controller that starts anew, or one that lost a race, decides from what holds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from coordinator.replication.partition import Incarnation, LiveNode, PartitionRegistration

Key = TypeVar("Key", bound=Hashable)
Live = Mapping[int, LiveNode]


class PartitionView(NamedTuple):
    """A partition as the metadata has it; ``target`` are the replicas of a reassignment, None without one."""

    registration: PartitionRegistration
    partition_epoch: int
    target: tuple[int, ...] | None = None


class PartitionUpdate(NamedTuple, Generic[Key]):
    """A conditional write: who writes is the controller, the key is of ``partition_epoch``, and ``elected``, where a leader
    is, is alive in this incarnation. ``ends_reassignment`` removes the target with it."""

    partition: Key
    registration: PartitionRegistration
    partition_epoch: int
    elected: Incarnation | None
    reason: str
    ends_reassignment: bool = False


def plan(partitions: Iterable[tuple[Key, PartitionView]], live: Live) -> list[PartitionUpdate[Key]]:
    """What is to be written about these partitions now. More may follow once that is done."""
    updates = []
    for partition, view in partitions:
        update = decide(partition, view, live)
        if update is not None:
            updates.append(update)
    return updates


def decide(partition: Key, view: PartitionView, live: Live) -> PartitionUpdate[Key] | None:
    """The next write about one partition, None if there is nothing to do."""
    known = view.registration
    if not has_leader(known, live):
        elected = elect(known, live, candidates(known, live))
        if elected is not None:
            return _update(partition, view, elected, "the leader is gone")
        if known.leader is None:
            return None
        return _update(partition, view, replace(known, leader=None), "the leader is gone, and none may be elected")
    assert known.leader is not None
    if not live[known.leader.node].accepting:
        others = [node for node in candidates(known, live) if live[node].accepting and node != known.leader.node]
        elected = elect(known, live, others)
        if elected is not None:
            return _update(partition, view, elected, "the leader stops")
    draining = [node for node in known.isr if node in live and not live[node].accepting and node != known.leader.node]
    isr = _without(known, draining)
    if len(isr) < len(known.isr):
        return _update(partition, view, replace(known, isr=isr), "an in-sync replica stops")
    return _reassign(partition, view, live)


def prefer(partition: Key, view: PartitionView, live: Live) -> PartitionUpdate[Key] | None:
    """The leadership goes back to the first of the replicas, where that may lead and does not stop."""
    known = view.registration
    first = known.replicas[0]
    if view.target is not None or known.leader is None or known.leader.node == first or not has_leader(known, live):
        return None
    if not is_eligible(known, first, live) or not live[first].accepting:
        return None
    elected = elect(known, live, [first])
    return None if elected is None else _update(partition, view, elected, "the preferred replica leads")


def with_minimum(partition: Key, view: PartitionView, minimum: int) -> PartitionUpdate[Key] | None:
    """As many replicas have to be in sync as its topic says now; more of them once so many are."""
    known = view.registration
    if minimum == known.min_isr or (minimum > known.min_isr and len(known.isr) < minimum):
        return None
    return _update(partition, view, replace(known, min_isr=minimum), "the topic's minimum changed")


def has_leader(known: PartitionRegistration, live: Live) -> bool:
    """Whether the leader is alive, in the incarnation that was elected."""
    return known.leader is not None and _lives(known.leader, live)


def _lives(incarnation: Incarnation, live: Live) -> bool:
    node = live.get(incarnation.node)
    return node is not None and node.broker_epoch == incarnation.broker_epoch


def candidates(known: PartitionRegistration, live: Live) -> list[int]:
    """Who may lead without loss, the preferred first: in sync, alive, and with all that it had when it joined.

    A single replica always may: what it has is all there is. Those that stop come last.
    """
    if len(known.replicas) == 1 and not known.adding and known.replicas[0] in live:
        return list(known.replicas)
    found = [node for node in (*known.replicas, *known.adding) if is_eligible(known, node, live)]
    return sorted(found, key=lambda node: not live[node].accepting)


def is_eligible(known: PartitionRegistration, node: int, live: Live) -> bool:
    """Whether a node has every record that was committed."""
    return node in known.isr and node in live and known.isr[node] >= live[node].clean_since


def elect(known: PartitionRegistration, live: Live, found: list[int]) -> PartitionRegistration | None:
    """The partition led by the first of ``found``, in an epoch of its own. Dead members leave down to the minimum."""
    if not found:
        return None
    leader = Incarnation(found[0], live[found[0]].broker_epoch)
    isr = {**known.isr, leader.node: leader.broker_epoch}
    dead = [node for node in sorted(isr) if node not in live]
    for node in dead[: max(0, len(isr) - known.min_isr)]:
        del isr[node]
    return replace(known, leader=leader, leader_epoch=known.leader_epoch + 1, isr=isr)


def elect_unclean(
    known: PartitionRegistration, live: Live, ends: Mapping[int, tuple[int, int]]
) -> PartitionRegistration | None:
    """What an administrator asks for when no candidate will come back: records that were committed may be lost.

    ``ends`` has the last epoch and the end of the logs of live replicas; the largest leads, and is the only one in sync.
    """
    found = sorted((ends[node], -node) for node in known.replicas if node in live and node in ends)
    if not found:
        return None
    leader = Incarnation(-found[-1][1], live[-found[-1][1]].broker_epoch)
    return replace(known, leader=leader, leader_epoch=known.leader_epoch + 1, isr={leader.node: leader.broker_epoch})


def _reassign(partition: Key, view: PartitionView, live: Live) -> PartitionUpdate[Key] | None:
    """Replicas are added, become in sync, and then the others go: first the leadership, then the rest at once."""
    known, target = view.registration, view.target
    if target is None or target == known.replicas:
        if not known.adding and target is None:
            return None
        leaving = [node for node in known.isr if node not in known.replicas]
        return _leave(partition, view, live, known.replicas, leaving, "nothing is to be reassigned")
    staying = (node for node in known.adding if node in known.isr and node not in target)
    adding = (*(node for node in target if node not in known.replicas), *staying)  # who is in sync goes at the end only
    if known.adding != adding:
        return _update(partition, view, with_replicas(known, known.replicas, adding), "a reassignment begins")
    if not all(is_eligible(known, node, live) for node in target):
        return None
    leaving = [node for node in known.isr if node not in target]
    return _leave(partition, view, live, target, leaving, "the reassignment is done")


def with_replicas(
    known: PartitionRegistration, replicas: tuple[int, ...], adding: tuple[int, ...]
) -> PartitionRegistration:
    """The partition with other replicas. When one goes an epoch begins, with the same leader.

    A follower that has not heard yet that it goes would otherwise still be believed: were it added again it might join the
    in-sync replicas, and then hear of the former state, and remove its log.
    """
    changed = replace(known, replicas=replicas, adding=adding)
    goes = any(not changed.has(node) for node in (*known.replicas, *known.adding))
    return replace(changed, leader_epoch=known.leader_epoch + 1) if goes else changed


def _leave(
    partition: Key, view: PartitionView, live: Live, replicas: tuple[int, ...], leaving: list[int], reason: str
) -> PartitionUpdate[Key] | None:
    known = view.registration
    assert known.leader is not None
    if known.leader.node not in replicas:
        elected = elect(known, live, [node for node in candidates(known, live) if node in replicas])
        return None if elected is None else _update(partition, view, elected, "the leader's replica goes")
    isr = {node: broker_epoch for node, broker_epoch in known.isr.items() if node not in leaving}
    if len(isr) < min(known.min_isr, len(replicas)):
        return None
    done = with_replicas(replace(known, isr=isr), replicas, ())
    return _update(partition, view, done, reason)._replace(ends_reassignment=view.target is not None)


def _without(known: PartitionRegistration, leaving: list[int]) -> dict[int, int]:
    isr = dict(known.isr)
    for node in leaving[: max(0, len(isr) - known.min_isr)]:
        del isr[node]
    return isr


def _update(
    partition: Key, view: PartitionView, registration: PartitionRegistration, reason: str
) -> PartitionUpdate[Key]:
    elected = registration.leader if registration.leader_epoch != view.registration.leader_epoch else None
    return PartitionUpdate(partition, registration, view.partition_epoch, elected, reason)
