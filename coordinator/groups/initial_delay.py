"""The first generation of an empty group may be held back, so that members that start together share it (KIP-134).

While members keep coming the delay begins anew, all in all for no longer than the rebalance timeout of the first one.
"""

from __future__ import annotations

from coordinator.groups.group import Group, InitialDelay
from coordinator.runtime.effects import Effects, Instant


def begin(group: Group, configured_ms: int, now: Instant, effects: Effects) -> None:
    """The rebalance of a group that was empty has begun; a delay of 0 ms changes nothing."""
    if configured_ms:
        remaining_ms = max(0, group.phase_timeout_ms - configured_ms)
        group.initial = InitialDelay(configured_ms, configured_ms, remaining_ms)
        _set_timer(group, configured_ms, now, effects)


def extend(group: Group, now: Instant, effects: Effects) -> bool:
    """The delay is over: whether it begins anew, because somebody came while it ran and there is time left."""
    initial = group.initial
    if initial is None:
        return False
    if not initial.more_came or not initial.remaining_ms:
        group.initial = None
        return False
    initial.more_came = False
    delay_ms = min(initial.configured_ms, initial.remaining_ms)
    initial.remaining_ms = max(0, initial.remaining_ms - initial.delay_ms)
    initial.delay_ms = delay_ms
    _set_timer(group, delay_ms, now, effects)
    return True


def _set_timer(group: Group, delay_ms: int, now: Instant, effects: Effects) -> None:
    group.rebalance_deadline_ms = now.ms + delay_ms
    effects.timers["rebalance", group.group_id] = group.rebalance_deadline_ms
