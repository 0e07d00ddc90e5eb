"""A group of ten thousand members: how soon it settles, and what the members of other groups feel of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

from client.bench.crowd import MEMBERS_PER_CONNECTION, Crowd, CrowdGroup, Settled
from client.bench.figures import Figure, Setting
from client.bench.probe import Measured, Probe, probe
from client.cli.processes import ServerProcess, daemon

_GROUP: Final = "large"
_SESSION_TIMEOUT_MS: Final = 45_000
_ECHO: Final = "an echo of the same frames at the same time"


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """All join at once, one leaves, one joins; each time all members end up with their share of one generation."""
    size, groups = (100, 2) if setting.quick else (10_000, 60)
    async with (
        ServerProcess("the echo server", "-m", "client.bench.echo") as echo,
        daemon(setting.directory / "data", "--log-level", "error") as server,
        probe(server.address, echo.address, beside=_GROUP, groups=groups, size=5) as beside,
    ):
        crowd = await Crowd.connect(server.address, size, _SESSION_TIMEOUT_MS)
        try:
            group = await crowd.add_group(_GROUP)
            for name, begin in _changes(crowd, group, size).items():
                params = {
                    "members": size,
                    "members_per_connection": MEMBERS_PER_CONNECTION,
                    "beside": f"{groups} groups of 5 members in the same shard, as many in others",
                }
                settled, felt = await _measured(crowd, beside, begin)
                for figure in _figures(name, settled, felt, params):
                    yield figure
            yield Figure("large_group", "missed_sessions", crowd.missed_sessions, "", None, None, {"members": size})
        finally:
            crowd.close()


def _changes(crowd: Crowd, group: CrowdGroup, size: int) -> dict[str, Callable[[], None]]:
    def all_join() -> None:
        for _ in range(size):
            crowd.add_member(group).join()

    return {
        "all_join": all_join,
        "one_leaves": lambda: group.members[size // 2].leave(),
        "one_joins": lambda: crowd.add_member(group).join(),
    }


async def _measured(crowd: Crowd, beside: Probe, begin: Callable[[], None]) -> tuple[Settled, Measured]:
    await beside.take()
    settled = await crowd.settle(begin)
    return settled, await beside.take()


def _figures(name: str, settled: Settled, felt: Measured, params: dict[str, object]) -> list[Figure]:
    rounded = {kind: {key: round(value, 3) for key, value in each.items()} for kind, each in felt.items()}
    figures = [
        Figure("large_group", f"{name}_settled_s", settled.since_last_join_s, "s", None, None,
               {**params, "since_the_first_request_s": round(settled.seconds, 3)}),
    ]  # fmt: skip
    for kind in ("other_shards", "same_shard"):
        figures.append(
            Figure("large_group", f"{name}_heartbeats_{kind}_p99_ms", felt[kind]["p99_ms"], "ms",
                   felt["echo"]["p99_ms"], _ECHO, {**params, **rounded[kind]})
        )  # fmt: skip
    figures.append(
        Figure("large_group", f"{name}_loop_late_max_ms", felt["loop"]["max_ms"], "ms", felt["echo"]["max_ms"], _ECHO,
               {**params, **rounded["loop"]})
    )  # fmt: skip
    return figures
