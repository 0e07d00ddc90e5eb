"""What is decided before something else is on disk is written after that, and void when that fails."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from coordinator.runtime.effects import RequestContext
from coordinator.runtime.shard import ShardState
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchResponse,
)
from tests.coordinator.runtime.group_shard import Bench, Question, shard_on

NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with shard_on(tmp_path) as bench:
        yield bench


def commit_ahead(bench: Bench, name: str, offset: int, member_id: str = "") -> Callable[[str], None]:
    """A commit whose record waits until what is returned is called."""
    topics = (OffsetCommitTopic("orders", (OffsetCommitPartition(0, offset),)),)
    request = OffsetCommitRequest("g", -1 if not member_id else 1, member_id, None, topics)
    token = bench.replies.open(Question(request, name, bench.answers))
    return bench.shard.submit_ahead(request, RequestContext(token, "client", "127.0.0.1"))


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def end_of(bench: Bench) -> int:
    """The next offset of the shard's log."""
    return bench.shard._log.end_offset


def at_rest(bench: Bench) -> bool:
    return bench.shard.at_rest


@pytest.mark.parametrize("encoded", [True, False])
async def test_nothing_is_written_before_what_it_waits_for_and_then_all_in_order(bench: Bench, encoded: bool) -> None:
    before = end_of(bench)
    tell = commit_ahead(bench, "ahead", 5)
    bench.commit("in the same turn", 6)
    if encoded:
        await turns()
        bench.commit("later", 7)
        bench.fetch("seen")
        await turns()
        assert end_of(bench) == before
        assert bench.gate.syncs == 0
        assert bench.answers == {}, "what has seen the decision waits as well"
    tell("")
    await bench.until(lambda: len(bench.answers) == (4 if encoded else 2))
    assert list(bench.answers) == ["ahead", "in the same turn", "later", "seen"][: len(bench.answers)]
    assert {bench.commit_code(name) for name in bench.answers if name != "seen"} == {ErrorCode.NONE}
    tell("once more")
    assert bench.shard.state is ShardState.ACTIVE, "what was told once is told"
    bench.commit("after", 8)
    await bench.until(lambda: "after" in bench.answers)


@pytest.mark.parametrize("encoded", [True, False])
async def test_it_is_void_with_all_that_was_decided_since_when_that_fails(bench: Bench, encoded: bool) -> None:
    bench.commit("before", 5)
    await bench.until(lambda: "before" in bench.answers)
    before = end_of(bench)
    tell = commit_ahead(bench, "ahead", 6)
    if encoded:
        await turns()
    bench.commit("since", 7)
    bench.fetch("would have leaked")
    tell("the disk of its records is full")
    await bench.until(lambda: len(bench.answers) == 4)
    assert bench.commit_code("ahead") == bench.commit_code("since") == NOT_AVAILABLE
    refused, leaked = bench.answers["ahead"], bench.answers["would have leaked"]
    assert isinstance(refused, OffsetCommitResponse)
    assert "the disk of its records is full" in refused.error_message
    assert isinstance(leaked, OffsetFetchResponse)
    assert leaked.error_code == NOT_AVAILABLE
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
    assert end_of(bench) == before
    bench.fetch("after")
    assert bench.fetched("after") == [5]
    tell("")
    bench.commit("again", 8)
    await bench.until(lambda: "again" in bench.answers)


async def test_only_a_shard_at_rest_decides_ahead(bench: Bench) -> None:
    assert at_rest(bench)
    bench.commit("decided", 5)
    assert not at_rest(bench)
    bench.gate.open.clear()
    await bench.until(lambda: bench.gate.syncs == 1)
    assert not at_rest(bench), "on its way to the disk"
    bench.gate.open.set()
    await bench.until(lambda: "decided" in bench.answers)
    assert at_rest(bench)
    tell = commit_ahead(bench, "ahead", 6)
    assert not at_rest(bench)
    tell("")
    await bench.until(lambda: "ahead" in bench.answers)
    assert at_rest(bench)


async def test_what_is_decided_later_waits_too_as_the_request_may_be_parked(bench: Bench) -> None:
    """A refusal stands for what has no records yet: the shard cannot tell what the core is still to decide."""
    before = end_of(bench)
    tell = commit_ahead(bench, "refused", 5, "no member")
    assert bench.commit_code("refused") == ErrorCode.ILLEGAL_GENERATION
    assert not at_rest(bench)
    bench.commit("next", 5)
    await turns()
    assert end_of(bench) == before
    tell("")
    await bench.until(lambda: "next" in bench.answers)
    assert bench.commit_code("next") == ErrorCode.NONE


async def test_a_shard_that_closes_or_fails_meanwhile_refuses_it(bench: Bench, tmp_path: Path) -> None:
    tell = commit_ahead(bench, "dropped", 5)
    await turns()
    bench.shard._on_fault(RuntimeError("of ours"))
    assert bench.commit_code("dropped") == NOT_AVAILABLE
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
    tell("")
    before = end_of(bench)
    tell = commit_ahead(bench, "closed", 5)
    await turns()
    async with asyncio.timeout(30):
        await bench.shard.close()
    assert bench.commit_code("closed") == NOT_AVAILABLE
    tell("")
    assert bench.shard.state is ShardState.CLOSED
    assert end_of(bench) == before


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="gather waits for nothing that has ended: a shard that serves closes in one turn",
)
async def test_what_is_decided_ahead_while_the_shard_closes_is_refused_and_does_not_keep_it_open(bench: Bench) -> None:
    before = end_of(bench)
    closing = asyncio.create_task(bench.shard.close())
    await asyncio.sleep(0)
    assert at_rest(bench), "it serves until what loads it has ended"
    tell = commit_ahead(bench, "late", 5)
    async with asyncio.timeout(30):
        await closing
    assert bench.commit_code("late") == NOT_AVAILABLE
    tell("")
    await turns()
    assert bench.shard.state is ShardState.CLOSED
    assert end_of(bench) == before
