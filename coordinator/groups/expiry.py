"""Committed offsets expire after their retention, and groups of which nothing is left are erased (KIP-211).

============================================  ========================================================================
group                                         an offset expires once it is ``offsets_retention_ms`` old, counted from
============================================  ========================================================================
Empty, and it had members                     the moment it became Empty, or the commit if that was later
Empty, and never had members                  the commit
Stable consumers whose subscriptions parse    the commit, if no member subscribes to the topic
any other                                     never
============================================  ========================================================================

Kafka counts the offsets of an Empty group from that moment alone, so that what an administrator sets shortly before the end
is gone with the rest; here a commit always lives for a whole retention. A group that is Empty, has no offsets left and that
nobody is about to join leaves memory and log in the same pass. What an open transaction is to commit does not expire, and
neither does the committed offset of such a partition: the transaction is decided first.

**The wall clock** decides, as ages go on while the daemon is down. It may step:

- Backwards: nothing is old until it has caught up. Offsets live longer; none is lost.
- Forwards: a wrong clock makes everything look old at once. When the wall clock has gained more than a check interval on the
  loop's clock since the last pass, the pass is put off, and the next one believes it: a slip that is corrected within an
  interval costs nothing. (A machine that slept looks the same; its pass is put off, too.)

A pass goes in slices of bounded work with pauses between them, so that millions of offsets never hold up a request for more
than a few ms. It looks at the groups and topics that were there when it began, and at their offsets as they are by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from coordinator.groups.config import GroupStep
from coordinator.groups.deletion import erase
from coordinator.groups.group import Group, Groups
from coordinator.groups.offsets import pending_places
from coordinator.groups.records import OffsetCommitTombstone
from coordinator.groups.state import GroupState
from coordinator.groups.subscriptions import subscriptions
from coordinator.runtime.effects import Instant, TimerName
from protocol.subscription import CONSUMER_PROTOCOL_TYPE

EXPIRY_TIMER: Final[TimerName] = ("expiry",)
"""The timer that brings the next slice or the next pass. There is one for all groups of a shard."""

SLICE_PAUSE_MS: Final = 10
"""What requests get to themselves between two slices of a pass."""

_SLICE_WORK: Final = 5_000
"""How much a slice does, counted in offsets that are looked at and stay: about two ms."""

_WORK_PER_GROUP: Final = 2
_WORK_PER_TOMBSTONE: Final = 5
_WORK_PER_NOTE: Final = 100
_BYTES_PER_WORK: Final = 30
"""Bytes of subscriptions read in the time that one offset takes."""


class Expiry:
    """When the groups of a shard are looked at, and how far the pass under way has come. All of it is soft."""

    def __init__(self) -> None:
        self.deadline_ms: int | None = None
        """When the timer is due; None before ``start``, and after ``stop``."""
        self._last_look: Instant | None = None
        self._pass: _Pass | None = None

    @property
    def under_way(self) -> bool:
        """Whether a pass has begun and has more to look at."""
        return self._pass is not None

    def start(self, delay_ms: int, step: GroupStep) -> None:
        """The first pass comes after ``delay_ms``."""
        self._last_look = step.now
        self._come_back(step.now.ms + delay_ms, step)

    def stop(self, step: GroupStep) -> None:
        """No pass comes any more, and the one under way is given up."""
        self._pass = None
        if self.deadline_ms is not None:
            self.deadline_ms = None
            step.effects.timers[EXPIRY_TIMER] = None

    def on_timer(self, groups: Groups, step: GroupStep) -> None:
        """The timer fired: one slice. One that has moved is set again, one that is void does nothing."""
        if self.deadline_ms is None:
            return
        if step.now.ms < self.deadline_ms:
            step.effects.timers[EXPIRY_TIMER] = self.deadline_ms
            return
        interval_ms = step.config.offsets_retention_check_interval_ms
        if self._pass is None and not self._clock_slipped(interval_ms, step):
            self._pass = _Pass(groups, step.now.wall_ms - step.config.offsets_retention_ms)
        if self._pass is not None and self._pass.go_on(groups, step):
            self._come_back(step.now.ms + SLICE_PAUSE_MS, step)
        else:
            self._pass = None
            self._come_back(step.now.ms + interval_ms, step)

    def _clock_slipped(self, interval_ms: int, step: GroupStep) -> bool:
        last, self._last_look = self._last_look, step.now
        assert last is not None, "a timer that is set has been started"
        gained_ms = (step.now.wall_ms - last.wall_ms) - (step.now.ms - last.ms)
        if gained_ms <= interval_ms:
            return False
        # The wall clock went so much further than the time that passed, and may be wrong.
        step.effects.note("offset_expiry_deferred", ms=interval_ms, wall_clock_gained_ms=gained_ms)
        return True

    def _come_back(self, deadline_ms: int, step: GroupStep) -> None:
        self.deadline_ms = step.effects.timers[EXPIRY_TIMER] = deadline_ms


class _Pass:
    """One look at everything. ``cutoff_ms`` is the wall time of which the retention is over when the pass begins."""

    def __init__(self, groups: Groups, cutoff_ms: int) -> None:
        self._cutoff_ms = cutoff_ms
        self._group_ids = iter(tuple(groups))
        self._group: Group | None = None
        self._places: Iterator[tuple[str, int]] = iter(())
        self._work = 0

    def go_on(self, groups: Groups, step: GroupStep) -> bool:
        """One slice; whether more is to be done."""
        self._work = _SLICE_WORK
        while self._work > 0:
            group = self._group
            if group is None:
                group_id = next(self._group_ids, None)
                if group_id is None:
                    return False
                self._work -= _WORK_PER_GROUP
                self._group = group = groups.get(group_id)
                if group is None:
                    continue
                self._places = _places(group)
            if self._look_at(groups, group, step):
                self._group = None
        return True

    def _look_at(self, groups: Groups, group: Group, step: GroupStep) -> bool:
        """Goes on with one group; whether it is done. It may have changed since the last slice, or be Dead by now."""
        erased = 0
        done = True
        if self._may_expire(group):
            undecided = pending_places(group, groups.topics.is_gone)
            for place in self._places:
                topic, partition = place
                self._work -= 1
                committed = group.offsets.get(topic, {}).get(partition)
                if committed is not None and committed[3] <= self._cutoff_ms and place not in undecided:
                    in_use = self._in_use(group, topic)
                    if in_use is None:
                        self._places = chain((place,), self._places)
                    elif not in_use:
                        erased += 1
                        self._work -= _WORK_PER_TOMBSTONE
                        step.effects.records.append(OffsetCommitTombstone(group.group_id, topic, partition))
                if self._work <= 0:
                    done = False
                    break
        gone = done and _is_left_with(group, erased)
        if gone:
            erase(group, step)
        if erased or gone:
            self._work -= _WORK_PER_NOTE
            step.effects.note("offsets_expired", group=group.clipped_id, offsets=erased, group_is_gone=gone)
        return done

    def _may_expire(self, group: Group) -> bool:
        """Whether the rules for this group let any of its offsets expire."""
        if group.state is GroupState.EMPTY:
            # Without a record of its own the group never had a generation that was settled: its commits count.
            return group.durable is None or group.durable.written_wall_ms <= self._cutoff_ms
        return group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE

    def _in_use(self, group: Group, topic: str) -> bool | None:
        """Whether a member subscribes to the topic; None when this slice had no time left to find out."""
        if not group.members:
            return False
        known = subscriptions(group)
        if not known.complete:
            self._work -= known.read(self._work * _BYTES_PER_WORK) // _BYTES_PER_WORK
        return known.has(topic) if known.complete else None


def _places(group: Group) -> Iterator[tuple[str, int]]:
    """Where the group has offsets now, however long it takes to walk through them."""
    for topic in tuple(group.offsets):
        for partition in tuple(group.offsets.get(topic, ())):
            yield topic, partition


def _is_left_with(group: Group, offsets: int) -> bool:
    """Whether the group has neither members nor members or offsets pending, and so many offsets only."""
    empty = group.state is GroupState.EMPTY and not group.pending and not group.pending_offsets
    return empty and sum(map(len, group.offsets.values())) == offsets
