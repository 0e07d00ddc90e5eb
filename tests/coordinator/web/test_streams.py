"""Streams of events: what is sent when, and their bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from time import thread_time
from typing import Any

import pytest
import uvloop

from coordinator.web import streams
from coordinator.web.streams import Streams, send_changes
from coordinator.web.view import Pace, ViewError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOOK_S", 0.001)
    monkeypatch.setattr(streams, "REST", 0)


class Browser:
    """Takes events; ``takes`` says how many before it is gone, ``stuck`` that it takes none and stays."""

    def __init__(self, takes: int = 10**9, stuck: bool = False) -> None:
        self.events: list[bytes] = []
        self._takes = takes
        self._stuck = stuck

    async def write(self, data: bytes) -> None:
        if self._stuck:
            await asyncio.Event().wait()
        if len(self.events) == self._takes:
            raise ConnectionResetError("gone")
        self.events.append(data)


def looks(*seen: Any) -> Any:
    """Gives these one after the other, then the last again and again."""
    left: Iterator[Any] = iter(seen)
    last = seen[-1]

    async def look(pace: Pace) -> Any:
        found = next(left, last)
        if isinstance(found, Exception):
            raise found
        return found

    return look


async def run(browser: Browser, look: Any) -> None:
    async with asyncio.timeout(10):
        await send_changes(browser, look, lambda: False)


async def test_what_has_changed_is_sent_and_what_has_not_is_not() -> None:
    browser = Browser(takes=2)
    await run(browser, looks({"a": "1\n2"}, {"a": "1\n2"}, None, {"a": "1\n2"}, {"a": 2}, {"a": 3}))
    assert browser.events == [b'data: {"a":"1\\n2"}\n\n', b'data: {"a":2}\n\n']


async def test_a_view_that_is_refused_says_so_once_and_goes_on() -> None:
    refused = ViewError(404, "there is no group 'g'")
    browser = Browser(takes=2)
    await run(browser, looks(refused, refused, {"a": 1}, {"a": 2}))
    assert browser.events[0] == b'event: refused\ndata: {"error": "there is no group \'g\'"}\n\n'
    assert json.loads(browser.events[1].removeprefix(b"data: ")) == {"a": 1}


async def test_a_browser_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEND_S", 0.05)
    await run(Browser(stuck=True), looks({"a": 1}))


async def test_a_quiet_stream_shows_whether_its_browser_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "QUIET_S", 0.01)
    browser = Browser(takes=3)
    await run(browser, looks({"a": 1}))
    assert browser.events[1:] == [b":\n\n", b":\n\n"]


async def test_a_stream_ends_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAM_S", 0.05)
    await run(Browser(), looks({"a": 1}))


async def test_a_stream_of_a_browser_that_went_ends_at_once() -> None:
    async with asyncio.timeout(10):
        await send_changes(Browser(), looks({"a": 1}), lambda: True)


async def test_so_many_are_open_at_once_and_closing_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 2)
    opened = Streams()

    async def stream() -> None:
        with opened.place():
            await send_changes(Browser(), looks({"a": 1}), lambda: False)

    tasks = [asyncio.create_task(stream()) for _ in range(2)]
    while opened.count < 2:
        await asyncio.sleep(0)
    with pytest.raises(ViewError, match="2 pages are open"), opened.place():
        raise AssertionError("there was room")
    await opened.close()
    assert all(task.cancelled() for task in tasks)
    assert opened.count == 0
    with pytest.raises(ViewError), opened.place():
        raise AssertionError("it is closed")


async def test_a_look_that_takes_long_is_followed_by_a_long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "REST", 10**6)
    looked = 0

    async def look(pace: Pace) -> Any:
        nonlocal looked
        looked += 1
        return {"a": looked}

    monkeypatch.setattr(streams, "STREAM_S", 0.2)
    await run(Browser(), look)
    assert looked == 1


async def test_news_end_a_long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "REST", 10**6)
    monkeypatch.setattr(streams, "HASTE", 10**9)
    looked = 0

    async def look(pace: Pace) -> Any:
        nonlocal looked
        looked += 1
        return {"a": looked}

    async with asyncio.timeout(10):
        await send_changes(Browser(), look, lambda: looked == 3, lambda: looked)
    assert looked == 3


def test_the_pace_counts_the_work_of_a_turn_whatever_the_loop() -> None:
    """uvloop's own clock stands still while a callback runs."""

    async def work() -> tuple[float, float]:
        pace, since_s = Pace(), thread_time()
        while thread_time() - since_s < 0.02:
            pass
        busy_s = pace.busy_s
        await pace.rest(asyncio.sleep(0.01))
        return busy_s, pace.busy_s

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        before_s, after_s = runner.run(work())
    assert before_s >= 0.02
    assert after_s >= before_s
