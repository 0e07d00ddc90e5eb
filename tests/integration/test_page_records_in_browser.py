"""Records on the page in a real Chromium: none twice and none missing, whatever becomes of connections and clicks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any

import pytest

from client import Admin, Producer
from coordinator import Coordinator
from coordinator.web import record_views, streams
from tests.integration.browsing import DESKTOP, Looked, browser_at, needs_browser, streams_open
from tests.integration.consuming import until
from tests.integration.test_page_records import compacted

if TYPE_CHECKING:
    from playwright.async_api import Page, Request, Route

pytestmark = needs_browser

SETTINGS: dict[str, Any] = {"http": "127.0.0.1:0", "initial_rebalance_delay_ms": 0, "compaction_interval_ms": 20}
ROWS = ".records > li"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOOK_S", 0.05)
    monkeypatch.setattr(streams, "REST", 0)


@asynccontextmanager
async def topic_of(records: int, partitions: int = 1) -> AsyncIterator[tuple[Coordinator, Producer[Any, Any]]]:
    """A daemon with the topic lines, of so many records in each partition, whose values say partition and number."""
    async with Coordinator(**SETTINGS) as coordinator, Producer(coordinator.address) as producer:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"lines": partitions})
        for partition in range(partitions if records else 0):
            values = [b"of %d, number %d" % (partition, number) for number in range(records)]
            await producer.send_many("lines", values, partition=partition)
        await producer.flush()
        yield coordinator, producer


async def offsets(page: Page) -> list[int]:
    """Those that the page shows, from the top down."""
    return [int(text.replace(",", "")) for text in await page.locator(f"{ROWS} .offset").all_inner_texts()]


async def shown(page: Page, *wanted: int) -> None:
    """Waits until the page shows these and no other, in this order; what it shows, if they do not come."""
    found: list[int] = []
    try:
        async with asyncio.timeout(30):
            while (found := await offsets(page)) != list(wanted):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"the page shows the offsets {found}") from None


def down(high: int, low: int = 0) -> range:
    """These offsets, the highest first."""
    return range(high, low - 1, -1)


async def press(page: Page, name: str) -> None:
    await page.get_by_role("button", name=name, exact=True).click()


async def settled(page: Page) -> None:
    """Waits until the page has dealt with all that has come to it before."""
    await page.evaluate("fetch('/api/cluster').then(answer => answer.json())")
    await page.evaluate("new Promise(done => setTimeout(done))")


async def begin_with(page: Page, what: str) -> None:
    await page.get_by_label("Beginning with").select_option(what)


async def show_from(page: Page, offset: int) -> None:
    await begin_with(page, "offset")
    await page.get_by_label("Offset", exact=True).fill(str(offset))
    await press(page, "Show")


async def test_older_records_lead_back_to_the_first_one() -> None:
    async with topic_of(120) as (coordinator, _), browser_at(coordinator.http_address) as looked:
        page = looked.page
        await looked.open("#/topic?topic=lines")
        await shown(page, *down(119, 70))
        await press(page, "Older records")
        await shown(page, *down(119, 20))
        await press(page, "Older records")
        await shown(page, *down(119))
        await page.get_by_role("button", name="Older records").wait_for(state="hidden")


async def test_older_records_pass_over_what_compaction_has_removed() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        left = await compacted(coordinator, "kept")
        async with browser_at(coordinator.http_address) as looked:
            await looked.open("#/topic?topic=kept")
            await shown(looked.page, *left[:-51:-1])
            await press(looked.page, "Older records")
            await shown(looked.page, *left[::-1])
            await looked.page.get_by_role("button", name="Older records").wait_for(state="hidden")


async def test_later_records_lead_on_from_an_offset() -> None:
    async with topic_of(120) as (coordinator, _), browser_at(coordinator.http_address) as looked:
        page = looked.page
        await looked.open("#/topic?topic=lines")
        await show_from(page, 15)
        await shown(page, *range(15, 65))
        await press(page, "Later records")
        await shown(page, *range(15, 115))
        await press(page, "Later records")
        await shown(page, *range(15, 120))
        await page.get_by_role("button", name="Later records").wait_for(state="hidden")


async def test_records_are_shown_from_a_time_on() -> None:
    second = int(time()) - 600
    async with topic_of(0) as (coordinator, producer):
        times = [1_000 * (second + number) for number in range(20)]
        await producer.send_many("lines", [b"x"] * 20, partition=0, timestamp_ms=times)
        async with browser_at(coordinator.http_address, **DESKTOP, timezone_id="UTC") as looked:
            page = looked.page
            await looked.open("#/topic?topic=lines")
            await shown(page, *down(19))
            await begin_with(page, "time")
            wanted = datetime.fromtimestamp(second + 12, UTC)
            await page.get_by_label("Time", exact=True).fill(wanted.strftime("%Y-%m-%dT%H:%M:%S"))
            await press(page, "Show")
            await shown(page, *range(12, 20))
            first = await page.locator(f"{ROWS} .time").first.inner_text()
            assert first == wanted.strftime("%d/%m/%Y %H:%M:%S")


async def test_the_first_record_that_is_followed_takes_the_place_of_none() -> None:
    async with topic_of(0) as (coordinator, producer), browser_at(coordinator.http_address) as looked:
        page = looked.page
        await looked.open("#/topic?topic=lines")
        await page.wait_for_selector(f"{ROWS}:has-text('There are no records here.')")
        await press(page, "Follow live")
        await producer.send("lines", b"the first")
        await shown(page, 0)
        assert await page.locator(ROWS).count() == 1
        assert "There are no records here." not in await looked.text()


async def followed(looked: Looked, *wanted: int) -> None:
    """The topic, followed live, once its newest records are these."""
    await looked.open("#/topic?topic=lines")
    await shown(looked.page, *wanted)
    await press(looked.page, "Follow live")


async def test_a_page_that_was_not_seen_goes_on_following_where_it_was() -> None:
    async with topic_of(3) as (coordinator, producer), browser_at(coordinator.http_address) as looked:
        await followed(looked, *down(2))
        await producer.send_and_wait("lines", b"seen")
        await shown(looked.page, *down(3))
        await looked.hide(True)
        await until(lambda: streams_open(coordinator) == 0)
        await producer.send_and_wait("lines", b"not seen")
        await looked.hide(False)
        await shown(looked.page, *down(4))
        await producer.send_and_wait("lines", b"seen again")
        await shown(looked.page, *down(5))


async def moved_on(looked: Looked, is_enough: Callable[[], bool]) -> None:
    """Lets the page's clock go on until something has come of it."""
    async with asyncio.timeout(60):
        while not is_enough():
            await looked.page.clock.fast_forward(1_000)
            await asyncio.sleep(0.05)


async def test_a_stream_that_ends_is_followed_by_another_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAM_S", 0.5)
    async with topic_of(3) as (coordinator, producer), browser_at(coordinator.http_address) as looked:

        def connections() -> int:
            return sum("events?view=records" in url for url in looked.requests)

        await looked.page.clock.install()
        await followed(looked, *down(2))
        await until(lambda: connections() == 1)
        for number in range(3, 9):
            await producer.send_and_wait("lines", b"%d" % number)
            await moved_on(looked, lambda: connections() >= number)  # noqa: B023 - it is called before the next one
        await shown(looked.page, *down(8))


async def test_without_a_stream_the_page_looks_now_and_then_and_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 1)  # the page itself has it
    async with topic_of(3) as (coordinator, producer), browser_at(coordinator.http_address) as looked:

        def looks() -> int:
            return sum("/api/records?" in url and "following" in url for url in looked.requests)

        page = looked.page
        await page.clock.install()
        await looked.open("#/topic?topic=lines")
        await shown(page, *down(2))
        assert streams_open(coordinator) == 1
        await press(page, "Follow live")
        await page.get_by_role("button", name="Stop following, every 10 s").wait_for()
        for number in range(3, 6):
            await producer.send_and_wait("lines", b"%d" % number)
            before = looks()
            await moved_on(looked, lambda: looks() > before + 1)  # noqa: B023 - as above
            await shown(page, *down(number))
        monkeypatch.setattr(streams, "MAX_STREAMS", 16)
        await moved_on(looked, lambda: streams_open(coordinator) == 2)
        await producer.send_and_wait("lines", b"live")
        await shown(page, *down(6))
        await page.get_by_role("button", name="Stop following", exact=True).wait_for()
        looked.forgive("503")


async def test_a_page_that_follows_and_falls_behind_says_how_many_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_views, "_FAR_BEHIND", 300)
    async with topic_of(1) as (coordinator, producer), browser_at(coordinator.http_address) as looked:
        await followed(looked, 0)
        await looked.hide(True)
        await producer.send_many("lines", [b"x"] * 500, partition=0)
        await looked.hide(False)
        await shown(looked.page, *down(500, 301), 0)
        assert "300 records came too fast and are left out." in await looked.text()


async def test_following_begins_with_the_newest_whatever_was_looked_at() -> None:
    async with topic_of(60) as (coordinator, producer), browser_at(coordinator.http_address) as looked:
        page = looked.page
        await looked.open("#/topic?topic=lines")
        await show_from(page, 3)
        await shown(page, *range(3, 53))
        await press(page, "Follow live")
        await page.get_by_role("button", name="Stop following").wait_for()
        await shown(page, *down(59, 10))
        assert await page.get_by_label("Beginning with").input_value() == "newest"
        await producer.send_and_wait("lines", b"just now")
        await shown(page, *down(60, 10))
        await press(page, "Stop following")
        await until(lambda: streams_open(coordinator) == 1)


async def test_the_last_click_counts_whenever_its_answer_comes() -> None:
    async with topic_of(3, partitions=2) as (coordinator, _), browser_at(coordinator.http_address) as looked:
        page, released = looked.page, asyncio.Event()
        held: list[Route] = []
        answered: list[Request] = []
        of_the_first = re.compile(r"/api/records\?.*partition=0")

        async def hold(route: Route) -> None:
            held.append(route)
            await released.wait()
            await route.continue_()

        await looked.open("#/topic?topic=lines")
        await shown(page, *down(2))
        page.on(
            "requestfinished", lambda request: answered.append(request) if of_the_first.search(request.url) else None
        )
        await page.route(of_the_first, hold)
        for _ in range(3):
            await press(page, "Show")
        await until(lambda: len(held) == 3)
        released.set()
        await until(lambda: len(answered) == 3)
        await settled(page)
        assert await offsets(page) == list(down(2))
        released.clear()
        await press(page, "Show")
        await until(lambda: len(held) == 4)
        await page.locator("label", has_text="Partition").locator("select").select_option("1")
        await page.wait_for_selector(f"{ROWS}:has-text('of 1, number 2')")
        released.set()
        await until(lambda: len(answered) == 4)
        await settled(page)
        values = filter(None, await page.locator(f"{ROWS} .text").all_inner_texts())
        assert list(values) == [f"of 1, number {number}" for number in down(2)]
        await page.unroute_all(behavior="wait")


async def test_a_page_that_is_left_follows_no_more() -> None:
    async with topic_of(3, partitions=2) as (coordinator, _), browser_at(coordinator.http_address) as looked:
        page = looked.page
        await followed(looked, *down(2))
        await until(lambda: streams_open(coordinator) == 2)
        await page.get_by_role("link", name="1", exact=True).click()  # another partition of the topic
        await page.wait_for_selector(f"{ROWS}:has-text('of 1, number 2')")
        await until(lambda: streams_open(coordinator) == 1)
        await press(page, "Follow live")
        await until(lambda: streams_open(coordinator) == 2)
        await page.get_by_role("link", name="Groups", exact=True).click()
        await page.wait_for_selector("h1:has-text('Groups')")
        await until(lambda: streams_open(coordinator) == 1)


async def test_a_topic_that_is_made_again_shows_its_records() -> None:
    async with topic_of(3) as (coordinator, _), browser_at(coordinator.http_address) as looked:
        page = looked.page
        await looked.open("#/topic?topic=lines")
        await shown(page, *down(2))
        async with Admin(coordinator.address) as admin:
            await admin.delete_topics("lines")
            await page.wait_for_selector("#content > .notice")
            await admin.create_topics({"lines": 1})
        await page.wait_for_selector(f"{ROWS}:has-text('There are no records here.')")
