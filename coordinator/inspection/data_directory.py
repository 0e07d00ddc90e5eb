"""``cohort check``: the files of a whole data directory, or of some of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from coordinator.filesystem import reserve
from coordinator.filesystem.files import ReadOnlyStorage
from coordinator.filesystem.storage import TEMPORARY_SUFFIX
from coordinator.inspection.findings import Finding, Report
from coordinator.inspection.output import Progress
from coordinator.inspection.partition_check import Depth, PartitionCheck
from coordinator.inspection.roots import LOCK, PROBE, Root, is_worker, workers_in
from coordinator.log.checkpoints import CHECKPOINT
from coordinator.log.directories import DELETED_SUFFIX, WORKERS, is_partition_directory
from coordinator.log.segment import LOG_SUFFIX
from coordinator.logs.topic_ids import topic_id_of
from coordinator.metadata.catalog import INTERNAL_TOPICS
from coordinator.metadata.encoding import (
    FORMAT,
    LOG,
    SNAPSHOT,
    Metadata,
    MetadataDamagedError,
    changes_in,
    decode_snapshot,
    replay,
)
from coordinator.metadata.import_local import SUFFIX as IMPORTED
from coordinator.metadata.keys import PARTITIONS, created_key, partition_state, topic_key
from coordinator.nodes import identity, inventory
from coordinator.replication import watermarks
from coordinator.replication.replica_logs import DAMAGED, STRAY

_LOOKS: Final = 3
"""A partition that changes while a daemon uses it is looked at so often."""
_ASIDE: Final = (STRAY, DAMAGED)
_FILES: Final = frozenset({LOCK, reserve.PATH, PROBE, SNAPSHOT, LOG, identity.PATH, inventory.PATH, watermarks.PATH})
_MISSING: Final = "restore it from a backup; in a cluster the node copies it from the leader at its next start"

_RESTORE_BOTH: Final = "restore both from one backup"
_RESTORE_ALL: Final = "nothing of a worker is kept elsewhere: restore the whole data directory from one backup"

_PUT_ASIDE: Final[tuple[tuple[str, Callable[[bytes], Any]], ...]] = (
    (SNAPSHOT + IMPORTED, decode_snapshot),
    (LOG + IMPORTED, lambda content: list(changes_in(content))),
)
"""What a single node's metadata became when they were imported, and what compares their checksums."""

Where = tuple[str, int]
"""Topic id and number of a partition."""


class DirectoryCheck:
    """Looks at a directory and tells a report what it finds."""

    def __init__(self, root: Root, report: Report, progress: Progress, depth: Depth) -> None:
        self._root = root
        self._storage = root.storage
        self._report = report
        self._progress = progress
        self._depth = depth

    def run(self) -> None:
        """Looks at all of it, or at the partitions that are asked for. Raises ``OSError`` when it cannot list the root."""
        partitions = self._root.logs
        if not self._root.only:
            known = self._files(self._root.names)
            self._missing(partitions, known)
        for name in partitions:
            self._partition(name)

    def _partition(self, name: str) -> None:
        """A log that a daemon changes meanwhile is looked at again before something is told of it."""
        for look in range(1, _LOOKS + 1):
            try:
                before = self._state(name) if self._depth.running else None
                check = PartitionCheck(self._storage, name, self._report.tally, self._progress, self._depth)
                check.run()
                changed = self._depth.running and self._state(name) != before
            except OSError as error:
                if self._depth.running and not self._storage.exists(name):
                    return  # the topic was deleted meanwhile
                self._say(Finding(True, name, "", f"its directory cannot be read: {error}", "look at the disk"))
                return
            if not (changed and any(found.damage for found in check.findings)):
                for found in check.findings:
                    self._tell(found)
                return
            if look == _LOOKS:
                why = "it changes all the time, and nothing certain can be said: look again without a daemon"
                self._say(Finding(False, name, "", why))

    def _state(self, name: str) -> tuple[bytes, list[tuple[str, int]]]:
        """What a daemon changes of a log but for the end of its last segment: checkpoint, names, sizes."""
        names = self._storage.list(name)
        checkpoint = self._storage.read_file(f"{name}/{CHECKPOINT}") if CHECKPOINT in names else b""
        closed = sorted(each for each in names if each.endswith(LOG_SUFFIX))[:-1]
        return checkpoint, [(each, self._size(f"{name}/{each}") if each in closed else 0) for each in names]

    def _size(self, path: str) -> int:
        try:
            return self._storage.size(path)
        except FileNotFoundError:
            return -1  # it is gone since the directory was listed

    def _tell(self, found: Finding) -> None:
        """Of what a daemon uses meanwhile only damage is told: notes are about what starts find, and come from its work."""
        if found.damage or not self._depth.running:
            self._say(found)

    def _say(self, found: Finding) -> None:
        self._report.tell(found.below(self._root.below))

    def _files(self, names: Sequence[str]) -> dict[Where, str]:
        """Looks at the files of the data directory itself. Returns which logs should be there, and their names."""
        files = _NodeFiles(self._storage, self._depth.running)
        for _ in range(_LOOKS if self._depth.running else 1):
            known = files.read()
            if not files.findings:
                break
        for found in files.findings:
            self._tell(found)
        if not self._root.below and self._storage.is_directory(WORKERS):
            self._workers(names, files.replicas_on)
        for name in names:
            self._name(name)
        return known

    def _workers(self, names: Sequence[str], having: frozenset[int]) -> None:
        """Tells which workers' directories are gone; ``having`` are the nodes that have partitions, the first one too.

        What is in the others is looked at as in this one.
        """
        if SNAPSHOT not in names:
            why = f"it is missing beside {WORKERS}, which have the partitions of a daemon with several workers"
            self._tell(Finding(True, "", SNAPSHOT, why, _RESTORE_ALL))
        there = {int(name) for name in workers_in(self._root)}
        for number in sorted(having - there - {0}):
            why = "this worker has partitions, and its directory is not here"
            self._tell(Finding(True, "", f"{WORKERS}/{number}", why, _RESTORE_ALL))
        for name in self._storage.list(WORKERS):
            if not is_worker(name):
                self._note(f"{WORKERS}/{name}", "no worker's directory has this name: it is passed over")

    def _name(self, name: str) -> None:
        """Tells what is no part of a data directory, or left over."""
        if self._storage.is_directory(name):
            if name.endswith(DELETED_SUFFIX):
                self._note(name, "it was being removed when the daemon ended: the next start goes on")
            elif name.endswith(_ASIDE):
                self._note(
                    name, "a start has set it aside, as it was no log of this node or damaged: it is not looked at"
                )
            elif not is_partition_directory(name) and (name != WORKERS or self._root.below):
                self._note(name, "no directory of Cohort has this name: it is passed over")
        elif name.endswith(TEMPORARY_SUFFIX):
            self._note(name, "it was being written when the daemon ended")
        elif not name.endswith(IMPORTED) and name not in _FILES:
            self._note(name, "no file of Cohort has this name: it is passed over")

    def _missing(self, partitions: Sequence[str], known: dict[Where, str]) -> None:
        """Logs that should be there and are not, and those that are there and nothing speaks of."""
        by_name = {name: where for where, name in known.items()}
        there = {self._where(name, by_name) for name in partitions}
        gone = known.keys() - there
        if gone and self._depth.running:  # a topic may have been made or deleted since
            gone &= _NodeFiles(self._storage, True).read().keys()
            gone -= {self._where(name, by_name) for name in self._storage.list("") if self._root.is_log(name)}
        for where in sorted(gone):
            name = known[where] or f"partition {where[1]} of the topic with the id {where[0]}"
            self._say(Finding(True, name, "", "it should be here, and is not", _MISSING))
        for name in partitions:
            if known and self._where(name, by_name) not in known:
                self._note(name, "nothing says that this log belongs to the node: a start does not open it")

    def _where(self, name: str, by_name: dict[str, Where]) -> Where:
        """Whose log lies in a directory. One of an early version does not say so: it is what its name says."""
        try:
            topic_id = topic_id_of(self._storage, name)
        except OSError:
            topic_id = ""  # the look at the partition says so
        return (topic_id, int(name.rpartition("-")[2])) if topic_id else by_name.get(name, ("", 0))

    def _note(self, name: str, why: str) -> None:
        self._tell(Finding(False, "", name, why))


class _NodeFiles:
    """The files that say what a data directory has; ``findings`` are those of the last ``read``.

    ``replicas_on`` are the nodes on which the metadata has partitions.
    """

    def __init__(self, storage: ReadOnlyStorage, running: bool) -> None:
        self.findings: list[Finding] = []
        self.replicas_on: frozenset[int] = frozenset()
        self._storage = storage
        self._running = running

    def read(self) -> dict[Where, str]:
        """Which logs the node should have, with the names of their directories, "" where those are not known."""
        self.findings = []
        names = self._storage.list("")
        known: dict[Where, str] = {}
        node = self._decoded(names, identity.PATH, identity.decode)
        if SNAPSHOT in names:
            known = self._metadata(names, -1 if node is None else node.node_id)
        logs = self._decoded(names, inventory.PATH, inventory.decode)
        self._decoded(names, watermarks.PATH, watermarks.decode)
        for name, decode in _PUT_ASIDE:
            self._decoded(names, name, decode, is_read=False)
        return known if logs is None else {where: known.get(where, "") for where in logs}

    def _decoded(self, names: Sequence[str], name: str, decode: Callable[[bytes], Any], is_read: bool = True) -> Any:
        """What a file says, None without it, or when it is damaged; ``is_read``: by the daemon."""
        if name not in names:
            return None
        try:
            return decode(self._storage.read_file(name))
        except (MetadataDamagedError, watermarks.HintsError, OSError) as error:
            why = str(error) if is_read else f"{error}; nothing reads it since it was imported into a cluster"
            self.findings.append(Finding(is_read, "", name, why))
            return None

    def _metadata(self, names: Sequence[str], node_id: int) -> dict[Where, str]:
        try:
            metadata = decode_snapshot(self._storage.read_file(SNAPSHOT))
            if LOG in names:
                content = self._storage.read_file(LOG)
                whole = replay(content, metadata)
                if whole < len(content) and not self._running:
                    why = "its last line was being written when the daemon ended: the next start cuts it off"
                    self.findings.append(Finding(False, "", LOG, why, "", whole))
            elif metadata.format >= FORMAT:
                self.findings.append(Finding(True, "", LOG, f"it is missing beside {SNAPSHOT}", _RESTORE_BOTH))
        except (MetadataDamagedError, OSError) as error:
            self.findings.append(Finding(True, "", SNAPSHOT, str(error)))
            return {}
        states = [partition_state(entry) for key, entry in metadata.keys.items() if key.startswith(PARTITIONS)]
        self.replicas_on = frozenset(node for state in states for node in state.replicas)
        return _logs_of(metadata, node_id)


def _logs_of(metadata: Metadata, node_id: int) -> dict[Where, str]:
    """The logs that a single node should have, with the names of their directories."""
    names = {
        entry.value["id"]: key.removeprefix(topic_key(""))
        for key, entry in metadata.keys.items()
        if key.startswith(topic_key(""))
    }
    logs: dict[Where, str] = {}
    for key, entry in metadata.keys.items():
        kind, _, rest = key.partition("/")
        topic_id, _, index = rest.partition("/")
        if kind != "partitions" or topic_id not in names:
            continue
        if names[topic_id] in INTERNAL_TOPICS and created_key(topic_id, int(index)) not in metadata.keys:
            continue
        if node_id < 0 or node_id in partition_state(entry).replicas:
            logs[topic_id, int(index)] = f"{names[topic_id]}-{int(index)}"
    return logs
