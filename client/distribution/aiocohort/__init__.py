"""Cohort: Kafka's consumer groups for asyncio programs. This is the package that programs import.

::

    from aiocohort import Admin, Cluster, Consumer, Coordinator, Member, Producer

``aiocohort.errors`` has every error, ``aiocohort.spark`` the session and the errors of ``format("cohort")``,
``aiocohort.testing`` the pytest fixtures. Each name is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client import *  # noqa: F403 - hands on all of the client's surface, which has a list of its own
    from coordinator import Cluster as Cluster
    from coordinator import Coordinator as Coordinator

_OF_THE_DAEMON = ("Cluster", "Coordinator")


def __getattr__(name: str) -> Any:
    """Loads a public name from the package that has it. Raises ``ForeignModuleError`` when that one is not Cohort's."""
    if name == "__all__":
        return __dir__()
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aiocohort.own_packages import require_own_packages

    require_own_packages()
    owner = import_module("coordinator" if name in _OF_THE_DAEMON else "client")
    if name not in owner.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(owner, name)
    return found


def __dir__() -> list[str]:
    import client

    return sorted([*client.__all__, *_OF_THE_DAEMON])
