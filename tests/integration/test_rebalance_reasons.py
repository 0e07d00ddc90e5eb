"""Every trigger of a rebalance says so: to the members, in the log, and to those who describe the group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from client import Admin, Consumer, RangeAssignor
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import QUICK, Journal, create, until

Cause = Callable[["Story"], Awaitable[object]]


@dataclass
class Story:
    """A daemon, a group with two members, and what the first of them is told."""

    daemon: DaemonProcess
    admin: Admin
    stack: AsyncExitStack
    journal: Journal = field(default_factory=Journal)
    leader: Consumer = field(init=False)
    follower: Consumer = field(init=False)

    async def begin(self) -> None:
        self.leader = await self.start("leader", self.journal)
        self.follower = await self.start("follower", pattern="[tp].*")
        await until(lambda: self.leader.state == self.follower.state == "stable")

    async def start(self, name: str, journal: Journal | None = None, *, pattern: str = "", **settings: Any) -> Consumer:
        chosen = {**QUICK, "assignors": [RangeAssignor], **settings}
        consumer = Consumer(bootstrap_servers=self.daemon.address, group_id="g", client_id=name, **chosen)
        if pattern:
            consumer.subscribe(pattern=pattern, listener=journal)
        else:
            consumer.subscribe(["t"], listener=journal)
        return await self.stack.enter_async_context(consumer)

    async def generation(self) -> tuple[int, str, str]:
        described = (await self.admin.describe_groups("g"))["g"]
        return described.generation, described.state, described.last_rebalance_reason


async def joins(story: Story) -> None:
    await story.start("newcomer")


async def leaves(story: Story) -> None:
    await story.follower.stop()


async def is_removed(story: Story) -> None:
    member_id = story.follower.group_metadata().member_id
    await story.follower.stop()
    stayed = await story.start("follower", group_instance_id="f", session_timeout_ms=20_000)
    await until(lambda: stayed.state == "stable" and stayed.group_metadata().member_id != member_id)
    await stayed.stop()
    await story.admin.remove_members("g", group_instance_ids=["f"], reason="its machine is gone")


async def dies(story: Story) -> None:
    static = await story.start("mortal", group_instance_id="m", session_timeout_ms=800)
    await until(lambda: static.state == "stable" and story.leader.state == "stable")
    await static.stop()  # it does not leave, like one that dies


async def is_stuck(story: Story) -> None:
    stuck = await story.start("stuck", max_poll_interval_ms=500, rebalance_timeout_ms=10_000)
    await until(lambda: stuck.state == "stable")


async def is_fenced_by_one_that_wants_something_else(story: Story) -> None:
    await create(story.daemon.address, other=1)
    first = await story.start("old", group_instance_id="s", session_timeout_ms=20_000)
    await until(lambda: first.state == "stable")
    await story.start("new", group_instance_id="s", session_timeout_ms=20_000, pattern="t|other")
    await until(lambda: first.state == "fenced")


async def changes_its_subscription(story: Story) -> None:
    await create(story.daemon.address, u=1)
    story.follower.subscribe(["t", "u"])


async def gets_more_partitions(story: Story) -> None:
    await story.admin.create_partitions({"t": 4})


async def deletes_the_topic(story: Story) -> None:
    await story.admin.delete_topics("t")


async def creates_a_topic_that_matches(story: Story) -> None:
    await story.admin.create_topics({"p1": 1})


async def asks_as_follower(story: Story) -> None:
    await story.follower.enforce_rebalance("a new deployment")


async def asks_as_leader(story: Story) -> None:
    await story.leader.enforce_rebalance("a new deployment")


async def restarts_while_a_member_joins(story: Story) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def wait(tps: object, reason: str) -> None:
        entered.set()
        await go_on.wait()

    story.journal.on_partitions_revoked = wait  # type: ignore[assignment]
    await story.start("newcomer")
    await entered.wait()
    await asyncio.sleep(0.3)  # the newcomer's join waits at the daemon
    story.daemon.kill()
    story.daemon.start()
    go_on.set()


TABLE: list[tuple[Cause, str]] = [
    (joins, "(client newcomer) joined"),
    (leaves, "(client follower) left: closing"),
    (is_removed, "was removed by client cohort-admin at 127.0.0.1: its machine is gone"),
    (dies, "(client mortal, group_instance_id m) missed its session of 800 ms by"),
    (is_stuck, "(client stuck) left: the program made no progress for"),
    (
        is_fenced_by_one_that_wants_something_else,
        "group_instance_id s) was started again and changed its subscription from",
    ),
    (changes_its_subscription, "changed its subscription from {t} to {t, u}"),
    (gets_more_partitions, "topic 't' has 4 partitions now and had 2"),
    (deletes_the_topic, "topic 't' is gone|gone t"),
    (
        creates_a_topic_that_matches,
        "changed its subscription from {t} to {p1, t}: the topics subscribed to changed: new p1",
    ),
    (asks_as_follower, "(client follower) rejoined: a new deployment"),
    (asks_as_leader, "(client leader) rejoined: a new deployment"),
    (
        restarts_while_a_member_joins,
        "nothing is known of it since the coordinator restarted",
    ),
]


@pytest.mark.parametrize(("cause", "expected"), TABLE, ids=[cause.__name__ for cause, _ in TABLE])
async def test_the_reason_is_told_to_everybody(tmp_path: Path, cause: Cause, expected: str) -> None:
    def named(text: str) -> bool:
        return any(part in text for part in expected.split("|"))

    with DaemonProcess(tmp_path, "--log-level", "info") as daemon:
        async with AsyncExitStack() as stack, Admin(daemon.address) as admin:
            await create(daemon.address, t=2)
            story = Story(daemon, admin, stack)
            await story.begin()
            await cause(story)
            seen: list[tuple[int, str, str]] = []
            async with asyncio.timeout(45):
                while not any(state == "Stable" and named(reason) for _, state, reason in seen):
                    seen.append(await story.generation())
                    await asyncio.sleep(0.02)
                while not any(map(named, story.journal.reasons)):
                    await asyncio.sleep(0.02)
    assert named("".join(daemon.output))
