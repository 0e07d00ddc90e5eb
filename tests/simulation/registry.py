"""The one place where workloads, faults and invariants are registered.

A new one is a function with the decorator; every seed may draw it from then on. Adding one changes what seeds mean, so
``regressions.txt`` keeps the names a seed had drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.world import World

Workload = Callable[["World"], Coroutine[Any, Any, None]]
"""Starts programs on hosts and goes on until ``world.calm`` is set."""
Fault = Callable[["World"], Coroutine[Any, Any, None]]
"""Does one harm, and mends it when it is one that lasts."""
Invariant = Callable[["History"], Iterator[str]]
"""Tells each way in which the history breaks it."""

Entry = TypeVar("Entry", bound=Callable[..., Any])

WORKLOADS: dict[str, Workload] = {}
FAULTS: dict[str, Fault] = {}
CLUSTER_WORKLOADS: dict[str, Workload] = {}
"""What histories of several nodes draw from: some of the others, and their own."""
CLUSTER_FAULTS: dict[str, Fault] = {}
INVARIANTS: dict[str, Invariant] = {}


def workload(function: Entry) -> Entry:
    """Registers a workload under its name."""
    WORKLOADS[function.__name__] = function
    return function


def fault(function: Entry) -> Entry:
    """Registers a fault under its name."""
    FAULTS[function.__name__] = function
    return function


def cluster_workload(function: Entry) -> Entry:
    """Registers a workload for several nodes."""
    CLUSTER_WORKLOADS[function.__name__] = function
    return function


def cluster_fault(function: Entry) -> Entry:
    """Registers a fault of one of several nodes, or of what is between them."""
    CLUSTER_FAULTS[function.__name__] = function
    return function


def invariant(function: Entry) -> Entry:
    """Registers an invariant under its name."""
    INVARIANTS[function.__name__] = function
    return function
