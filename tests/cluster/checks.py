"""What must hold of a history on a cluster: the chaos runs' checks, for what a cluster promises.

A record that was acknowledged with ``acks=1`` is on its leader's disk alone, and may go with it at a failover: such a one
counts as not acknowledged here, if it is gone and something had broken requests. Groups have never seen it, as readers get
what all replicas in sync have; what a group was given has to be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.chaos import checks
from tests.chaos.history import History, Send

_FAILOVER_S: Final = 20.0
"""A replica that has not heard of its leader's end for so long would have been told long since."""


def violations(
    history: History, of_clients: Callable[[History], dict[str, list[str]]] = checks.violations
) -> dict[str, list[str]]:
    """Every check's name with what it found; ``of_clients`` has those of one node, by default for Cohort's clients."""
    for send in lost_with_the_leader(history):
        send.offset, send.tp, send.error = -1, "", "lost with its leader"
    return {**of_clients(history), "delivered and gone": _delivered_and_gone(history)}


def lost_with_the_leader(history: History) -> list[Send]:
    """Records of ``acks=1`` that were acknowledged and are gone, where a fault can have done that."""
    return [
        send
        for send in history.sends
        if send.acknowledged
        and send.producer not in history.once
        and history.log.get(send.tp, {}).get(send.offset) != send.value
        and history.hit_between(send.started - _FAILOVER_S, send.answered + _FAILOVER_S)
    ]


def _delivered_and_gone(history: History) -> list[str]:
    """What a group was given is there for a reader from the beginning."""
    return [
        f"{value} was given to {period.member} at {period.tp}@{offset}, where there is "
        f"{history.log.get(period.tp, {}).get(offset)}"
        for period in history.periods
        for _, offset, value in period.deliveries
        if history.log and history.log.get(period.tp, {}).get(offset) != value
    ]
