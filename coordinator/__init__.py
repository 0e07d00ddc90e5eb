"""The coordinator daemon: pure cores for groups, offsets and logs inside a thin asyncio shell.

``from coordinator import Coordinator`` runs one inside another program; ``cohortd`` runs it on its own.
"""

from coordinator.embedded import Coordinator

__all__ = ["Coordinator"]
