"""Since when a node has lost nothing that it acknowledged; pure.

The metadata has with each in-sync replica the broker epoch of its joining. It may lead while that is not before
``clean_since`` of its node: then its disk has all that it had since it joined.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, NamedTuple

Opening = Literal["opened", "made", "set aside", "lost"]


class NodeRecord(NamedTuple):
    """What the node's directory says of itself (``node.json``).

    ``starts`` are ids of its last two starts: a new one is on disk before it is registered, so the last may never have been.
    """

    starts: tuple[str, ...]
    clean_since: int
    boot_id: str
    stopped_cleanly: bool


class Found(NamedTuple):
    """What a start finds. ``registered_start`` is the one that the metadata has of this node id, "" without one."""

    registered_start: str
    boot_id: str
    flush_at_acknowledgement: bool
    """Whether what was acknowledged is on disk (``flush="ack"``), and not in the machine's memory only."""
    lost: bool
    """Whether recovery missed or cut something that was on disk, or a log of the inventory is missing."""
    was_registered: bool = False
    """Whether an earlier start of this directory was."""


THIS_START: Final = 0
"""Stands for the broker epoch of this start, which is known when it is registered."""


class Cleanliness(NamedTuple):
    """``clean_since`` is carried over, or ``THIS_START``, with why."""

    clean_since: int
    reason: str


def judge(record: NodeRecord | None, found: Found) -> Cleanliness:
    """Decides at a start, before the node is registered."""
    reason = _reason(record, found)
    if reason or record is None:
        return Cleanliness(THIS_START, reason)
    return Cleanliness(record.clean_since, "")


def _reason(record: NodeRecord | None, found: Found) -> str:
    if record is None:
        return "the directory is new"
    if is_another_directory(record.starts, found.registered_start):
        return "the directory is not the one that was registered last: an old image, perhaps"
    if found.lost:
        return "something that was on disk is gone"
    if not is_kept_by_machine(record, found):
        return "the machine was started anew, and what was acknowledged was in its memory only"
    if found.was_registered and record.clean_since == THIS_START:
        return "a start before this one was not clean, and has not been registered since"
    return ""


def is_another_directory(starts: Collection[str], registered_start: str) -> bool:
    """Whether the node was registered since from a directory that this one, with these starts, is not, or no longer is."""
    return bool(registered_start) and registered_start not in starts


def is_kept_by_machine(record: NodeRecord, found: Found) -> bool:
    """Whether all that was acknowledged outlived the end of the process, and of the machine if that ended as well."""
    return record.stopped_cleanly or found.flush_at_acknowledgement or record.boot_id == found.boot_id


def opening(partition: tuple[str, int], directory_of: str | None, inventory: Collection[tuple[str, int]]) -> Opening:
    """What is to be done about a replica's log at a start, where the metadata has ``partition`` (topic id, number) here.

    ``directory_of`` is the topic id in the log's directory, None without one. One of another id is of a namesake that was
    deleted while this node was down. A log that the inventory has and the disk has not is lost: the node is not clean.
    """
    topic_id, _ = partition
    if directory_of == topic_id:
        return "opened"
    if partition in inventory:
        return "lost"
    return "made" if directory_of is None else "set aside"
