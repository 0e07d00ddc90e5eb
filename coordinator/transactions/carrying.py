"""Carried partitions: the decision about an ordinary transaction writes the member of the next one with the same partitions.

So the next transaction of a producer that writes where it wrote before waits for no record of this log: its first write in a
partition that is carried is taken as soon as the coordinator is asked. A transaction with partitions that are carried counts
as not open until that happens, and is given up when it does not happen for ``carried_ms``; the producer does not notice.
When it ends, each partition gets an end marker, which appends nothing where nothing was written.

Whether something was written is not on disk. So after a load such a transaction counts as open, until those who lead its
partitions have all said that it is not: a producer at rest must not lose its epoch to a timeout, or it could not learn how
the transaction before ended when that answer was lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coordinator.transactions.config import TransactionStep
from coordinator.transactions.orders import FindOpen, MarkerPartition, TransactionName
from coordinator.transactions.records import NOT_STARTED, Identity, IdentityRecord, MemberRecord, MemberTombstone
from coordinator.transactions.transaction import TIMEOUT, TransactionalId, Transactions, stop_timeout
from protocol.messages.transactions import NO_VERSION, TransactionTopic

MAX_CARRIED: Final = 128
"""A transaction that wrote to more partitions carries none: each makes a decision longer, and gets a marker."""


def touch(state: TransactionalId, topics: Iterable[TransactionTopic]) -> None:
    """A write to these partitions is admitted."""
    touched = state.touched
    for topic in topics:
        for partition in topic.partitions:
            if len(touched) > MAX_CARRIED:
                return
            touched.add((topic.topic_id, partition))


def begin(state: TransactionalId, step: TransactionStep) -> None:
    """The current transaction is open from now on."""
    state.carried = False
    state.open_since_wall_ms = step.now.wall_ms


def carry(state: TransactionalId, following: IdentityRecord, step: TransactionStep) -> None:
    """An ordinary transaction is decided: where it wrote is carried to the one of ``following``.

    Partitions that it only took over from the one before are not: they would be carried for ever.
    """
    topics = _touched(state)
    if topics:
        record = MemberRecord(
            state.transactional_id,
            following.identity,
            following.producer_id,
            "",
            NOT_STARTED,
            NO_VERSION,
            topics,
        )
        step.effects.records.append(record)
        _keep(state, step)


def look(state: TransactionalId, step: TransactionStep) -> None:
    """After a load: has those asked who know whether the current transaction is open, if it may be or not."""
    name = state.identity.identity
    if is_unsure(state, name):
        topics = state.current_members[name.producer_id].topics
        places = [
            MarkerPartition(topic.name, topic.topic_id, partition) for topic in topics for partition in topic.partitions
        ]
        step.effects.order(FindOpen(state.transactional_id, *name, tuple(places)))


def is_unsure(state: TransactionalId, name: Identity) -> bool:
    """Whether nothing is known of this transaction but that it has carried partitions."""
    if name != state.identity.identity or state.carried or state.touched:
        return False
    member = state.current_members.get(name.producer_id)
    return member is not None and member.started_wall_ms == NOT_STARTED


def not_open(transactions: Transactions, name: TransactionName, step: TransactionStep) -> None:
    """The transaction is open in none of its partitions: it is one to which partitions are carried."""
    state = transactions.get(name.transactional_id)
    if state is not None and is_unsure(state, Identity(name.producer_id, name.producer_epoch)):
        state.overdue = False
        _keep(state, step)


def _keep(state: TransactionalId, step: TransactionStep) -> None:
    state.carried = True
    state.deadline_ms = step.effects.timers[TIMEOUT, state.transactional_id] = step.now.ms + step.config.carried_ms


def give_up(state: TransactionalId, step: TransactionStep) -> None:
    """What is carried to the current transaction is not needed: nothing was written, so no marker is."""
    if state.carried:
        state.carried = False
        name = state.identity.identity
        step.effects.records += [
            MemberTombstone(state.transactional_id, name, member) for member in state.current_members
        ]
        stop_timeout(state, step)


def _touched(state: TransactionalId) -> tuple[TransactionTopic, ...]:
    touched = state.touched
    if not 0 < len(touched) <= MAX_CARRIED:
        return ()
    (member,) = state.current_members.values()
    if len(touched) == sum(len(topic.partitions) for topic in member.topics):
        return member.topics  # a producer in a loop: the same tuple again and again
    some = (
        TransactionTopic(name, topic_id, tuple([one for one in partitions if (topic_id, one) in touched]))
        for name, topic_id, partitions in ((topic.name, topic.topic_id, topic.partitions) for topic in member.topics)
    )
    return tuple(topic for topic in some if topic.partitions)
