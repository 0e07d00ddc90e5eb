"""The controller at work: leaders that die or stop, reassignments, tidying; and what holds whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from coordinator.controller import runner
from coordinator.controller.core import PartitionUpdate
from coordinator.controller.writes import conditions
from coordinator.metadata.authority import Compare, Delete, DeletePrefix, Operation, Put
from coordinator.metadata.keys import (
    CLUSTER_FORMAT,
    creating_key,
    encode_partition,
    live_key,
    partition_key,
    partitions_prefix,
    reassignment_key,
    topic_key,
)
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.nodes.registration import FORMAT
from coordinator.replication.partition import Incarnation, PartitionRegistration
from tests.coordinator.controller.nodes import Broken, Judge, Node, controller_of, soon, started
from tests.coordinator.nodes.members import SESSION_MS, Etcd, simulate
from tests.simulation.loop import SimLoop

FAILOVER_S = SESSION_MS / 1000 + 0.5


async def stop_all(nodes: list[Node]) -> None:
    for node in nodes:
        if not node.process.dead:
            await node.stop()


def leads(node: Node, topic_id: str, index: int) -> int:
    """Who leads a partition whose leader lives; -1 without one."""
    leader = node.partition(topic_id, index).leader
    live = node.catalog.live
    if leader is None or leader.node not in live or live[leader.node].broker_epoch != leader.broker_epoch:
        return -1
    return leader.node


def test_one_node_is_the_controller_and_another_when_it_dies_and_elects_for_what_it_led() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3)
        first = controller_of(nodes)
        topic = await first.make_topic("t", [(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 100, 2)
        others = [node for node in nodes if node is not first]
        first.kill()
        took = await soon(lambda: all(leads(others[0], topic, index) in (2, 3) for index in range(300)), FAILOVER_S)
        assert took > 1
        assert controller_of(others)
        assert judge.elections == 100
        assert {len(others[0].partition(topic, index).isr) for index in range(0, 300, 3)} == {2}, "the dead one left"
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_a_node_that_drains_hands_over_all_that_it_leads_and_leaves_those_in_sync() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3)
        topic = await nodes[0].make_topic("t", [(1, 2, 3), (2, 3, 1)] * 30, 2)
        alone = await nodes[0].make_topic("alone", [(1,)])
        await nodes[0].registration.draining()
        took = await soon(lambda: all(nodes[1].partition(topic, index).isr.keys() == {2, 3} for index in range(60)), 1)
        assert took < 0.3
        assert leads(nodes[1], topic, 0) == 2
        assert leads(nodes[1], alone, 0) == 1, "there is no other that has it"
        await nodes[0].stop()
        await soon(lambda: leads(nodes[1], alone, 0) == -1, 0.1)
        assert nodes[1].partition(alone, 0).leader_epoch == 0, "an epoch begins with a leader"
        judge.check()
        await stop_all(nodes[1:])

    simulate(scenario)


def test_a_node_that_starts_again_is_elected_anew_and_leads_again_when_it_is_preferred() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3)
        topic = await nodes[1].make_topic("t", [(1, 2)] * 30)
        alone = await nodes[1].make_topic("alone", [(1,)])
        nodes[0].kill()
        await soon(lambda: all(leads(nodes[1], topic, index) == 2 for index in range(30)), FAILOVER_S)
        epoch = nodes[1].partition(alone, 0).leader_epoch
        await nodes[0].start()
        await soon(lambda: leads(nodes[1], alone, 0) == 1, 0.2)
        assert nodes[1].partition(alone, 0).leader_epoch == epoch + 1
        await nodes[1].change_in_sync(Random(1))
        await asyncio.sleep(4)
        assert leads(nodes[1], topic, 0) == 2, "not before it is settled"
        await soon(lambda: sum(leads(nodes[1], topic, index) == 1 for index in range(30)) == 10, 7)
        await soon(lambda: all(leads(nodes[1], topic, index) == 1 for index in range(30)), 12)
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_a_reassignment_adds_replicas_waits_for_them_and_lets_the_others_go() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 4)
        topic = await nodes[0].make_topic("t", [(1, 2)] * 250, 2)
        keys = [reassignment_key(topic, index) for index in range(250)]
        for start in range(0, 250, 100):
            puts: list[Operation] = [Put(key, {"target": [3, 4]}) for key in keys[start : start + 100]]
            await nodes[0].store.transaction([], puts)
        under_way = 0
        for _ in range(40):
            await asyncio.sleep(0.2)
            for node in nodes:
                await node.change_in_sync(Random(1))
            adding = sum(bool(nodes[1].partition(topic, index).adding) for index in range(250))
            under_way = max(under_way, adding)
            if not nodes[1].catalog.reassignments():
                break
        assert 50 < under_way <= runner.MAX_REASSIGNING
        for index in range(250):
            known = nodes[1].partition(topic, index)
            assert (known.replicas, set(known.isr), known.adding) == ((3, 4), {3, 4}, ())
        assert nodes[1].store.range("reassignments/") == []
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_a_new_controller_lets_no_more_reassignments_begin_and_waiting_ones_when_a_topic_goes() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 4)
        first, other = controller_of(nodes), nodes[1]
        assert first is not other
        ids = {name: await other.make_topic(name, [(2, 3)] * runner.MAX_REASSIGNING) for name in "az"}
        for name in "za":  # a new controller looks at the one first that waits
            keys = [reassignment_key(ids[name], index) for index in range(runner.MAX_REASSIGNING)]
            await other.store.transaction([], [Put(key, {"target": [2, 4]}) for key in keys])
            await asyncio.sleep(0.5)

        def adding() -> dict[str, int]:
            known = other.catalog.topics
            return {name: sum(bool(state.adding) for state in known[name].partitions) for name in sorted(known)}

        assert adding() == {"a": 0, "z": runner.MAX_REASSIGNING}
        first.kill()
        await soon(lambda: any(node.controller.is_active for node in nodes[1:]), FAILOVER_S)
        await asyncio.sleep(1)
        assert adding() == {"a": 0, "z": runner.MAX_REASSIGNING}
        await other.store.transaction([], [Delete(topic_key("z")), DeletePrefix(partitions_prefix(ids["z"]))])
        await soon(lambda: adding() == {"a": runner.MAX_REASSIGNING}, 1)
        judge.check()
        await stop_all(nodes[1:])

    simulate(scenario)


def test_a_reassignment_that_is_given_up_ends_as_it_began() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3)
        topic = await nodes[0].make_topic("t", [(1, 2)], 1)
        key = reassignment_key(topic, 0)
        await nodes[0].store.transaction([], [Put(key, {"target": [2, 3]})])
        await soon(lambda: nodes[1].partition(topic, 0).adding == (3,), 0.2)
        await nodes[1].store.transaction([], [Put(key, {"target": [1, 2]})])
        await soon(lambda: nodes[1].partition(topic, 0).adding == (), 0.2)
        assert nodes[1].store.get(key) is None
        assert nodes[1].partition(topic, 0).replicas == (1, 2)
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_the_minimum_of_a_topic_reaches_its_partitions_and_a_higher_one_once_so_many_are_in_sync() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3)
        topic = await nodes[0].make_topic("t", [(1, 2, 3), (1, 2, 3)], 1, {"min.insync.replicas": 1})
        known = nodes[0].catalog.topics["t"].partitions[1]
        fewer = PartitionRegistration((1, 2, 3), known.registration.leader, 0, {1: known.joined[0]}, 1)
        compare = [Compare(partition_key(topic, 1), "mod", known.partition_epoch)]
        await nodes[0].store.transaction(compare, [Put(partition_key(topic, 1), encode_partition(fewer))])
        await nodes[0].store.transaction([], [Put(topic_key("t"), {"id": topic, "config": {"min.insync.replicas": 2}})])
        await soon(lambda: nodes[1].partition(topic, 0).min_isr == 2, 0.2)
        await asyncio.sleep(0.2)
        assert nodes[1].partition(topic, 1).min_isr == 1
        await nodes[0].change_in_sync(Random(1))
        await soon(lambda: nodes[1].partition(topic, 1).min_isr == 2, 0.2)
        await nodes[0].store.transaction([], [Put(topic_key("t"), {"id": topic, "config": {"min.insync.replicas": 1}})])
        await soon(lambda: {nodes[1].partition(topic, index).min_isr for index in (0, 1)} == {1}, 0.2)
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_partitions_of_a_topic_that_was_never_made_are_removed_once_its_note_is_gone() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3)
        lease = nodes[0].registration.lease_id
        puts: list[Operation] = [Put(creating_key("x"), {"name": "x"}, lease)]
        known = PartitionRegistration((1, 2), Incarnation(1, 3), 0, {1: 3, 2: 4}, 1)
        puts += [Put(partition_key("x", index), encode_partition(known)) for index in range(50)]
        await nodes[0].store.transaction([], puts)
        await asyncio.sleep(12)
        assert len(nodes[1].store.range("partitions/x/")) == 50, "it is being made"
        nodes[0].kill()
        await soon(lambda: nodes[1].store.range("partitions/x/") == [], FAILOVER_S)
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_reassignments_of_partitions_that_are_gone_are_removed_and_the_others_stay() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3)
        nodes[2].kill()  # so that the reassignment to it waits
        topic = await controller_of(nodes).make_topic("t", [(1, 2)], 1)
        stays = reassignment_key(topic, 0)
        strays = [reassignment_key("gone", index) for index in range(150)] + [reassignment_key(topic, 1)]
        for keys in (strays[:100], [*strays[100:], stays]):
            await nodes[0].store.transaction([], [Put(key, {"target": [1, 3]}) for key in keys])
        await soon(lambda: [known.key for known in nodes[0].store.range("reassignments/")] == [stays], 15)
        await asyncio.sleep(12)
        assert nodes[0].store.get(stays) is not None
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_the_format_of_the_cluster_rises_once_all_nodes_that_live_read_a_higher_one() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3)
        store = nodes[0].store

        def agreed() -> object:
            known = store.get(CLUSTER_FORMAT)
            return None if known is None else known.value["format"]

        for number, reads in ((1, FORMAT + 2), (2, FORMAT + 1)):
            known = store.get(live_key(number))
            assert known is not None
            await store.transaction([], [Put(known.key, {**known.value, "format": reads}, known.lease)])
        await asyncio.sleep(12)
        assert agreed() == FORMAT, "one of them reads no more"
        nodes[2].kill()
        await soon(lambda: agreed() == FORMAT + 1, 20)
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_ten_thousand_partitions_are_led_again_soon_after_a_node_is_gone() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3)
        placed = [(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 3_334
        topic = await nodes[1].make_topic("t", placed, 2)
        nodes[0].kill()
        await soon(lambda: 1 not in nodes[1].catalog.nodes, FAILOVER_S)
        took = await soon(lambda: all(leads(nodes[1], topic, index) > 0 for index in range(0, 10_000, 3)), 5)
        assert took < 1
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_nodes_with_different_defaults_for_topics_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(etcd: Etcd) -> None:
        nodes = await started(etcd, 2)
        third = Node(etcd, 3)
        third.defaults = "others"
        await third.start()
        await soon(lambda: "topic_defaults_differ" in caplog.text, 0.2)
        assert "nodes={1: '', 2: '', 3: 'others'}" in caplog.text
        await nodes[1].registration.draining()
        await asyncio.sleep(0.2)
        assert caplog.text.count("topic_defaults_differ") == 1
        await stop_all([*nodes, third])

    simulate(scenario)


async def elected_while_it_dies(etcd: Etcd) -> None:
    """The node that is to lead is gone when the transaction that says so arrives."""
    judge = Judge(etcd.world.authority)
    nodes = await started(etcd, 3)
    controller = controller_of(nodes)
    first, second, third = (node for node in (*nodes[1:], nodes[0]))
    topic = await controller.make_topic("t", [(first.number, second.number, third.number)])
    assert controller is third
    transaction = controller.store.transaction

    async def late(compare: Sequence[Compare], operations: Sequence[Operation], **rest: Any) -> int | None:
        second.kill()
        known = etcd.world.authority.get(f"/cohort/sim/live/{second.number}")
        if known is not None:
            etcd.world.authority.revoke(known.lease)
        return await transaction(compare, operations, **rest)

    first.kill()
    with patch.object(controller.store, "transaction", late):
        await soon(lambda: leads(controller, topic, 0) == third.number, FAILOVER_S)
    judge.check()
    await stop_all([controller])


def test_a_node_that_is_gone_when_its_election_arrives_is_not_elected() -> None:
    simulate(elected_while_it_dies)


async def troubled(etcd: Etcd, seed: int) -> int:
    """Nodes that are killed, stopped and cut off, and leaders that change who is in sync, in every trouble that etcd knows.
    Then all is well again, and every partition is led. Returns how many elections there were."""
    random, loop = Random(seed), asyncio.get_running_loop()
    judge = Judge(etcd.world.authority)
    nodes = await started(etcd, 3)
    topic = await nodes[0].make_topic("t", [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2), (3,)] * 2, 2)
    etcd.trouble(refused=0.03, answer_lost=0.05, late=0.05, lag=0.02, broken=0.01, silent=0.003, parts=0.05)
    end = loop.time() + 60
    paused: dict[Node, float] = {}
    asked: list[asyncio.Future[None]] = []
    while loop.time() < end:
        await asyncio.sleep(random.random() * 0.4)
        judge.check()
        node = random.choice(nodes)
        if node.process.held is None and not node.process.dead:
            assert isinstance(loop, SimLoop)
            loop.spawn(node.process, node.change_in_sync(random, joins=random.random() < 0.7))
        draw = random.random()
        if draw < 0.02 and not node.process.dead:
            node.pause()
            paused[node] = loop.time() + random.random() * 5
        elif draw < 0.04 and node.process.held is None and not node.process.dead:
            node.kill()
            restarted = asyncio.ensure_future(node.start())
            restarted.add_done_callback(lambda task: task.exception())
        elif draw < 0.06:
            node.rpc.cut = not node.rpc.cut
        elif draw < 0.10:
            target = random.sample([1, 2, 3], random.choice((2, 3)))
            key = reassignment_key(topic, int(random.random() * 10))
            asked.append(asyncio.ensure_future(_reassign(node, key, target)))
        for sleeper, until in tuple(paused.items()):
            if loop.time() >= until:
                sleeper.go_on()
                del paused[sleeper]
    return await _healed(etcd, nodes, paused, topic, judge)


async def _reassign(node: Node, key: str, target: list[int]) -> None:
    try:
        await node.store.transaction([], [Put(key, {"target": target})])
    except MetadataUnavailableError:
        return  # it may be written or not


async def _healed(etcd: Etcd, nodes: list[Node], paused: dict[Node, float], topic: str, judge: Judge) -> int:
    etcd.trouble()
    for node in nodes:
        node.rpc.cut = False
        if node in paused:
            node.go_on()
    await asyncio.sleep(20)
    for node in nodes:
        if not node.registration.valid():  # what it was doing when it was killed has ended it
            node.kill()
            await node.start()
    for _ in range(10):
        await asyncio.sleep(1)
        for node in nodes:
            await node.change_in_sync(Random(1))
    assert controller_of(nodes)
    for index in range(10):
        known = nodes[0].partition(topic, index)
        assert leads(nodes[0], topic, index) > 0, f"every_partition_is_led: {known}"
        assert set(known.isr) == set(known.replicas), f"all_are_in_sync: {known}"
    assert nodes[0].store.range("reassignments/") == []
    judge.check()
    await stop_all(nodes)
    return judge.elections


def search(seeds: int) -> int:
    elections = 0

    async def scenario(etcd: Etcd, seed: int) -> None:
        nonlocal elections
        elections += await troubled(etcd, seed)

    for seed in range(seeds):
        simulate(lambda etcd, seed=seed: scenario(etcd, seed), seed)  # type: ignore[misc]
    return elections


def test_every_election_is_fenced_and_each_epoch_has_one_leader_whatever_happens() -> None:
    assert search(20) > 500


def _without_partition_epochs(monkeypatch: pytest.MonkeyPatch) -> None:

    def without(update: PartitionUpdate[Any], key: str, *rest: Any) -> list[Compare]:
        return [condition for condition in conditions(update, key, *rest) if condition.key != key]

    monkeypatch.setattr("coordinator.controller.runner.conditions", without)


def _without_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:

    def without(*given: Any) -> list[Compare]:
        return [condition for condition in conditions(*given) if condition.key != "controller"]

    class Unfenced(runner._Batch):
        def __init__(self, compare: dict[Compare, None]) -> None:
            super().__init__({})

    monkeypatch.setattr("coordinator.controller.runner.conditions", without)
    monkeypatch.setattr(runner, "_Batch", Unfenced)


def _without_the_leader_alive(monkeypatch: pytest.MonkeyPatch) -> None:

    def without(*given: Any) -> list[Compare]:
        return [condition for condition in conditions(*given) if not condition.key.startswith("live/")]

    monkeypatch.setattr("coordinator.controller.runner.conditions", without)


@pytest.mark.parametrize(
    ("without", "invariant"),
    [
        (_without_partition_epochs, "metadata_is_written_with_a_fence"),
        (_without_the_controller, "metadata_is_written_with_a_fence"),
    ],
)
def test_without_a_safeguard_an_invariant_fails(
    monkeypatch: pytest.MonkeyPatch, without: Callable[[pytest.MonkeyPatch], None], invariant: str
) -> None:
    without(monkeypatch)
    with pytest.raises(Broken, match=invariant):
        search(20)


def test_without_the_leader_alive_in_the_fence_a_node_that_is_gone_is_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_the_leader_alive(monkeypatch)
    with pytest.raises(Broken, match="the_leader_lives"):
        simulate(elected_while_it_dies)
