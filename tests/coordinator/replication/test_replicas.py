"""Replicas of several nodes: what is acknowledged, who leads, what follows from the metadata and from what is on disk."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log.errors import LogDamagedError, NotEnoughInSyncError, NotLeaderError
from coordinator.log.partition import PartitionLog
from coordinator.metadata.catalog import Topic, TopicError
from coordinator.metadata.keys import registration_of
from coordinator.nodes.inventory import Inventory
from coordinator.replication import replica
from coordinator.replication.replica import PATIENCE_MS
from coordinator.replication.replicas import _TICK_S
from coordinator.replication.watermarks import PATH
from protocol.errors import ErrorCode
from protocol.record_batch import HEADER_BYTES
from tests.coordinator.log.following import fingerprints
from tests.coordinator.log.logs import append_value, records_in
from tests.coordinator.replication.replica_nodes import TOPIC, ReplicaCluster, ReplicaNode, committed, led


async def values(node: ReplicaNode) -> list[bytes | None]:
    return [value for _, value, _ in (await records_in(node.log())).values()]


async def same_logs(cluster: ReplicaCluster, *nodes: int) -> None:
    """All have what the first has, and know that it is committed."""
    first, *others = [cluster.nodes[node] for node in nodes]
    for other in others:
        await cluster.until(lambda other=other: other.log().high_watermark == first.log().end_offset)  # type: ignore[misc]
        assert await fingerprints(other.log()) == await fingerprints(first.log())


async def test_what_is_committed_is_on_every_disk_and_the_logs_agree(tmp_path: Path) -> None:
    async with led(tmp_path, b"a", b"b", b"c") as (cluster, one, two, three):
        assert {node.log().flushed_offset for node in (one, two, three)} == {3}
        await same_logs(cluster, 1, 2, 3)
        assert one.roles == [(TOPIC, 0, True, 0)]
        topic = two.catalog.topic(TOPIC)
        with pytest.raises(TopicError) as refused:
            two.logs.find(topic, 0)
        assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert one.logs.find(topic, 0) is one.log()


async def test_nothing_is_committed_while_a_replica_in_sync_has_it_not(tmp_path: Path) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        await cluster.create()
        one, two, three = cluster.nodes.values()
        await cluster.until(lambda: one.replica().serves and len(one.log().epochs.entries) == 1)
        cluster.cut.add((3, 1))
        append_value(one.log(), b"a")
        await cluster.until(lambda: two.log().flushed_offset == 1)
        await asyncio.sleep(0.05)
        assert (one.log().flushed_offset, one.log().high_watermark) == (1, 0)
        assert await records_in(one.log()) == {}
        # It lags for too long, leaves, and comes back once it has all.
        await cluster.until(lambda: one.log().high_watermark == 1, "the one that lags leaves")
        assert cluster.state()["isr"] == [1, 2]
        cluster.cut.clear()
        await cluster.until(lambda: sorted(cluster.state()["isr"]) == [1, 2, 3], "it joins again")
        assert three.log().end_offset == 1


async def test_a_producer_that_waits_is_told_at_once_when_too_few_are_in_sync(tmp_path: Path) -> None:
    """Coordinators wait on: what they have written is committed once others are back."""
    async with led(tmp_path, b"a") as (cluster, one, two, three):
        cluster.cut |= {(2, 1), (3, 1)}
        append_value(one.log(), b"b")
        told: list[Exception | None] = []
        waited: list[Exception | None] = []
        one.log().when_committed(2, told.append, may_give_up=True)
        one.log().when_committed(2, waited.append)
        for node in (two, three):
            assert told == []
            await node.kill()
            await node.lease.revoke()
        await cluster.until(lambda: bool(told), "it is told")
        assert isinstance(told[0], NotEnoughInSyncError)
        assert "acks=all needs 2" in str(told[0])
        cluster.cut.clear()
        await two.start()
        await cluster.until(lambda: bool(waited), "what waits on is told")
        assert (told[1:], waited, one.log().high_watermark) == ([], [None], 2)


async def test_another_leads_when_the_leader_dies_and_it_gives_up_what_was_never_acknowledged(tmp_path: Path) -> None:
    async with led(tmp_path, b"a", b"b") as (cluster, one, two, _):
        cluster.cut |= {(2, 1), (3, 1)}
        append_value(one.log(), b"only here")
        await cluster.until(lambda: one.log().flushed_offset == 3)
        await one.kill()
        await one.lease.revoke()
        await cluster.control()
        assert (cluster.state()["leader"], cluster.state()["leader_epoch"]) == (2, 1)
        await cluster.until(lambda: two.replica().serves)
        assert await committed(two, b"c", b"d") is None
        cluster.cut.clear()
        await one.start()
        assert one.log().end_offset == 3
        await cluster.until(lambda: sorted(cluster.state()["isr"]) == [1, 2, 3])
        await same_logs(cluster, 2, 1, 3)
        assert await values(one) == [b"a", b"b", b"c", b"d"]
        assert await committed(two, b"e") is None
        assert await values(two) == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_leadership_that_is_lost_fails_what_waits_at_once(tmp_path: Path) -> None:
    async with led(tmp_path, b"a") as (cluster, one, two, _):
        cluster.cut |= {(2, 1), (3, 1)}
        heard: list[object] = []
        one.replicas.on_role(lambda topic, index, log, epoch: heard.append(("role", log)))
        append_value(one.log(), b"b")
        one.log().when_committed(2, lambda error: heard.append(("committed", type(error))))
        one.log().when_durable(2, lambda error: heard.append(("durable", type(error))))
        known = registration_of(cluster.state())
        await cluster.write(type(known)(known.replicas, two.replicas.me, 1, known.isr, 2))
        assert heard == [("role", None), ("durable", NotLeaderError), ("committed", NotLeaderError)]
        assert one.logs.led == {}
        with pytest.raises(TopicError) as refused:
            one.logs.find(one.catalog.topic(TOPIC), 0)
        assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.cut.clear()
        await cluster.until(lambda: two.replica().serves)
        assert await committed(two, b"c") is None
        await same_logs(cluster, 2, 1, 3)


async def test_a_node_that_may_not_answer_serves_nothing_and_leads_on(tmp_path: Path) -> None:
    async with led(tmp_path) as (_, one, _, _):
        one.replicas.suspend()
        assert one.logs.led == {}
        assert one.replica().leader is not None
        one.replicas.resume()
        assert one.logs.led == {(TOPIC, 0): one.log()}
        assert one.roles == [(TOPIC, 0, True, 0), (TOPIC, 0, False, 0), (TOPIC, 0, True, 0)]
        assert await committed(one, b"a") is None


async def test_a_node_that_registers_anew_leads_nothing_until_it_is_elected(tmp_path: Path) -> None:
    async with led(tmp_path, b"a") as (cluster, one, _, _):
        await one.lease.revoke()
        one.replicas.lost()
        assert one.logs.led == {}
        await one.register()
        await asyncio.sleep(0.02)
        assert not one.replica().serves
        await cluster.control()
        leader = cluster.nodes[cluster.state()["leader"]]
        await cluster.until(lambda: leader.replica().serves)
        assert await committed(leader, b"b") is None
        await cluster.until(lambda: sorted(cluster.state()["isr"]) == [1, 2, 3])


async def test_a_leader_that_hears_no_follower_hands_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.replication.leading.UNHEARD_MS", 300)
    async with led(tmp_path, b"a") as (cluster, _, two, _):
        cluster.cut |= {(2, 1), (3, 1), (1, 2)}  # nor does it come back at once
        await cluster.until(lambda: two.replica().serves)
        assert (cluster.state()["leader"], cluster.state()["leader_epoch"]) == (2, 1)
        assert sorted(cluster.state()["isr"]) == [2, 3]
        assert await committed(two, b"b") is None


async def test_a_leader_whose_log_cannot_be_opened_hands_over(tmp_path: Path) -> None:
    cluster = ReplicaCluster(tmp_path)
    async with cluster:
        await cluster.create()
        one, two, _ = cluster.nodes.values()
        assert await committed(one, b"a") is None
        await one.kill()
        epochs = one.root / f"{TOPIC}-0" / "leader-epochs"
        held = epochs.read_bytes()
        epochs.unlink()
        epochs.mkdir()  # the disk refuses: it is no file
        await one.lease.revoke()
        await one.start()
        assert one.replica().offline
        known = registration_of(cluster.state())
        isr = {**known.isr, 1: one.replicas.me.broker_epoch}
        await cluster.write(replace(known, leader=one.replicas.me, leader_epoch=5, isr=isr))
        await cluster.until(lambda: two.replica().serves)
        assert await committed(two, b"b") is None
        epochs.rmdir()
        epochs.write_bytes(held)
        await cluster.until(lambda: sorted(cluster.state()["isr"]) == [1, 2, 3], "it is tried again")


async def test_changes_of_a_partition_do_not_put_off_the_next_attempt_to_open_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that it fails for longer the next attempt is later; that others lead meanwhile is no failure."""
    monkeypatch.setattr(replica, "_RETRY_S", 0.2)
    monkeypatch.setattr(replica, "_MAX_RETRY_S", 1_000.0)
    cluster = ReplicaCluster(tmp_path)
    async with cluster:
        await cluster.create()
        one, two, _ = cluster.nodes.values()
        assert await committed(one, b"a") is None
        await one.kill()
        epochs = one.root / f"{TOPIC}-0" / "leader-epochs"
        held = epochs.read_bytes()
        epochs.unlink()
        epochs.mkdir()  # the disk refuses: it is no file
        await one.lease.revoke()
        await one.start()
        for epoch in range(10, 24):
            known = registration_of(cluster.state())
            await cluster.write(replace(known, leader=two.replicas.me, leader_epoch=epoch))
            await cluster.until(lambda epoch=epoch: one.replica().leader_epoch == epoch)  # type: ignore[misc]
            await asyncio.sleep(0.01)
        epochs.rmdir()
        epochs.write_bytes(held)
        await cluster.until(lambda: not one.replica().offline)


async def test_a_log_that_its_coordinator_cannot_read_is_led_by_another_and_goes_round_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is in sync is asked. So that a slow machine changes nothing of it, nobody lags here, and each leader finds out
    what it cannot read once the one before has joined again.
    """
    forever_ms = 3_600_000
    monkeypatch.setattr("tests.coordinator.replication.replica_nodes.LAG_MS", forever_ms)
    monkeypatch.setattr("coordinator.replication.leading.UNHEARD_MS", forever_ms)
    monkeypatch.setattr("coordinator.replication.replica.HANDED_ON_MS", forever_ms)
    found: list[tuple[int, int]] = []
    async with led(tmp_path, b"a") as (cluster, one, two, three), asyncio.TaskGroup() as coordinators:

        async def read(node: ReplicaNode, epoch: int) -> None:
            await cluster.until(lambda: sorted(cluster.state()["isr"]) == [1, 2, 3], "all are in sync")
            found.append((node.id, epoch))
            node.replica().readable(epoch, f"damaged on {node.id}")

        for node in (one, two, three):

            def cannot(topic: str, index: int, log: PartitionLog | None, epoch: int, node: ReplicaNode = node) -> None:
                if log is not None:
                    coordinators.create_task(read(node, epoch))

            node.replicas.on_role(cannot)
        one.replica().readable(0, "")  # it could
        one.replica().readable(7, "that of another epoch")
        assert one.replica().reason_to_hand_over(()) == ""
        one.replica().readable(0, "damaged on 1")
        assert one.replica().reason_to_hand_over(()) == "its coordinator cannot read the log: damaged on 1"
        await cluster.until(lambda: found == [(2, 1), (3, 2), (1, 3)], "all were asked")
        await asyncio.sleep(2 * _TICK_S)
        assert (cluster.state()["leader"], cluster.state()["leader_epoch"]) == (1, 3), "it stays where it was first"
        assert await committed(one, b"b") is None


async def test_a_log_that_cannot_be_read_long_after_it_came_back_is_handed_over_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.replication.replica.HANDED_ON_MS", 0)
    async with led(tmp_path, b"a") as (cluster, one, two, _):
        one.replica().readable(0, "damaged")
        await cluster.until(lambda: two.replica().serves, "another leads")
        known = registration_of(cluster.state())
        await cluster.write(replace(known, leader=one.replicas.me, leader_epoch=5))
        await cluster.until(lambda: one.replica().serves)
        assert one.replica().reason_to_hand_over(()) == "", "it may have been mended"
        one.replica().readable(5, "damaged")
        await cluster.until(lambda: two.replica().serves, "another leads again")


def flip(node: ReplicaNode, position: int) -> None:
    """Flips a bit of the first segment of a node's copy, which is closed."""
    first, *others = sorted((node.root / f"{TOPIC}-0").glob("*.log"))
    assert others, "it is not the active segment"
    content = bytearray(first.read_bytes())
    content[position] ^= 1
    first.write_bytes(content)


VALUES = [b"%d" % number * 100 for number in range(40)]


async def test_a_leader_that_finds_a_damaged_header_in_a_closed_segment_hands_over_and_copies_the_log_anew(
    tmp_path: Path,
) -> None:
    async with led(tmp_path, *VALUES) as (cluster, one, two, _):
        flip(one, 20)
        with pytest.raises(LogDamagedError):
            await one.log().read(0, 1 << 20)
        assert "its log is damaged" in one.replica().reason_to_hand_over(())
        await cluster.until(lambda: two.replica().serves, "another leads")
        assert await committed(two, b"more") is None
        await cluster.until(lambda: sorted(cluster.state()["isr"]) == [1, 2, 3], "it is in sync again")
        await same_logs(cluster, 2, 1, 3)
        assert await values(one) == [*VALUES, b"more"]
        (aside,) = one.root.glob("*.damaged")
        assert len(list(aside.glob("*.log"))) > 1, "what was damaged is kept"
        await one.kill()
        await one.lease.revoke()
        await one.start()
        assert not one.lost, "the node lacks nothing that it was in sync with"


@pytest.mark.parametrize("min_isr", [1, 2])
async def test_a_leader_whose_follower_cannot_take_a_body_over_looks_at_it_and_hands_over_if_others_are_enough(
    tmp_path: Path, min_isr: int
) -> None:
    async with led(tmp_path, *VALUES, min_isr=min_isr) as (cluster, one, two, three):
        await three.kill()
        await three.lease.revoke()
        await cluster.until(lambda: sorted(cluster.state()["isr"]) == [1, 2])
        shutil.rmtree(three.root / f"{TOPIC}-0")
        flip(one, HEADER_BYTES + 2)
        assert await one.log().read(0, 1 << 20), "headers are as they were"
        await three.start()
        await cluster.until(lambda: one.log().damage is not None, "it is asked for the same again")
        if min_isr == 2:
            assert one.replica().reason_to_hand_over(()) == "", "the other one alone is not enough"
            await asyncio.sleep(2 * _TICK_S)
            assert one.replica().serves
            return
        await cluster.until(lambda: two.replica().serves, "another leads")
        await cluster.until(lambda: sorted(cluster.state()["isr"]) == [1, 2, 3], "both copy what they lack")
        await same_logs(cluster, 2, 1, 3)
        assert await values(three) == VALUES


async def test_what_is_damaged_in_every_copy_is_handed_on_while_enough_are_in_sync_and_stays(tmp_path: Path) -> None:
    async with led(tmp_path, *VALUES, min_isr=1) as (cluster, one, two, three):
        for node, position in ((one, 20), (two, 30), (three, 40)):
            flip(node, position)

            def look(topic: str, index: int, log: PartitionLog | None, epoch: int) -> None:
                if log is not None:
                    reading.append(asyncio.ensure_future(log.read(0, 1 << 20)))

            node.replicas.on_role(look)
        reading = [asyncio.ensure_future(one.log().read(0, 1 << 20))]
        await cluster.until(lambda: len(reading) == 3, "each was asked")
        await asyncio.sleep(3 * _TICK_S)
        outcomes = await asyncio.gather(*reading, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [LogDamagedError] * 3
        assert (cluster.state()["leader"], cluster.state()["leader_epoch"], cluster.state()["isr"]) == (3, 2, [3])
        assert await committed(three, b"goes on") is None


async def test_a_leader_whose_disk_is_full_hands_over_where_others_are_enough(tmp_path: Path) -> None:
    async with led(tmp_path, b"a") as (cluster, one, two, _):
        one.disk_is_full = True
        while not two.replica().serves:
            if one.replica().serves:
                assert await committed(one, b"refused") is not None
            await asyncio.sleep(0.1)
        assert await committed(two, b"b") is None, "once the one that cannot write has lagged for too long"
        assert sorted(cluster.state()["isr"]) == [2, 3]
        one.disk_is_full = False
        await cluster.until(lambda: sorted(cluster.state()["isr"]) == [1, 2, 3], "it has room again")
        await same_logs(cluster, 2, 1, 3)
        assert await values(one) == [b"a", b"b"]
        known = registration_of(cluster.state())
        await cluster.write(replace(known, leader=one.replicas.me, leader_epoch=known.leader_epoch + 1))
        await cluster.until(lambda: one.replica().serves)
        assert one.log().refused_for_s == 0, "what was refused in an earlier epoch does not count"


async def test_a_leader_whose_disk_is_full_leads_on_while_the_others_are_too_few(tmp_path: Path) -> None:
    async with led(tmp_path, b"a") as (cluster, one, two, three):
        await three.kill()
        await three.lease.revoke()
        await cluster.until(lambda: sorted(cluster.state()["isr"]) == [1, 2])
        one.disk_is_full = True
        end_s = asyncio.get_running_loop().time() + 2 * PATIENCE_MS / 1000
        while asyncio.get_running_loop().time() < end_s:
            assert await committed(one, b"refused") is not None
            await asyncio.sleep(0.1)
        assert one.log().refused_for_s * 1000 >= PATIENCE_MS
        assert not two.replica().serves
        one.disk_is_full = False
        assert await committed(one, b"b") is None
        assert one.log().refused_for_s == 0


async def test_a_leader_whose_logs_are_still_being_made_is_waited_for_and_they_are_made_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        one, two, _ = cluster.nodes.values()
        made: list[int] = []
        original = two.logs.make_all

        async def noted(partitions: Sequence[tuple[Topic, int]]) -> None:
            made.append(len(partitions))
            await original(partitions)

        monkeypatch.setattr(two.logs, "make_all", noted)
        async with one.replicas._logs._making:
            creating = asyncio.create_task(cluster.create(partitions=60))
            await asyncio.sleep(3 * _TICK_S)
            assert not creating.done()
            assert {(cluster.state(index)["leader"], cluster.state(index)["leader_epoch"]) for index in range(60)} == {
                (1, 0)
            }
        await creating
        assert (sum(made), len(made) < 30) == (60, True)
        assert len(one.inventory.logs) == 60
        await cluster.until(lambda: all(one.replica(index).serves for index in range(60)))


async def test_hints_save_a_new_start_from_not_knowing_what_is_committed(tmp_path: Path) -> None:
    cluster = ReplicaCluster(tmp_path)
    async with cluster:
        await cluster.create()
        one = cluster.nodes[1]
        assert await committed(one, b"a", b"b") is None
        await same_logs(cluster, 1, 2, 3)
    assert all((node.root / PATH).exists() for node in cluster.nodes.values())
    async with cluster:
        assert [node.log().high_watermark for node in cluster.nodes.values()] == [2, 2, 2]
        (cluster.nodes[2].root / PATH).write_bytes(b"torn")
        await cluster.nodes[2].kill()
        await cluster.nodes[2].start()
        assert cluster.nodes[2].log().high_watermark == 0


async def test_a_deleted_topic_goes_from_every_disk_and_its_namesake_is_another(tmp_path: Path) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        first = await cluster.create()
        one, two, three = cluster.nodes.values()
        assert await committed(one, b"old") is None
        await three.kill()
        await three.lease.revoke()
        await cluster.delete(first)
        second = await cluster.create(replicas=(1, 2))
        assert await committed(one, b"new") is None
        await cluster.until(lambda: cluster.authority.get(f"deleting/{first}").value["nodes"] == [3])  # type: ignore[union-attr]
        assert {node.inventory.logs for node in (one, two)} == {frozenset({(second, 0)})}
        assert (three.root / f"{TOPIC}-0").exists()
        await three.start()
        assert not (three.root / f"{TOPIC}-0").exists()
        assert cluster.authority.get(f"deleting/{first}") is None
        assert await values(one) == [b"new"]


async def test_what_is_on_disk_and_of_another_topic_is_set_aside(tmp_path: Path) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        await cluster.create()
        one, three = cluster.nodes[1], cluster.nodes[3]
        assert await committed(one, b"a") is None
        await three.kill()
        await three.lease.revoke()
        (next((three.root / f"{TOPIC}-0").glob("*.topic-id"))).rename(three.root / f"{TOPIC}-0" / "other.topic-id")
        (three.root / "stranger-4").mkdir()
        await three.start()
        assert three.lost  # the inventory has the log, and it is not there
        assert three.noted == [True], "noted before it began anew"
        await cluster.until(lambda: three.log().high_watermark == 1)
        assert (three.root / f"{TOPIC}-0.other.stray").exists()
        assert (three.root / "stranger-4.stray").exists()


async def test_a_damaged_log_is_copied_anew_where_others_have_it(tmp_path: Path) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        await cluster.create()
        one, three = cluster.nodes[1], cluster.nodes[3]
        for value in (b"a" * 100, b"b", b"c"):
            assert await committed(one, value) is None
        await three.kill()
        await three.lease.revoke()
        segment = next((three.root / f"{TOPIC}-0").glob("*.log"))
        data = bytearray(segment.read_bytes())
        data[20] ^= 1
        segment.write_bytes(data)
        await three.start()
        assert three.lost
        assert three.noted == [True], "noted before it was set aside"
        await cluster.until(lambda: three.log().high_watermark == 3)
        assert await fingerprints(three.log()) == await fingerprints(one.log())
        assert (three.root / f"{TOPIC}-0.damaged").exists()


async def test_a_log_that_was_being_made_at_a_power_cut_is_made_again_and_not_lost(tmp_path: Path) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        await cluster.create()
        one, three = cluster.nodes[1], cluster.nodes[3]
        await three.kill()
        await three.lease.revoke()
        disk = Disk(FileStorage(three.root), threads=1)
        inventory = await Inventory.read(disk)
        await inventory.remove(list(inventory.logs))
        disk.close()
        for segment in (three.root / f"{TOPIC}-0").glob("*.log"):
            segment.unlink()
        await three.start()
        assert not three.lost
        assert await committed(one, b"a") is None
        await cluster.until(lambda: three.log().high_watermark == 1)


async def test_a_replica_that_is_moved_away_goes_from_the_disk(tmp_path: Path) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        await cluster.create()
        one, three = cluster.nodes[1], cluster.nodes[3]
        assert await committed(one, b"a") is None
        known = registration_of(cluster.state())
        isr = {node: epoch for node, epoch in known.isr.items() if node != 3}
        await cluster.write(type(known)((1, 2), known.leader, 1, isr, 2))
        await cluster.until(lambda: not (three.root / f"{TOPIC}-0").exists())
        assert three.inventory.logs == frozenset()
        await cluster.until(lambda: one.replica().serves)
        assert await committed(one, b"b") is None


async def test_a_replica_that_is_moved_away_and_back_while_its_node_is_down_begins_anew(tmp_path: Path) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        await cluster.create()
        one, three = cluster.nodes[1], cluster.nodes[3]
        assert await committed(one, b"a") is None
        await three.kill()
        await three.lease.revoke()
        known = registration_of(cluster.state())
        isr = {node: epoch for node, epoch in known.isr.items() if node != 3}
        await cluster.write(type(known)((1, 2), known.leader, 1, isr, 2))
        await three.start()
        assert (three.root / f"{TOPIC}-0.stray").exists()
        assert three.inventory.logs == frozenset()
        await cluster.write(type(known)((1, 2), known.leader, 2, isr, 2, (3,)))
        await cluster.until(lambda: three.replicas.get(TOPIC, 0) is not None and three.replica().log is not None)
        await cluster.until(lambda: three.log().high_watermark == 1, "it is copied, and not taken for lost")
        assert not three.lost


async def test_followers_begin_where_their_leader_does_and_deletion_waits_for_them(tmp_path: Path) -> None:
    async with led(tmp_path, b"a", b"b", b"c") as (cluster, one, two, three):
        cluster.cut.add((3, 1))
        await one.log().delete_before(2)
        leading = one.replica().leading
        assert leading is not None
        waiting = asyncio.create_task(leading.wait_deleted(2))
        await cluster.until(lambda: two.log().start_offset == 2)
        await asyncio.sleep(0.02)
        assert not waiting.done()
        cluster.cut.clear()
        await asyncio.wait_for(waiting, 20)
        assert three.log().start_offset == 2


async def test_a_replica_that_was_moved_away_meanwhile_keeps_no_node_with_a_full_disk_from_starting(
    tmp_path: Path,
) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        await cluster.create()
        one, three = cluster.nodes[1], cluster.nodes[3]
        assert await committed(one, b"a") is None
        await three.kill()
        await three.lease.revoke()
        known = registration_of(cluster.state())
        isr = {node: epoch for node, epoch in known.isr.items() if node != 3}
        await cluster.write(type(known)((1, 2), known.leader, 1, isr, 2))
        three.disk_is_full = True
        await three.start()
        assert not three.lost
        assert (three.root / f"{TOPIC}-0").exists()
        await three.stop()
        three.disk_is_full = False
        await three.start()
        assert (three.root / f"{TOPIC}-0.stray").exists()
        assert three.inventory.logs == frozenset()
