"""What must hold in every history, one named function each. Each tells how it was broken, in sentences for people."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.simulation.history import (
    NO_STINT,
    Committed,
    Ended,
    Erased,
    Gone,
    HandedOut,
    History,
    Partition,
    Told,
    name_of,
)
from tests.simulation.registry import invariant


@invariant
def acknowledged_records_survive(history: History) -> Iterator[str]:
    """A record whose producer was told that it is stored is in the log at that offset, through everything."""
    if not history.complete:
        return
    found = {partition: dict(records) for partition, records in history.log.items()}
    for value, ack in history.acknowledged.items():
        if ack.partition in history.damaged:
            continue
        there = found.get(ack.partition, {}).get(ack.offset)
        if there != value:
            what = "nothing is there" if there is None else f"{there!r} is there"
            yield (
                f"{value!r} was acknowledged at {ack.at_s:.3f} s at offset {ack.offset} of {name_of(ack.partition)}, "
                f"but {what}"
            )


@invariant
def damage_is_never_taken_for_a_torn_tail(history: History) -> Iterator[str]:
    """A partition with provable damage does not go on without its acknowledged records: it is refused, whole, by a scan, or
    the damaged batch is where it was, and refused when it is read."""
    for partition, records in history.log.items():
        flips = [flip for flip in history.flips if flip.partition == partition]
        if not flips or not all(flip.proven for flip in flips):
            continue
        offsets = {offset for offset, _ in records}
        for value, ack in history.acknowledged.items():
            if ack.partition == partition and ack.offset not in offsets:
                yield f"{name_of(partition)} is served without {value!r} at {ack.offset}, although it is damaged, not torn"


@invariant
def lost_ends_are_noticed(history: History) -> Iterator[str]:
    """A log whose file ends before what the checkpoint names is refused: it does not go on without those records."""
    for cut in history.cuts:
        if cut.partition not in history.log:
            continue
        for value, ack in history.acknowledged.items():
            if ack.partition == cut.partition and ack.offset >= cut.end_offset and ack.at_s < cut.noted_until_s:
                yield (
                    f"{name_of(cut.partition)} lost everything from offset {cut.end_offset} on at {cut.at_s:.3f} s and is "
                    f"served, although {value!r} was acknowledged at {ack.offset} at {ack.at_s:.3f} s"
                )


@invariant
def one_value_per_offset(history: History) -> Iterator[str]:
    """Whoever reads an offset, at any time, reads the same value, and one that somebody sent there."""
    seen: dict[tuple[Partition, int], str] = {}
    places = [(record.partition, record.offset, record.value) for record in history.handed_out]
    places += [(partition, offset, value) for partition, log in history.log.items() for offset, value in log]
    for partition, offset, value in places:
        first = seen.setdefault((partition, offset), value)
        # Damage in the last batch looks like a torn tail. One of several copies is harmed where damage is proven only.
        altered = partition not in history.damaged or history.cluster.is_on_others(partition)
        if first != value and altered:
            yield f"offset {offset} of {name_of(partition)} was read as {first!r} and as {value!r}"
        sent = history.sent.get(value)
        if sent is None:
            yield f"offset {offset} of {name_of(partition)} holds {value!r}, which nobody sent"
        elif sent.partition != partition:
            yield f"offset {offset} of {name_of(partition)} holds {value!r}, sent to {name_of(sent.partition)}"


@invariant
def records_keep_their_order(history: History) -> Iterator[str]:
    """A producer's records of one partition are first stored in the order sent; a second time only after a retry."""
    for partition, log in history.log.items():
        last: dict[str, int] = {}
        seen: dict[str, int] = {}
        for offset, value in log:
            sent = history.sent.get(value)
            if sent is None:
                continue
            if value in seen:
                if sent.producer not in history.retried:
                    yield f"{value!r} is at {seen[value]} and {offset} of {name_of(partition)}, but was sent only once"
                continue
            seen[value] = offset
            if sent.number < last.get(sent.producer, -1):
                yield f"{value!r} is at {offset} of {name_of(partition)}, behind one that {sent.producer} sent later"
            last[sent.producer] = sent.number


@invariant
def high_watermark_never_falls(history: History) -> Iterator[str]:
    """What the daemon says is acknowledged only grows, through restarts too.

    Answers may overtake one another on their way out of one daemon, so they are compared between daemons; within one, the
    logs themselves are looked at. What followers of several nodes know lags behind: ``the_high_watermark_is_bounded``.
    """
    if history.nodes > 1:
        return
    shown: dict[Partition, int] = {}
    earlier: dict[Partition, int] = {}
    daemon = 0
    for served in history.served:
        if served.daemon != daemon:
            daemon, earlier = served.daemon, dict(shown)
        before = shown.get(served.partition, 0) if served.looked_at else earlier.get(served.partition, 0)
        if served.high_watermark < before and served.partition not in history.damaged:
            yield f"the high watermark of {name_of(served.partition)} fell from {before} to {served.high_watermark}"
        shown[served.partition] = max(shown.get(served.partition, 0), served.high_watermark)


@invariant
def nothing_is_fetched_beyond_the_high_watermark(history: History) -> Iterator[str]:
    """Readers see acknowledged records only."""
    for served in history.served:
        if served.end > served.high_watermark:
            yield (
                f"records of {name_of(served.partition)} up to {served.end} were served while its high watermark was "
                f"{served.high_watermark}"
            )


@invariant
def generation_never_falls(history: History) -> Iterator[str]:
    """Neither within a life of the coordinator, nor below one that was synced, which is on disk, through restarts.

    A group that was erased begins anew.
    """
    gone_s: dict[str, float] = {}
    synced: dict[str, int] = {}
    joined: dict[tuple[int, str], int] = {}
    for told in history.ownership:
        if isinstance(told, Gone):
            gone_s[told.group] = told.at_s
            synced.pop(told.group, None)
            joined = {key: generation for key, generation in joined.items() if key[1] != told.group}
        if not isinstance(told, Told) or told.asked_s <= gone_s.get(told.group, 0.0):
            continue
        key = (told.life, told.group)
        if told.what == "join" and told.generation < joined.get(key, 0):
            yield f"{told.member} joined generation {told.generation} of {told.group} after {joined[key]}"
        if told.generation < synced.get(told.group, 0):
            yield (
                f"{told.member} was told generation {told.generation} of {told.group} by {told.what} after "
                f"{synced[told.group]} was synced"
            )
        joined[key] = max(joined.get(key, 0), told.generation)
        if told.what == "sync":
            synced[told.group] = max(synced.get(told.group, 0), told.generation)


@invariant
def one_owner_per_generation(history: History) -> Iterator[str]:
    """Within a generation no partition is given to two members, and no member two different shares.

    A static member is the same through its restarts.
    """
    owner: dict[tuple[str, int, int, Partition], str] = {}
    shares: dict[tuple[str, int, int, str], tuple[Partition, ...]] = {}
    gone_s: dict[str, list[float]] = {}
    for told in history.ownership:
        if isinstance(told, Gone):
            gone_s.setdefault(told.group, []).append(told.at_s)
        if not isinstance(told, Told) or told.what != "sync":
            continue
        life = sum(at_s < told.asked_s for at_s in gone_s.get(told.group, []))
        share = shares.setdefault((told.group, life, told.generation, told.who), told.share)
        if share != told.share:
            yield f"{told.who} was given two different shares in generation {told.generation} of {told.group}"
        for partition in told.share:
            first = owner.setdefault((told.group, life, told.generation, partition), told.who)
            if first != told.who:
                yield (
                    f"{name_of(partition)} was given to {first} and {told.who} in generation {told.generation} "
                    f"of {told.group}"
                )


@invariant
def ownership_never_overlaps(history: History) -> Iterator[str]:
    """By the coordinator's clock: who was given a partition keeps it until it asks to join again, leaves, is removed or
    replaced. A cooperative member that asks to join again keeps what it says that it holds."""
    owner: dict[tuple[str, Partition], str] = {}
    ended_s: dict[tuple[str, str], float] = {}
    for event in history.ownership:
        if isinstance(event, Ended):
            ended_s[event.group, event.member] = event.at_s
            for key in [key for key, member in owner.items() if key[0] == event.group and member == event.member]:
                if key[1] not in event.keeps:
                    del owner[key]
        elif (
            isinstance(event, Told)
            and event.what == "sync"
            and ended_s.get((event.group, event.member), 0.0) < event.asked_s
        ):
            for partition in event.share:
                before = owner.setdefault((event.group, partition), event.member)
                if before != event.member:
                    yield (
                        f"at {event.at_s:.3f} s {name_of(partition)} of {event.group} was given to {event.member} while "
                        f"{before} had it"
                    )
                    owner[event.group, partition] = event.member


@invariant
def no_two_clients_act_as_owner(history: History) -> Iterator[str]:
    """When one client hands out a partition's records, no other of its group believes that the partition is its own."""
    yield from history.overlaps


@invariant
def old_generations_commit_nothing(history: History) -> Iterator[str]:
    """A commit is accepted from members of the present generation only."""
    for accepted in history.accepted:
        if accepted.generation != accepted.told_generation:
            yield (
                f"{accepted.member} committed for generation {accepted.generation} of {accepted.group} in generation "
                f"{accepted.told_generation}"
            )
        elif accepted.member not in accepted.members:
            yield f"{accepted.member} committed for {accepted.group}, of which it is no member"


def last_erased_s(history: History) -> dict[tuple[str, Partition], float]:
    """When the offset of a partition was erased last."""
    return {(event.group, event.partition): event.at_s for event in history.applied if isinstance(event, Erased)}


def erased_since(history: History, erased_s: dict[tuple[str, Partition], float], commit: Committed) -> bool:
    """Whether an offset was erased after it was applied; perhaps before somebody heard of it."""
    last_s = erased_s.get((commit.group, commit.partition))
    if last_s is None:
        return False
    applied_s = max(
        (
            applied.at_s
            for applied in history.applied
            if isinstance(applied, Committed)
            and (applied.group, applied.partition, applied.offset) == (commit.group, commit.partition, commit.offset)
            and applied.at_s <= commit.at_s
        ),
        default=commit.at_s,
    )
    return last_s >= applied_s


@invariant
def acknowledged_commits_survive(history: History) -> Iterator[str]:
    """A commit that its client was told of is not lost: the group's offset is never below it afterwards, unless erased."""
    if not history.complete:
        return
    erased_s = last_erased_s(history)
    for commit in history.commits:
        if erased_since(history, erased_s, commit):
            continue
        if commit.at_s > history.seen_s or commit.partition in history.damaged:
            continue
        final = history.final_offsets.get((commit.group, commit.partition), -1)
        if final < commit.offset:
            yield (
                f"{commit.group} committed {commit.offset} of {name_of(commit.partition)} at {commit.at_s:.3f} s and was "
                f"told so, but at the end it is {final}"
            )


@invariant
def what_was_shown_survives(history: History) -> Iterator[str]:
    """An offset that the coordinator told anybody is on disk: a crash does not take it back. It may be erased."""
    if not history.complete:
        return
    erased_s = last_erased_s(history)
    for shown in history.shown:
        if erased_since(history, erased_s, shown):
            continue
        final = history.final_offsets.get((shown.group, shown.partition), -1)
        if final < shown.offset and shown.at_s <= history.seen_s and shown.partition not in history.damaged:
            yield (
                f"{shown.group} was shown {shown.offset} of {name_of(shown.partition)} at {shown.at_s:.3f} s, but at the "
                f"end it is {final}"
            )


@invariant
def commits_never_move_back(history: History) -> Iterator[str]:
    """No client of a history seeks or resets, so no offset ever falls while the coordinator lives, unless it is erased."""
    last: dict[tuple[int, str, Partition], int] = {}
    for commit in history.applied:
        key = (commit.life, commit.group, commit.partition)
        if isinstance(commit, Erased):
            last.pop(key, None)
            continue
        if commit.offset < last.get(key, -1) and commit.partition not in history.damaged:
            yield (
                f"the offset of {name_of(commit.partition)} in {commit.group} went back from {last[key]} to "
                f"{commit.offset} at {commit.at_s:.3f} s"
            )
        last[key] = commit.offset


@invariant
def consumers_skip_nothing(history: History) -> Iterator[str]:
    """A group reads every offset from the beginning on; within one assignment, each exactly after the one before.

    A consumer that handles records by key begins them in another order: that nothing is passed over there, those tell that
    look at commits and at what was read in the end.
    """
    stints: dict[int, list[HandedOut]] = {}
    reached: dict[tuple[str, Partition], int] = {}
    for record in history.handed_out:
        if record.stint != NO_STINT:
            stints.setdefault(record.stint, []).append(record)
        if record.group in history.must_read and record.partition not in history.damaged:
            next_offset = reached.get((record.group, record.partition), 0)
            if record.offset > next_offset and record.stint != NO_STINT:
                yield (
                    f"{record.consumer} was handed offset {record.offset} of {name_of(record.partition)} although "
                    f"{record.group} had read up to {next_offset} only"
                )
            reached[record.group, record.partition] = max(next_offset, record.offset + 1)
    for records in stints.values():
        for one, following in pairwise(records):
            again = following.offset == one.offset and one.group in history.handled  # a handler that is called anew
            if following.offset != one.offset + 1 and not again and one.partition not in history.damaged:
                yield (
                    f"{one.consumer} was handed offset {following.offset} of {name_of(one.partition)} right after "
                    f"{one.offset}"
                )


@invariant
def every_acknowledged_record_is_read(history: History) -> Iterator[str]:
    """At least once, by every group that reads the topic from its beginning."""
    if not history.complete:
        return
    read = history.read()
    for group, topics in history.must_read.items():
        for value, ack in history.acknowledged.items():
            unread = (group, ack.partition, ack.offset) not in read
            if unread and ack.partition[0] in topics and ack.partition not in history.damaged:
                yield f"{value!r} at {ack.offset} of {name_of(ack.partition)} was never handed to {group}"


@invariant
def replay_equals_live_state(history: History) -> Iterator[str]:
    """The log of a groups' partition, replayed, gives what the coordinator holds in memory."""
    yield from history.mismatches


@invariant
def each_request_has_one_answer(history: History) -> Iterator[str]:
    """Never two; and none goes unanswered for good while its connection and its daemon live."""
    yield from history.unanswered
    for call in history.calls:
        if call.answers > 1:
            yield f"a {call.kind} of {call.at_s:.3f} s was answered {call.answers} times"


@invariant
def bounds_hold(history: History) -> Iterator[str]:
    """Queues, buffers and requests under way stay within what is promised."""
    yield from history.exceeded


@invariant
def nothing_fails_unexpectedly(history: History) -> Iterator[str]:
    """No program ends with an error it should not see, no callback raises, no log line says that the impossible happened."""
    yield from history.unexpected


@invariant
def a_full_disk_keeps_no_daemon_from_starting(history: History) -> Iterator[str]:
    """After a crash too: it serves what needs no room."""
    yield from history.not_started


@invariant
def a_node_that_lost_nothing_is_clean(history: History) -> Iterator[str]:
    """Kills, power cuts and stops alone make no start say that records may be gone, or that its directory is new."""
    yield from history.unclean


@invariant
def groups_settle_after_the_last_fault(history: History) -> Iterator[str]:
    """Within the stated time every group is stable, every partition owned and read, and nobody waits for an answer."""
    yield from history.not_live
