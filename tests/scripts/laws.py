"""Laws that hold after every step of every script, without being written there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from coordinator.groups.core import GroupCore
from coordinator.runtime.effects import Effects, Instant, ReplyToken, TimerName
from tests.coordinator.groups.steps import step_of
from tests.scripts.script import ScriptError


def memory_is_what_the_log_says(core: GroupCore, replayed: GroupCore) -> None:
    """A replay of the log gives the durable state in memory."""
    if core.groups and replayed.durable_state() != core.durable_state():
        raise ScriptError(f"the log says {replayed.durable_state()}, the memory {core.durable_state()}")


def events_of_no_meaning_do_nothing(
    core: GroupCore, timers: Mapping[TimerName, int], answered: Iterable[ReplyToken], now: Instant
) -> None:
    """Timers that come too early are set again and do no more; those that were not set do nothing.

    Nor does it matter when a connection closes after its requests have been answered.
    """
    for name, deadline_ms in timers.items():
        early = core.on_timer(name, step_of(core, now)) if deadline_ms > now.ms else None
        if early is not None and (early.records or early.replies or early.timers != {name: deadline_ms}):
            raise ScriptError(f"{name} came {deadline_ms - now.ms} ms early, and that did something")
    idle = {str(name): core.on_timer(name, step_of(core, now)) for name in _names(core) if name not in timers}
    idle |= {
        f"closing of the connection of request {token}": core.abandon(token, step_of(core, now)) for token in answered
    }
    for what, effects in idle.items():
        if _does_something(effects):
            raise ScriptError(f"{what} is about nothing, and did something")


def _names(core: GroupCore) -> Iterator[TimerName]:
    for group_id, members in [*((group.group_id, [*group.members]) for group in core.groups.values()), ("nowhere", [])]:
        yield from (("rebalance", group_id), ("sync", group_id))
        for member_id in (*members, "nobody"):
            yield from ((kind, group_id, member_id) for kind in ("session", "heartbeat", "pending"))


def _does_something(effects: Effects) -> bool:
    return bool(effects.records or effects.replies or effects.timers)
