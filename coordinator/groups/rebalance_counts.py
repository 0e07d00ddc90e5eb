"""How often groups rebalance and why, as numbers: the sentences that say why are for people, these are for graphs."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal, get_args

from coordinator.groups.rebalance_history import RebalanceHistory
from coordinator.histogram import REBALANCE_SECONDS, Histogram

RebalanceKind = Literal[
    "member_joined",
    "member_left",
    "member_changed",
    "static_member_restarted",
    "leader_asked",
    "session_timeout",
    "rebalance_timeout",
    "sync_timeout",
    "group_full",
]
"""What began a rebalance. ``member_changed``: a member offers other topics or protocols. ``member_left``: by itself, or an
administrator removed it. Causes that come while a rebalance goes on do not count: it is the same rebalance."""

REBALANCE_KINDS: Final[tuple[str, ...]] = get_args(RebalanceKind)


class RebalanceCounts:
    """Counts the rebalances of all groups of a node since it started; a coordinator that is loaded anew counts on."""

    def __init__(self, history: RebalanceHistory | None = None) -> None:
        self.history = history
        """Where each rebalance is noted; None where no page asks for it."""
        self.begun: Counter[str] = Counter(dict.fromkeys(REBALANCE_KINDS, 0))
        self.seconds = Histogram(REBALANCE_SECONDS)
        """From the first cause until the leader's assignment is decided, or until the group is empty."""

    def begin(self, kind: RebalanceKind) -> None:
        """A group was stable or empty, and rebalances."""
        self.begun[kind] += 1

    def end(self, took_ms: int) -> None:
        """A rebalance has come to its end."""
        self.seconds.observe(took_ms / 1000)
