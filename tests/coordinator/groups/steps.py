"""Steps of the group core, and topics, for tests that run it without the runtime."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.groups.config import AnyTopic, GroupStep
from coordinator.groups.core import GroupCore
from coordinator.runtime.effects import Effects, Instant, RequestContext, Step
from protocol.messages.api import Request


class FewTopics(AnyTopic):
    """Topics of which the partitions exist that ``has`` says, and which all have the same id."""

    def __init__(self, has: Callable[[str, int], bool], topic_id: str = "") -> None:
        self._has, self._topic_id = has, topic_id

    def has(self, topic: str, partition: int) -> bool:
        return self._has(topic, partition)

    def topic_id(self, topic: str) -> str:
        return self._topic_id


def decide(core: GroupCore, request: Request, context: RequestContext, now: Instant) -> Effects:
    """What the core decides about a request."""
    return core.decide(request, Step(now, core.config, context))


def step_of(core: GroupCore, now: Instant) -> GroupStep:
    """A step that no request began."""
    return Step(now, core.config)


def load(core: GroupCore, now: Instant) -> Effects:
    """The log has been replayed: what comes of it, in one go."""
    step = step_of(core, now)
    for _ in core.loaded(step):
        pass
    return step.effects
