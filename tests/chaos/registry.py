"""The faults there are: each is one function, registered here, that hurts the world and heals it afterwards.

It does so after ``duration_s``. ``pick`` is a number from 0 to 1 that chooses the victim. ``breaks`` says that requests may
fail while the fault lasts, so that a producer that does not number its batches may have sent a record twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tests.chaos.world import World

Act = Callable[[World, float, float], Awaitable[str]]
LEFT_OUT: Final = ""
"""What a fault returns that has hit nothing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind: what it does, and between how many seconds it is drawn to last."""

    name: str
    act: Act
    breaks: bool
    low_s: float
    high_s: float


FAULTS: Final[dict[str, Fault]] = {}


def fault(*, breaks: bool, low_s: float = 0.5, high_s: float = 3.0) -> Callable[[Act], Act]:
    """Registers a fault under its function's name. The function returns whom it hit, or ``LEFT_OUT``."""

    def register(act: Act) -> Act:
        name = act.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, act, breaks, low_s, high_s)
        return act

    return register
