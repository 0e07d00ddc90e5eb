"""What a program may want to hear about its partitions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Final

from protocol.subscription import TopicPartition


class RebalanceListener:
    """Told when partitions come and go. Override what you need, as plain functions or as coroutines.

    An object of another class that has some of these methods is a listener too; what it lacks does nothing.

    They run on the event loop the consumer was started on, one at a time. ``reason`` says why the group rebalanced: who
    joined, left, or missed which deadline. An exception out of a listener does not stop the rebalance; the next call on
    the consumer raises it. Committing, ``seek`` and ``position`` are fine inside; asking for records is not.
    """

    def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> Awaitable[None] | None:
        """Before ``tps`` go to other members. No record of theirs is handed out any more; offsets can still be committed.

        All partitions at every rebalance. With cooperative assignors, and with any while ``process`` runs, only those that
        go, and nothing is called when none do.
        """

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> Awaitable[None] | None:
        """After ``tps`` came to this member and before the first of their records is handed out.

        Called at the end of every rebalance. With cooperative assignors, and with any while ``process`` runs, ``tps`` are
        those that came in addition, and may be none; a partition that changes hands comes with a second rebalance, after its
        former owner has given it up.
        """

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> Awaitable[None] | None:
        """``tps`` belong to others already (KIP-429): stop work on them; a commit would be refused."""


CALLBACKS: Final = ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost")


def check_listener(listener: object) -> None:
    """Raises ``TypeError`` unless ``listener`` has one of the three methods, and each it has takes what it is given."""
    if isinstance(listener, type):
        raise TypeError(f"the listener is the class {listener.__name__}: pass an instance of it, {listener.__name__}()")
    methods = {name: getattr(listener, name) for name in CALLBACKS if hasattr(listener, name)}
    if not methods:
        raise TypeError(
            f"a {type(listener).__name__} is no rebalance listener: it has none of {', '.join(CALLBACKS)}. Derive it from "
            "RebalanceListener"
        )
    for name, method in methods.items():
        problem = _problem(method)
        if problem is not None:
            raise TypeError(
                f"{name} of {type(listener).__name__} {problem}: it is called with the partitions and with the reason of "
                f"the rebalance, as in def {name}(self, tps, reason)"
            )


def listener_method(listener: object, name: str) -> Callable[..., Awaitable[None] | None] | None:
    """One of a listener's methods, ``None`` when it does not have it."""
    method: Callable[..., Awaitable[None] | None] | None = getattr(listener, name, None)
    return method


def _problem(method: object) -> str | None:
    """Why ``method`` cannot be called with two arguments, if that can be told before it is called."""
    if not callable(method):
        return f"is {method!r}, which cannot be called"
    try:
        signature = inspect.signature(method)
    except ValueError:  # some that are written in C do not tell
        return None
    try:
        signature.bind(frozenset(), "")
    except TypeError as error:
        return f"takes {signature} ({error})"
    return None
