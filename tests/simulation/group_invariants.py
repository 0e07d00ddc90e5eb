"""What must hold for groups in particular: cooperative and static members, handlers, expiry, deletion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.history import Committed, History, Partition, Told, name_of
from tests.simulation.registry import invariant

MAX_ROUNDS: Final = 3


@invariant
def cooperative_groups_converge(history: History) -> Iterator[str]:
    """A group of cooperative members is settled after three rebalances at most: the first hands over what is free, the
    others what was given up."""
    rounds: dict[str, int] = {}
    generations: dict[str, int] = {}
    for told in history.ownership:
        if not isinstance(told, Told) or told.what != "join" or generations.get(told.group) == told.generation:
            continue
        generations[told.group] = told.generation
        # A cause may quote another: only who gave something up itself follows.
        causes = [cause.partition(" rejoined: ")[2] for cause in told.reason.split("; ") if cause]
        follows = all(cause.startswith("gave up") for cause in causes)
        rounds[told.group] = rounds.get(told.group, 1) + 1 if follows else 1
        if rounds[told.group] > MAX_ROUNDS and told.group in history.cooperative:
            yield f"{told.group} needed {rounds[told.group]} rebalances up to generation {told.generation}: {told.reason}"


@invariant
def static_members_come_back_without_a_rebalance(history: History) -> Iterator[str]:
    """A process with the instance id of a member of a stable group, which wants what the one before wanted (KIP-345)."""
    yield from history.disturbed


@invariant
def handlers_end_before_their_partition_goes(history: History) -> Iterator[str]:
    """Once a program was told that a partition is given up, no handler begins or ends on one of its records."""
    yield from history.overrun


@invariant
def commits_cover_finished_records_only(history: History) -> Iterator[str]:
    """In groups whose records are handled: all below a committed offset was finished before, or is a dead letter on disk."""
    reached: dict[tuple[str, Partition], int] = {}
    for commit in history.applied:
        if not isinstance(commit, Committed) or commit.group not in history.must_finish:
            continue
        key = (commit.group, commit.partition)
        for offset in range(reached.get(key, 0), commit.offset):
            finished_s = history.finished.get((*key, offset))
            if history.is_kept((*key, offset)):
                continue
            if (finished_s is None or finished_s > commit.at_s) and commit.partition not in history.damaged:
                yield (
                    f"{commit.group} committed {commit.offset} of {name_of(commit.partition)} at {commit.at_s:.3f} s, but "
                    f"offset {offset} was not finished"
                )
                break
        reached[key] = max(reached.get(key, 0), commit.offset)


@invariant
def offsets_expire_by_the_rules_only(history: History) -> Iterator[str]:
    """Not before their time, not under those who need them (KIP-211)."""
    yield from history.expired_early


@invariant
def what_was_deleted_stays_deleted(history: History) -> Iterator[str]:
    """Of a group whose deletion was acknowledged, no offset from before it ever comes back."""
    if not history.complete:
        return
    last: dict[tuple[str, Partition], list[Committed]] = {}
    for commit in history.applied:
        if isinstance(commit, Committed):
            last.setdefault((commit.group, commit.partition), []).append(commit)
    for deleted in history.deleted:
        for (group, partition), offset in history.final_offsets.items():
            commits = last.get((group, partition), [])
            if group == deleted.group and not any(
                commit.offset == offset and commit.at_s >= deleted.asked_s for commit in commits
            ):
                yield (
                    f"{group} was deleted by {deleted.at_s:.3f} s, but at the end it has {offset} of {name_of(partition)}, "
                    f"which was committed before"
                )


@invariant
def offsets_hold_for_their_topic_only(history: History) -> Iterator[str]:
    """A topic that is created under the name of a deleted one is read from its beginning by every group."""
    yield from history.outlived


@invariant
def what_appears_later_is_read_from_its_beginning(history: History) -> Iterator[str]:
    """A consumer that begins at "latest" skips no record of a partition that appears while it reads."""
    if not history.complete:
        return
    for name, value, ack in history.unfollowed():
        yield (
            f"{value!r} at {ack.offset} of {name_of(ack.partition)} was never handed to {name}, which had begun to read "
            f"before the partition appeared at {history.appeared[ack.partition]:.3f} s"
        )


@invariant
def members_that_beat_in_time_stay(history: History) -> Iterator[str]:
    """What arrived in time counts in time, also when the daemon could not read it: see ``beating``."""
    yield from history.evicted


@invariant
def programs_are_told_of_what_they_hold(history: History) -> Iterator[str]:
    """When a program is told of an assignment, its member holds it for certain, suspended or not a moment ago."""
    yield from history.told_late
