"""Eyes on logs that lose records by right: what is written, fetched, deleted and left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import deepcopy
from random import Random
from typing import Any

import coordinator.log.partition
from client.producer.batch import ProducerBatch
from client.producer.sender import Sender
from coordinator.filesystem.reserve import PATH
from coordinator.log.clean_end import CLEAN_END
from coordinator.log.errors import LogDamagedError
from coordinator.log.group_commit import Appender
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.partition import PartitionLog
from coordinator.log.recovery import Recovered
from coordinator.log.retention import goes_when_closed, is_due_to_close, start_after_retention
from coordinator.log.segment_list import SegmentList
from coordinator.server.dispatch import Dispatcher, WireCall
from protocol.errors import ErrorCode, ProtocolError
from protocol.messages.records import FetchedPartition, FetchRequest, FetchResponse
from protocol.record_batch import decode_columns, iter_batches, read_header
from tests.simulation.disk import Directory, SimDisk, SimStorage
from tests.simulation.history import name_of
from tests.simulation.inspection import led
from tests.simulation.loop import Process
from tests.simulation.record_facts import TRIMMED, Began, Failed, Left, Partition, Stored
from tests.simulation.world import HostProcess, World, here

Wrap = Callable[[Any, str, Callable[..., Any]], None]


def install(wrap: Wrap) -> None:
    """Puts the wrappers in."""
    wrap(Sender, "failed", _fail)
    wrap(Appender, "append", _append)
    wrap(Appender, "_flushed", _flushed)
    wrap(Dispatcher, "handle", _handle)
    wrap(WireCall, "answer", _answer)
    wrap(coordinator.log.partition, "start_after_retention", _retained)
    wrap(SegmentList, "stamp", _stamped)
    wrap(PartitionLog, "retain", _retain)
    wrap(coordinator.log.partition, "open_directory", _open_directory)


def _fail(original: Callable[..., None], sender: Sender, batch: ProducerBatch, error: Exception) -> None:
    place = here()
    if place is not None:
        world, process = place
        partition = (batch.partition.topic, batch.partition.partition)
        world.history.records.failed.append(Failed(process.name, partition, batch.count, world.loop.time(), str(error)))
    original(sender, batch, error)


def _partition_of(directory: str) -> Partition | None:
    topic, _, number = directory.rpartition("-")
    return (topic, int(number)) if topic in TRIMMED else None


def _append(
    original: Callable[..., int], appender: Appender, batch: bytes, header: Any, now_ms: int, *head: bytes
) -> int:
    place, partition = here(), _partition_of(appender.directory)
    if place is not None:
        calls = place[0].history.records.append_calls
        calls[appender.directory] = calls.get(appender.directory, 0) + 1
    offset = original(appender, batch, header, now_ms, *head)
    if place is not None and partition is not None:
        appended = place[0].history.records.appended.setdefault(partition, {})
        while appended and next(reversed(appended)) >= offset:  # those were not written after all
            appended.popitem()
        appended[offset] = (place[1].life, now_ms)
    return offset


def _flushed(original: Callable[..., None], appender: Appender, chunk: Any) -> None:
    place, partition = here(), _partition_of(appender.directory)
    if place is not None and partition is not None:
        world, process = place
        written = world.history.records.written.setdefault(partition, {})
        for base, _, head, batch in chunk.batches:
            columns = decode_columns(batch, 0, read_header(head))
            for number, (key, value) in enumerate(zip(columns.keys(), columns.values(), strict=True)):
                fact = Stored(process.name, world.loop.time(), partition, base + number, *_text(key, value))
                written[fact.offset] = fact
    original(appender, chunk)


def _text(key: Any, value: Any) -> tuple[str, str | None]:
    return bytes(key or b"").decode("latin-1"), None if value is None else bytes(value).decode("latin-1")


# Fetches


def _opened(process: HostProcess, partition: Partition) -> PartitionLog | None:
    """The log at the node whose process this is."""
    daemon = process.node.daemon if process.node is not None else None
    return daemon._partitions.get(*partition) if daemon is not None and daemon._partitions is not None else None


def _disk(process: HostProcess) -> SimDisk:
    assert process.node is not None, "only nodes have logs"
    return process.node.disk


_Asked = dict[Partition, tuple[int, int, int]]


def _handle(original: Callable[..., Any], dispatcher: Dispatcher, call: WireCall) -> Any:
    place, request = here(), call.request
    if place is not None and isinstance(request, FetchRequest):
        asked: _Asked = {}
        for topic in request.topics:
            for ask in topic.partitions:
                opened = _opened(place[1], (topic.topic, ask.partition))
                if opened is not None:
                    partition = (topic.topic, ask.partition)
                    asked[partition] = (ask.fetch_offset, opened.start_offset, opened.high_watermark)
        place[0].asked[call] = asked
    return original(dispatcher, call)  # the steps that are left to do


def _answer(original: Callable[..., None], call: WireCall, response: Any) -> None:
    place = here()
    if place is not None and isinstance(response, FetchResponse):
        asked = place[0].asked.pop(call, {})
        for topic in response.responses:
            for found in topic.partitions:
                partition = (topic.topic, found.partition_index)
                if partition in asked:
                    _compare(*place, partition, asked[partition], found)
    original(call, response)


def _compare(
    world: World, process: HostProcess, partition: Partition, asked: tuple[int, int, int], found: FetchedPartition
) -> None:
    offset, start, high_watermark = asked
    misled, what = world.history.records.misled, f"a fetch of {name_of(partition)} from {offset}"
    opened = _opened(process, partition)
    if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        if opened is not None and opened.start_offset <= offset <= high_watermark:
            misled.append(f"{what} was out of range, which is {opened.start_offset} to {high_watermark}")
    elif found.error_code == ErrorCode.NONE:
        if offset < start:
            misled.append(f"{what} was answered without an error, although the log began at {start} already")
        if found.records:
            first = read_header(found.records)
            if not first.base_offset <= offset < first.next_offset:
                misled.append(f"{what} was answered with records {first.base_offset} to {first.next_offset - 1}")


# Retention


def _stamped(original: Callable[..., None], segments: SegmentList, now_ms: int) -> None:
    place = here()
    if place is not None:
        for segment in segments.all:
            if segment.last_ms == NO_TIMESTAMP and _partition_of(segment.path.rpartition("/")[0]) is not None:
                place[0].history.records.seen[segment.path] = (place[1].life, now_ms)
    original(segments, now_ms)


def _retained(
    original: Callable[..., int], segments: Any, config: Any, start_offset: int, high_watermark: int, now_ms: int | None
) -> int:
    result = original(segments, config, start_offset, high_watermark, now_ms)
    place = here()
    partition = _partition_of(segments[0].path.rpartition("/")[0]) if segments else None
    if place is not None and partition is not None and partition not in place[0].history.damaged:
        for number, segment in enumerate(segments):
            if start_offset < segment.next_offset and segment.base_offset < result and result > start_offset:
                bytes_left = sum(later.size for later in segments[number + 1 :])
                text = _why_to_keep(place, partition, segment, config, bytes_left, high_watermark, now_ms)
                if text:
                    place[0].history.records.kept_too_short.append(
                        f"at {place[0].loop.time():.3f} s retention deleted {segment.base_offset} to "
                        f"{segment.next_offset - 1} of {name_of(partition)}: {text}"
                    )
    return result


def _why_to_keep(
    place: tuple[World, HostProcess],
    partition: Partition,
    segment: Any,
    config: Any,
    bytes_left: int,
    high_watermark: int,
    now_ms: int | None,
) -> str:
    """Judged by what is on disk and by when it was appended, not by what the daemon makes of it."""
    if segment.next_offset > high_watermark:
        return f"only what is below {high_watermark} is acknowledged"
    if not config.delete:
        return "the topic is not one to delete from"
    if 0 <= config.retention_bytes <= bytes_left:
        return ""
    files = _disk(place[1]).files()
    content = next((bytes(inode.live) for path, inode in files if path == segment.path), b"")
    newest = max((header.max_timestamp for _, header in iter_batches(content)), default=NO_TIMESTAMP)
    last_ms = _known_ms(place[0], partition, segment)
    if 0 <= newest <= (now_ms or 0):
        believed = newest
    else:
        believed = min(newest, last_ms) if newest >= 0 else last_ms
    if now_ms is not None and config.retention_ms >= 0 and now_ms - believed >= config.retention_ms:
        return ""
    return (
        f"the segments behind it have {bytes_left} bytes (retention.bytes={config.retention_bytes}), and its newest record "
        f"is of {believed} (retention.ms={config.retention_ms}, now {now_ms})"
    )


async def _retain(
    original: Callable[..., Awaitable[int]], opened: PartitionLog, now_ms: int | None, *, leads: bool = True
) -> int:
    """What has all expired goes in this look, also on a full disk, unless an append or another fault comes between."""
    place = here()
    expired = leads and place is not None and _has_all_expired(_disk(place[1]), opened, now_ms)
    if place is None or not expired:
        return await original(opened, now_ms, leads=leads)
    world, disk, end = place[0], _disk(place[1]), opened.end_offset
    calls, errors = world.history.records.append_calls.get(opened.directory, 0), disk.errors
    result = await original(opened, now_ms)
    undisturbed = (calls, errors) == (world.history.records.append_calls.get(opened.directory, 0), disk.errors)
    if undisturbed and opened.start_offset < end:
        world.history.records.kept_on_full_disk.append(
            f"{opened.directory} begins at {opened.start_offset} at {world.loop.time():.3f} s; all below {end} has expired"
        )
    return result


def _has_all_expired(disk: SimDisk, opened: PartitionLog, now_ms: int | None) -> bool:
    """Whether a log that nothing is appended to now has expired to its end, on a full disk that has a reserve."""
    segments, start = opened._segments.all, opened.start_offset
    return (
        disk.capacity is not None
        and any(path == PATH for path, _ in disk.files())
        and opened._appender.refusal is None
        and opened.end_offset == opened.high_watermark
        and is_due_to_close(segments[-1], opened.config, start, now_ms)
        and goes_when_closed(segments, opened.config, start, opened.high_watermark, now_ms)
    )


def _known_ms(world: World, partition: Partition, segment: Any) -> int:
    """The latest time of an append that a daemon can know of.

    One that finds a log with an active segment does not know when that was written to, and counts from its first look on, by
    the clock as it is then.
    """
    records = world.history.records
    known = [
        appended
        for base, appended in records.appended.get(partition, {}).items()
        if segment.base_offset <= base < segment.next_offset
    ]
    if segment.path in records.seen:
        known.append(records.seen[segment.path])
    life = max(life for life, _ in known)
    return max(at_ms for that, at_ms in known if that == life)


# Starts


def _open_directory(original: Callable[..., Recovered], storage: Any, directory: str, config: Any) -> Recovered:
    """A log that is opened by what its last close has noted, and a copy of it that is scanned."""
    recovered, place = original(storage, directory, config), here()
    topic, _, number = directory.rpartition("-")
    if place is not None and recovered.clean_end is not None and (topic, int(number)) not in place[0].history.damaged:
        world, copy = place[0], SimDisk(Random(0))
        files = deepcopy(_disk(place[1]).root.live[directory])
        assert isinstance(files, Directory)
        del files.live[CLEAN_END]
        copy.root.live[directory] = files
        try:
            scanned = what_is_known(original(SimStorage(copy, Process("scan")), directory, config))
        except LogDamagedError as error:
            scanned = {"damage": str(error)}
        known = what_is_known(recovered)
        wrong = [name for name in {**known, **scanned} if known.get(name) != scanned.get(name)]
        if wrong:
            world.history.records.mistaken.append(
                f"at {world.loop.time():.3f} s {directory} was opened with "
                f"{[(name, known.get(name)) for name in wrong]}; a scan finds {[scanned.get(name) for name in wrong]}"
            )
    return recovered


def what_is_known(recovered: Recovered) -> dict[str, Any]:
    """All that an opened log knows, but for the times of appends, which no scan can find."""
    active = recovered.segments[-1]
    assert active.index is not None
    return {
        "segments": [
            (segment.base_offset, segment.next_offset, segment.size, segment.max_timestamp)
            for segment in recovered.segments
        ],
        "index": active.index.integers(0, 0, 0, 0),
        "producers": [(producer_id, state._replace(transaction=None)) for producer_id, state in recovered.producers],
        "transactions": [transaction[:-1] for transaction in recovered.producers.transactions.open()],
        "start": recovered.start_offset,
        "checkpoint": recovered.checkpoint,
        "epochs": recovered.leader_epochs.entries,
    }


# Looks


def note_logs(world: World) -> None:
    """Where every trimmed log begins now, and which partitions are not served."""
    for node in world.serving():
        partitions = node.daemon._partitions if node.daemon is not None else None
        for partition, reason in partitions._damaged.items() if partitions is not None else ():
            if partitions is not None and partition not in partitions._unopened:  # those are tried again
                world.history.records.refused[partition] = reason
    for partition, (node, opened) in led(world).items():
        if partition[0] in TRIMMED:
            life = world.hosts[node.name].process.life
            world.history.records.began.append(Began(life, world.loop.time(), partition, opened.start_offset))


def what_is_not_deleted(world: World) -> list[str]:
    """Trimmed logs that keep more bytes than their settings say."""
    late, logs = [], led(world)
    for topic in TRIMMED:
        opened = logs[topic, 0].log if (topic, 0) in logs else None
        if opened is not None and (topic, 0) not in world.history.damaged:
            begin = start_after_retention(
                opened._segments.all, opened.config, opened.start_offset, opened.last_stable_offset, None
            )
            if begin > opened.start_offset:
                late.append(f"{topic}-0 begins at {opened.start_offset}, but should have been cut to {begin}")
    return late


def read_what_is_left(world: World) -> None:
    """Notes what the disk holds of every trimmed log, and whether it has gaps."""
    records, logs = world.history.records, led(world)
    for topic in TRIMMED:
        partition = (topic, 0)
        if partition not in logs:
            continue
        node, opened, now_s = *logs[partition], world.loop.time()
        left: list[Stored] = []
        position = None
        try:
            for content in logs[partition].segments():
                for at, header in iter_batches(content):
                    if position is not None and header.base_offset != position:
                        records.broken.append(f"{name_of(partition)} has {header.base_offset} behind {position - 1}")
                    if position is None and header.base_offset > opened.start_offset:
                        records.broken.append(
                            f"{name_of(partition)} begins at {opened.start_offset}, its files at {header.base_offset}"
                        )
                    position = header.next_offset
                    columns = decode_columns(content, at, header)
                    left += (
                        Stored(node.name, now_s, partition, header.base_offset + delta, *_text(key, value))
                        for delta, key, value in zip(
                            columns.offset_deltas(), columns.keys(), columns.values(), strict=True
                        )
                    )
        except ProtocolError as error:
            if partition not in world.history.damaged:
                world.history.unexpected.append(f"the log of {name_of(partition)} cannot be read at the end: {error}")
            continue
        if position is not None and position < opened.high_watermark:
            records.broken.append(
                f"{name_of(partition)} ends at {position} on disk, at {opened.high_watermark} for readers"
            )
        start = opened.start_offset
        inside = tuple(record for record in left if start <= record.offset < opened.high_watermark)
        records.left[partition] = Left(start, opened.high_watermark, inside)
