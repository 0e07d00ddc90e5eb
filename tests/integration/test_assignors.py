"""Assignors in real groups: a leader that computes for long stays a member, and so does everybody else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from client import Consumer, RangeAssignor, Subscription, TopicPartition
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import QUICK, Journal, create, until


class Ponderous(RangeAssignor):
    """Counts to itself, in Python, for three seconds when it has more than one member to think of."""

    turns = 0

    def assign(
        self,
        partitions: Mapping[str, int],
        members: Mapping[str, Subscription],
        racks: Mapping[TopicPartition, frozenset[str]] | None = None,
    ) -> dict[str, list[TopicPartition]]:
        began_s = time.perf_counter()
        while len(members) > 1 and time.perf_counter() - began_s < 3:
            self.turns += 1
        return super().assign(partitions, members)


async def test_heartbeats_go_on_while_a_leader_computes_for_three_times_its_session(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, t=4)
        assignor, journals = Ponderous(), (Journal(), Journal())
        leader, follower = (
            Consumer(bootstrap_servers=daemon.address, group_id="g", assignors=[assignor], **QUICK) for _ in journals
        )
        for consumer, journal in zip((leader, follower), journals, strict=True):
            consumer.subscribe(["t"], listener=journal)
        async with leader:
            await until(lambda: len(leader.assignment()) == 4)
            names = {leader.group_metadata().member_id}
            async with follower:
                await until(lambda: len(leader.assignment()) == len(follower.assignment()) == 2, 20)
                assert assignor.turns > 1000
                assert leader.group_metadata().generation == follower.group_metadata().generation == 2
                assert leader.group_metadata().member_id in names
                assert "lost" not in {what for journal in journals for what, _ in journal.events}
