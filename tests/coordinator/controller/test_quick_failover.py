"""Nodes whose process is gone are replaced before their lease ends; those that live, or may, are not harmed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from coordinator.controller.quick_failover import Line
from coordinator.metadata.store import MetadataUnavailableError
from tests.coordinator.controller.nodes import Judge, Node, controller_of, soon, started
from tests.coordinator.controller.test_runner import FAILOVER_S, leads, stop_all
from tests.coordinator.nodes.members import Etcd, simulate


@pytest.mark.parametrize("of", ["the controller", "another node"])
def test_a_process_that_is_killed_is_replaced_at_once(of: str) -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3, connected=True)
        await asyncio.sleep(2)
        controller = controller_of(nodes)
        victim = controller if of == "the controller" else next(node for node in nodes if node is not controller)
        others = [node for node in nodes if node is not victim]
        topic = await victim.make_topic("t", [(victim.number, others[0].number, others[1].number)] * 20, 2)
        numbers = [node.number for node in others]
        victim.kill()
        took = await soon(lambda: all(leads(others[0], topic, index) in numbers for index in range(20)), 0.6)
        assert took >= 0.1
        assert controller_of(others)
        me = await victim.start()
        assert victim.registration.me == me
        await asyncio.sleep(5)
        assert victim.registration.me == me, "the one that started again is let alone"
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_a_process_that_is_killed_soon_after_its_start_is_replaced_at_once() -> None:
    """The first connection may come before the node itself knows that it is registered, and is turned away."""

    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3, connected=True)
        await asyncio.sleep(2)
        controller = controller_of(nodes)
        victim = next(node for node in nodes if node is not controller)
        topic = await controller.make_topic("t", [(victim.number, controller.number)] * 20, 1)
        victim.kill()
        await soon(lambda: all(leads(controller, topic, index) == controller.number for index in range(20)), 0.6)
        quick = controller.controller._quick_failover
        assert quick is not None
        connect, attempts = quick._connect, 0

        async def turned_away_at_first(number: int) -> Line:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise ConnectionResetError("another broker epoch was expected")
            return await connect(number)

        quick._connect = turned_away_at_first
        await victim.start()
        await asyncio.sleep(0.5)
        assert attempts == 2
        assert victim.number in controller.catalog.nodes
        victim.kill()
        await soon(lambda: victim.number not in controller.catalog.nodes, 0.6)
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_a_machine_that_does_not_answer_is_left_to_its_lease() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3, connected=True)
        await asyncio.sleep(2)
        topic = await nodes[0].make_topic("t", [(1, 2, 3)], 2)
        nodes[0].silent = True
        nodes[0].kill()
        nodes[0].drop_lines()
        assert await soon(lambda: leads(nodes[1], topic, 0) in (2, 3), FAILOVER_S) > 1
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


def test_a_node_that_lives_keeps_its_registration_through_broken_and_missing_connections() -> None:
    async def scenario(etcd: Etcd) -> None:
        nodes = await started(etcd, 3, connected=True)
        await asyncio.sleep(2)
        registered = [node.registration.me for node in nodes]
        for node in nodes:
            node.drop_lines()
            await asyncio.sleep(3)
            node.silent = True
            node.drop_lines()
            await asyncio.sleep(5)
            node.silent = False
        assert [node.registration.me for node in nodes] == registered
        await stop_all(nodes)

    simulate(scenario)


def test_one_that_is_taken_for_gone_registers_anew() -> None:
    async def scenario(etcd: Etcd) -> None:
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3, connected=True)
        await asyncio.sleep(2)
        victim = next(node for node in nodes if node is not controller_of(nodes))
        before = victim.registration.me

        async def refuse(self: Node, number: int) -> None:
            raise ConnectionRefusedError

        for node in nodes:
            node.controller._quick_failover._connect = lambda number, node=node: refuse(node, number)  # type: ignore
        victim.drop_lines()
        await soon(lambda: "lost" in victim.told, 0.6)
        await soon(lambda: victim.registration.valid(), 1)
        assert victim.registration.me.broker_epoch > before.broker_epoch
        await asyncio.sleep(5)
        assert victim.told.count("lost") == 1, "a machine that refuses before it was ever reached says nothing"
        judge.check()
        await stop_all(nodes)

    simulate(scenario)


async def restarted(node: Node) -> None:
    """Starts a process until one finds its metadata store."""
    while True:
        try:
            await node.start()
        except MetadataUnavailableError:
            node.kill()
        else:
            return


def test_nodes_that_come_and_go_are_led_whatever_happens() -> None:
    async def scenario(etcd: Etcd, seed: int) -> None:
        random = Random(seed)
        judge = Judge(etcd.world.authority)
        nodes = await started(etcd, 3, connected=True)
        topic = await nodes[0].make_topic("t", [(1, 2, 3), (2, 3, 1), (3, 1, 2)], 2)
        etcd.trouble(refused=0.02, answer_lost=0.03, late=0.03, lag=0.01, broken=0.01)
        for _ in range(15):
            await asyncio.sleep(random.random() * 3)
            victim = random.choice(nodes)
            if not victim.process.dead:
                victim.kill()
                await asyncio.sleep(random.random())
                await restarted(victim)
            for node in nodes:
                await node.change_in_sync(random)
            judge.check()
        etcd.trouble()
        await asyncio.sleep(12)
        for node in nodes:
            assert leads(node, topic, 0) > 0
        judge.check()
        await stop_all(nodes)

    for seed in range(10):
        simulate(lambda etcd, seed=seed: scenario(etcd, seed), seed)  # type: ignore[misc]
