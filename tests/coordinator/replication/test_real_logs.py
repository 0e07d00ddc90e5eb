"""The decisions of leader and follower, carried out by real logs: KIP-101's and KIP-279's traces, and many random ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog
from coordinator.log.following import replicated_batches
from coordinator.replication.follower import Follower
from coordinator.replication.leader import Leader
from coordinator.replication.log import AppendAsFollower, ResetTo, TruncateTo
from coordinator.replication.partition import Incarnation
from tests.coordinator.log.following import Writer, fetched
from tests.coordinator.log.logs import append_value, opened, outcome
from tests.coordinator.log.test_truncation import facts
from tests.coordinator.replication.replicas import CONFIG, LIVE, A, B, registration

SMALL = LogConfig(segment_bytes=500, index_interval_bytes=100)


@asynccontextmanager
async def log_of(root: Path, *epochs: int) -> AsyncIterator[PartitionLog]:
    """A log whose records, one a batch, are of these epochs."""
    async with opened(FileStorage(root), SMALL, leader_epoch=None) as log:
        for epoch in epochs:
            await log.begin_epoch(epoch)
            append_value(log, b"offset %d of epoch %d" % (log.end_offset, epoch))
        assert await outcome(log) is None
        yield log


async def leads(log: PartitionLog, leader_epoch: int, me: Incarnation = A) -> Leader:
    """The leader of an epoch, which has begun."""
    await log.begin_epoch(leader_epoch)
    return Leader(me, registration(me, leader_epoch), 100, log, CONFIG, 0)


async def replicate(
    leader: Leader, log: PartitionLog, follower: Follower, copy: PartitionLog, max_bytes: int = 300, rounds: int = 200
) -> list[object]:
    """Fetches until nothing new comes, or so many times; returns what the follower was told to do."""
    orders = list[object]()
    for _ in range(rounds):
        request = follower.fetch(0)
        assert request is not None
        answer = leader.fetch(request, LIVE, 0)
        if not answer.error_code and answer.diverging_end < 0:
            records, epochs = await fetched(log, request.fetch_offset, max_bytes)
            answer = answer._replace(records=records, epochs=epochs)
        order = follower.answered(answer, 0)
        match order:
            case TruncateTo():
                await copy.truncate_to(order.offset)
            case ResetTo():
                await copy.reset_to(order.offset)
            case AppendAsFollower():
                copy.append_as_follower(replicated_batches(order.records), order.epochs)
                assert await outcome(copy) is None
                follower.done(answer)
            case _:
                return orders
        orders.append(order if not isinstance(order, AppendAsFollower) else type(order))
    return orders


@pytest.mark.parametrize(
    ("leaders", "followers", "truncations"),
    [
        pytest.param((0, 0), (0, 0), [], id="KIP-101: one that starts again keeps what is above its high watermark"),
        pytest.param((0, 1), (0, 0), [1], id="KIP-101: the old leader gives up what the new one never had"),
        pytest.param((0, 0, 2, 2, 2), (0, 0, 1, 1), [2], id="KIP-279: two fast leader changes leave nothing between"),
        pytest.param((0, 0, 0, 2, 2), (0, 0, 1, 1, 3, 3), [4, 2], id="KIP-279: epochs that the leader never saw"),
        pytest.param((1, 1, 2, 2), (1, 1), [], id="a part of the leader's log is kept"),
        pytest.param((0,) * 30 + (2,) * 5, (0,) * 30 + (1,) * 25, [30], id="several segments are cut"),
    ],
)
async def test_a_follower_finds_where_it_differs_and_ends_with_the_leaders_log(
    tmp_path: Path, leaders: tuple[int, ...], followers: tuple[int, ...], truncations: list[int]
) -> None:
    leader_epoch = max(*leaders, *followers) + 1
    with structlog.testing.capture_logs():
        async with log_of(tmp_path / "a", *leaders) as log, log_of(tmp_path / "b", *followers) as copy:
            leader = await leads(log, leader_epoch)
            follower = Follower(B, leader_epoch, copy, CONFIG, caught_up_ms=0)
            orders = await replicate(leader, log, follower, copy)
            assert [order.offset for order in orders if isinstance(order, TruncateTo)] == truncations
            append_value(log, b"the first of the new epoch")
            assert await outcome(log) is None
            await replicate(leader, log, follower, copy)
            assert await facts(copy) == await facts(log)
        async with log_of(tmp_path / "a") as log, log_of(tmp_path / "b") as copy:
            assert await facts(copy) == await facts(log)


async def test_behind_the_leaders_start_a_follower_begins_anew(tmp_path: Path) -> None:
    with structlog.testing.capture_logs():
        async with log_of(tmp_path / "a", *(0,) * 20) as log, log_of(tmp_path / "b", *(0,) * 3) as copy:
            await log.delete_before(10)
            leader = await leads(log, 1)
            follower = Follower(B, 1, copy, CONFIG, caught_up_ms=0)
            orders = await replicate(leader, log, follower, copy)
            assert orders[0] == ResetTo(10)
            assert (copy.start_offset, copy.end_offset) == (10, 20)
            append_value(log, b"the first of the new epoch")
            assert await outcome(log) is None
            await replicate(leader, log, follower, copy)
            assert (await facts(copy))["batches"] == (await facts(log))["batches"]
            assert copy.epochs.entries == log.epochs.entries


@pytest.mark.parametrize("seed", range(6))
async def test_whoever_led_when_two_logs_agree_after_the_last_leader_was_followed(tmp_path: Path, seed: int) -> None:
    """Producers of all kinds write; followers get some of it before the other one leads."""
    writer = Writer(seed)
    random, leader_epoch = writer.random, 0
    with structlog.testing.capture_logs():
        async with log_of(tmp_path / "a") as a, log_of(tmp_path / "b") as b:
            for _ in range(12):
                leader_epoch += random.randint(1, 2)
                (me, log), (other, copy) = random.sample([(A, a), (B, b)], 2)
                leader = await leads(log, leader_epoch, me)
                for _ in range(random.randint(0, 6)):
                    writer.write(log)
                assert await outcome(log) is None
                follower = Follower(other, leader_epoch, copy, CONFIG, caught_up_ms=0)
                await replicate(leader, log, follower, copy, random.choice((1, 300)), random.randint(0, 6))
            leader = await leads(a, leader_epoch + 1)
            append_value(a, b"the last")
            assert await outcome(a) is None
            await replicate(leader, a, Follower(B, leader_epoch + 1, b, CONFIG, caught_up_ms=0), b)
            assert await facts(a) == await facts(b)
