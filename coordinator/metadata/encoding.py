"""The metadata as bytes: a snapshot of every key, and a log of the changes since. Pure.

``metadata.json``, the snapshot, is one line of JSON with format, checksum, cluster id and revision, and one line with all
keys. ``metadata.changes`` has a line for each change: its checksum, and JSON with the revision and the keys that it set or
removed. A key that is set has the revision that changed it and its value, and behind them, up to the last that is not what a
new key has, the revision that made it (that same one), its version (1) and its lease (0). The snapshot is replaced as a
whole and the log grows by one synced line at a time, so a power cut can leave no more than one incomplete line, the last: it
was never acknowledged and is cut. Everything else that does not match is damage, such as a last line that is there to its
end, without the zeros of a block that was never written.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from coordinator.metadata.authority import KeyValue

SNAPSHOT: Final = "metadata.json"
LOG: Final = "metadata.changes"
FORMAT: Final = 3
WITH_CLUSTER_FORMAT: Final = 4
"""The format when there is the key ``cluster.format``: versions before it would start without a look at that."""
WITHOUT_LOG: Final = 1
"""The format of older versions, which wrote a snapshot for each change and know no log."""
WITHOUT_VERSIONS: Final = 2
"""The format of versions that knew when a key was changed, and neither when it was made nor how often it changed: such a key
counts as new at its last change."""

_CHECKSUM_DIGITS: Final = 8
_BEGIN: Final = re.compile(rb'[0-9a-f]{8} \{"revision": ')
"""How a line of the log begins; nothing within one looks so, as JSON has commas and colons between values."""


class MetadataDamagedError(Exception):
    """The metadata cannot be trusted, or another version of Cohort wrote it; the text says which."""


@dataclass(slots=True)
class Metadata:
    """What the files hold: ``revision`` is that of the newest change."""

    cluster_id: str
    revision: int
    keys: dict[str, KeyValue]
    format: int = FORMAT


class Change(NamedTuple):
    """A line of the log: bytes ``position`` to below ``end``. ``keys`` has what it set, as ``decode_entry`` takes it, None
    for what it removed."""

    position: int
    end: int
    revision: int
    keys: Mapping[str, Any]


def encode_entry(entry: KeyValue) -> bytes:
    """A key as both files have it."""
    fields = [entry.mod_revision, entry.value, entry.create_revision, entry.version, entry.lease]
    for usual in (0, 1, entry.mod_revision):
        if fields[-1] != usual:
            break
        fields.pop()
    return f"{json.dumps(entry.key)}: {json.dumps(fields)}".encode()


def encode_snapshot(cluster_id: str, revision: int, entries: Iterable[bytes], version: int = FORMAT) -> bytes:
    """``metadata.json``; ``entries`` are all keys, encoded. ``version`` is the format that it says it has."""
    body = b"{" + b", ".join(entries) + b"}"
    head = {
        "format": version,
        "cluster_id": cluster_id,
        "revision": revision,
        "crc32": _snapshot_checksum(version, cluster_id, revision, body),
    }
    return json.dumps(head).encode() + b"\n" + body + b"\n"


def encode_change(revision: int, changes: Mapping[str, bytes | None]) -> bytes:
    """One line of ``metadata.changes``: the keys that a transaction set, encoded, and those that it removed."""
    entries = [f"{json.dumps(key)}: null".encode() if entry is None else entry for key, entry in changes.items()]
    text = b'{"revision": %d, "changes": {%b}}' % (revision, b", ".join(entries))
    return b"%08x %b\n" % (zlib.crc32(text), text)


def decode_snapshot(content: bytes) -> Metadata:
    """Reads ``metadata.json``. Raises ``MetadataDamagedError``."""
    try:
        first, body = content.split(b"\n")[:2]
        head: dict[str, Any] = json.loads(first)
        version = head["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MetadataDamagedError(f"{SNAPSHOT} is damaged: its first line does not parse ({error})") from error
    if version not in range(WITHOUT_LOG, WITH_CLUSTER_FORMAT + 1):
        raise MetadataDamagedError(
            f"{SNAPSHOT} has format {version}, this version of Cohort reads formats {WITHOUT_LOG} to {WITH_CLUSTER_FORMAT}: "
            "start the version that wrote it"
        )
    if head.get("crc32") != _snapshot_checksum(version, head.get("cluster_id"), head.get("revision"), body):
        raise MetadataDamagedError(f"{SNAPSHOT} is damaged: its checksum does not match; restore it from a backup")
    keys = {key: decode_entry(key, entry) for key, entry in json.loads(body).items()}
    return Metadata(head["cluster_id"], head["revision"], keys, version)


def replay(content: bytes, metadata: Metadata) -> int:
    """Applies the changes in ``metadata.changes`` that the snapshot does not have; returns where the whole lines end.

    What lies behind is the line that was being written when the machine stopped. Raises ``MetadataDamagedError`` for
    anything that no power cut leaves.
    """
    position = 0
    for change in changes_in(content):
        if change.revision > metadata.revision + 1:
            raise MetadataDamagedError(
                f"{LOG} goes on with revision {change.revision} where {metadata.revision + 1} is due: "
                f"{SNAPSHOT} and {LOG} do not belong together; restore both from one backup"
            )
        if (
            change.revision == metadata.revision + 1
        ):  # older ones are in the snapshot: the log could not be emptied after it
            metadata.revision = change.revision
            for key, entry in change.keys.items():
                if entry is None:
                    metadata.keys.pop(key, None)
                else:
                    metadata.keys[key] = decode_entry(key, entry)
        position = change.end
    return position


def changes_in(content: bytes) -> Iterator[Change]:
    """The whole lines of ``metadata.changes``. Raises ``MetadataDamagedError`` behind them for what no power cut leaves."""
    position = 0
    while (end := content.find(b"\n", position)) >= 0:
        change = _change(content[position:end])
        if change is None:
            break
        yield Change(position, end + 1, *change)
        position = end + 1
    if not _is_torn(content, position):
        raise MetadataDamagedError(
            f"{LOG} is damaged at position {position}: a line does not match its checksum, and is not one that was being "
            f"written when the machine stopped; restore {SNAPSHOT} and {LOG} from a backup"
        )


def _is_torn(content: bytes, position: int) -> bool:
    """Whether what is left from ``position`` on can be a line that was being written: a part of one, or one with blocks of
    zeros, which no JSON has."""
    if _BEGIN.search(content, position + 1) is not None or content.find(b"\n", position, len(content) - 1) >= 0:
        return False  # lines follow
    if b"\0" in content[position:] or position == len(content):
        return True
    return not content.endswith(b"\n") and _change(content[position:-1]) is None


def _change(line: bytes) -> tuple[int, dict[str, Any]] | None:
    """What a line says; None when it is not what was written."""
    text = line[_CHECKSUM_DIGITS + 1 :]
    if line != b"%08x %b" % (zlib.crc32(text), text):
        return None
    change = json.loads(text)
    return change["revision"], change["changes"]


def decode_entry(key: str, entry: Sequence[Any]) -> KeyValue:
    """A key of what ``encode_entry`` wrote behind it."""
    revision, value, created, version, lease = [*entry, *[entry[0], 1, 0][len(entry) - 2 :]]
    return KeyValue(key, value, created, revision, version, lease)


def _snapshot_checksum(version: int, cluster_id: object, revision: object, body: bytes) -> int:
    head = f"{cluster_id} {revision}" if version == WITHOUT_LOG else f"{version} {cluster_id} {revision}"
    return zlib.crc32(body, zlib.crc32(head.encode()))
