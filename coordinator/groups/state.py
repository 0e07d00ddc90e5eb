"""The states of a group and every way from one to another. What moves a group lives elsewhere; what may move is here.

Each state's comment is the rule book of the coordinator: what it answers, and what takes the group out of it. Checks that do
not depend on the state come first everywhere:

- an unknown group or member, and an instance id that no member has: UNKNOWN_MEMBER_ID. A pending member (KIP-394: it was
  told its id and has not joined with it yet) is unknown to everything but JoinGroup and LeaveGroup;
- an instance id that belongs to another member id: FENCED_INSTANCE_ID (KIP-345);
- another generation than the group's: ILLEGAL_GENERATION; a SyncGroup for another protocol: INCONSISTENT_GROUP_PROTOCOL;
- another transaction of the producer that has not ended here: CONCURRENT_TRANSACTIONS, or INVALID_PRODUCER_EPOCH if later;
- a join of another protocol type, or without a protocol that all others support: INCONSISTENT_GROUP_PROTOCOL.

A new member's first JoinGroup, in any state: MEMBER_ID_REQUIRED with its id, which is pending from then on. With that id, or
at once if it has an instance id, it joins; "a new member joins" below means this. A process that comes with the instance id
of a member and without a member id takes that member's place; "a static member returns" means this.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class GroupState(Enum):
    """Where a group stands; the values are Kafka's names."""

    EMPTY = "Empty"
    # No members; perhaps committed offsets, perhaps pending members.
    #   join:      a new member joins: taken in; any member id is unknown
    #   sync, heartbeat: UNKNOWN_MEMBER_ID
    #   commit:    accepted without a generation (a simple consumer, an administrator); with one, UNKNOWN_MEMBER_ID. In a
    #              transaction alike; without generation and member it is accepted in all states
    #   leave:     UNKNOWN_MEMBER_ID; a pending member gives back its id
    #   delete:    the group, with everything it has; single offsets too. NON_EMPTY_GROUP while it has pending members
    #   transition: a new member joins -> PreparingRebalance
    #               deleted or expired, or its last pending member goes and the log has nothing of it -> Dead

    PREPARING_REBALANCE = "PreparingRebalance"
    # Members are called to join again; the JoinGroups of those that did are pending.
    #   join:      pending, also a new member's, also a returning static member's, whose place's pending requests are fenced;
    #              with group_max_size members joined, GROUP_MAX_SIZE_REACHED for one more, who is a member no longer
    #   sync:      REBALANCE_IN_PROGRESS, session renewed
    #   heartbeat: REBALANCE_IN_PROGRESS, session renewed; of a member with a pending JoinGroup: NONE, or pending
    #   commit:    accepted for the generation that ends, so that members can commit before they give up partitions
    #   leave:     the member is removed, or the pending one forgotten
    #   delete:    NON_EMPTY_GROUP; offsets of topics that no member offers to read
    #   transition: every member has joined, pending ones too unless the connection that asked for the id has closed, and no
    #               initial delay runs -> CompletingRebalance
    #               the rebalance timeout passed: dynamic members that have not joined are removed -> CompletingRebalance,
    #               or the phase begins anew if only static members are left and none has joined
    #               no member is left -> Empty

    COMPLETING_REBALANCE = "CompletingRebalance"
    # The generation has its members and leader; the leader's assignment is awaited.
    #   join:      unchanged metadata: the answer again (it may have been lost); changed, new or a static member that
    #              returns: a new rebalance. A new one beyond group_max_size: GROUP_MAX_SIZE_REACHED
    #   sync:      pending; the leader's is written and answers all
    #   heartbeat: NONE, or pending
    #   commit:    REBALANCE_IN_PROGRESS; in a transaction accepted (KIP-447)
    #   leave:     the member is removed; a pending one is forgotten
    #   delete:    NON_EMPTY_GROUP; offsets of topics that no member subscribes to
    #   transition: the leader's sync -> Stable
    #               a member joins, changes, returns, leaves, misses its session or its sync -> PreparingRebalance

    STABLE = "Stable"
    # Every member has its assignment, and all of it is in the log.
    #   join:      a follower with unchanged metadata: the current generation; leader, change or new member: a rebalance;
    #              a new one beyond group_max_size: GROUP_MAX_SIZE_REACHED. A static member that returns and wants what it
    #              had: its new id is written, then the current generation, and no assignment asked of a leader (KIP-814)
    #   sync:      the assignment
    #   heartbeat: NONE, or pending
    #   commit:    accepted
    #   leave:     the member is removed; a pending one is forgotten
    #   delete:    NON_EMPTY_GROUP; offsets of topics that no member subscribes to
    #   transition: the leader joins, a member joins, changes, returns changed, leaves, misses its session or its sync
    #               -> PreparingRebalance; so does a group that is loaded with more than group_max_size members

    DEAD = "Dead"
    # Dropped from memory; no request finds it any more, so its members are unknown and a new one makes the group anew.
    # DescribeGroups shows a group that does not exist in this state. (Kafka's Dead groups answer COORDINATOR_NOT_AVAILABLE:
    # there a request may hold a group that another thread drops.)
    #   transition: none


TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD},
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""From each state, the states a group may go to. Anything else is a bug and stops the shard. A group is born Empty; one that
is loaded with members is born Stable."""


@dataclass(slots=True)
class InitialDelay:
    """How long the first generation is still held back, in ms."""

    configured_ms: int
    delay_ms: int
    """The delay that is running."""
    remaining_ms: int
    """How much longer it may be made after it, as long as members keep coming."""
    more_came: bool = False
    """A member joined while it was running."""
