"""What metrics cost: the daemon's processor time a request with ``--http`` and without, measured alternately.

Two daemons take turns, of which the second serves metrics; which one begins changes with each pair. A process may be a
little faster or slower than another for all its life, by where its memory lies, so each of several pairs of processes has
several pairs of rounds, and the medians count. Nobody scrapes meanwhile, which costs by the number of series.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from statistics import median, quantiles
from typing import Any, Final, NamedTuple

from client.admin import Admin
from client.bench import commits, heartbeats
from client.bench.closed_loop import Exchange, Load
from client.bench.figures import Figure, Setting, Skipped
from client.bench.produce import send_many_seconds
from client.bench.raw_group import form_group
from client.bench.records import PARTITIONS, TOPIC, values
from client.cli.processes import ServerProcess, daemon
from client.producer.producer import Producer

TARGET: Final = "at most 2 %"
_VALUE_BYTES: Final = 100
_MODULES: Final = ("aiohttp", "prometheus_client")

Work = Callable[[], Awaitable[int]]
"""One round; gives how many requests or records it was."""


class Pair(NamedTuple):
    """Microseconds of processor time an item, without what is measured and with it."""

    without: float
    added: float

    @property
    def more_percent(self) -> float:
        """What it adds."""
        return 100 * (self.added / self.without - 1)


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Raises ``Skipped`` where the daemon could not serve metrics."""
    if any(find_spec(module) is None for module in _MODULES):
        raise Skipped("metrics need the extra web: pip install 'aiocohort[web]'")
    starts, rounds, seconds = (1, 1, 0.1) if setting.quick else (4, 15, 0.25)
    measured: dict[str, list[Pair]] = {}
    for start in range(starts):
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(
                    daemon(setting.directory / f"{start}-{number}", "--log-level", "error", *options)
                )
                for number, options in enumerate(((), ("--http", "127.0.0.1:0")))
            ]
            works = [await _works(server, stack, seconds, quick=setting.quick) for server in servers]
            for name in works[0]:
                for at in range(rounds + 1):
                    order = (0, 1) if (start + at) % 2 else (1, 0)
                    spent = {number: await _cost_us(servers[number], works[number][name]) for number in order}
                    if at or setting.quick:  # the first round warms up
                        measured.setdefault(name, []).append(Pair(spent[0], spent[1]))
    for name, pairs in measured.items():
        params = {"target": TARGET, "starts": starts, "round_s": seconds}
        yield cost_figure("metrics_cost", f"{name}_us", pairs, "the same without --http", params)


def cost_figure(bench: str, metric: str, pairs: list[Pair], floor_name: str, params: Mapping[str, Any]) -> Figure:
    """The medians of pairs that were measured side by side, and by how many percent they differ."""
    more = [pair.more_percent for pair in pairs]
    low, _, high = quantiles(more, n=4) if len(more) > 1 else (more[0],) * 3
    told = {
        "more_percent": round(median(more), 2),
        "middle_half": f"{low:.2f} to {high:.2f} %",
        "pairs": len(pairs),
        **params,
    }
    added, without = median(pair.added for pair in pairs), median(pair.without for pair in pairs)
    return Figure(bench, metric, added, "us", without, floor_name, told)


async def _cost_us(server: ServerProcess, work: Work) -> float:
    before = server.cpu_s()
    items = await work()
    return (server.cpu_s() - before) / items * 1e6


async def _works(server: ServerProcess, stack: AsyncExitStack, seconds: float, *, quick: bool) -> dict[str, Work]:
    """Heartbeats and commits in closed loops, and records in bulk, of one daemon."""
    async with Admin(bootstrap_servers=server.address) as admin:
        await admin.create_topics({commits.TOPIC: commits.MEMBERS, TOPIC: PARTITIONS})
    beating = await form_group(server.address, "heartbeats", heartbeats.CONNECTIONS)
    committing = await form_group(server.address, "commits", commits.MEMBERS)
    producer = await stack.enter_async_context(Producer(bootstrap_servers=server.address))
    content = values(2_000 if quick else 50_000, _VALUE_BYTES)

    async def loaded(exchanges: list[Exchange]) -> Work:
        load = await Load.connect(server.address, exchanges)
        stack.callback(load.close)

        async def round_of_load() -> int:
            return (await load.round(seconds)).answers

        return round_of_load

    async def produced() -> int:
        await send_many_seconds(producer, content)
        return len(content)

    return {
        "heartbeat": await loaded(list(map(heartbeats.exchange_of, beating))),
        "commit": await loaded([commits.exchange_of(member, number) for number, member in enumerate(committing)]),
        "record": produced,
    }
