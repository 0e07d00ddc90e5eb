"""The coordinator daemon: pure cores for groups, offsets and logs inside a thin asyncio shell.

``from coordinator import Coordinator`` runs one inside another program, ``Cluster`` several; ``cohortd`` runs it on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.cluster import Cluster
    from coordinator.embedded import Coordinator

__all__ = ["Cluster", "Coordinator"]


def __getattr__(name: str) -> Any:
    """Loads the daemon when it is asked for: pytest looks into this package in every project it is installed beside."""
    if name == "Coordinator":
        from coordinator.embedded import Coordinator

        return Coordinator
    if name == "Cluster":
        from coordinator.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
