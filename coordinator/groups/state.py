"""The states of a group and every way from one to another. What moves a group lives elsewhere; what may move is here.

Each state's comment is the rule book of the coordinator: what it answers, and what takes the group out of it. Checks that do
not depend on the state come first everywhere: an unknown group or member is answered UNKNOWN_MEMBER_ID, a wrong generation
ILLEGAL_GENERATION.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class GroupState(Enum):
    """Where a group stands; the values are Kafka's names."""

    EMPTY = "Empty"
    # No members; perhaps committed offsets.
    #   join:      a new member is taken in; any member id is unknown
    #   sync, heartbeat, leave: UNKNOWN_MEMBER_ID
    #   commit:    accepted without a generation (a simple consumer, an administrator); with one, UNKNOWN_MEMBER_ID
    #   transition: a member joins -> PreparingRebalance

    PREPARING_REBALANCE = "PreparingRebalance"
    # Members are called to join again; those that did wait parked in JoinGroup.
    #   join:      parked, also a new member's
    #   sync:      REBALANCE_IN_PROGRESS
    #   heartbeat: REBALANCE_IN_PROGRESS, session renewed; a member parked in JoinGroup has nothing to do: NONE, or parked
    #   commit:    accepted for the generation that ends, so that members can commit before they give up partitions
    #   leave:     the member is removed
    #   transition: every member has joined, or the rebalance timeout passed (the others are removed) -> CompletingRebalance
    #               no member is left -> Empty

    COMPLETING_REBALANCE = "CompletingRebalance"
    # The generation has its members and leader; the leader's assignment is awaited.
    #   join:      unchanged metadata: the answer again (it may have been lost); changed or new: a new rebalance
    #   sync:      parked; the leader's is written and answers all
    #   heartbeat: NONE, or parked
    #   commit:    REBALANCE_IN_PROGRESS
    #   leave:     the member is removed
    #   transition: the leader's sync -> Stable
    #               a member joins, changes, leaves, misses its session or its sync -> PreparingRebalance

    STABLE = "Stable"
    # Every member has its assignment, and all of it is in the log.
    #   join:      a follower with unchanged metadata: the current generation; leader, change or new member: a rebalance
    #   sync:      the assignment
    #   heartbeat: NONE, or parked
    #   commit:    accepted
    #   leave:     the member is removed
    #   transition: the leader joins, a member joins, changes, leaves, misses its session or its sync -> PreparingRebalance

    DEAD = "Dead"
    # Dropped from memory; no request finds it any more. DescribeGroups shows a group nobody knows in this state.
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
