"""Which topic a partition's directory belongs to: its id is the name of an empty file there, ``ID.topic-id``.

Names of topics come again, ids do not: a directory that was restored from another copy, or that slept through a deletion,
must not pass for the log of a namesake. A name cannot be torn, and is durable with the sync that a new directory needs in
any case. All functions block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coordinator.filesystem.storage import Storage, WriteInDoubtError
from coordinator.log.errors import LogDamagedError
from coordinator.log_output import get_logger

log = get_logger()

SUFFIX: Final = ".topic-id"


def note_topic_ids(storage: Storage, directories: Iterable[tuple[str, str]]) -> None:
    """Notes of new directories the topic that each belongs to; durable when they are synced."""
    for directory, topic_id in directories:
        storage.open(_path(directory, topic_id), create=True).close()


def check_topic_id(storage: Storage, directory: str, topic_id: str) -> None:
    """Raises ``LogDamagedError`` for the directory of another topic.

    One that knows no id, as versions before this one made them, belongs to the topic that has its name, and takes the id.
    Does nothing when there is no directory.
    """
    if storage.exists(_path(directory, topic_id)):
        return
    other = topic_id_of(storage, directory)
    if other is None:
        return
    if other:
        raise LogDamagedError(
            directory,
            "its topic id",
            f"it belongs to the topic with the id {other}, and the topic of this name has the id {topic_id}",
        )
    try:
        note_topic_ids(storage, [(directory, topic_id)])
        storage.sync_directory(directory)
    except WriteInDoubtError:
        raise
    except OSError as error:  # the next start does it
        log.warning("topic_id_not_noted", directory=directory, error=str(error))


def topic_id_of(storage: Storage, directory: str) -> str | None:
    """The topic that a directory belongs to: "" when it does not say, None without a directory."""
    if not storage.exists(directory):
        return None
    return next((name.removesuffix(SUFFIX) for name in storage.list(directory) if name.endswith(SUFFIX)), "")


def _path(directory: str, topic_id: str) -> str:
    return f"{directory}/{topic_id}{SUFFIX}"
