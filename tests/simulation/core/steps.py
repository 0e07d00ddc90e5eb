"""What one step may do to a group."""

from __future__ import annotations

from typing import Final

from coordinator.groups.state import GroupState

_E, _P, _C, _S = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
)

STEPS: Final = frozenset(
    {
        *((state, state, 0) for state in (_E, _P, _C, _S)),
        (_E, _C, 1),  # the first member joins; no other member is waited for
        (_E, _P, 0),  # the first member joins, and others have been given their ids
        (_P, _C, 1),  # the last one joins, or the others are removed
        (_P, _E, 1),  # the last member goes
        (_C, _S, 0),  # the leader shares out
        (_C, _P, 0),
        (_S, _P, 0),  # somebody comes, goes or changes, and others are waited for
        (_C, _C, 1),
        (_S, _C, 1),  # the same, and no member has to be waited for
        (_C, _E, 1),
        (_S, _E, 1),  # the only member goes
    }
)
"""What one decision may do to a group: state before, state after, and by how much the generation grew. Written down apart
from the core's table."""
