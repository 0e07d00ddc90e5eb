"""Consumers that assign partitions by hand and use a group only as a store of offsets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from client import Admin, Consumer, OffsetAndMetadata, TopicPartition
from client.errors import CommitFailedError
from client.types.descriptions import GroupListing
from coordinator import Coordinator
from tests.integration.consuming import QUICK, create, fill, take, until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with Coordinator() as running:
        await create(running.address, t=2)
        await fill(running.address, "t", range(20), partition=0)
        await fill(running.address, "t", range(100, 120), partition=1)
        yield running.address


def simple(address: str, tp: TopicPartition) -> Consumer:
    consumer = Consumer(bootstrap_servers=address, group_id="simple", enable_auto_commit=False, **QUICK)
    consumer.assign([tp])
    return consumer


async def test_two_of_them_share_a_group_and_each_goes_on_at_its_own_offset(address: str) -> None:
    async with simple(address, T0) as left, simple(address, T1) as right, Admin(address) as admin:
        assert await take(left, 5) == [0, 1, 2, 3, 4]
        assert await take(right, 3) == [100, 101, 102]
        await left.commit()
        await right.commit({T1: OffsetAndMetadata(2, "done with 101")})
        assert await admin.list_offsets("simple") == {
            T0: OffsetAndMetadata(5),
            T1: OffsetAndMetadata(2, "done with 101"),
        }
        assert await admin.list_groups() == [GroupListing("simple", "", "Empty")]
        assert await left.committed(T0, T1) == {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(2, "done with 101")}
    async with simple(address, T0) as left, simple(address, T1) as right:
        assert await take(left, 2) == [5, 6]
        assert await take(right, 2) == [102, 103]


async def test_while_the_group_has_members_only_they_commit(address: str) -> None:
    async with simple(address, T0) as alone:
        await take(alone, 5)
        await alone.commit()
        async with Consumer("t", bootstrap_servers=address, group_id="simple", **QUICK) as member:
            await until(lambda: len(member.assignment()) == 2)
            await take(alone, 1)
            with pytest.raises(CommitFailedError) as caught:
                await alone.commit()
            text = str(caught.value)
            assert "offsets of group 'simple' were not committed: the group has members" in text
            assert "this consumer is none of them" in text
            assert "stop them or use another group id" in text
            assert (await member.committed(T0))[T0] == OffsetAndMetadata(5)
        await alone.commit()
        assert (await alone.committed(T0))[T0] is not None


async def test_an_admin_moves_it_back(address: str) -> None:
    async with simple(address, T0) as alone:
        await take(alone, 5)
        await alone.commit()
    async with Admin(address) as admin:
        await admin.reset_offsets("simple", shift_by=-3, dry_run=False)
    async with simple(address, T0) as alone:
        assert await take(alone, 3) == [2, 3, 4]


async def test_the_group_may_become_one_with_members_who_go_on_at_its_offsets(address: str) -> None:
    async with simple(address, T0) as alone:
        await take(alone, 5)
        await alone.commit()
    async with Consumer("t", bootstrap_servers=address, group_id="simple", **QUICK) as member:
        assert sorted(await take(member, 35)) == [*range(5, 20), *range(100, 120)]
