"""Static members (KIP-345): a restart within the session moves nothing; of two with one name the later one stays."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from client import Admin, Consumer, FencedInstanceIdError, Member, RangeAssignor, TopicPartition
from coordinator import Coordinator
from tests.integration.consuming import QUICK, create, fill, take, until
from tests.integration.owning import KeepingAssignor, Register, Registered

LASTING: dict[str, Any] = {**QUICK, "session_timeout_ms": 30_000}
"""No session ends in a test that does not wait for it."""


def member(address: str, name: str, listener: Registered | None = None, **settings: Any) -> Consumer:
    chosen = {**LASTING, "group_instance_id": name, "assignors": [RangeAssignor], **settings}
    consumer = Consumer(bootstrap_servers=address, group_id="g", **chosen)
    consumer.subscribe(["t"], listener=listener)
    return consumer


@pytest.mark.parametrize("assignor", [RangeAssignor, KeepingAssignor])
async def test_restarted_one_after_the_other_twenty_members_rebalance_nothing(assignor: Any) -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=40)
        made = {f"pod-{number}": member(c.address, f"pod-{number}", assignors=[assignor]) for number in range(20)}
        for consumer in made.values():
            stack.push_async_callback(consumer.stop)
        await asyncio.gather(*(consumer.start() for consumer in made.values()))
        await until(lambda: all(len(each.assignment()) == 2 and each.state == "stable" for each in made.values()), 20)
        await until(lambda: len({each.group_metadata().generation for each in made.values()}) == 1)
        generation = made["pod-0"].group_metadata().generation
        before = {name: consumer.assignment() for name, consumer in made.items()}
        for name, consumer in list(made.items()):
            await consumer.stop()
            made[name] = await stack.enter_async_context(member(c.address, name, assignors=[assignor]))
            await until(lambda: made[name].state == "stable")  # noqa: B023
            assert made[name].group_metadata().group_instance_id == name
        assert {name: consumer.assignment() for name, consumer in made.items()} == before
        assert {consumer.group_metadata().generation for consumer in made.values()} == {generation}


async def test_a_restarted_member_goes_on_where_it_committed() -> None:
    register = Register()
    listener = register.listener("a")
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(10))
        async with member(c.address, "a", listener) as first:
            assert await take(first, 4) == [0, 1, 2, 3]
            await first.commit()
        assert listener.events == [("assigned", [0]), ("revoked", [0])]
        async with member(c.address, "a", listener) as again:
            assert await take(again, 2) == [4, 5]
            assert again.group_metadata().generation == 1


async def test_a_leader_that_comes_back_watches_the_topics_again() -> None:
    async with Coordinator() as c, Admin(c.address) as admin:
        await create(c.address, t=2)
        first = member(c.address, "a")
        await first.start()
        await until(lambda: len(first.assignment()) == 2)
        async with member(c.address, "b") as second:
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
            await first.stop()
            async with member(c.address, "a") as again:
                await until(lambda: again.state == "stable")
                assert again.group_metadata().generation == second.group_metadata().generation == 2
                await admin.create_partitions({"t": 4})
                await until(lambda: len(again.assignment()) == len(second.assignment()) == 2)


async def test_a_leader_that_comes_back_sees_what_it_missed() -> None:
    async with Coordinator() as c, Admin(c.address) as admin:
        await create(c.address, t=2)
        first = member(c.address, "a")
        await first.start()
        await until(lambda: len(first.assignment()) == 2)
        async with member(c.address, "b") as second:
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
            await first.stop()
            await admin.create_partitions({"t": 4})
            async with member(c.address, "a") as again:
                await until(lambda: len(again.assignment()) == len(second.assignment()) == 2)
                assert again.group_metadata().generation == 3


async def test_the_second_process_with_a_name_throws_out_the_first_for_good() -> None:
    register = Register()
    old = register.listener("old")
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(4))
        async with member(c.address, "a", old, client_id="old") as first:
            await until(lambda: len(first.assignment()) == 2 and first.state == "stable")
            async with member(c.address, "a", client_id="new") as second:
                await until(lambda: len(second.assignment()) == 2)
                await until(lambda: first.state == "fenced")
                for _ in range(3):
                    with pytest.raises(FencedInstanceIdError, match="'a' of this member of group 'g'") as caught:
                        await first.getone()
                    assert second.group_metadata().member_id in str(caught.value) or "new" in str(caught.value)
                with pytest.raises(FencedInstanceIdError):
                    await first.enforce_rebalance("to get in again")
                first.unsubscribe()
                first.subscribe(["t"])
                with pytest.raises(FencedInstanceIdError):
                    await first.getmany()
                assert old.events == [("assigned", [0, 1]), ("lost", [0, 1])]
                assert first.assignment() == frozenset()
                assert len(await take(second, 4)) == 4
                await first.stop()
                assert first.state == "closed"
                await second.commit()
                assert second.group_metadata().generation == 1


async def test_a_member_that_stays_away_is_taken_out_by_time_or_by_an_administrator() -> None:
    async with Coordinator(min_session_timeout_ms=100) as c, Admin(c.address) as admin:
        await create(c.address, t=4)
        async with member(c.address, "stays") as stays:
            brief = member(c.address, "brief", session_timeout_ms=500)
            await brief.start()
            await until(lambda: len(stays.assignment()) == len(brief.assignment()) == 2)
            await brief.stop()
            assert len(stays.assignment()) == 2
            await until(lambda: len(stays.assignment()) == 4)
            away = member(c.address, "away")
            await away.start()
            await until(lambda: len(stays.assignment()) == len(away.assignment()) == 2)
            gone_id = away.group_metadata().member_id
            await away.stop()
            await admin.remove_members("g", gone_id, reason="the machine is gone")
            await until(lambda: len(stays.assignment()) == 4)
            described = (await admin.describe_groups("g"))["g"]
            assert "the machine is gone" in described.last_rebalance_reason


async def test_unsubscribing_keeps_the_place_too() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        async with member(c.address, "a") as first, member(c.address, "b") as second:
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
            had = first.assignment()
            first.unsubscribe()
            await until(lambda: first.state == "unjoined")
            assert not first.assignment()
            assert len(second.assignment()) == 1
            first.subscribe(["t"])
            await until(lambda: first.assignment() == had)
            assert first.group_metadata().generation == second.group_metadata().generation == 2


async def test_a_member_of_any_kind_can_be_static() -> None:
    def assign(members: list[tuple[str, bytes]]) -> dict[str, bytes]:
        return {member_id: metadata + b" of %d" % len(members) for member_id, metadata in members}

    def worker(address: str, name: str) -> Member:
        settings = {key: LASTING[key] for key in ("session_timeout_ms", "heartbeat_interval_ms")}
        return Member(
            "work", bootstrap_servers=address, metadata=b"m", assign=assign, group_instance_id=name, **settings
        )

    async with Coordinator() as c:
        async with worker(c.address, "a") as first:
            alone = await anext(first)
            assert (alone.generation, alone.assignment) == (1, b"m of 1")
        async with worker(c.address, "a") as again:
            same = await anext(again)
            assert (same.generation, same.is_leader, same.assignment) == (1, True, b"m of 1")
            async with worker(c.address, "a") as usurper:
                await anext(usurper)
                with pytest.raises(FencedInstanceIdError):
                    await anext(again)
                with pytest.raises(FencedInstanceIdError):
                    await anext(again)


async def test_names_are_checked() -> None:
    with pytest.raises(ValueError, match="group_instance_id is empty"):
        Consumer("t", group_id="g", group_instance_id="")
    with pytest.raises(ValueError, match="pass group_id too"):
        Consumer("t", group_instance_id="a")
    consumer = Consumer("t", group_id="g", group_instance_id="a")
    assert consumer.group_metadata().group_instance_id == "a"
    assert TopicPartition("t", 0) not in consumer.assignment()
