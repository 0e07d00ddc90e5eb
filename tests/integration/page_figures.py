"""What the page takes of a daemon with 10,000 groups and 10,000 partitions: until it is painted, and while it is open.

``python -m tests.integration.page_figures`` starts a daemon, fills it, and prints the figures; it takes some minutes, and
nothing else should run beside it. While it measures, a program commits an offset now and then, so that there is something
new to show.

What an open page takes is a difference: the daemon's processor time with it and without it, in windows that alternate, the
median of the pairs. A daemon that nobody looks at took 0.2 to 2 % of a core by itself, from one window to the next: it
samples all lags and looks through all logs every quarter of a minute or so. One pair of short windows proves nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from aiohttp import ClientSession

from client import Admin, TopicPartition
from client.cli.processes import cpu_s
from tests.daemon_process import DaemonProcess
from tests.integration.browsing import browser_at, why_not

SECTIONS: Final = {
    "overview": ("", ".facts"),
    "groups": ("#/groups", "tbody tr"),
    "groups by lag": ("#/groups?sort=lag", "tbody tr"),
    "group with all partitions": ("#/group?group=all", "tbody tr"),
    "group with one partition": ("#/group?group=g00042", "tbody tr"),
    "topics": ("#/topics", "tbody tr"),
    "topic of 1,000 partitions": ("#/topic?topic=t0", "tbody tr"),
    "transactions": ("#/transactions", ".empty"),
}
_AT_ONCE: Final = 200
_CHANGE_S: Final = 2.0
_SETTLES_S: Final = 2.0
"""After a page was opened or closed, before it is measured."""


async def fill(address: str, groups: int, partitions: int) -> None:
    """Ten topics, a group for each partition, and one that has committed in all of them."""
    topics = 10
    async with Admin(address) as admin:
        await admin.create_topics({f"t{number}": partitions // topics for number in range(topics)})
        places = [TopicPartition(f"t{at % topics}", at // topics) for at in range(partitions)]
        for first in range(0, groups, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, groups))
            await asyncio.gather(
                *(admin.alter_offsets(f"g{at:05}", {places[at % partitions]: 0}) for at in numbers),
            )
        for first in range(0, partitions, 1_000):
            await admin.alter_offsets("all", dict.fromkeys(places[first : first + 1_000], 0))


async def change(address: str) -> None:
    """A commit now and then, of groups that the lists show first."""
    async with Admin(address) as admin:
        number = 0
        while True:
            number += 1
            await admin.alter_offsets(f"g{number % 50:05}", {TopicPartition(f"t{number % 50 % 10}", 0): number})
            await asyncio.sleep(_CHANGE_S)


async def share_of_core(pid: int, seconds: float) -> float:
    """CPU a second that a process takes, over some time, in percent of a core."""
    loop = asyncio.get_running_loop()
    before, since_s = cpu_s(pid), loop.time()
    await asyncio.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (loop.time() - since_s)


async def cpu_of_a_look(pid: int, http: str, fragment: str, looks: int) -> float:
    """CPU that one answer with what a section shows takes the daemon, in milliseconds; its connection included."""
    section, _, query = fragment.removeprefix("#/").partition("?")
    url = f"http://{http}/api/{section or 'cluster'}?{query}"
    async with ClientSession() as session:
        before = cpu_s(pid)
        for _ in range(looks):
            async with session.get(url) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
        return 1_000 * (cpu_s(pid) - before) / looks


async def shares_of_core(pid: int, http: str, section: str, seconds: float, pairs: int) -> list[tuple[float, float]]:
    """The daemon's share of a core in percent, without a page and with one that shows a section, in each pair of windows."""
    fragment, selector = SECTIONS[section]
    shares = []
    async with browser_at(http) as looked:
        for _ in range(pairs):
            await looked.page.goto("about:blank")
            await asyncio.sleep(_SETTLES_S)
            without = await share_of_core(pid, seconds)
            await looked.open(fragment)
            await looked.page.wait_for_selector(selector)
            await asyncio.sleep(_SETTLES_S)
            shares.append((without, await share_of_core(pid, seconds)))
    return shares


async def measure(daemon: DaemonProcess, http: str, asked: argparse.Namespace) -> None:
    """Prints the figures of each section."""
    columns = (
        "first paint ms",
        "data shown ms",
        "CPU ms a look",
        "page takes %",
        "middle half",
        "% without",
        "from, to",
    )
    print(f"{'section':28}", *(f"{column:>14}" for column in columns))
    for name in asked.section or SECTIONS:
        fragment, selector = SECTIONS[name]
        paints, shown = [], []
        for _ in range(asked.rounds):
            async with browser_at(http) as looked:
                await looked.open(fragment)
                await looked.page.wait_for_selector(selector)
                shown.append(await looked.page.evaluate("performance.now()"))
                paints.append(
                    await looked.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
                )
        shares = await shares_of_core(daemon.pid, http, name, asked.seconds, asked.pairs)
        look = await cpu_of_a_look(daemon.pid, http, fragment, looks=50)
        without, more = [share for share, _ in shares], [open_ - share for share, open_ in shares]
        low, _, high = quantiles(more, n=4)
        figures = (
            *(f"{figure:.1f}" for figure in (median(paints), median(shown), look)),
            *(f"{median(more):.2f}", f"{low:.2f} to {high:.2f}"),
            *(f"{median(without):.2f}", f"{min(without):.2f} to {max(without):.2f}"),
        )
        print(f"{name:28}", *(f"{figure:>14}" for figure in figures), flush=True)


async def run(arguments: Sequence[str] | None = None) -> None:
    """Starts a daemon, fills it and measures."""
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--groups", type=int, default=10_000)
    command.add_argument("--partitions", type=int, default=10_000)
    command.add_argument("--seconds", type=float, default=20.0, help="how long a window is in which CPU is measured")
    command.add_argument(
        "--pairs", type=int, default=6, help="how many windows with the page open, and without, 2 at least"
    )
    command.add_argument(
        "--section", action="append", choices=SECTIONS, help="only this section; may come several times"
    )
    command.add_argument("--rounds", type=int, default=5, help="how often each section is painted")
    asked = command.parse_args(arguments)
    if why_not():
        raise SystemExit(why_not())
    with (
        tempfile.TemporaryDirectory() as folder,
        DaemonProcess(Path(folder), "--http", "127.0.0.1:0", "--max-connections", "500") as daemon,
    ):
        told = re.search(r"serving \S.* on http://(\S+)", "".join(daemon.output))
        assert told is not None, daemon.output
        await fill(daemon.address, asked.groups, asked.partitions)
        changing = asyncio.create_task(change(daemon.address))
        try:
            print(f"{asked.groups} groups, {asked.partitions} partitions; {asked.pairs} pairs of {asked.seconds:g} s")
            await measure(daemon, told.group(1), asked)
        finally:
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(run())
