"""Followers and leaders over real sockets and files: acknowledgements, broken connections, new leaders, new incarnations."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from coordinator.replication.fetcher import Fetchers
from coordinator.replication.serving import HIGH_WATERMARK_DELAY_S
from coordinator.server.dispatch import WireCall
from protocol.messages import Response
from protocol.messages.replication import ReplicaFetchResponse
from protocol.record_batch import encode_batch, read_header
from tests.coordinator.replication.nodes import ReplicaNode, replica_cluster, until


def connections(node: ReplicaNode) -> list[asyncio.Transport]:
    """What other nodes have open here."""
    found = [connection.transport for connection in node.listener._listener._connections]
    return [transport for transport in found if transport is not None]


async def test_what_a_leader_appends_is_committed_when_its_followers_have_it(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.lead(1, 1, 2, 3)
        for number in range(20):
            cluster.nodes[1].append(b"value %d" % number)
        await cluster.agree(1, 2, 3)
        assert set(cluster.nodes[1].isr()) == {1, 2, 3}


async def test_nothing_is_committed_that_an_in_sync_follower_does_not_have(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.lead(1, 1, 2, 3)
        leader = cluster.nodes[1]
        leader.append(b"first")
        await cluster.agree(1, 2, 3)
        await cluster.nodes[3].fetchers.close()
        before = leader.committed()
        end = leader.append(b"second")
        await until(lambda: leader.end() == cluster.nodes[2].end() == end)
        assert leader.committed() == before


async def test_partitions_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.lead(1, 1, 2, 3, partitions=12)
        dice = random.Random(4)
        for number in range(300):
            cluster.nodes[1].append(b"%d" % number * dice.randrange(1, 400), index=dice.randrange(12))
            if number % 20 == 0:
                await asyncio.sleep(0.001)
        for index in range(12):
            await cluster.agree(1, 2, 3, index=index)


async def test_a_batch_that_is_larger_than_all_bounds_comes_alone(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2, replica_fetch_max_bytes=4096) as cluster:
        await cluster.lead(1, 1, 2, partitions=3)
        for index in range(3):
            cluster.nodes[1].append(b"small", index=index)
            cluster.nodes[1].append(b"l" * 100_000, index=index)
            cluster.nodes[1].append(b"small", index=index)
        for index in range(3):
            await cluster.agree(1, 2, index=index)


async def test_a_follower_that_joins_late_copies_everything_in_many_answers(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, replica_fetch_max_bytes=20_000) as cluster:
        await cluster.lead(1, 1, partitions=3)
        for number in range(100):
            for index in range(3):
                cluster.nodes[1].append(b"%d" % number * 500, index=index)
        await cluster.start(2)
        await cluster.lead(1, 1, 2, partitions=3, isr=(1,))
        for index in range(3):
            await cluster.agree(1, 2, index=index)
        await until(lambda: all(2 in cluster.nodes[1].isr(index) for index in range(3)))


async def test_connections_that_break_cost_nothing_but_time(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.lead(1, 1, 2, 3, partitions=3)
        leader, dice = cluster.nodes[1], random.Random(6)
        for number in range(120):
            leader.append(b"%d" % number * dice.randrange(1, 2_000), index=number % 3)
            if number % 10 == 0:
                for transport in connections(leader):
                    transport.abort()
            await asyncio.sleep(0.002)
        for index in range(3):
            await cluster.agree(1, 2, 3, index=index)


async def test_a_new_leader_cuts_what_the_old_one_had_alone(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.lead(1, 1, 2, 3)
        cluster.nodes[1].append(b"common")
        await cluster.agree(1, 2, 3)
        for node in (2, 3):
            await cluster.nodes[node].fetchers.close()
        end = cluster.nodes[1].append(b"lost 1")
        await until(lambda: cluster.nodes[1].end() == end)
        for node in (2, 3):
            await cluster.nodes[node].fetch_anew()
        await cluster.lead(2, 1, 2, 3)
        cluster.nodes[2].append(b"kept")
        cluster.nodes[2].append(b"kept, too")
        await cluster.agree(1, 2, 3)
        assert len(await cluster.nodes[1].batches()) == 3


async def test_leaders_may_change_while_records_come(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2, 3) as cluster:
        leader = 1
        for turn in range(6):
            leader = turn % 3 + 1
            await cluster.lead(leader, 1, 2, 3, partitions=4)
            for number in range(40):
                cluster.nodes[leader].append(b"%d of %d" % (number, turn), index=number % 4)
            await asyncio.sleep(0.01)
        for index in range(4):
            cluster.nodes[leader].append(b"last", index=index)
            await cluster.agree(1, 2, 3, index=index)


async def test_nodes_that_register_again_are_followed_and_follow_as_new_incarnations(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2) as cluster:
        await cluster.lead(1, 1, 2)
        leader, follower = cluster.nodes[1], cluster.nodes[2]
        leader.append(b"first")
        await cluster.agree(1, 2)
        before = follower.member.me
        await follower.register()
        assert follower.member.me.broker_epoch > before.broker_epoch
        leader.append(b"second")
        await until(lambda: follower.end() == leader.end() == 2)
        await until(lambda: leader.isr().get(2) == follower.member.me.broker_epoch)
        await cluster.agree(1, 2)
        await leader.register()
        assert not leader.replica().serves
        await cluster.lead(1, 1, 2)
        leader.append(b"third")
        await cluster.agree(1, 2)


async def test_a_follower_that_starts_again_goes_on_where_it_was(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2) as cluster:
        await cluster.lead(1, 1, 2)
        for number in range(10):
            cluster.nodes[1].append(b"%d" % number)
        await cluster.agree(1, 2)
        await cluster.nodes.pop(2).stop()
        cluster.nodes[1].append(b"meanwhile")
        await cluster.start(2)
        assert cluster.nodes[2].end() == 10
        await cluster.agree(1, 2)


async def test_the_start_of_a_log_moves_with_the_leader(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2) as cluster:
        await cluster.lead(1, 1, 2)
        leader, follower = cluster.nodes[1], cluster.nodes[2]
        for number in range(10):
            leader.append(b"%d" % number)
        await cluster.agree(1, 2)
        opened, copy = leader.replica().log, follower.replica().log
        assert opened is not None
        assert copy is not None
        await opened.delete_before(4)
        await until(lambda: copy.start_offset == 4)


async def test_a_replica_that_comes_late_knows_the_producers_of_what_is_gone(tmp_path: Path) -> None:
    """When it leads, a batch that comes again is a duplicate there too, and the next one comes next."""
    async with replica_cluster(tmp_path, 1) as cluster:
        await cluster.lead(1, 1)
        log = cluster.nodes[1].replica().log
        assert log is not None
        batch = encode_batch([b"a", b"b"], timestamps_ms=[0, 0], producer_id=7, producer_epoch=0, base_sequence=0)
        log.append(batch, read_header(batch))
        end = cluster.nodes[1].append(b"of nobody")
        await until(lambda: log.high_watermark == end)
        await log.delete_before(end)
        await cluster.start(2)
        await cluster.lead(1, 1, 2, isr=(1,))
        await until(lambda: 2 in cluster.nodes[1].isr())
        copy = cluster.nodes[2].replica().log
        assert copy is not None
        found = copy.producers.find(read_header(batch))
        assert found is not None
        assert found[:4] == (0, 1, 0, 2)


async def test_a_high_watermark_reaches_followers_soon_and_costs_few_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = 0

    def counted(call: WireCall, response: Response, answer: object = WireCall.answer) -> None:
        nonlocal answers
        answers += type(response) is ReplicaFetchResponse
        answer(call, response)  # type: ignore[operator]

    async with replica_cluster(tmp_path, 1, 2, replica_fetch_wait_max_ms=60_000) as cluster:
        await cluster.lead(1, 1, 2)
        leader, follower = cluster.nodes[1], cluster.nodes[2]
        leader.append(b"first")
        await cluster.agree(1, 2)
        monkeypatch.setattr(WireCall, "answer", counted)
        began_s = asyncio.get_running_loop().time()
        for _ in range(100):
            end = leader.append(b"one at a time")
            await until(lambda: leader.committed() == end)  # noqa: B023
        took_s = asyncio.get_running_loop().time() - began_s
        assert answers <= 105 + took_s / HIGH_WATERMARK_DELAY_S
        await until(lambda: follower.committed() == end, 1)
        await asyncio.sleep(3 * HIGH_WATERMARK_DELAY_S)
        before = answers
        await asyncio.sleep(0.3)
        assert answers == before  # nothing new, nothing said


async def test_who_is_not_in_sync_copies_as_slowly_as_it_is_told(tmp_path: Path) -> None:
    throttle = {"replication_throttle_bytes_per_s": 200_000, "replica_fetch_max_bytes": 40_000}
    async with replica_cluster(tmp_path, 1) as cluster:
        await cluster.lead(1, 1)
        for _ in range(60):
            cluster.nodes[1].append(b"x" * 10_000)
        await cluster.start(2, **throttle)
        began_s = asyncio.get_running_loop().time()
        await cluster.lead(1, 1, 2, isr=(1,))
        await cluster.agree(1, 2)
        assert 1.5 < asyncio.get_running_loop().time() - began_s < 6


async def test_a_leader_that_cannot_be_reached_is_tried_until_it_is_there(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2) as cluster:
        await cluster.lead(1, 1, 2)
        leader = cluster.nodes[1]
        leader.append(b"first")
        await cluster.agree(1, 2)
        leader.listener.abort()
        leader.append(b"second")
        await asyncio.sleep(0.2)
        assert cluster.nodes[2].end() == 1
        await leader.listen(leader.address[1])
        await cluster.agree(1, 2)


async def test_closing_ends_everything(tmp_path: Path) -> None:
    async with replica_cluster(tmp_path, 1, 2) as cluster:
        await cluster.lead(1, 1, 2)
        cluster.nodes[1].append(b"first")
        await cluster.agree(1, 2)
        fetchers: Fetchers = cluster.nodes[2].fetchers
        await fetchers.close()
        await cluster.lead(2, 1, 2)
        await cluster.lead(1, 1, 2)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "cohort-fetch-from-1"]
