"""A real Chromium for tests of the page: the system's, driven by Playwright, whose own browsers are not downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator import Coordinator

if TYPE_CHECKING:
    from playwright.async_api import Page

PATIENCE_MS = 30_000
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
DARK: dict[str, Any] = {**DESKTOP, "color_scheme": "dark"}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 800}, "device_scale_factor": 2, "has_touch": True}


def chromium() -> str | None:
    """The browser of this machine: ``$COHORT_CHROMIUM``, or the first of its usual names in PATH."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("COHORT_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def why_not() -> str:
    """Why there is no browser to test with; empty when there is one."""
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install -e '.[test]'"
    return "" if chromium() else "there is no Chromium on this machine: apt-get install chromium, or COHORT_CHROMIUM"


needs_browser = pytest.mark.skipif(bool(why_not()), reason=why_not())


class Looked:
    """A page that is open, and what must not happen to it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.loads = 0
        self.faults: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda told: self.faults.append(told.text) if told.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", lambda dialog: self.faults.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: self._check(request.url))
        page.on("load", lambda _: self._loaded())

    async def open(self, fragment: str) -> None:
        """Opens a section, such as ``#/groups``."""
        await self.page.goto(f"http://{self.address}/{fragment}")

    async def text(self) -> str:
        """What the page shows now."""
        return await self.page.inner_text("#content")

    async def hide(self, hidden: bool) -> None:
        """Has the page believe that another tab is in front of it, or that it is seen again."""
        await self.page.evaluate(
            "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
            " document.dispatchEvent(new Event('visibilitychange')); }",
            hidden,
        )

    def forgive(self, text: str) -> None:
        """Faults with this text were meant to happen."""
        self.faults = [fault for fault in self.faults if text not in fault]

    def _loaded(self) -> None:
        self.loads += 1

    def _check(self, url: str) -> None:
        self.requests.append(url)
        if not url.startswith(f"http://{self.address}/"):
            self.faults.append(f"a request to {url}")


def streams_open(coordinator: Coordinator) -> int:
    """How many streams the daemon sends to pages now."""
    daemon = coordinator._daemon
    assert daemon is not None
    assert daemon._web is not None
    return daemon._web._page._streams.count


@asynccontextmanager
async def browser_at(address: str, **options: Any) -> AsyncIterator[Looked]:
    """A page of the daemon at ``address``. At the end it must have had no error, no dialog and no request elsewhere."""
    from playwright.async_api import async_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=arguments, timeout=PATIENCE_MS)
        try:
            context = await browser.new_context(**(options or DESKTOP))
            context.set_default_timeout(PATIENCE_MS)
            looked = Looked(await context.new_page(), address)
            yield looked
            assert looked.faults == []
        finally:
            await browser.close()


async def keep_screenshot(page: Page, name: str, otherwise: Path) -> Path:
    """Keeps what the page shows in ``$COHORT_SCREENSHOTS``, or else in the directory of the test."""
    folder = Path(os.environ.get("COHORT_SCREENSHOTS") or otherwise)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    await page.screenshot(path=path, full_page=True)
    return path
