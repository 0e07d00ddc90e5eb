"""Leaders and followers by hand: logs in memory, fetches that are carried out step by step."""

from __future__ import annotations

from coordinator.replication.fetch import FetchAnswer, FetchPartition
from coordinator.replication.follower import Follower
from coordinator.replication.leader import Leader
from coordinator.replication.log import AppendAsFollower, ResetTo, TruncateTo
from coordinator.replication.partition import Incarnation, LiveNode, PartitionRegistration, ReplicationConfig
from tests.simulation.replicas.log import SimLog

CONFIG = ReplicationConfig(replica_lag_time_max_ms=1_000, delete_retention_ms=60_000)
A, B, C = Incarnation(1, 11), Incarnation(2, 12), Incarnation(3, 13)
LIVE = {node: LiveNode(broker_epoch, 1) for node, broker_epoch in (A, B, C)}
MOST = 100


def registration(
    leader: Incarnation = A, leader_epoch: int = 1, isr: tuple[Incarnation, ...] = (A, B, C), min_isr: int = 2
) -> PartitionRegistration:
    """Of three replicas."""
    return PartitionRegistration((1, 2, 3), leader, leader_epoch, dict(isr), min_isr)


def log_of(*epochs: int, start_offset: int = 0) -> SimLog:
    """A log whose records, one a batch, are of these epochs; all of it is on disk."""
    log = SimLog()
    log.reset_to(start_offset)
    log.clean_until = 0
    for epoch in epochs:
        log.begin_epoch(epoch)
        log.append([(log.end_offset, epoch)])
        log.write()
        log.flush()
    return log


def leads(log: SimLog, *, registered: PartitionRegistration | None = None, high_watermark: int = 0) -> Leader:
    """The leader of a registration, with its epoch begun."""
    registered = registration() if registered is None else registered
    assert registered.leader is not None
    log.begin_epoch(registered.leader_epoch)
    return Leader(registered.leader, registered, 100, log, CONFIG, 0, high_watermark=high_watermark)


def follows(log: SimLog, me: Incarnation = B, leader_epoch: int = 1, caught_up_ms: int | None = 0) -> Follower:
    """A follower of a leader epoch."""
    return Follower(me, leader_epoch, log, CONFIG, caught_up_ms=caught_up_ms)


def write(log: SimLog, records: int = 1) -> None:
    """The leader appends records, a batch each, and has them on disk."""
    for _ in range(records):
        log.append([(log.end_offset, log.epochs.latest)])
    log.write()
    log.flush()


def serve(leader: Leader, log: SimLog, request: FetchPartition, now_ms: int = 0, most: int = MOST) -> FetchAnswer:
    """What the leader's node answers, records and all."""
    answer = leader.fetch(request, LIVE, now_ms)
    if answer.error_code or answer.diverging_end >= 0:
        return answer
    records = log.read(request.fetch_offset, leader.readable_end, most)
    end = records[-1].next_offset if records else request.fetch_offset
    return answer._replace(records=records, epochs=log.epochs.within(request.fetch_offset, end))


def apply(follower: Follower, log: SimLog, answer: FetchAnswer, now_ms: int = 0) -> object:
    """What a follower's node does with an answer; returns the order."""
    current = follower.is_current(answer)
    order = follower.answered(answer, now_ms)
    match order:
        case TruncateTo():
            log.truncate_to(order.offset)
        case ResetTo():
            log.reset_to(order.offset)
        case AppendAsFollower():
            log.append_as_follower(order.records, order.epochs)
            log.flush()
    if current and not isinstance(order, TruncateTo | ResetTo):
        deletion = follower.done(answer)
        if deletion is not None:
            log.delete_before(deletion.offset)
    return order


def replicate(
    leader: Leader, log: SimLog, follower: Follower, copy: SimLog, now_ms: int = 0, most: int = MOST
) -> list[object]:
    """Fetches until nothing new comes; returns the orders that were carried out."""
    orders: list[object] = []
    for _ in range(200):
        request = follower.fetch(now_ms)
        assert request is not None
        order = apply(follower, copy, serve(leader, log, request, now_ms, most), now_ms)
        if order is None:
            return orders
        orders.append(order)
    raise AssertionError(f"a follower never comes to an end: {orders[-4:]}")
