"""Steps of the group core for those who run it without the runtime."""

from __future__ import annotations

from coordinator.groups.config import GroupStep
from coordinator.groups.core import GroupCore
from coordinator.runtime.effects import Effects, Instant, Step


def step_of(core: GroupCore, now: Instant) -> GroupStep:
    """A step that no request began."""
    return Step(now, core.config)


def load(core: GroupCore, now: Instant) -> Effects:
    """The log has been replayed: what comes of it, in one go."""
    step = step_of(core, now)
    for _ in core.loaded(step):
        pass
    return step.effects
