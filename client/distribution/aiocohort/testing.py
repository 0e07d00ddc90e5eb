"""For tests of programs that use Cohort: a pytest fixture that is a whole coordinator, fresh for each test.

pytest finds it by itself once Cohort is installed::

    async def test_bills_every_order(cohort_coordinator):           # with pytest-asyncio, anyio, or asyncio.run
        async with Producer(cohort_coordinator.address) as producer:
            ...

    def test_the_command(cohort_coordinator):                       # or without
        subprocess.run(["billing", "--bootstrap", cohort_coordinator.address], check=True)

The coordinator runs in a thread with an event loop of its own, so a test may block, and may bring any loop or none. It
starts in some tens of milliseconds, listens on a free port of 127.0.0.1, and keeps its data in a temporary directory.
Override the fixture ``cohort_settings`` to start it with other settings. Nothing here is loaded before a test asks for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from coordinator.embedded import Coordinator

_PATIENCE_S: Final = 30.0


class RunningCoordinator:
    """A coordinator in a thread. ``address`` is ``"host:port"``, for ``bootstrap_servers``; ``data_dir`` holds its logs."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.address: str = coordinator.address
        self.data_dir: str = coordinator.data_dir

    def __repr__(self) -> str:
        return f"<coordinator at {self.address}>"


class _Background:
    """The thread, from its start to its end."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.running: RunningCoordinator | None = None
        self.failure: BaseException | None = None
        self._settings = settings
        self._settled = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="cohort-coordinator", daemon=True)

    def start(self) -> RunningCoordinator:
        """Returns when it serves. Raises what kept it from that."""
        self._thread.start()
        if not self._settled.wait(_PATIENCE_S):
            raise TimeoutError(f"the coordinator did not start within {_PATIENCE_S:.0f} s")
        if self.running is None:
            assert self.failure is not None
            raise self.failure
        return self.running

    def stop(self) -> None:
        """Returns when it has stopped. Raises what went wrong in it meanwhile."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the coordinator did not stop within {_PATIENCE_S:.0f} s")
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # raised in the thread of the test, by start or stop
            self.failure = error
        finally:
            self._settled.set()

    async def _serve(self) -> None:
        from aiocohort import Coordinator

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with Coordinator(**self._settings) as coordinator:
            self.running = RunningCoordinator(coordinator)
            self._settled.set()
            await self._stop.wait()


@pytest.fixture
def cohort_settings() -> dict[str, Any]:
    """What ``cohort_coordinator`` passes to ``Coordinator``: nothing. Override it in a ``conftest.py`` or a test module."""
    return {}


@pytest.fixture
def cohort_coordinator(cohort_settings: dict[str, Any]) -> Iterator[RunningCoordinator]:
    """A coordinator of this test's own: ``cohort_coordinator.address`` is what clients connect to."""
    background = _Background(cohort_settings)
    running = background.start()
    try:
        yield running
    finally:
        background.stop()
