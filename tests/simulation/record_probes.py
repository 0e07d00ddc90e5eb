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
from coordinator.log.acknowledged import Acknowledged
from coordinator.log.clean_end import CLEAN_END
from coordinator.log.errors import LogDamagedError
from coordinator.log.group_commit import Appender
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.partition import PartitionLog
from coordinator.log.recovery import Recovered
from coordinator.log.retention import goes_when_closed, is_due_to_close, start_after_retention
from coordinator.log.segment import Segment
from coordinator.log.segment_list import SegmentList
from coordinator.server.call import Call
from coordinator.server.dispatch import Dispatcher, WireCall
from protocol.errors import ErrorCode, ProtocolError
from protocol.messages.records import FetchedPartition, FetchRequest, FetchResponse
from protocol.record_batch import decode_columns, iter_batches, read_header
from tests.simulation.disk import Directory, SimDisk, SimStorage
from tests.simulation.history import name_of
from tests.simulation.inspection import led, segments_on_disk
from tests.simulation.loop import Process
from tests.simulation.record_facts import TRIMMED, Began, Failed, Left, Partition, Stored
from tests.simulation.world import HostProcess, Node, World, here

Wrap = Callable[[Any, str, Callable[..., Any]], None]


def install(wrap: Wrap) -> None:
    """Puts the wrappers in."""
    wrap(Sender, "failed", _fail)
    wrap(Appender, "append", _append)
    wrap(Appender, "append_as_follower", _append_as_follower)
    wrap(Appender, "_flushed", _flushed)
    wrap(Acknowledged, "commit_to", _commit_to)
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
        _note_append(place, partition, offset, now_ms)
    return offset


def _append_as_follower(
    original: Callable[..., None], appender: Appender, batches: Any, epochs: Any, now_ms: int
) -> None:
    original(appender, batches, epochs, now_ms)
    place, partition = here(), _partition_of(appender.directory)
    for each in batches if place is not None and partition is not None else ():
        _note_append(place, partition, each.header.base_offset, now_ms)  # type: ignore[arg-type]


def _note_append(place: tuple[World, HostProcess], partition: Partition, offset: int, now_ms: int) -> None:
    appended = place[0].history.records.appended.setdefault((place[1].host, partition), {})
    while appended and next(reversed(appended)) >= offset:  # those were not written after all
        appended.popitem()
    appended[offset] = (place[1].life, now_ms)


def _flushed(original: Callable[..., None], appender: Appender, chunk: Any) -> None:
    """What is on the disk of a node that is alone is committed; of others it is noted, and counts once it is committed."""
    place, partition = here(), _partition_of(appender.directory)
    if place is not None and partition is not None:
        world, process = place
        records = world.history.records
        if world.history.nodes == 1:
            written = records.written.setdefault(partition, {})
        else:
            written = records.copies.setdefault((process.host, partition), {})
            while written and next(reversed(written)) >= chunk.base_offset:  # the log was cut
                written.popitem()
        for base, _, head, batch in chunk.batches:
            columns = decode_columns(batch, 0, read_header(head))
            for delta, key, value in zip(columns.offset_deltas(), columns.keys(), columns.values(), strict=True):
                fact = Stored(process.name, world.loop.time(), partition, base + delta, *_text(key, value))
                written[fact.offset] = fact
    original(appender, chunk)


def _commit_to(original: Callable[..., None], opened: PartitionLog, offset: int) -> None:
    """The leader is the first to know that something is committed, and has all of it that compaction has not removed."""
    place, partition = here(), _partition_of(opened.directory)
    if place is not None and partition is not None:
        records = place[0].history.records
        known = records.committed.get(partition, 0)
        if offset > known:
            copy = records.copies.get((place[1].host, partition), {})
            there = {at: stored for at, stored in copy.items() if known <= at < offset}
            records.written.setdefault(partition, {}).update(there)
            records.committed[partition] = offset
    original(opened, offset)


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
    place = here()
    if place is not None:
        note_fetch(*place, call)
    return original(dispatcher, call)  # the steps that are left to do


def note_fetch(world: World, process: HostProcess, call: Call) -> None:
    """What a fetch asks for, if it is one, and what there is when it comes."""
    if isinstance(request := call.request, FetchRequest):
        asked: _Asked = {}
        for topic in request.topics:
            for ask in topic.partitions:
                opened = _opened(process, (topic.topic, ask.partition))
                if opened is not None:
                    partition = (topic.topic, ask.partition)
                    asked[partition] = (ask.fetch_offset, opened.start_offset, opened.high_watermark)
        world.asked[call] = asked


def _answer(original: Callable[..., None], call: WireCall, response: Any) -> None:
    place = here()
    if place is not None:
        note_fetched(*place, call, response)
    original(call, response)


def note_fetched(world: World, process: HostProcess, call: Call, response: Any) -> None:
    """Compares what a fetch is answered with, if it is one, with what it asked for."""
    if isinstance(response, FetchResponse):
        asked = world.asked.pop(call, {})
        for topic in response.responses:
            for found in topic.partitions:
                partition = (topic.topic, found.partition_index)
                if partition in asked:
                    _compare(world, process, partition, asked[partition], found)


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
                place[0].history.records.seen[place[1].host, segment.path] = (place[1].life, now_ms)
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
    last_ms = _known_ms(place, partition, segment)
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


def _known_ms(place: tuple[World, HostProcess], partition: Partition, segment: Any) -> int:
    """The latest time of an append that a daemon can know of.

    One that finds a log with an active segment does not know when that was written to, and counts from its first look on, by
    the clock as it is then.
    """
    records, host = place[0].history.records, place[1].host
    known = [
        appended
        for base, appended in records.appended.get((host, partition), {}).items()
        if segment.base_offset <= base < segment.next_offset
    ]
    if (host, segment.path) in records.seen:
        known.append(records.seen[host, segment.path])
    if not known:
        return NO_TIMESTAMP
    life = max(life for life, _ in known)
    return max(at_ms for that, at_ms in known if that == life)


def _forget_times(world: World, process: HostProcess, directory: str, active: Segment) -> None:
    """Nobody knows when an active segment was appended to that a scan has found: after a crash, or once a log was cut."""
    records, partition = world.history.records, _partition_of(directory)
    if partition is not None:
        known = records.appended.get((process.host, partition), {})
        for base in [base for base in known if base >= active.base_offset]:
            del known[base]
        records.seen.pop((process.host, active.path), None)


# Starts


def _open_directory(
    original: Callable[..., Recovered], storage: Any, directory: str, config: Any, **options: Any
) -> Recovered:
    """A log that is opened by what its last close has noted, and a copy of it that is scanned."""
    recovered, place = original(storage, directory, config, **options), here()
    if place is not None and recovered.segments[-1].last_ms == NO_TIMESTAMP:
        _forget_times(*place, directory, recovered.segments[-1])
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
    """All that an opened log knows, but for the times of appends, which no scan can find.

    A snapshot has producers in the order of their last batches. A scan has those that keep their epoch where the marker of
    their last transaction is.
    """
    active = recovered.segments[-1]
    assert active.index is not None
    producers = sorted(recovered.producers, key=lambda entry: entry[1].batches[-1].base_offset)
    return {
        "segments": [
            (segment.base_offset, segment.next_offset, segment.size, segment.max_timestamp)
            for segment in recovered.segments
        ],
        "index": active.index.integers(0, 0, 0, 0),
        "producers": [(producer_id, state._replace(transaction=None)) for producer_id, state in producers],
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
        member = node.daemon._member if node.daemon is not None else None
        if member is not None and not member.registration.valid():
            continue  # it led before its lease ended, and tells no one where the log begins
        if partition[0] in TRIMMED:
            life = world.hosts[node.name].process.life
            world.history.records.began.append(Began(life, world.loop.time(), partition, opened.start_offset))


def what_is_not_deleted(world: World) -> list[str]:
    """Trimmed logs that keep more bytes than their settings say, and copies that keep more than their leader.

    A copy may begin later: a former leader's retention may have come to it, and not to the one that leads now.
    """
    late, logs = [], led(world)
    for topic in TRIMMED:
        there = logs.get((topic, 0))
        if there is None or (topic, 0) in world.history.damaged:
            continue
        node, opened = there
        begin = start_after_retention(
            opened._segments.all, opened.config, opened.start_offset, opened.last_stable_offset, None
        )
        if begin > opened.start_offset:
            late.append(f"{topic}-0 begins at {opened.start_offset}, but should have been cut to {begin}")
        for follower in world.serving():
            copy = _opened_by(follower, (topic, 0))
            if copy is not None and copy.start_offset < opened.start_offset:
                late.append(
                    f"the copy of {topic}-0 at {follower.name} begins at {copy.start_offset}, that of its leader "
                    f"{node.name} at {opened.start_offset}"
                )
    return late


def read_what_is_left(world: World) -> None:
    """Notes what the disks hold of every trimmed log, and whether they have gaps."""
    records, logs = world.history.records, led(world)
    for topic in TRIMMED:
        partition = (topic, 0)
        if partition not in logs:
            continue
        node, opened = logs[partition]
        for holder in world.serving():
            copy = _opened_by(holder, partition)
            found = None if copy is None else _left_at(world, holder, partition, copy, opened.high_watermark)
            if found is not None:
                records.copies_left.setdefault(partition, []).append(found)
            if found is not None and holder is node:
                records.left[partition] = found


def _opened_by(node: Node, partition: Partition) -> PartitionLog | None:
    """The log of a partition at a node, whoever leads."""
    daemon = node.daemon
    return daemon._partitions.logs.get(partition) if daemon is not None and daemon._partitions is not None else None


def _left_at(world: World, node: Node, partition: Partition, opened: PartitionLog, end: int) -> Left | None:
    records, now_s = world.history.records, world.loop.time()
    left: list[Stored] = []
    position, what = None, f"{name_of(partition)} at {node.name}"
    try:
        for content in segments_on_disk(node.disk, opened.directory):
            for at, header in iter_batches(content):
                if position is not None and header.base_offset != position:
                    records.broken.append(f"{what} has {header.base_offset} behind {position - 1}")
                if position is None and header.base_offset > opened.start_offset:
                    records.broken.append(f"{what} begins at {opened.start_offset}, its files at {header.base_offset}")
                position = header.next_offset
                columns = decode_columns(content, at, header)
                left += (
                    Stored(node.name, now_s, partition, header.base_offset + delta, *_text(key, value))
                    for delta, key, value in zip(columns.offset_deltas(), columns.keys(), columns.values(), strict=True)
                )
    except ProtocolError as error:
        if partition not in world.history.damaged:
            world.history.unexpected.append(f"the log of {what} cannot be read at the end: {error}")
        return None
    if position is not None and position < end:
        records.broken.append(f"{what} ends at {position} on disk, at {end} for readers")
    start = opened.start_offset
    return Left(start, end, tuple(record for record in left if start <= record.offset < end), node.name)
