"""Coordinators that come and go with the leadership of their partitions, over logs whose high watermark a test drives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from coordinator.log.errors import LogClosedError
from coordinator.log.partition import PartitionLog
from coordinator.log.progress import Progress
from coordinator.metadata.catalog import OFFSETS_TOPIC
from coordinator.replication.partition import Incarnation
from coordinator.runtime import answer_deadline
from coordinator.runtime.cluster import Cluster, PeerConnection
from coordinator.runtime.effects import RequestContext
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.runtime import CoordinatorRuntime
from coordinator.runtime.shard import CoordinatorShard, ShardState
from coordinator.runtime.timers import CoordinatorTimers
from tests.coordinator.logs.test_log_manager import Node, node
from tests.coordinator.runtime.test_runtime import NAMES, Add, Asked, Counters, until

PARTITION = 3


class Member:
    """A registration of this node that a test ends."""

    def __init__(self) -> None:
        self.me, self.lease_id = Incarnation(0, 7), 1
        self.is_valid = True

    def valid(self) -> bool:
        return self.is_valid

    def on_invalid(self, listener: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class NoPeers:
    """No other node is to be asked."""

    async def connect(self, node: int, purpose: str) -> PeerConnection:
        raise AssertionError(f"node {node} was asked for {purpose}")


async def caught_up() -> int:
    return 0


class Led:
    """A runtime of counters in a cluster, and the log of its partition, which followers would copy."""

    def __init__(self, opened: Node, log: PartitionLog) -> None:
        self.log, self.member = log, Member()
        self.timers = CoordinatorTimers(asyncio.get_running_loop())
        self.resigned: list[int] = []
        self.began: list[int] = []
        self.readable: list[tuple[str, int, int, str]] = []
        self.runtime = CoordinatorRuntime(
            OFFSETS_TOPIC,
            Counters,
            NAMES,
            lambda partition: Counters(),
            opened.catalog,
            opened.partitions,
            self.timers,
            FairQueue(),
            wall_ms=lambda: 1_000_000,
            on_active=lambda shard: self.began.append(shard.leader_epoch),
            on_resigned=lambda shard: self.resigned.append(shard.leader_epoch),
            cluster=Cluster(self.member, NoPeers(), caught_up, lambda *told: self.readable.append(told)),
        )

    def lead(self, leader_epoch: int = 1) -> CoordinatorShard[Counters]:
        self.runtime.lead(PARTITION, self.log, leader_epoch)
        return self.shard

    @property
    def shard(self) -> CoordinatorShard[Counters]:
        return self.runtime.opened[PARTITION]

    def ask(self, name: str, amount: int, after_ms: int = 0) -> Asked:
        asked = Asked(Add(name, amount, after_ms))
        token = self.runtime.replies.open(asked)
        self.shard.submit(asked.request, RequestContext(token, "client", "127.0.0.1"))
        return asked

    async def active(self) -> None:
        shard = self.shard
        await until(lambda: shard.state is ShardState.ACTIVE)

    def commit_all(self) -> None:
        self.log.commit_to(self.log.end_offset)

    async def written(self) -> None:
        """All that was decided is on this node's disk."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await self.log.flush()


@asynccontextmanager
async def led(path: Path) -> AsyncIterator[Led]:
    async with node(path) as opened:
        log = await opened.partitions.open_one(opened.catalog.topics[OFFSETS_TOPIC], PARTITION)
        assert log is not None
        log.commit_by(Progress(log.end_offset))
        there = Led(opened, log)
        await there.runtime.start()
        try:
            yield there
        finally:
            await there.runtime.close()
            there.timers.close()


def outcome(asked: Asked) -> tuple[int, str] | None:
    return None if asked.response is None else (asked.response.total, asked.response.error)


async def test_a_node_serves_the_partitions_that_it_leads_and_no_others(tmp_path: Path) -> None:
    async with led(tmp_path) as there:
        assert there.runtime.shards() == [], "the start opens none: another node may lead it"
        assert there.runtime.shard("a") is None
        refused = there.runtime.without_shard(Add("a", 1), "a")
        assert "leader of __consumer_offsets-3 and does not serve it yet" in refused.error  # type: ignore[attr-defined]
        shard = there.lead(leader_epoch=4)
        await there.active()
        assert there.runtime.shard("a") is shard
        assert (shard.leader_epoch, there.began) == (4, [4])


async def test_an_answer_leaves_when_what_it_depends_on_is_committed(tmp_path: Path) -> None:
    async with led(tmp_path) as there:
        there.lead()
        await there.active()
        asked, looked = there.ask("a", 5), there.ask("b", 0)
        await there.written()
        assert there.log.flushed_offset > there.log.high_watermark
        assert (outcome(asked), outcome(looked)) == (None, None), "it is on one disk only"
        there.commit_all()
        assert (outcome(asked), outcome(looked)) == ((5, ""), (0, ""))


async def test_a_log_is_served_when_its_high_watermark_has_reached_the_start_of_the_epoch(tmp_path: Path) -> None:
    async with led(tmp_path) as there:
        there.lead(1)
        await there.active()
        lost = there.ask("a", 5)
        await there.written()
        shard = there.lead(2)
        assert outcome(lost) == (-1, "NOT_COORDINATOR")
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert shard.state is ShardState.LOADING, "what was written is not committed: another node may not have it"
        assert outcome(there.ask("a", 1)) == (-1, "COORDINATOR_LOAD_IN_PROGRESS")
        there.commit_all()
        await there.active()
        assert shard.core.durable_state() == {"a": 5}, "what was not committed at the change counts if it is in the log"


async def test_resigned_all_that_wait_are_told_at_once_and_nothing_is_appended_any_more(tmp_path: Path) -> None:
    async with led(tmp_path) as there:
        there.lead()
        await there.active()
        shard = there.shard
        in_flight, parked = there.ask("a", 5), there.ask("b", 1, after_ms=60_000)
        await there.written()
        open_record = there.ask("c", 1)
        end = there.log.end_offset
        assert len(there.timers) == 1
        there.runtime.resign(PARTITION)
        assert [outcome(asked) for asked in (in_flight, parked, open_record)] == [
            (-1, "NOT_COORDINATOR"),
            (-1, "unloaded"),
            (-1, "NOT_COORDINATOR"),
        ]
        assert (there.resigned, len(there.timers), len(there.runtime.replies)) == ([1], 0, 0)
        assert (shard.state, there.runtime.shards(), there.runtime.shard("a")) == (ShardState.RESIGNED, [], None)
        await there.written()
        there.commit_all()
        assert there.log.end_offset == end, "nothing is appended"
        late = Asked(Add("a", 1))
        shard.submit(late.request, RequestContext(there.runtime.replies.open(late), "", ""))
        assert outcome(late) == (-1, "NOT_COORDINATOR"), "also when the shard was found before"
        there.runtime.resign(PARTITION)
        assert there.resigned == [1], "twice is fine"


async def test_what_was_committed_is_there_when_it_leads_again_and_a_load_under_way_is_given_up(tmp_path: Path) -> None:
    async with led(tmp_path) as there:
        there.lead(1)
        await there.active()
        asked = there.ask("a", 5)
        await there.written()
        there.commit_all()
        assert outcome(asked) == (5, "")
        first = there.lead(2)
        second = there.lead(3)  # at once: the load of the second epoch has not begun
        await asyncio.sleep(0)
        third = there.lead(5)
        await there.active()
        assert [shard.state for shard in (first, second, third)] == [
            ShardState.RESIGNED,
            ShardState.RESIGNED,
            ShardState.ACTIVE,
        ]
        assert (third.core.durable_state(), there.began, there.resigned) == ({"a": 5}, [1, 5], [1, 2, 3])
        there.runtime.resign(PARTITION)
        await there.runtime.wait_loaded()
        there.lead(6)
        await there.active()
        asked = there.ask("a", 2)
        await there.written()
        there.commit_all()
        assert outcome(asked) == (7, "")


async def test_an_answer_that_is_not_committed_in_time_is_given_up_and_the_state_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_deadline, "ANSWER_S", 0.05)
    async with led(tmp_path) as there:
        there.lead()
        await there.active()
        with structlog.testing.capture_logs() as lines:
            asked = there.ask("a", 5)
            await until(lambda: asked.response is not None)
            assert outcome(asked) == (-1, "COORDINATOR_NOT_AVAILABLE")
            behind = there.ask("b", 0)  # adds nothing, and waits behind what is not committed
            await until(lambda: behind.response is not None)
            assert outcome(behind) == (-1, "COORDINATOR_NOT_AVAILABLE"), "one that came later has its own time"
        assert [line["event"] for line in lines] == ["coordinator_answers_given_up"], "it is said once"
        there.commit_all()
        await there.written()
        there.commit_all()
        asked = there.ask("a", 2)
        await there.written()
        there.commit_all()
        assert outcome(asked) == (7, ""), "what it decided is committed after all"
        assert there.shard.state is ShardState.ACTIVE


async def test_a_leadership_that_is_lost_is_no_write_error(tmp_path: Path) -> None:
    async with led(tmp_path) as there:
        shard = there.lead()
        await there.active()
        asked = there.ask("a", 5)
        await there.written()
        there.runtime.resign(PARTITION)
        with structlog.testing.capture_logs() as lines:
            there.log.committed.fail(LogClosedError("not led here any more"))
            for _ in range(20):
                await asyncio.sleep(0.001)
        assert (outcome(asked), shard.state, lines) == ((-1, "NOT_COORDINATOR"), ShardState.RESIGNED, [])


async def test_waiters_that_fail_while_the_role_is_kept_have_the_log_read_again(tmp_path: Path) -> None:
    """As when the metadata cannot be reached for a while: what is in the log counts once it is committed."""
    async with led(tmp_path) as there:
        shard = there.lead()
        await there.active()
        asked = there.ask("a", 5)
        await there.written()
        with structlog.testing.capture_logs():
            there.log.committed.fail(LogClosedError("the node is not sure of its place"))
            assert outcome(asked) == (-1, "COORDINATOR_NOT_AVAILABLE")
            await asyncio.sleep(0.01)
            there.log.committed.fail(LogClosedError("the node is not sure of its place"))  # the load waits, too
            await asyncio.sleep(0.01)
            assert shard.state is ShardState.LOADING
            there.commit_all()
            await there.active()
        assert (there.shard is shard, shard.core.durable_state()) == (True, {"a": 5})


async def test_the_replica_hears_whether_its_coordinator_can_read_the_log(tmp_path: Path) -> None:
    async with led(tmp_path) as there:
        there.lead(leader_epoch=4)
        await there.active()
        assert there.readable == [(OFFSETS_TOPIC, PARTITION, 4, "")]
        there.ask("a", 5)
        await there.written()
        there.commit_all()
        path = tmp_path / f"{OFFSETS_TOPIC}-{PARTITION}" / f"{0:020}.log"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with structlog.testing.capture_logs() as lines:
            shard = there.lead(leader_epoch=5)
            await until(lambda: shard.state is ShardState.FAILED)
        assert [(line["event"], line["shard"]) for line in lines if line["log_level"] == "error"] == [
            ("coordinator_load_failed", f"{OFFSETS_TOPIC}-{PARTITION}")
        ]
        assert there.readable[1][:3] == (OFFSETS_TOPIC, PARTITION, 5)
        assert "is damaged at" in there.readable[1][3]
        refused = there.ask("a", 1)
        assert outcome(refused) == (-1, "NOT_COORDINATOR")


async def test_a_log_that_the_disk_does_not_give_is_told_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led(tmp_path) as there:
        there.lead()
        await there.active()
        there.ask("a", 5)
        await there.written()
        there.commit_all()
        read = there.log.read

        async def refused(*given: object, **more: object) -> bytes:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(there.log, "read", refused)
        with structlog.testing.capture_logs():
            shard = there.lead(leader_epoch=2)
            await until(lambda: len(there.readable) == 2)
            monkeypatch.setattr(there.log, "read", read)
            await there.active()
        assert [told[2:] for told in there.readable[1:]] == [(2, "[Errno 5] Input/output error"), (2, "")]
        assert shard.core.durable_state() == {"a": 5}


async def test_a_node_that_is_not_sure_of_its_place_coordinates_nothing(tmp_path: Path) -> None:
    async with led(tmp_path) as there:
        shard = there.lead()
        await there.active()
        there.member.is_valid = False
        assert there.runtime.shard("a") is None
        refused = there.runtime.without_shard(Add("a", 1), "a")
        assert "node 0 has lost its place in the cluster" in refused.error  # type: ignore[attr-defined]
        there.member.is_valid = True
        assert there.runtime.shard("a") is shard
