"""What must happen when nodes, network and metadata fail: each fault with its bound, on real processes.

A node's session is two seconds (``S``). A bound counts from the fault to the first acknowledgement of every partition.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from client import Admin, CohortError, Consumer, CooperativeStickyAssignor, Producer, TopicPartition
from client.errors import NotEnoughReplicasError
from protocol.hashing import TRANSACTION_PARTITIONS, partition_for_group
from tests.chaos.run import OpenEnd, ends_that_stay_open
from tests.cluster.probe import TOPIC, Probe, created, described, everything, in_sync, leads_most, probing
from tests.cluster.processes import SESSION_MS, Node, Nodes, Store, running
from tests.cluster.replicas import disagreements, read_node

S = SESSION_MS / 1000
LAG_S = 5.0
"""``replica_lag_time_max_ms``, for the test that waits for it; as long as a leader waits that hears no follower."""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def now() -> float:
    """The loop's time, which probes use."""
    return asyncio.get_running_loop().time()


def copies_agree(nodes: Nodes, topic: str = TOPIC) -> None:
    """Of nodes that were stopped: all have the same batches of a topic."""
    logs = [read_node(node.data_dir, node.number, with_records=False) for node in nodes.nodes]
    names = {name for found in logs for name in found if name.startswith(f"{topic}-")}
    assert names
    for name in names:
        copies = [found[name] for found in logs if name in found]
        assert len(copies) == len(nodes.nodes), name
        assert not disagreements(copies, to_the_end=True), name


async def test_a_leader_whose_machine_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes, probing(nodes) as probe:
        node = await leads_most(nodes)
        began = now()
        nodes.cut_from_nodes(node)
        nodes.cut_from_clients(node)
        nodes.cut_from_metadata(node)
        await asyncio.to_thread(node.kill)
        node.running = False
        await probe.acknowledged(began + 0.2, 30)
        await asyncio.sleep(1)
        probe.assert_within(S + 0.5, began)
        await nodes.heal()
        await nodes.start_node(node)
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_a_leader_is_killed_and_its_port_refuses_connections(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes, probing(nodes) as probe:
        node = await leads_most(nodes)
        began = now()
        await nodes.kill(node)
        await probe.acknowledged(began + 0.2, 30)
        await asyncio.sleep(1)
        probe.assert_within(S + 0.5, began)
        await nodes.start_node(node)
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_nodes_whose_port_refuses_connections_are_not_waited_for(tmp_path: Path) -> None:
    """Quick failover: the session would be five times as long as the bound."""
    async with running(tmp_path, "--node-session-ms", "10000") as nodes, probing(nodes) as probe:
        async with Admin(nodes.address) as admin:
            controller = (await admin.describe_cluster()).controller_id  # its office is over with its session only
            leaders = [each.leader for each in await described(admin)]
        node = nodes[next(leader for leader in leaders if leader != controller)]
        began = now()
        await nodes.kill(node)
        await probe.acknowledged(began + 0.2, 30)
        await asyncio.sleep(1)
        probe.assert_within(0.6, began)
        await nodes.start_node(node)
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_a_follower_is_killed(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes, probing(nodes, partitions=1) as probe:
        async with Admin(nodes.address) as admin:
            leader = (await described(admin))[0].leader
        node = nodes[(leader + 1) % 3]
        began = now()
        await nodes.kill(node)
        await asyncio.sleep(S + 1.5)
        await probe.acknowledged(now(), 30)
        probe.assert_within(S + 0.2, began)
        async with Admin(nodes.address) as admin:
            partition = (await described(admin))[0]
        assert (partition.leader, node.number in partition.in_sync_replicas) == (leader, False)
        await nodes.start_node(node)
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_a_leader_is_stopped_and_goes_on_later(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes, probing(nodes) as probe:
        node = await leads_most(nodes)
        began = now()
        nodes.pause(node)
        await probe.acknowledged(began + 0.2, 30)
        await asyncio.sleep(4)
        probe.assert_within(S + 0.5, began)
        resumed = now()
        nodes.resume(node)
        await asyncio.sleep(3)
        probe.assert_within(0.5, resumed)
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_a_leader_is_cut_from_the_metadata_only(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes, probing(nodes) as probe:
        node = await leads_most(nodes)
        began = now()
        nodes.cut_from_metadata(node)
        await asyncio.sleep(S + 3)
        await probe.acknowledged(now(), 30)
        probe.assert_within(S, began)
        async with Admin(nodes.address) as admin:
            assert node.number not in {each.leader for each in await described(admin)}
        await nodes.heal()
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_a_leader_is_cut_from_its_followers_only(tmp_path: Path) -> None:
    async with running(tmp_path, "--replica-lag-time-max-ms", str(int(LAG_S * 1000))) as nodes, probing(nodes) as probe:
        node = await leads_most(nodes)
        began = now()
        nodes.cut_from_nodes(node)
        await probe.acknowledged(began + 1, 40)
        await asyncio.sleep(LAG_S + 2)
        await probe.acknowledged(now(), 30)
        probe.assert_within(LAG_S * 1.25, began)  # leaders look four times in that time who lags
        await nodes.heal()
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_the_disk_of_a_leader_is_full(tmp_path: Path) -> None:
    async with running(tmp_path, "--replica-lag-time-max-ms", str(int(LAG_S * 1000))) as nodes, probing(nodes) as probe:
        node = await leads_most(nodes)
        began = now()
        limits = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (1, limits[1]))  # no file takes another byte
        await probe.acknowledged(began + 0.2, 60)
        await asyncio.sleep(LAG_S + 2)
        await probe.acknowledged(now(), 30)
        probe.assert_within(3 + LAG_S * 1.25, began)
        async with Admin(nodes.address) as admin:
            assert node.number not in {each.leader for each in await described(admin)}
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, limits)
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_all_nodes_lose_power(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes, probing(nodes) as probe:
        await asyncio.gather(*(nodes.kill(node) for node in nodes.nodes))
        await asyncio.sleep(S)
        await asyncio.gather(*(nodes.start_node(node) for node in nodes.nodes))
        started = now()
        await probe.acknowledged(started, 30)
        assert now() - started <= 2 + 1 + probe.stalls.since(started)
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_two_of_three_replicas_are_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        async with asyncio.timeout(60), Admin(nodes.address) as admin:
            await created(admin, 1, {})
        await in_sync(nodes.address)
        safe = Producer(nodes.address, delivery_timeout_ms=4_000, request_timeout_ms=2_000)
        fast = Producer(nodes.address, acks=1, enable_idempotence=False, delivery_timeout_ms=20_000)
        async with safe, fast:
            await safe.send_and_wait(TOPIC, b"all have it", partition=0)
            async with Admin(nodes.address) as admin:
                leader = (await described(admin))[0].leader
            others = [node for node in nodes.nodes if node.number != leader]
            for node in others:
                await nodes.kill(node)
            await asyncio.sleep(S + 1)
            with pytest.raises(CohortError) as refused:
                await safe.send_and_wait(TOPIC, b"refused", partition=0)
            assert isinstance(refused.value, NotEnoughReplicasError) or "NotEnoughReplicas" in repr(refused.value)
            stored = await fast.send_and_wait(TOPIC, b"on the leader's disk", partition=0)
            async with Consumer(bootstrap_servers=nodes[leader].public_address) as consumer:
                assert await consumer.end_offsets([TopicPartition(TOPIC, 0)]) == {
                    TopicPartition(TOPIC, 0): stored.offset
                }
            back = now()
            await nodes.start_node(others[0])
            async with asyncio.timeout(30):
                await safe.send_and_wait(TOPIC, b"both have it", partition=0)
            assert now() - back < 15
            assert [value for _, _, value in await everything(nodes.address, TOPIC, 1)][:2] == [
                "all have it",
                "on the leader's disk",
            ]
        await nodes.start_node(others[1])
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_a_disk_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes, probing(nodes) as probe:
        node = await leads_most(nodes)
        await nodes.terminate(node)
        shutil.rmtree(node.data_dir)
        began = now()
        await nodes.start_node(node)
        await in_sync(nodes.address)
        await probe.acknowledged(now(), 30)
        probe.assert_within(1, began)
    copies_agree(nodes)


async def test_an_old_image_of_a_disk_is_restored(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes, probing(nodes) as probe:
        node = await leads_most(nodes)
        await nodes.terminate(node)
        shutil.copytree(node.data_dir, tmp_path / "image")
        await nodes.start_node(node)
        await in_sync(nodes.address)
        await asyncio.sleep(2)
        await nodes.kill(node)
        shutil.rmtree(node.data_dir)
        (tmp_path / "image").rename(node.data_dir)
        others = [each for each in nodes.nodes if each is not node]
        await asyncio.gather(*(nodes.kill(each) for each in others))
        await nodes.start_node(node)
        await asyncio.sleep(S + 1)  # it must not lead: it lacks what was acknowledged
        await asyncio.gather(*(nodes.start_node(each) for each in others))
        await probe.acknowledged(now(), 40)
        await in_sync(nodes.address)
    copies_agree(nodes)


async def test_a_topic_is_deleted_and_made_again_while_a_node_is_down(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        async with asyncio.timeout(60), Admin(nodes.address) as admin:
            await created(admin, 3, {})
            await in_sync(nodes.address)
            async with Producer(nodes.address) as producer:
                for number in range(30):
                    await producer.send_and_wait(TOPIC, f"before {number}".encode(), partition=number % 3)
            node = nodes[1]
            nodes.cut_from_metadata(node)  # gone with its machine: it counts as living until its session is over
            nodes.cut_from_nodes(node)
            nodes.cut_from_clients(node)
            await asyncio.to_thread(node.kill)
            node.running = False
            await admin.delete_topics(TOPIC)
            await created(admin, 3, {})
            await nodes.heal()
        async with Probe(nodes.address, 3) as probe:
            await nodes.start_node(node)
            await in_sync(nodes.address)
            await probe.stop()
            await probe.assert_nothing_lost()
        values = [value for _, _, value in await everything(nodes.address, TOPIC, 3)]
        assert not [value for value in values if value.startswith("before")]
    copies_agree(nodes)


async def test_a_rolling_restart(tmp_path: Path) -> None:
    """No group rebalances meanwhile: its coordinator moves in less than a session."""
    async with running(tmp_path) as nodes, probing(nodes) as probe:
        members = [
            Consumer(
                *(TOPIC,),
                bootstrap_servers=nodes.address,
                group_id="readers",
                group_instance_id=f"reader-{number}" if number else None,
                assignors=[CooperativeStickyAssignor()],
                session_timeout_ms=20_000,
            )
            for number in range(2)
        ]
        reading = [asyncio.create_task(_read(member, set())) for member in members]
        await _settled(nodes, 2)
        async with Admin(nodes.address) as admin:
            before = (await admin.describe_groups("readers"))["readers"].generation
        began = now()
        for node in nodes.nodes:
            assert await nodes.terminate(node) == 0
            await nodes.start_node(node)
            await in_sync(nodes.address)
        await probe.acknowledged(now(), 30)
        probe.assert_within(1.0, began)
        async with Admin(nodes.address) as admin:
            assert (await admin.describe_groups("readers"))["readers"].generation == before
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    assert all(task.cancelled() for task in reading)
    copies_agree(nodes)


async def test_the_coordinator_of_a_group_dies_while_it_rebalances(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes, probing(nodes) as probe:
        members = [
            Consumer(
                *(TOPIC,),
                bootstrap_servers=nodes.address,
                group_id="readers",
                auto_offset_reset="earliest",
                session_timeout_ms=10_000,
            )
            for _ in range(3)
        ]
        seen: set[tuple[int, int]] = set()
        reading = [asyncio.create_task(_read(member, seen)) for member in members[:2]]
        await _settled(nodes, 2)
        async with Admin(nodes.address) as admin:
            before = (await admin.describe_groups("readers"))["readers"].generation
        node = await coordinator_of(nodes, "readers")
        reading.append(asyncio.create_task(_read(members[2], seen)))
        began = now()
        await nodes.kill(node)
        await _settled(nodes, 3)
        assert now() - began <= S + 1 + 4 + probe.stalls.since(began)
        async with Admin(nodes.address) as admin:
            assert (await admin.describe_groups("readers"))["readers"].generation > before
        await nodes.start_node(node)
        await probe.stop()
        ends = {(partition, answers[-1][2]) for partition, answers in probe.answers.items()}
        async with asyncio.timeout(60):
            while not ends <= seen:
                await asyncio.sleep(0.1)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    assert not [task.exception() for task in reading if not task.cancelled() and task.exception()]


async def _read(member: Consumer, seen: set[tuple[int, int]]) -> None:
    async with member:
        while True:
            for tp, records in (await member.getmany(timeout_ms=200)).items():
                seen.update((tp.partition, record.offset) for record in records)


async def _settled(nodes: Nodes, members: int) -> None:
    async with asyncio.timeout(45), Admin(nodes.address) as admin:
        while True:
            try:
                group = (await admin.describe_groups("readers", timeout_ms=2_000)).get("readers")
                if group is not None and group.state == "Stable" and len(group.members) == members:
                    return
            except CohortError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.1)


async def coordinator_of(nodes: Nodes, group: str) -> Node:
    """The node that leads a group's partition of ``__consumer_offsets``."""
    async with Admin(nodes.address) as admin:
        partitions = await described(admin, "__consumer_offsets")
    return nodes[partitions[partition_for_group(group)].leader]


async def test_the_coordinator_of_a_transaction_dies_while_it_is_committed(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        async with asyncio.timeout(60), Admin(nodes.address) as admin:
            await created(admin, 3, {})
        await in_sync(nodes.address)
        async with Producer(nodes.address, transactional_id="writer", request_timeout_ms=3_000) as producer:
            longest, committed = 0.0, []
            for number in range(24):
                async with producer.transaction():
                    for partition in range(3):
                        await producer.send(TOPIC, f"{number}".encode(), partition=partition)
                    if number % 8 == 4:
                        node = await coordinator_of_transactions(nodes, "writer")
                        killing = asyncio.create_task(_kill_soon(nodes, node, 0.002 * number))
                    began = now()
                longest = max(longest, now() - began)
                committed.append(str(number))
                if number % 8 == 4:
                    await killing
                    await nodes.start_node(node)
                    await in_sync(nodes.address)
        assert longest <= S + 1 + 2
        assert not await _open_ends(nodes)
        for partition in range(3):
            values = [value for where, _, value in await everything(nodes.address, TOPIC, 3) if where == partition]
            assert values == committed
    copies_agree(nodes)


async def _kill_soon(nodes: Nodes, node: Node, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await nodes.kill(node)


async def coordinator_of_transactions(nodes: Nodes, transactional_id: str) -> Node:
    """The node that leads a producer's partition of ``__transaction_state``."""
    async with Admin(nodes.address) as admin:
        partitions = await described(admin, "__transaction_state")
    return nodes[partitions[partition_for_group(transactional_id, TRANSACTION_PARTITIONS)].leader]


async def _open_ends(nodes: Nodes) -> list[OpenEnd]:
    tps = [TopicPartition(TOPIC, partition) for partition in range(3)]
    return await ends_that_stay_open(nodes.address, tps, 20)


@pytest.mark.parametrize("store", ["etcd3"])
async def test_the_leader_of_etcd_is_lost_and_then_its_quorum(tmp_path: Path, store: Store, etcd_binary: None) -> None:
    async with running(tmp_path, store=store) as nodes, probing(nodes) as probe:
        members = nodes.metadata.members
        assert members is not None
        began = now()
        leader = await asyncio.to_thread(members.leader)
        await asyncio.to_thread(leader.kill)
        await asyncio.sleep(4)
        await probe.acknowledged(now(), 30)
        probe.assert_within(0.5, began)
        await asyncio.to_thread(members.compact)
        async with Admin(nodes.address) as admin:
            led = {each.partition: (each.leader, each.leader_epoch) for each in await described(admin)}
        other = next(member for member in members.members if member is not leader)
        await asyncio.to_thread(other.kill)
        lost = now()
        await asyncio.sleep(S + 3)
        quiet = now()
        last = max(answers[-1][0] for answers in probe.answers.values())
        assert last <= lost + S + 1 + probe.stalls.since(lost), (
            "a node that may have been replaced acknowledges nothing"
        )
        await asyncio.to_thread(members.heal)
        await probe.acknowledged(quiet, 40)
        await in_sync(nodes.address)
        async with Admin(nodes.address) as admin:
            assert {each.partition: (each.leader, each.leader_epoch) for each in await described(admin)} == led
    copies_agree(nodes)


async def test_a_second_directory_under_a_living_node_is_refused_by_name(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        node = nodes[0]
        command = list(node.command())
        command[command.index("--data-dir") + 1] = str(tmp_path / "another")
        command[command.index("--port") + 1] = "0"
        command[command.index("--peer-port") + 1] = "0"
        ended = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 1
        assert "node 0" in ended.stderr
        assert "Traceback" not in ended.stderr
