"""Reads what the nodes have on disk, and compares: copies of a batch have one fingerprint.

Compaction is each node's own, so logs of compacted topics are compared by records: those at one offset are the same, and the
last of each key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coordinator.filesystem.files import FileStorage
from coordinator.log.scan import walk
from coordinator.log.segment import LOG_SUFFIX
from protocol.errors import ProtocolError
from protocol.record_batch import decode_columns, fingerprint, read_header

INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
_SHOWN: Final = 5


@dataclass(slots=True)
class ReplicaLog:
    """One node's copy of a partition: batches by base offset, records by offset."""

    node: int
    start: int = -1
    end: int = 0
    torn: str = ""
    batches: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    records: dict[int, tuple[bytes | None, bytes | None]] = field(default_factory=dict)


def read_node(directory: Path, node: int, *, with_records: bool) -> dict[str, ReplicaLog]:
    """Every log of a stopped node, by the name of its directory."""
    storage = FileStorage(directory)
    found = {}
    for path in sorted(directory.iterdir()):
        name = path.name
        if path.is_dir() and name.rpartition("-")[2].isdecimal():
            compacted = with_records and name.startswith(INTERNAL)
            found[name] = _read_log(storage, name, ReplicaLog(node), compacted)
    return found


def _read_log(storage: FileStorage, name: str, log: ReplicaLog, with_records: bool) -> ReplicaLog:
    for segment in storage.list(name):
        if not segment.endswith(LOG_SUFFIX):
            continue
        if log.start < 0:
            log.start = log.end = int(segment.removesuffix(LOG_SUFFIX))
        file = storage.open(f"{name}/{segment}")
        try:
            for batch in _batches(storage, f"{name}/{segment}"):
                header = read_header(batch)
                log.batches[header.base_offset] = (header.next_offset, fingerprint(batch))
                log.end = header.next_offset
                if with_records:
                    columns = decode_columns(batch, 0, header)
                    for number, key, value in zip(
                        columns.offset_deltas(), columns.keys(), columns.values(), strict=True
                    ):
                        log.records[header.base_offset + number] = (key, value)
        except ProtocolError as error:
            log.torn = f"{segment}: {error}"
        finally:
            file.close()
    return log


def _batches(storage: FileStorage, path: str) -> Iterator[bytes]:
    file = storage.open(path)
    try:
        for _, _, batch in walk(file, 0, file.size()):
            yield bytes(batch)
    finally:
        file.close()


def disagreements(logs: Sequence[ReplicaLog], *, to_the_end: bool) -> list[str]:
    """What two copies of a partition differ in, up to the end that both have; with ``to_the_end`` they end alike."""
    found = [f"node {log.node}: {log.torn}" for log in logs if log.torn]
    if to_the_end and len({log.end for log in logs}) > 1:
        found.append(f"they end at {[(log.node, log.end) for log in logs]}")
    first, *others = logs
    for other in others:
        if first.records or other.records:
            found += _different_records(first, other)
        else:
            found += _different_batches(first, other)
    return found[:_SHOWN]


def _different_batches(one: ReplicaLog, other: ReplicaLog) -> Iterator[str]:
    start, end = max(one.start, other.start), min(one.end, other.end)
    for offset in sorted(one.batches.keys() | other.batches.keys()):
        if start <= offset < end:
            here, there = one.batches.get(offset), other.batches.get(offset)
            if here != there:
                yield f"at {offset} nodes {one.node} and {other.node} have {here} and {there}"


def _different_records(one: ReplicaLog, other: ReplicaLog) -> Iterator[str]:
    end = min(one.end, other.end)
    for offset in sorted(one.records.keys() & other.records.keys()):
        if one.records[offset] != other.records[offset]:
            yield f"at {offset} nodes {one.node} and {other.node} have {one.records[offset]} and {other.records[offset]}"
    last = [
        {key: value for offset, (key, value) in sorted(log.records.items()) if offset < end} for log in (one, other)
    ]
    for key in last[0].keys() | last[1].keys():
        here, there = last[0].get(key), last[1].get(key)
        if here != there:  # a tombstone that one has removed already is none in both
            yield f"the last record of {key!r} is {here!r} on node {one.node} and {there!r} on node {other.node}"
