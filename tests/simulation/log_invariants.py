"""What must hold for logs that lose records by right: which may go, which must stay, and what readers are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from tests.simulation.history import History, Partition, name_of
from tests.simulation.record_facts import TRIMMED, Left, Stored
from tests.simulation.registry import invariant


def _known(history: History, partition: Partition) -> dict[int, Stored]:
    """Every record that the log ever held, by its offset. The daemon may end between writing one and noting that it did."""
    known = dict(history.records.written.get(partition, {}))
    left = history.records.left.get(partition)
    for stored in (*(left.records if left is not None else ()), *history.records.acknowledged):
        if stored.partition == partition:
            known.setdefault(stored.offset, stored)
    return known


def _judged(history: History) -> Iterator[tuple[Partition, dict[int, Stored]]]:
    for topic in TRIMMED:
        partition = (topic, 0)
        if partition not in history.damaged and partition in history.records.left and history.complete:
            yield partition, _known(history, partition)


@invariant
def trimmed_logs_hold_what_was_written(history: History) -> Iterator[str]:
    """Whoever tells of an offset, its producer, a reader or the disk, at any time, tells of the same record."""
    records = history.records
    for partition, known in _judged(history):
        told = [stored for stored in records.acknowledged if stored.partition == partition]
        told += [stored for stint in records.read for stored in stint if stored.partition == partition]
        told += [stored for left in records.copies_left[partition] for stored in left.records]
        for stored in told:
            there = known.setdefault(stored.offset, stored)
            if (there.key, there.value) != (stored.key, stored.value):
                yield (
                    f"offset {stored.offset} of {name_of(partition)} is {stored.key}={stored.value!r} for {stored.who} at "
                    f"{stored.at_s:.3f} s, but {there.key}={there.value!r} was written there"
                )


@invariant
def trimmed_logs_have_each_record_once_and_in_order(history: History) -> Iterator[str]:
    """Idempotent producers go on through deletion and compaction: what is removed is remembered all the same."""
    for partition, known in _judged(history):
        seen: dict[str, int] = {}
        last: dict[str, int] = {}
        for offset, stored in sorted(known.items()):
            sent = history.records.sent.get(stored.value or "")
            if stored.value is None:
                continue
            if sent is None or sent[2:] != (partition, stored.key):
                yield f"offset {offset} of {name_of(partition)} has {stored.key}={stored.value!r}, which nobody sent there"
                continue
            if stored.value in seen:
                yield f"{stored.value!r} is at {seen[stored.value]} and at {offset} of {name_of(partition)}"
            seen[stored.value] = offset
            if sent[1] < last.get(sent[0], -1):
                yield f"{stored.value!r} is at {offset} of {name_of(partition)}, behind one that {sent[0]} sent later"
            last[sent[0]] = sent[1]


@invariant
def acknowledged_records_stay_until_they_may_go(history: History) -> Iterator[str]:
    """From the beginning of a log on, each acknowledged record is there, unless compaction may have removed it."""
    for partition, known in _judged(history):
        superseded = _superseded(known) if partition[0] in history.records.ever_compacted else {}
        acknowledged = [stored for stored in history.records.acknowledged if stored.partition == partition]
        for left in history.records.copies_left[partition]:
            there = {stored.offset for stored in left.records}
            for stored in acknowledged:
                gone = left.start <= stored.offset and stored.offset not in there
                if gone and stored.offset not in superseded:
                    yield (
                        f"{stored.key}={stored.value!r} was acknowledged at {stored.offset} of {name_of(partition)}, "
                        f"which begins at {left.start} on {left.node}, and is not there"
                    )


def _superseded(known: Mapping[int, Stored]) -> dict[int, None]:
    """Offsets that compaction may remove: a later record has their key, or they are tombstones."""
    last = {stored.key: offset for offset, stored in sorted(known.items())}
    return {offset: None for offset, stored in known.items() if stored.value is None or last[stored.key] != offset}


@invariant
def compaction_keeps_the_last_value_of_each_key(history: History) -> Iterator[str]:
    """And a deleted key does not come back: while an older record of it is there, its tombstone is. On every disk."""
    for partition, known in _judged(history):
        for left in history.records.copies_left[partition]:
            yield from _keys_gone(name_of(partition), known, left)


def _keys_gone(name: str, known: Mapping[int, Stored], left: Left) -> Iterator[str]:
    there = {stored.offset for stored in left.records}
    first = {stored.key: stored.offset for stored in reversed(left.records)}
    last = {stored.key: stored for _, stored in sorted(known.items())}
    for key, stored in last.items():
        if stored.offset < left.start or stored.offset >= left.end or stored.offset in there:
            continue
        if stored.value is not None:
            yield f"the last value of {key} in {name} was at {stored.offset}: {stored.value!r}; it is gone on {left.node}"
        elif key in first:
            yield (
                f"{key} was deleted at {stored.offset} of {name}: that is gone on {left.node}, and an older record is "
                f"at {first[key]}"
            )


@invariant
def readers_skip_only_what_may_go(history: History) -> Iterator[str]:
    """A reader that stays within the log gets every record, but for those that compaction may have removed."""
    for partition, known in _judged(history):
        superseded = _superseded(known) if partition[0] in history.records.ever_compacted else {}
        for stint in history.records.read:
            for one, following in pairwise(stint):
                if one.partition != partition:
                    break
                if following.offset <= one.offset:
                    yield f"{one.who} read {following.offset} of {name_of(partition)} after {one.offset}"
                for offset in range(one.offset + 1, following.offset):
                    if offset in known and offset not in superseded:
                        yield (
                            f"{one.who} read {following.offset} of {name_of(partition)} after {one.offset}, not {offset}"
                        )


@invariant
def fetches_are_answered_with_what_was_asked(history: History) -> Iterator[str]:
    """Records that cover the offset, or OFFSET_OUT_OF_RANGE, but only when it is: also while the log's beginning moves."""
    yield from history.records.misled


@invariant
def retention_deletes_by_the_settings_only(history: History) -> Iterator[str]:
    """Whole segments, the oldest first, of which each is too old, or not needed for ``retention.bytes``."""
    yield from history.records.kept_too_short


@invariant
def full_disks_are_relieved(history: History) -> Iterator[str]:
    """What has expired goes also when there is no room for what deletion has to write."""
    yield from history.records.kept_on_full_disk


@invariant
def logs_never_begin_earlier(history: History) -> Iterator[str]:
    """What was deleted once does not come back, through restarts too.

    With several nodes retention is the leader's, and the next one may not have heard of it yet. What a client was told to be
    deleted every replica in sync has deleted.
    """
    shown: dict[Partition, int] = {}
    for began in history.records.began if history.nodes == 1 else ():
        before = shown.get(began.partition, 0)
        if began.offset < before and began.partition not in history.damaged:
            yield f"at {began.at_s:.3f} s {name_of(began.partition)} begins at {began.offset}, but it began at {before}"
        shown[began.partition] = max(before, began.offset)
    for deleted in history.records.deleted:
        if deleted.partition in history.damaged:
            continue
        for began in history.records.began:
            later = began.partition == deleted.partition and began.at_s > deleted.at_s
            if later and began.offset < deleted.offset:
                yield (
                    f"{name_of(deleted.partition)} was cut to {deleted.offset} at {deleted.at_s:.3f} s and begins at "
                    f"{began.offset} at {began.at_s:.3f} s"
                )
        for left in history.records.copies_left.get(deleted.partition, ()):
            if left.start < deleted.offset:
                yield f"{name_of(deleted.partition)} was cut to {deleted.offset} and begins at {left.start} on {left.node}"


@invariant
def logs_have_no_gaps(history: History) -> Iterator[str]:
    """The files cover every offset from the beginning to the end, whatever was removed of them."""
    yield from history.records.broken


@invariant
def only_damaged_partitions_are_refused(history: History) -> Iterator[str]:
    """Whenever the daemon ends: what it finds then is no damage, as long as the disk keeps what it was given.

    Of several nodes one may be given another disk, and copies what it lacks.
    """
    if history.nodes > 1:
        return
    for partition, reason in history.records.refused.items():
        if partition not in history.damaged:
            yield f"{name_of(partition)} was not served, although the disk had kept everything: {reason}"


@invariant
def clean_ends_tell_what_a_scan_finds(history: History) -> Iterator[str]:
    """A log that is opened by what its last close has noted is the log that a scan opens, whatever happened since."""
    yield from history.records.mistaken
