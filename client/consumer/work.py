"""What a consumer asks of the program's work on records when their partitions go away."""

from __future__ import annotations

from typing import Protocol

from client.deadline import Deadline
from protocol.subscription import TopicPartition


class Work(Protocol):
    """Tasks that work on records, known by the partitions of these. Called on the user's loop; neither call raises."""

    async def wind_down(self, tps: frozenset[TopicPartition], deadline: Deadline) -> None:
        """``tps`` are about to be given up: returns when no task works on them any more.

        Tasks may finish until ``deadline`` and are cancelled then. What was finished counts as done before this returns,
        so that the commit which follows covers it; what was cancelled does not. No new task begins on ``tps``.
        """
        ...

    def abandon(self, tps: frozenset[TopicPartition]) -> None:
        """``tps`` belong to others already: cancels their tasks at once. Nothing of theirs can be committed any more."""
        ...
