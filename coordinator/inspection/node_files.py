"""``cohort log dump`` of the files of a data directory that belong to no log: metadata, node, inventory, hints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coordinator.filesystem import reserve
from coordinator.inspection.metadata_keys import Names, key_in_words, names_of, removal_in_words
from coordinator.inspection.output import Output, counted, plain, size_text, time_text
from coordinator.inspection.roots import LOCK, PROBE
from coordinator.metadata.authority import KeyValue
from coordinator.metadata.encoding import (
    LOG,
    SNAPSHOT,
    MetadataDamagedError,
    changes_in,
    decode_entry,
    decode_snapshot,
)
from coordinator.metadata.import_local import SUFFIX as IMPORTED
from coordinator.nodes import identity, inventory
from coordinator.nodes.cleanliness import THIS_START
from coordinator.replication import watermarks

DAMAGED: Final = (MetadataDamagedError, watermarks.HintsError)
"""What is raised for a file that is not as it was written."""

Show = Callable[[Output, bytes], None]
"""Prints what a file says. Raises ``DAMAGED``, and ``ForeignContentError`` when nothing says that Cohort wrote it."""


class ForeignContentError(Exception):
    """A file has the name of one of Cohort's, and something else in it."""


def node_file_shown_by(name: str) -> Show | None:
    """What shows a file of this name, None if no data directory has one."""
    return _BY_NAME.get(name.removesuffix(IMPORTED) if name in _PUT_ASIDE else name)


def _metadata(output: Output, data: bytes) -> None:
    metadata = decode_snapshot(data)
    text = (
        f"metadata of the cluster {metadata.cluster_id} at revision {metadata.revision}, "
        f"{counted(len(metadata.keys), 'key')}; format {metadata.format}"
    )
    fields = {"cluster_id": metadata.cluster_id, "revision": metadata.revision, "format": metadata.format}
    output.tell("metadata", text, {**fields, "keys": len(metadata.keys)})
    names = names_of(metadata.keys.values())
    for _, known in sorted(metadata.keys.items()):
        _tell_key(output, known, names)


def _changes(output: Output, data: bytes) -> None:
    count = end = 0
    names: dict[str, str] = {}
    for change in changes_in(data):
        count, end = count + 1, change.end
        text = f"position {change.position}  revision {change.revision}: {counted(len(change.keys), 'key')}"
        fields = {"position": change.position, "revision": change.revision, "keys": len(change.keys)}
        output.tell("change", text, fields)
        known = [decode_entry(key, entry) for key, entry in change.keys.items() if entry is not None]
        names |= names_of(known)
        for each in known:
            _tell_key(output, each, names)
        for key in (key for key, entry in change.keys.items() if entry is None):
            output.tell("removed", f"  {removal_in_words(key, names)}", {"key": key})
    left = len(data) - end
    torn = f"; the last {counted(left, 'byte')} were being written when the daemon ended" if left else ""
    text = f"{counted(count, 'change')} since the snapshot in {SNAPSHOT}, or before it{torn}"
    output.tell("changes", text, {"changes": count, "torn_tail_bytes": left})


def _tell_key(output: Output, known: KeyValue, names: Names) -> None:
    lease = f"; under the lease {known.lease}" if known.lease else ""
    changed = f"(revision {known.mod_revision}{lease})"
    output.tell("key", f"  {key_in_words(known, names)}  {changed}", known._asdict())


def _node(output: Output, data: bytes) -> None:
    node = identity.decode(data)
    record = node.record
    registered = (
        f"was registered last with broker epoch {node.broker_epoch}" if node.broker_epoch else "was never registered"
    )
    ended = "was stopped cleanly" if record.stopped_cleanly else "runs, or has not been stopped cleanly"
    since = "the start that is noted last" if record.clean_since == THIS_START else f"broker epoch {record.clean_since}"
    kept = "is on disk" if node.flush == "ack" else "may be in the machine's memory"
    text = (
        f"node {node.node_id} of the cluster {node.cluster_id}, data directory {node.directory}; it {registered} and {ended}"
        f"; it has all that it acknowledged since {since}; what it acknowledges {kept} (flush={node.flush}); its last "
        f"starts are {', '.join(record.starts) or 'unknown'}, of the machine's boot {record.boot_id or 'unknown'}"
    )
    fields: dict[str, Any] = {**node._asdict(), **record._asdict()}
    del fields["record"]
    output.tell("node", text, fields)


def _inventory(output: Output, data: bytes) -> None:
    by_topic: dict[str, list[int]] = {}
    logs = inventory.decode(data)
    for topic_id, index in sorted(logs):
        by_topic.setdefault(topic_id, []).append(index)
    output.tell("inventory", f"{counted(len(logs), 'log')} in this data directory", {"logs": len(logs)})
    for topic_id, partitions in by_topic.items():
        text = f"  of the topic with the id {topic_id}: {','.join(map(str, partitions))}"
        output.tell("logs", text, {"topic_id": topic_id, "partitions": partitions})


def _high_watermarks(output: Output, data: bytes) -> None:
    hints = watermarks.decode(data)
    text = f"hints at the high watermarks of {counted(len(hints), 'replica')}, which may have grown since"
    output.tell("high_watermarks", text, {"replicas": len(hints)})
    for (topic_id, index), hint in sorted(hints.items()):
        caught_up = "-" if hint.caught_up_ms is None else time_text(hint.caught_up_ms)
        text = (
            f"  partition {index} of the topic with the id {topic_id}: {hint.high_watermark}; it had all that was committed "
            f"at {caught_up}"
        )
        output.tell("high_watermark", text, {"topic_id": topic_id, "partition": index, **plain(hint)})


def _lock(output: Output, data: bytes) -> None:
    holder = data.decode("ascii", "replace").strip()
    if holder and not holder.isdecimal():
        raise ForeignContentError
    text = "no process has used the data directory yet"
    if holder:
        text = f"process {holder} uses the data directory, or was the last that did"
    output.tell("lock", text, {"process": int(holder) if holder else None})


def _reserve(output: Output, data: bytes) -> None:
    if len(data) > reserve.RESERVE_BYTES or data != reserve.content(len(data)):
        raise ForeignContentError
    output.tell("reserve", f"{size_text(len(data))} that deletions may use on a full disk", {"size": len(data)})


def _probe(output: Output, data: bytes) -> None:
    if data:
        raise ForeignContentError
    output.tell("probe", "empty: it is written to see whether the disk takes writes, where /readyz is asked", {})


_PUT_ASIDE: Final = (SNAPSHOT + IMPORTED, LOG + IMPORTED)
"""What became metadata of a cluster."""
_BY_NAME: Final[dict[str, Show]] = {
    SNAPSHOT: _metadata,
    LOG: _changes,
    identity.PATH: _node,
    inventory.PATH: _inventory,
    watermarks.PATH: _high_watermarks,
    LOCK: _lock,
    reserve.PATH: _reserve,
    PROBE: _probe,
}
