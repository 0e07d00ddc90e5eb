"""What the cluster's tests rely on: copies that differ are found, a schedule belongs to its seed, cuts cut what they say."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path
from random import Random

from client import Admin, Producer
from coordinator import Coordinator
from tests.chaos.history import Hit
from tests.chaos.proxy import Proxy
from tests.chaos.schedule import schedule
from tests.chaos.small import healthy
from tests.cluster.checks import lost_with_the_leader, violations
from tests.cluster.faults import FAULTS
from tests.cluster.processes import Nodes
from tests.cluster.replicas import ReplicaLog, disagreements, read_node
from tests.etcd.members import free_ports


async def _copied(directory: Path) -> list[Path]:
    async with Coordinator(data_dir=str(directory / "0")) as node:
        async with Admin(node.address) as admin:
            await admin.create_topics({"orders": 1})
        async with Producer(node.address) as producer:
            for number in range(10):
                await producer.send_and_wait("orders", f"{number}".encode())
    shutil.copytree(directory / "0", directory / "1")
    return [directory / "0", directory / "1"]


def _read(directories: list[Path], name: str = "orders-0") -> list[ReplicaLog]:
    return [read_node(path, number, with_records=True)[name] for number, path in enumerate(directories)]


async def test_copies_that_differ_are_found(tmp_path: Path) -> None:
    directories = await _copied(tmp_path)
    logs = _read(directories)
    assert (logs[0].start, logs[0].end, len(logs[0].batches)) == (0, 10, 10)
    assert not disagreements(logs, to_the_end=True)

    (segment,) = (directories[1] / "orders-0").glob("*.log")
    content = segment.read_bytes()
    middle = len(content) // 2
    segment.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    assert disagreements(_read(directories), to_the_end=False)

    segment.write_bytes(content[: len(content) // 10 * 9])
    short = _read(directories)
    assert short[1].end == 9
    assert not disagreements(short, to_the_end=False)
    assert disagreements(short, to_the_end=True) == ["they end at [(0, 10), (1, 9)]"]


def test_compacted_copies_are_compared_by_their_last_records() -> None:
    one = ReplicaLog(0, 0, 4, records={0: (b"a", b"1"), 1: (b"b", b"1"), 2: (b"a", b"2"), 3: (b"c", None)})
    compacted = ReplicaLog(1, 0, 4, records={1: (b"b", b"1"), 2: (b"a", b"2")})
    assert not disagreements([one, compacted], to_the_end=True)
    stale = ReplicaLog(2, 0, 4, records={0: (b"a", b"1"), 1: (b"b", b"1")})
    assert disagreements([one, stale], to_the_end=True) == [
        "the last record of b'a' is b'2' on node 0 and b'1' on node 2"
    ]
    other = ReplicaLog(2, 0, 4, records={1: (b"b", b"3"), 2: (b"a", b"2")})
    assert "at 1 nodes 0 and 2 have" in disagreements([one, other], to_the_end=True)[0]


def test_a_record_of_one_disk_may_go_with_its_leader_and_no_other() -> None:
    for once, hit, lost in ((False, True, 1), (True, True, 0), (False, False, 0)):
        history = healthy().done()
        send = next(send for send in history.sends if send.acknowledged)
        history.once = {send.producer} if once else set()
        history.hits = [Hit("kill-node", send.started, send.answered, "node 0", True)] if hit else []
        history.periods = []
        del history.log[send.tp][send.offset]
        assert len(lost_with_the_leader(history)) == lost
        assert bool(violations(history)["lost"]) == (not lost)


def test_a_schedule_belongs_to_its_seed_and_has_all_faults_of_a_cluster() -> None:
    one, again = (schedule(Random(7), 120, (), FAULTS) for _ in range(2))
    assert one == again
    assert {step.kind for seed in range(30) for step in schedule(Random(seed), 120, (), FAULTS)} == set(FAULTS)


async def test_a_cut_goes_one_way_over_connections_of_either_side(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, store="served")
    heard: dict[int, list[bytes]] = {0: [], 1: []}

    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"from %d" % number)
        while chunk := await reader.read(100):
            heard[number].append(chunk)
        writer.close()

    servers = [
        await asyncio.start_server(partial(serve, number), "127.0.0.1", nodes[number].peer_port) for number in (0, 1)
    ]
    for source, target in ((0, 1), (1, 0)):
        nodes[source].to_nodes[target] = Proxy(free_ports(1)[0], nodes[target].peer_port)
        await nodes[source].to_nodes[target].accept()
    nodes.cut(nodes[0], nodes[1])
    there = await asyncio.open_connection("127.0.0.1", nodes[0].to_nodes[1].port)
    back = await asyncio.open_connection("127.0.0.1", nodes[1].to_nodes[0].port)
    there[1].write(b"request of 0")
    back[1].write(b"request of 1")
    assert await asyncio.wait_for(there[0].readexactly(6), 5) == b"from 1"
    await asyncio.sleep(0.2)
    assert heard == {0: [b"request of 1"], 1: []}
    await nodes.heal()
    assert await asyncio.wait_for(back[0].readexactly(6), 5) == b"from 0"
    while not heard[1]:
        await asyncio.sleep(0.01)
    for _, writer in (there, back):
        writer.close()
    for source, target in ((0, 1), (1, 0)):
        await nodes[source].to_nodes[target].close()
    for server in servers:
        server.close()
