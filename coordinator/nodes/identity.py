"""What a data directory knows of its node, in ``node.json``: whose it is, and whether it has all that was acknowledged.

The file is replaced before the node serves, when it is registered, and once more at a clean stop. Without it the directory
counts as new, so a disk that takes no file keeps no node from serving: what the next start is told is on the safe side.

What a note says stays true for as long as its process lives: where the disk refuses it, the same may be written later.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import Storage, WriteInDoubtError, in_doubt
from coordinator.log_output import get_logger
from coordinator.metadata.encoding import SNAPSHOT, MetadataDamagedError
from coordinator.nodes.cleanliness import THIS_START, Cleanliness, Found, NodeRecord, judge

log = get_logger()

PATH: Final = "node.json"
FORMAT: Final = 1

_FIRST_PAUSE_S: Final = 0.1
"""Before a note is tried again that the disk has refused; each pause is twice the one before, up to the longest."""
_LONGEST_PAUSE_S: Final = 5.0

Flush = Literal["ack", "os"]


class NodeFile(NamedTuple):
    """The content of ``node.json``; ``directory`` is an id that no other data directory has.

    ``broker_epoch`` is the last one that the node registered with, and ``flush`` what its last start did at acknowledgement.
    """

    directory: str
    cluster_id: str
    node_id: int
    broker_epoch: int
    flush: Flush
    record: NodeRecord


class NodeIdentity:
    """The identity of the node of one data directory. Make one with ``await NodeIdentity.read(disk)``."""

    def __init__(self, disk: Disk, known: NodeFile | None) -> None:
        self._disk = disk
        self._known = known
        self._on_disk = known
        """What the file says; changed by threads, one at a time."""
        self._writing = asyncio.Lock()
        self._doubt: WriteInDoubtError | None = None
        self._is_refused = False

    @classmethod
    async def read(cls, disk: Disk) -> NodeIdentity:
        """What the directory says. Raises ``MetadataDamagedError`` and ``OSError``."""
        return cls(disk, await disk.run(_read, disk.storage))

    @property
    def node_id(self) -> int | None:
        """The number of the node, None when the directory is new."""
        return None if self._known is None else self._known.node_id

    @property
    def directory(self) -> str:
        """The id of the data directory; ``begin`` comes first."""
        return self._begun.directory

    @property
    def starts(self) -> tuple[str, ...]:
        """Ids of the last start that was registered and of this one, which is the last; ``begin`` comes first."""
        return self._begun.record.starts

    @property
    def clean_since(self) -> int:
        """The broker epoch since when nothing that was acknowledged is lost, or ``THIS_START``; ``begin`` comes first."""
        return self._begun.record.clean_since

    @property
    def broker_epoch(self) -> int:
        """The last one that this directory was registered with, 0 without one."""
        return 0 if self._known is None else self._known.broker_epoch

    @property
    def _begun(self) -> NodeFile:
        assert self._known is not None, "begin comes first"
        return self._known

    def for_new_metadata(self, new_cluster_id: str, metadata: str = "") -> str:
        """The id of a cluster that this directory begins. Raises ``MetadataDamagedError`` when it belongs to one.

        ``metadata`` as in ``check``.
        """
        if self._known is not None and metadata:
            raise MetadataDamagedError(
                f"{PATH} says that this is the directory of node {self._known.node_id} of cluster {self._known.cluster_id}, "
                f"and there is no cluster at {metadata}: set metadata to where that cluster has its own, or use an empty "
                "directory"
            )
        if self._known is not None:
            raise MetadataDamagedError(
                f"{SNAPSHOT} is missing, but {PATH} says that this is the directory of node {self._known.node_id} of "
                f"cluster {self._known.cluster_id}: restore {SNAPSHOT} from a backup, or use an empty data directory"
            )
        return new_cluster_id

    def check(self, cluster_id: str, node_id: int, metadata: str = "") -> None:
        """Raises ``MetadataDamagedError`` when the directory is another node's, or of another cluster.

        ``metadata`` says where the metadata is, "" when it is in the same directory.
        """
        known = self._known
        if known is None:
            return
        if known.cluster_id != cluster_id and metadata:
            raise MetadataDamagedError(
                f"{PATH} says that this directory belongs to cluster {known.cluster_id}, and the metadata at {metadata} is "
                f"that of cluster {cluster_id}: set metadata to where that cluster has its own, or use an empty directory"
            )
        if known.cluster_id != cluster_id:
            raise MetadataDamagedError(
                f"{PATH} says that this directory belongs to cluster {known.cluster_id}, and its metadata is that of "
                f"cluster {cluster_id}: the files of two directories are mixed. Restore all of them from one backup"
            )
        if known.node_id != node_id:
            raise MetadataDamagedError(
                f"this is the directory of node {known.node_id}, not of node {node_id}: set node_id to {known.node_id}, or "
                "use the directory of that node"
            )

    async def begin(
        self,
        cluster_id: str,
        node_id: int,
        new_id: Callable[[], str],
        boot_id: str,
        flush: Flush,
        lost: bool,
        registered_start: str = "",
    ) -> Cleanliness:
        """Notes a start, before the node serves, and says whether it has all that was acknowledged.

        ``lost`` says that something of what was on disk is not, ``registered_start`` which start of this node the metadata
        has ("": none). Raises ``WriteInDoubtError``, and ``OSError`` as ``registered``.
        """
        known = self._known
        record = None if known is None else known.record
        kept = known is not None and known.flush == "ack"
        was_registered = known is not None and known.broker_epoch > 0
        cleanliness = judge(record, Found(registered_start, boot_id, kept, lost, was_registered))
        starts = () if record is None else record.starts[-1:]
        if record is not None and registered_start in record.starts:
            starts = (registered_start,)  # those that were never registered since need not be known
        begun = NodeRecord((*starts, new_id()), cleanliness.clean_since, boot_id, stopped_cleanly=False)
        directory = new_id() if known is None else known.directory
        self._known = NodeFile(directory, cluster_id, node_id, 0 if known is None else known.broker_epoch, flush, begun)
        await self._note()
        if cleanliness.reason and known is not None:
            log.warning("node_not_clean", reason=cleanliness.reason)
        return cleanliness

    async def not_clean(self) -> None:
        """Notes that this directory may lack what was acknowledged, before that cannot be seen any more: a log is about to
        begin anew, or the node to be registered after another directory was. Raises as ``begin``."""
        if self._known is None:
            return
        self._known = self._known._replace(record=self._known.record._replace(clean_since=THIS_START))
        async with self._writing:  # a note may be under way that says more
            if self._on_disk not in (None, self._begun):
                await self._disk.run(self._written, self._begun)

    async def registered(self, broker_epoch: int, clean_since: int) -> bool:
        """Notes that this start is registered; returns whether the disk took that, or else ``keep_noting`` tries it again.

        Raises ``WriteInDoubtError``, and ``OSError`` when the disk neither took it nor removed what is not true any more.
        """
        begun = self._begun
        record = begun.record._replace(starts=begun.record.starts[-1:], clean_since=clean_since)
        self._known = begun._replace(broker_epoch=broker_epoch, record=record)
        return await self._note()

    async def keep_noting(self) -> None:
        """Returns once the disk has taken the newest note; until then it is asked again and again, 5 s apart at most.

        Raises ``WriteInDoubtError``. When it is cancelled, the call under way comes to its end first.
        """
        pause_s = _FIRST_PAUSE_S
        while self._on_disk != self._known:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                await self._note()
            except WriteInDoubtError:
                raise
            except OSError as error:
                log.warning("node_file_not_removed", error=str(error))

    async def stopped(self) -> None:
        """Notes that all that was acknowledged is on disk; nothing else is written later. Raises ``WriteInDoubtError``."""
        self._known = self._begun._replace(record=self._begun.record._replace(stopped_cleanly=True))
        await self._note()

    async def ended(self) -> None:
        """Returns once no note is being written: that takes as long as the disk does. ``keep_noting`` is cancelled first."""
        async with self._writing:
            return

    async def _note(self) -> bool:
        """Whether the disk has the newest note: one that waits for another to be written is of what is known then."""
        async with self._writing:
            return self._on_disk == self._begun or await self._disk.run(self._written, self._begun)

    def _written(self, content: NodeFile) -> bool:
        """Runs in a thread, and may go on after its caller was cancelled: what matters of it is kept."""
        if self._doubt is not None:
            raise in_doubt(PATH, self._doubt)
        try:
            self._disk.storage.write_file(PATH, encode(content))
        except WriteInDoubtError as error:
            self._doubt = error
            raise
        except OSError as error:
            if not self._is_refused:
                log.warning("node_file_not_written", error=str(error))
            self._is_refused = True
            self._remove_untrue(content)
            return False
        if self._is_refused:
            log.info("node_file_written", broker_epoch=content.broker_epoch, clean_since=content.record.clean_since)
        self._on_disk, self._is_refused = content, False
        return True

    def _remove_untrue(self, content: NodeFile) -> None:
        """``content`` was refused: what is on disk must not stand if more would be believed for it than is true."""
        if self._on_disk is None or not _claims_more(self._on_disk, content):
            return
        with suppress(FileNotFoundError):  # it may have been removed before, and the name not synced
            self._disk.storage.remove(PATH)
        self._disk.storage.sync_directory("")
        self._on_disk = None


def _claims_more(older: NodeFile, newer: NodeFile) -> bool:
    """Whether the older note, judged by itself, vouches for what the newer one does not.

    A clean stop and ``flush="ack"`` both say that what was acknowledged is on disk: that goes on being true during a start
    that has ``flush="ack"``, whatever the one before had, and ends with one that has ``flush="os"``.
    """
    since, until_now = newer.record.clean_since, older.record.clean_since
    if until_now != THIS_START and (since == THIS_START or since > until_now):
        return True
    return newer.flush == "os" and (older.flush == "ack" or older.record.stopped_cleanly)


def encode(content: NodeFile) -> bytes:
    """``node.json``."""
    fields: dict[str, Any] = {
        "format": FORMAT,
        "directory": content.directory,
        "cluster_id": content.cluster_id,
        "node_id": content.node_id,
        "broker_epoch": content.broker_epoch,
        "flush": content.flush,
        "starts": list(content.record.starts),
        "clean_since": content.record.clean_since,
        "boot_id": content.record.boot_id,
        "stopped_cleanly": content.record.stopped_cleanly,
    }
    return json.dumps({**fields, "crc32": _checksum(fields)}).encode() + b"\n"


def decode(content: bytes) -> NodeFile:
    """Reads ``node.json``. Raises ``MetadataDamagedError``."""
    try:
        fields: dict[str, Any] = json.loads(content)
        version, checksum = fields["format"], fields.pop("crc32", None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(f"it does not parse ({error})") from error
    if version != FORMAT:
        raise MetadataDamagedError(
            f"{PATH} has format {version}, this version of Cohort reads format {FORMAT}: start the version that wrote it"
        )
    if checksum != _checksum(fields):
        raise _damaged("its checksum does not match")
    starts = tuple(fields["starts"])
    record = NodeRecord(starts, fields["clean_since"], fields["boot_id"], fields["stopped_cleanly"])
    return NodeFile(
        fields["directory"], fields["cluster_id"], fields["node_id"], fields["broker_epoch"], fields["flush"], record
    )


def _read(storage: Storage) -> NodeFile | None:
    storage.sync_directory("")  # a process that was killed may have left a file whose name can be lost, or come back
    if not storage.exists(PATH):
        return None
    return decode(storage.read_file(PATH))


def _checksum(fields: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields).encode())


def _damaged(reason: str) -> MetadataDamagedError:
    return MetadataDamagedError(
        f"{PATH} is damaged: {reason}. Restore it from a backup, or remove it: then the directory counts as new"
    )
