"""What retention decides: which closed segments go, and when the active one is closed so that its turn can come. Pure.

Whole segments go, the oldest first, and never one that is not acknowledged to its end, or has records of a transaction that
is open. Two bounds, either suffices:

``retention_ms``
    A segment goes when its *newest* record is as old as this. A record is as old as its timestamp says, as in Kafka; but a
    timestamp that is still in the future counts no more than the latest time of an append to the segment, by the daemon's
    own clock. So one record of the year 3000 does not keep a segment for ever, as it does in Kafka; and what is written
    while the daemon's clock is behind does not look old once the clock has been set. Timestamps of the past count: what is
    older than ``retention_ms`` when it is written goes with the next look. To keep old data, give the topic
    ``retention.ms=-1``, or let the daemon's clock decide with ``message.timestamp.type=LogAppendTime``.
``retention_bytes``
    The oldest segment goes as long as the others have at least so many bytes together.

What the daemon does not know after a crash, or once a follower has cut its log (when the active segment was written to),
counts from the first append or look after it: no record goes sooner for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.log.config import UNLIMITED, LogConfig
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.segment import Segment


def appended_ms(segment: Segment, now_ms: int) -> int:
    """The time of the last append by the daemon's clock; not known, it is now at most."""
    return now_ms if segment.last_ms == NO_TIMESTAMP else segment.last_ms


def newest_ms(segment: Segment, now_ms: int) -> int:
    """The time of the newest record, as far as it is believed."""
    if 0 <= segment.max_timestamp <= now_ms:
        return segment.max_timestamp
    appended = appended_ms(segment, now_ms)
    return appended if segment.max_timestamp < 0 else min(segment.max_timestamp, appended)


def is_as_old_as(segment: Segment, age_ms: int, now_ms: int) -> bool:
    """Whether even the newest record of the segment has this age; nothing has an unlimited one."""
    return age_ms != UNLIMITED and now_ms - newest_ms(segment, now_ms) >= age_ms


def is_due_to_close(active: Segment, config: LogConfig, start_offset: int, now_ms: int | None) -> bool:
    """Whether the active segment should take no more appends.

    It is as old as ``segment_ms`` since its first append; everything in it has expired or been deleted; or it is half as
    old as compaction may wait, whose other half runs from here. Without a time (``now_ms`` None) only what has been
    deleted counts.
    """
    if not active.size:
        return False
    if start_offset >= active.next_offset:
        return True
    if now_ms is None:
        return False
    if config.delete and is_as_old_as(active, config.retention_ms, now_ms):
        return True
    limits = [config.segment_ms]
    if config.compact and config.max_compaction_lag_ms != UNLIMITED:
        limits.append(config.max_compaction_lag_ms // 2)
    first_ms = now_ms if active.first_ms == NO_TIMESTAMP else active.first_ms
    return any(limit != UNLIMITED and now_ms - first_ms >= limit for limit in limits)


def goes_when_closed(
    segments: Sequence[Segment], config: LogConfig, start_offset: int, last_stable_offset: int, now_ms: int | None
) -> bool:
    """Whether retention removes everything up to the end of the active segment once that is closed."""
    end = segments[-1].next_offset
    following = Segment("", end)
    return start_after_retention([*segments, following], config, start_offset, last_stable_offset, now_ms) >= end


def start_after_retention(
    segments: Sequence[Segment], config: LogConfig, start_offset: int, last_stable_offset: int, now_ms: int | None
) -> int:
    """Where the log should begin: ``start_offset``, or behind the closed segments that have to go.

    Without a time (``now_ms`` None) only the size counts.
    """
    if not config.delete:
        return start_offset
    left = sum(segment.size for segment in segments if segment.next_offset > start_offset)
    for segment in segments[:-1]:
        if segment.next_offset <= start_offset:
            continue
        old = now_ms is not None and is_as_old_as(segment, config.retention_ms, now_ms)
        large = config.retention_bytes != UNLIMITED and left - segment.size >= config.retention_bytes
        if not (old or large) or segment.next_offset > last_stable_offset:
            break
        left -= segment.size
        start_offset = segment.next_offset
    return start_offset
