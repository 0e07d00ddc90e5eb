"""The etcd of histories of several nodes: what members answer while some are down, cut off, or without a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from coordinator.metadata.authority import Compare, Put
from coordinator.metadata.etcd.rpc import EtcdUnavailableError, Pace, StreamBrokenError
from tests.simulation.etcd_members import MEMBERS, EtcdMembers, NodeEtcd
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network

Story = Callable[[EtcdMembers, NodeEtcd], Awaitable[None]]


def told(story: Story) -> None:
    """Runs a story of one node and its etcd in virtual time."""
    loop = SimLoop(Random(1), max_steps=100_000)  # type: ignore[abstract]
    members = EtcdMembers(Network(loop, Random(2)), Random(3), lambda *_: None)

    async def run() -> None:
        members.begin()
        await story(members, NodeEtcd(members, "node1", Pace()))
        members.end()

    loop.run_until_complete(run())


def test_a_transaction_whose_answer_is_cut_off_took_effect_and_says_that_it_may_have() -> None:
    async def story(members: EtcdMembers, etcd: NodeEtcd) -> None:
        for member in MEMBERS:
            members.network.cut(member, "node1")
        with pytest.raises(EtcdUnavailableError) as refused:
            await etcd.txn([Compare("key", "create", 0)], [Put("key", "1")], timeout_ms=2_000)
        assert refused.value.outcome == "unknown"
        assert members.authority.get("key") is not None

    told(story)


def test_one_member_that_is_down_is_passed_over_and_without_two_nothing_is_answered() -> None:
    async def story(members: EtcdMembers, etcd: NodeEtcd) -> None:
        members.down[MEMBERS[0]] = None
        for _ in range(6):
            assert (await etcd.txn([], [Put("key", "1")], timeout_ms=2_000)).succeeded
        members.down[MEMBERS[1]] = None
        with pytest.raises(EtcdUnavailableError):
            await etcd.range("key", "key\0", limit=1, timeout_ms=2_000)

    told(story)


def test_no_lease_ends_without_a_quorum_and_a_new_leader_gives_each_its_whole_time() -> None:
    async def story(members: EtcdMembers, etcd: NodeEtcd) -> None:
        lease, _ = await etcd.grant(2, timeout_ms=2_000)
        await etcd.txn([], [Put("live", "1", lease)], timeout_ms=2_000)
        members.down |= dict.fromkeys(MEMBERS[:2])
        await asyncio.sleep(10)
        assert members.authority.get("live") is not None
        members.down.clear()
        await asyncio.sleep(1.5)
        assert members.authority.get("live") is not None
        await asyncio.sleep(1.0)
        assert members.authority.get("live") is None

    told(story)


def test_a_watch_breaks_off_with_its_member_and_after_a_silence() -> None:
    async def story(members: EtcdMembers, etcd: NodeEtcd) -> None:
        watch = await etcd.watch("", "~", revision=members.authority.revision + 1, timeout_ms=2_000)
        await etcd.txn([], [Put("key", "1")], timeout_ms=2_000)
        assert [one.key for one in (await watch.next()).happenings] == ["key"]
        for member in MEMBERS:
            members.network.cut(member, "node1")
        with pytest.raises(StreamBrokenError, match="silent"):
            await watch.next()
        members.network.heal()
        watch = await etcd.watch("", "~", revision=members.authority.revision + 1, timeout_ms=2_000)
        members.down |= dict.fromkeys(MEMBERS)
        with pytest.raises(StreamBrokenError, match="gone"):
            await watch.next()

    told(story)
