"""Two thousand groups that rebalance at the same time: how soon all are stable, and whether a member misses its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from client.bench.crowd import MEMBERS_PER_CONNECTION, Crowd, CrowdGroup
from client.bench.figures import Figure, Setting
from client.cli.processes import daemon

_MEMBERS: Final = 5
_SESSION_TIMEOUT_MS: Final = 10_000


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """All members of all groups join at once; then one leaves each group; then one joins each group."""
    groups = 20 if setting.quick else 2_000
    async with daemon(setting.directory / "data", "--log-level", "error") as server:
        crowd = await Crowd.connect(server.address, groups * (_MEMBERS + 1), _SESSION_TIMEOUT_MS)
        try:
            await asyncio.gather(*(crowd.add_group(f"group-{number}") for number in range(groups)))
            for name, change in _CHANGES.items():
                missed_before = crowd.missed_sessions

                def begin(change: Callable[[Crowd, CrowdGroup], None] = change) -> None:
                    for group in crowd.groups:
                        change(crowd, group)

                settled = await crowd.settle(begin)
                params = {
                    "groups": groups,
                    "members": _MEMBERS,
                    "session_timeout_ms": _SESSION_TIMEOUT_MS,
                    "members_per_connection": MEMBERS_PER_CONNECTION,
                    "since_the_last_join_s": round(settled.since_last_join_s, 3),
                }
                missed = crowd.missed_sessions - missed_before
                yield Figure("many_groups", f"{name}_stable_s", settled.seconds, "s", None, None, params)
                yield Figure("many_groups", f"{name}_missed_sessions", missed, "", None, None, params)
        finally:
            crowd.close()


def _all_join(crowd: Crowd, group: CrowdGroup) -> None:
    for _ in range(_MEMBERS):
        crowd.add_member(group).join()


def _one_leaves(crowd: Crowd, group: CrowdGroup) -> None:
    group.members[-1].leave()


def _one_joins(crowd: Crowd, group: CrowdGroup) -> None:
    crowd.add_member(group).join()


_CHANGES: Final[dict[str, Callable[[Crowd, CrowdGroup], None]]] = {
    "all_join": _all_join,
    "one_leaves": _one_leaves,
    "one_joins": _one_joins,
}
