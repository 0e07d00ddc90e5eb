"""The expiry of offsets by the timers of a shard: on disk before it is told, again after a reload, never in the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.groups.config import GroupConfig
from coordinator.runtime.shard import ShardState
from protocol.errors import ErrorCode
from protocol.messages.offsets import OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic
from tests.coordinator.runtime.group_shard import Bench, shard_on

RETENTION_MS, INTERVAL_MS = 5_000, 10


class Wall:
    """A wall clock that stands still until it is set; forwards by less than the core mistrusts at a time."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    async def go_on(self, ms: int) -> None:
        """So much later, in steps that a look at the offsets may see between any two."""
        until_ms = self.ms + ms
        while self.ms < until_ms:
            self.ms = min(until_ms, self.ms + INTERVAL_MS)
            for _ in range(3):
                await asyncio.sleep(0)


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
async def bench(tmp_path: Path, wall: Wall) -> AsyncIterator[Bench]:
    config = GroupConfig(offsets_retention_ms=RETENTION_MS, offsets_retention_check_interval_ms=INTERVAL_MS)
    async with shard_on(tmp_path, config, lambda: wall.ms) as bench:
        yield bench


async def reload(bench: Bench) -> None:
    """The shard forgets everything and reads its log."""
    bench.shard.state = ShardState.LOADING
    bench.shard.start_loading()
    await bench.shard.loaded()


async def test_offsets_expire_by_themselves_and_the_log_knows(bench: Bench, wall: Wall) -> None:
    bench.commit("commit", 5)
    await bench.until(lambda: "commit" in bench.answers)
    await wall.go_on(RETENTION_MS - 1)
    for _ in range(100):
        await asyncio.sleep(0)
    bench.fetch("before")
    await bench.until(lambda: "before" in bench.answers)
    assert bench.fetched("before") == [5]
    wall.ms += 1
    await bench.until(lambda: not bench.shard.core.groups)
    bench.fetch("after")
    await bench.until(lambda: "after" in bench.answers)
    assert bench.fetched("after") == []
    await reload(bench)
    assert bench.shard.core.durable_state() == {}


async def test_an_answer_about_what_expired_waits_for_the_disk(bench: Bench, wall: Wall) -> None:
    bench.commit("commit", 5)
    await bench.until(lambda: "commit" in bench.answers)
    bench.gate.open.clear()
    await wall.go_on(RETENTION_MS)
    await bench.until(lambda: not bench.shard.core.groups)
    bench.fetch("too early")
    for _ in range(50):
        await asyncio.sleep(0)
    assert "too early" not in bench.answers, "a crash could still bring the offset back"
    bench.gate.open.set()
    await bench.until(lambda: "too early" in bench.answers)
    assert bench.fetched("too early") == []


async def test_what_the_disk_refused_to_erase_is_there_and_expires_later(bench: Bench, wall: Wall) -> None:
    bench.commit("commit", 5)
    await bench.until(lambda: "commit" in bench.answers)
    bench.gate.refuse = {"append"}
    await wall.go_on(RETENTION_MS)
    core = bench.shard.core
    await bench.until(lambda: bench.shard.core is not core)
    assert bench.shard.core.groups["g"].offsets == {"orders": {0: (5, -1, "", 1_000_000, "id-1")}}
    bench.gate.refuse = set()
    await bench.until(lambda: not bench.shard.core.groups and bench.shard.state is ShardState.ACTIVE)
    bench.fetch("after")
    await bench.until(lambda: "after" in bench.answers)
    assert bench.fetched("after") == []
    await reload(bench)
    assert bench.shard.core.durable_state() == {}


async def test_requests_are_served_between_the_slices_of_a_long_pass(
    bench: Bench, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.groups.expiry.SLICE_PAUSE_MS", 300)  # a busy disk may take its time for the commit
    partitions = tuple(OffsetCommitPartition(index, index) for index in range(20_000))
    request = OffsetCommitRequest("large", -1, "", None, (OffsetCommitTopic("orders", partitions),))
    bench.ask("large", request)
    await bench.until(lambda: "large" in bench.answers)
    await wall.go_on(RETENTION_MS)
    await bench.until(lambda: bench.shard.core.expiry.under_way)
    bench.commit("meanwhile", 7)
    await bench.until(lambda: "meanwhile" in bench.answers)
    assert bench.commit_code("meanwhile") == ErrorCode.NONE
    assert bench.shard.core.expiry.under_way, "the answer came before the end of the pass"
    await bench.until(lambda: list(bench.shard.core.groups) == ["g"])
