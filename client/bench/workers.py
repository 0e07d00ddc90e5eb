"""What a second worker brings: heartbeats a second of many groups, to one process and to two, alternately.

The load generator shares the machine with the daemon. Its part of the processor time is told with each figure: where all
cores were busy, the rate is what was left to the daemon.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time
from typing import Final

from client.bench.closed_loop import Exchange, Load
from client.bench.figures import Figure, Setting
from client.bench.heartbeats import exchange_of
from client.bench.raw_group import RawMember, form_group
from client.bench.requests import TIMEOUT_S, connect, find_coordinator
from client.cli.processes import ServerProcess, cpu_s, daemon
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse

_GROUPS: Final = 20
_MEMBERS: Final = 5
_COUNTS: Final = (1, 2)


@dataclass(slots=True)
class _Rounds:
    """Answers a second of each round, and seconds of processor time: the daemon's and the load generator's."""

    rates: list[float] = field(default_factory=list)
    daemon_s: float = 0.0
    generator_s: float = 0.0


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Daemons of one and of two workers and an echo take turns; the medians count."""
    rounds, seconds = (1, 0.3) if setting.quick else (5, 2.0)
    async with AsyncExitStack() as stack:
        echo = await stack.enter_async_context(ServerProcess("the echo server", "-m", "client.bench.echo"))
        loads: dict[int, tuple[ServerProcess, list[Load]]] = {}
        for count in _COUNTS:
            options = ("--workers", str(count), "--log-level", "error")
            server = await stack.enter_async_context(daemon(setting.directory / f"data-{count}", *options))
            loads[count] = server, await _groups(server.address, stack)
        one = Exchange(b"\x00" * 60, b"\x00" * 60)
        echoed = await Load.connect(echo.address, [one] * (_GROUPS * _MEMBERS))
        stack.callback(echoed.close)
        found = {count: _Rounds() for count in _COUNTS}
        floors = []
        for _ in range(rounds):
            floors.append((await echoed.round(seconds)).rate)
            for count, (server, connected) in loads.items():
                await _add_round(found[count], server, connected, seconds)
    for count, measured in found.items():
        spent = measured.daemon_s + measured.generator_s
        params = {
            "workers": count,
            "groups": _GROUPS,
            "connections": _GROUPS * _MEMBERS,
            "cores": os.cpu_count(),
            "generators_share_of_cpu": round(measured.generator_s / spent, 2),
            "cores_busy": round(spent / (rounds * seconds), 2),
            "times_one_worker": round(median(measured.rates) / median(found[1].rates), 2),
            "rounds": rounds,
        }
        name = "asyncio echo of as many bytes by one process"
        yield Figure(
            "workers", f"heartbeats_{count}_per_s", median(measured.rates), "1/s", median(floors), name, params
        )


async def _groups(address: str, stack: AsyncExitStack) -> list[Load]:
    """Connections of all members, to the worker that coordinates their group."""
    by_worker = await form_groups(address, _GROUPS, _MEMBERS)
    loads = [await Load.connect(worker, list(map(exchange_of, members))) for worker, members in by_worker.items()]
    for load in loads:
        stack.callback(load.close)
    return loads


async def form_groups(address: str, groups: int, size: int) -> dict[str, list[RawMember]]:
    """Groups of ``size`` members each: all members, by the address of the worker that coordinates their group."""
    by_worker: dict[str, list[RawMember]] = {}
    for number in range(groups):
        group = f"group-{number}"
        worker = await _coordinator(address, group)
        by_worker.setdefault(worker, []).extend(await form_group(worker, group, size))
    return by_worker


async def _coordinator(address: str, group: str) -> str:
    connection = await connect(address)
    try:
        await find_coordinator(connection, group)
        found = await connection.request(FindCoordinatorRequest(group), FindCoordinatorResponse, timeout_s=TIMEOUT_S)
    finally:
        connection.close()
    return f"{found.host}:{found.port}"


async def _add_round(measured: _Rounds, server: ServerProcess, loads: Sequence[Load], seconds: float) -> None:
    before, own = _cpu_of_all_s(server.pid), process_time()
    done = await asyncio.gather(*(load.round(seconds) for load in loads))
    measured.daemon_s += _cpu_of_all_s(server.pid) - before
    measured.generator_s += process_time() - own
    measured.rates.append(sum(each.rate for each in done))


def _cpu_of_all_s(pid: int) -> float:
    """Processor time of a process and of its children so far, in seconds."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(map(cpu_s, (pid, *map(int, children))))
