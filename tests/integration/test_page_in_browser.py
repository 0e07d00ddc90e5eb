"""The page in a real Chromium: it tells why a group rebalances while it does, and shows strangers' names as text."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from client import Admin, Producer, TopicPartition
from coordinator import Coordinator
from coordinator.web import lag_history, streams
from tests.integration.browsing import DARK, DESKTOP, PHONE, browser_at, keep_screenshot, needs_browser, streams_open
from tests.integration.consuming import until

pytestmark = needs_browser

SETTINGS: dict[str, Any] = {"http": "127.0.0.1:0", "initial_rebalance_delay_ms": 0}
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp;\"'/..%2f#?a=b\u202eabc"
SECTIONS = ("", "#/groups", "#/group?group=readers", "#/topics", "#/topic?topic=lines", "#/transactions")

MEMBER = """
import asyncio, sys
from client import Consumer

async def main():
    consumer = Consumer("lines", bootstrap_servers=sys.argv[1], group_id=sys.argv[2], client_id=sys.argv[3],
                        session_timeout_ms=2_000, heartbeat_interval_ms=400, auto_offset_reset="earliest")
    async with consumer:
        while True:
            await consumer.getmany(timeout_ms=200)

asyncio.run(main())
"""


@contextmanager
def member(address: str, group: str, client_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """A consumer as a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", MEMBER, address, group, client_id])
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


async def filled(coordinator: Coordinator, group: str = "readers") -> None:
    """A topic with 40 records in four partitions, and a group that has committed some."""
    async with Admin(coordinator.address) as admin:
        await admin.create_topics({"lines": 4})
        async with Producer(coordinator.address) as producer:
            for number in range(40):
                await producer.send("lines", b'{"n": %d}' % number, key=b"k", partition=number % 4)
        await admin.alter_offsets(group, {TopicPartition("lines", index): 3 for index in range(4)})


async def test_a_member_is_killed_and_the_open_page_tells_why_the_group_rebalances(tmp_path: Path) -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await filled(coordinator)
        address = coordinator.address
        with member(address, "readers", "first") as first, member(address, "readers", "second"):
            async with browser_at(coordinator.http_address) as looked:
                page = looked.page
                await looked.open("#/group?group=readers")
                await page.wait_for_selector(".matrix .rows li:nth-child(2)")
                assert await page.locator(".matrix rect.cell").count() == 4
                assert await page.locator("#live").inner_text() == "live"
                first.send_signal(signal.SIGKILL)
                newest = page.locator(".timeline li").first
                await page.wait_for_selector(".timeline li.fail")
                assert "session timed out" in await newest.inner_text()
                why = await newest.locator(".why").inner_text()
                assert "first-" in why
                assert "missed its session of 2000 ms" in why
                await page.wait_for_selector(".timeline li.fail:has-text('2 → 1 members')")
                await page.wait_for_selector(".matrix .rows:not(:has(li:nth-child(2)))")
                assert await page.locator(".matrix rect.cell").count() == 4
                kept = await keep_screenshot(page, "killed-member", tmp_path)
                assert looked.loads == 1  # it was told, and did not load anew
    assert kept.read_bytes().startswith(b"\x89PNG")


async def test_names_of_strangers_are_text_and_nothing_else(tmp_path: Path) -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await filled(coordinator, HOSTILE)
        with member(coordinator.address, HOSTILE, HOSTILE[:60]):
            async with browser_at(coordinator.http_address) as looked:
                page = looked.page
                await looked.open("#/groups")
                link = page.locator("tbody a")
                assert await link.text_content() == HOSTILE
                await link.click()
                await page.wait_for_selector(".timeline li")
                assert (await page.locator("h1").text_content() or "").startswith(HOSTILE)
                assert await page.title() == f"{HOSTILE} · Cohort"
                assert HOSTILE[:60] in await looked.text()
                await keep_screenshot(page, "hostile-names", tmp_path)
                for fragment in ("", "#/groups", f"#/topic?{urlencode({'topic': HOSTILE})}"):
                    await looked.open(fragment)
                    await page.wait_for_selector("#content h1")
                    assert await page.locator("#content img, #content script, #content iframe").count() == 0
                looked.forgive("404")
                assert looked.faults == []
                parse = (
                    "try { document.body.innerHTML = '<b>x</b>'; return 'taken' } catch (error) { return error.name }"
                )
                assert await page.evaluate(f"() => {{ {parse} }}") == "TypeError"  # not even by mistake
                looked.faults.clear()  # the browser says that it refused this


async def test_records_are_shown_as_text_json_and_hex_and_followed_live(tmp_path: Path) -> None:
    async with Coordinator(**SETTINGS) as coordinator, Producer(coordinator.address) as producer:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"lines": 1})
        await producer.send("lines", b'{"big":12345678901234567890,"list":[1,{}]}', key=HOSTILE.encode())
        await producer.send("lines", HOSTILE.encode(), headers=[(HOSTILE, HOSTILE.encode())])
        await producer.send("lines", bytes(range(256)))
        await producer.send("lines", None, key=b"gone")
        await producer.send("lines", b"y" * 20_000)
        await producer.flush()
        async with browser_at(coordinator.http_address) as looked:
            page = looked.page
            await looked.open("#/topic?topic=lines")
            rows = page.locator(".records > li")
            await page.wait_for_selector(".records > li:nth-child(5)")
            assert [await row.locator(".offset").inner_text() for row in await rows.all()] == ["4", "3", "2", "1", "0"]
            for row in await rows.all():
                await row.locator("summary").click()
            assert "the first 4.1 kB of 20 kB" in await rows.nth(0).inner_text()
            await rows.nth(0).get_by_role("button").click()
            await page.wait_for_selector(".records > li:first-child h3:has-text('text · 20 kB')")
            assert "null" in await rows.nth(1).inner_text()
            assert "000010  10 11 12 13" in await rows.nth(2).locator("pre").inner_text()
            strange = await rows.nth(3).inner_text()
            assert "<img src=x onerror=alert(1)><script>" in strange
            assert "\u202e" not in strange
            assert '"big": 12345678901234567890,' in await rows.nth(4).locator("pre").nth(1).inner_text()
            await keep_screenshot(page, "records", tmp_path)
            await page.get_by_role("button", name="Follow live").click()
            await producer.send("lines", b"just now")
            await page.wait_for_selector(".records > li:first-child:has-text('just now')")
            await page.get_by_label("Shown").select_option("hex")
            assert "6a 75 73 74" in await rows.nth(0).locator("summary").inner_text()
            await page.get_by_label("Beginning with").select_option("offset")
            await page.get_by_label("Offset", exact=True).fill("3")
            await page.get_by_role("button", name="Show", exact=True).click()
            await page.wait_for_selector(".records > li:first-child .offset:has-text('3')")
            assert await rows.count() == 3
            assert await page.locator("#content img, #content script").count() == 0


async def test_offsets_are_reset_after_a_look_at_what_that_does(tmp_path: Path) -> None:
    async with Coordinator(**SETTINGS, http_admin="yes") as coordinator:
        await filled(coordinator)
        async with browser_at(coordinator.http_address) as looked, Admin(coordinator.address) as admin:
            page = looked.page
            await looked.open("#/group?group=readers")
            await page.get_by_label("To", exact=True).select_option("latest")
            await page.get_by_role("button", name="Show what it would do").click()
            plan = page.get_by_role("region", name="What the reset would do")
            assert "+7" in await plan.inner_text()
            assert {entry.offset for entry in (await admin.list_offsets("readers")).values()} == {3}
            await keep_screenshot(page, "reset", tmp_path)
            await page.get_by_role("button", name="Reset 4 offsets").click()
            await page.wait_for_selector(".notice.done:has-text('4 offsets reset')")
            assert {entry.offset for entry in (await admin.list_offsets("readers")).values()} == {10}
            await page.wait_for_selector("td[data-title='Committed']:has-text('10')")
            await page.get_by_label("To", exact=True).select_option("earliest")
            await page.get_by_role("button", name="Show what it would do").click()
            await page.wait_for_selector("button.danger")
            await admin.alter_offsets("readers", {TopicPartition("lines", 2): 8})
            await page.locator("button.danger").click()
            await page.wait_for_selector(".notice:has-text('another than was shown')")
            assert {entry.offset for entry in (await admin.list_offsets("readers")).values()} == {8, 10}
            looked.forgive("409")


async def test_without_http_admin_a_reset_is_shown_and_cannot_be_done() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await filled(coordinator)
        async with browser_at(coordinator.http_address) as looked:
            page = looked.page
            await looked.open("#/group?group=readers")
            await page.get_by_role("button", name="Show what it would do").click()
            await page.wait_for_selector(".notice:has-text('--http-admin yes')")
            assert await page.locator("button.danger").count() == 0


async def test_the_overview_counts_records_a_second() -> None:
    async with Coordinator(**SETTINGS) as coordinator, Producer(coordinator.address) as producer:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"lines": 1})
        async with browser_at(coordinator.http_address) as looked:
            page = looked.page
            await looked.open("")
            await page.wait_for_selector(".facts div:has(dt:text('Topics')) dd:has-text('1')")
            rate = page.locator(".facts div:has(dt:text('Records a second')) dd")
            async with asyncio.timeout(60):
                while (await rate.inner_text()).split()[0] in ("0", "\N{EN DASH}"):
                    for _ in range(50):
                        await producer.send("lines", b"x")
                    await producer.flush()
                while (await rate.inner_text()).split()[0] != "0":  # it falls again when nothing comes any more
                    await asyncio.sleep(0.1)


async def test_all_of_it_can_be_reached_with_a_keyboard() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await filled(coordinator)
        async with browser_at(coordinator.http_address) as looked:
            page = looked.page
            await looked.open("")
            await page.wait_for_selector("h1")
            await page.keyboard.press("Tab")
            assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
            for _ in range(2):
                await page.keyboard.press("Tab")
            assert await page.evaluate("document.activeElement.textContent") == "Groups"
            await page.keyboard.press("Enter")
            await page.wait_for_selector("#filter")
            assert await page.evaluate("document.activeElement.id") == "content"
            await page.keyboard.press("/")
            await page.keyboard.type("readers")
            await page.wait_for_url("**/#/groups?filter=readers")
            assert await page.evaluate("document.activeElement.id") == "filter"
            for _ in range(8):
                await page.keyboard.press("Tab")
                if await page.evaluate("document.activeElement.textContent") == "readers":
                    break
            await page.keyboard.press("Enter")
            await page.wait_for_selector("h1:has-text('readers')")
            await page.go_back()
            await page.wait_for_selector("#filter")
            assert await page.input_value("#filter") == "readers"


@pytest.mark.parametrize(("name", "options"), [("desktop", DESKTOP), ("dark", DARK), ("phone", PHONE)])
async def test_every_section_fits_its_screen(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await filled(coordinator)
        with member(coordinator.address, "readers", "a-consumer-with-a-rather-long-name-of-its-own"):
            async with browser_at(coordinator.http_address, **options) as looked:
                for fragment in SECTIONS:
                    await looked.open(fragment)
                    await looked.page.wait_for_selector("#content h1")
                    if "group=" in fragment:
                        await looked.page.wait_for_selector(".matrix rect.cell")
                    widths = await looked.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                    assert widths[0] <= widths[1], f"{fragment} is wider than the screen: {widths}"
                    shown = fragment.removeprefix("#/").partition("?")[0] or "overview"
                    await keep_screenshot(looked.page, f"{name}-{shown}", tmp_path)
                ground = await looked.page.evaluate("getComputedStyle(document.body).backgroundColor")
                lightness = sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(","))) // 3
                assert (lightness < 60) == (name == "dark")


async def test_a_page_that_is_not_seen_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOOK_S", 0.05)
    async with Coordinator(**SETTINGS) as coordinator, browser_at(coordinator.http_address) as looked:
        page = looked.page
        await page.clock.install()
        await looked.open("")
        status = "status => document.getElementById('live').textContent === status"
        await page.wait_for_function(status, arg="live")
        assert streams_open(coordinator) == 1
        await looked.hide(True)
        await page.wait_for_function(status, arg="paused")
        await until(lambda: streams_open(coordinator) == 0)
        asked = len(looked.requests)
        await filled(coordinator)
        await page.clock.fast_forward(60_000)
        assert (len(looked.requests), streams_open(coordinator)) == (asked, 0)
        await looked.hide(False)
        await page.wait_for_function(status, arg="live")
        assert streams_open(coordinator) == 1
        await page.wait_for_selector(".facts div:has(dt:text('Topics')) dd:has-text('1')")


async def test_the_past_of_a_lag_is_drawn_as_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lag_history, "SAMPLE_S", 0.05)
    monkeypatch.setattr(lag_history, "_REST", 0)
    monkeypatch.setattr(lag_history, "SAMPLES", 1_000)
    async with Coordinator(**SETTINGS) as coordinator, Admin(coordinator.address) as admin:
        await filled(coordinator)
        async with browser_at(coordinator.http_address) as looked:
            page = looked.page
            await looked.open("#/groups")
            await page.wait_for_selector("td.chart svg.spark[aria-label^='lag from 28 to 28']")
            await page.locator("tbody a").click()
            await page.wait_for_selector(".facts svg.spark[aria-label^='lag from 28 to 28']")
            await admin.alter_offsets("readers", {TopicPartition("lines", index): 10 for index in range(4)})
            await page.wait_for_selector(".facts svg.spark[aria-label^='lag from 28 to 0, at most 28']")
            drawn = await page.locator(".facts svg.spark polyline").get_attribute("points") or ""
            heights = [float(point.split(",")[1]) for point in drawn.split()]
            assert (heights[0], heights[-1]) == (min(heights), max(heights))  # from the top of the picture down
            assert heights[-1] - heights[0] > 10
            since_opened = page.locator("td.chart svg.spark[aria-label^='lag from 7 to 0'] polyline")
            await since_opened.nth(3).wait_for(state="attached")
            await keep_screenshot(page, "lag", tmp_path)


async def test_a_transaction_shows_where_it_writes_until_it_has_ended(tmp_path: Path) -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await filled(coordinator)
        async with (
            browser_at(coordinator.http_address) as looked,
            Producer(coordinator.address, transactional_id="pay<b>") as producer,
        ):
            page = looked.page
            async with producer.transaction():
                for partition in (0, 1, 3):
                    await producer.send("lines", b"x", partition=partition)
                await producer.flush()
                await looked.open("#/transactions")
                await page.wait_for_selector("tbody .badge:has-text('Open')")
                await page.locator("tbody a").click()
                await page.wait_for_selector("h1 .badge:has-text('Open')")
                assert (await page.locator("h1 bdi").text_content()) == "pay<b>"
                places = page.locator("[aria-label='Where it writes'] tbody tr")
                assert await places.locator("td[data-title='Partitions']").inner_text() == "lines: 0\N{EN DASH}1, 3"
                await keep_screenshot(page, "transaction", tmp_path)
            await page.wait_for_selector("h1 .badge:has-text('Committed')")
            await page.wait_for_selector(".empty:has-text('No transaction is open.')")


def test_a_browser_that_is_named_is_the_one_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.integration import browsing

    monkeypatch.setenv("COHORT_CHROMIUM", "/opt/chromium")
    assert browsing.chromium() == "/opt/chromium"
    monkeypatch.delenv("COHORT_CHROMIUM")
    monkeypatch.setenv("PATH", os.devnull)
    assert "apt-get install chromium" in browsing.why_not()
