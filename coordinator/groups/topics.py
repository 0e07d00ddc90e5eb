"""What the group core asks about topics: a seam, as the catalog of topics is no part of it."""

from __future__ import annotations

from typing import Protocol


class Topics(Protocol):
    """The topics that there are when a request is decided."""

    def has(self, topic: str, partition: int) -> bool:
        """Whether a topic has a partition of this number."""

    def topic_id(self, topic: str) -> str:
        """The id of a topic that exists; "" where topics have no ids."""

    def is_gone(self, topic: str, topic_id: str) -> bool:
        """Whether the topic for which an offset was committed has been deleted, also when another has its name now.

        ``topic_id`` is "" for an offset written by version 0.1.
        """


class AnyTopic:
    """Topics of which every partition exists and none is ever deleted."""

    def has(self, topic: str, partition: int) -> bool:
        """Every partition exists."""
        return True

    def topic_id(self, topic: str) -> str:
        """They have no ids."""
        return ""

    def is_gone(self, topic: str, topic_id: str) -> bool:
        """None is."""
        return False
