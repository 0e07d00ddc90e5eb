"""``cohort consume --group`` twice: the member that joins goes on where the other has stopped to print."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from client.admin import Admin
from client.producer.producer import Producer
from coordinator import Coordinator
from tests.integration.cohort_command import ROOT, arguments, environment


def consuming(address: str, out: Path) -> subprocess.Popen[bytes]:
    with out.open("wb") as file:
        return subprocess.Popen(
            arguments("consume", "t", "--group", "g", "--from-beginning", address=address),
            stdout=file,
            cwd=ROOT,
            env=environment(),
        )


def lines(*outs: Path) -> list[bytes]:
    return [line for out in outs for line in out.read_bytes().splitlines()]


async def test_a_member_that_joins_prints_nothing_again(tmp_path: Path) -> None:
    outs = tmp_path / "first", tmp_path / "second"
    async with Coordinator() as coordinator, Producer(coordinator.address) as producer:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 2})
        members: list[subprocess.Popen[bytes]] = []
        sent = 0
        try:
            members.append(consuming(coordinator.address, outs[0]))
            async with asyncio.timeout(60):
                while len(members) < 2 or not (tail := lines(outs[1])) or int(tail[-1]) < sent - 100:
                    await producer.send_and_wait("t", b"%d" % sent, partition=sent % 2)
                    sent += 1
                    await asyncio.sleep(0.01)
                    if len(members) < 2 and len(lines(outs[0])) > 50:
                        members.append(consuming(coordinator.address, outs[1]))
                while len(set(lines(*outs))) < sent:
                    await asyncio.sleep(0.05)
        finally:
            for member in members:
                member.terminate()
            statuses = [await asyncio.to_thread(member.wait, 20) for member in members]
    assert statuses == [0, 0]
    assert sorted(map(int, lines(*outs))) == list(range(sent))
