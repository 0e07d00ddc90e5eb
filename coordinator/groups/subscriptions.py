"""The topics that the members of a group subscribe to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coordinator.groups.group import Group
from coordinator.groups.state import GroupState
from protocol.errors import ProtocolError
from protocol.subscription import CONSUMER_PROTOCOL_TYPE, decode_topics

_BYTES_PER_MEMBER: Final = 200
"""What reading one subscription costs whatever its size, as bytes that could be read in the same time."""


class Subscriptions:
    """The topics that the members of a group subscribe to, read bit by bit: ten thousand members take a while.

    In a generation the protocol that was chosen counts; while a rebalance has not chosen one, all that members offer.
    """

    __slots__ = ("_blobs", "_protocol_name", "_version", "complete", "everything", "topics")

    def __init__(self, group: Group) -> None:
        self.topics: set[str] = set()
        self.everything = bool(group.members) and group.protocol_type != CONSUMER_PROTOCOL_TYPE
        """Whether some member's subscription is not known, so that every topic counts."""
        self.complete = self.everything
        self._version = group.protocols_version
        self._protocol_name = _chosen(group)
        self._blobs = _blobs(group, self._protocol_name)

    def current(self, group: Group) -> bool:
        """Whether the members still offer what they offered when the reading began."""
        return self._version == group.protocols_version and self._protocol_name == _chosen(group)

    def read(self, max_bytes: int | None = None) -> int:
        """Reads on, ``max_bytes`` at most and one more subscription; None: to the end. Returns the bytes that were read."""
        done = 0
        while not self.complete and (max_bytes is None or done < max_bytes):
            blob = next(self._blobs, None)
            if blob is None:
                self.complete = True
                break
            done += len(blob) + _BYTES_PER_MEMBER
            try:
                self.topics.update(decode_topics(blob))
            except ProtocolError:
                self.everything = self.complete = True
        return done

    def has(self, topic: str) -> bool:
        """Whether some member subscribes to the topic, or may do so."""
        assert self.complete, "the subscriptions of the group have not all been read"
        return self.everything or topic in self.topics


def subscriptions(group: Group) -> Subscriptions:
    """What is known of the group's subscriptions, read further than before or begun anew if members have changed."""
    known = group.subscriptions
    if known is None or not known.current(group):
        known = group.subscriptions = Subscriptions(group)
    return known


def _chosen(group: Group) -> str | None:
    return None if group.state is GroupState.PREPARING_REBALANCE else group.protocol_name


def _blobs(group: Group, protocol_name: str | None) -> Iterator[bytes]:
    for member in tuple(group.members.values()):
        if protocol_name is not None:
            yield member.metadata(protocol_name)
        else:
            yield from (protocol.metadata for protocol in member.protocols)
