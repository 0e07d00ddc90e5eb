"""Nodes that must not take part are refused by name, and what the metadata store forgets ends a node by name."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from client import Admin
from tests.cluster.probe import created, in_sync
from tests.cluster.processes import Nodes, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def refused(nodes: Nodes, directory: Path, number: int) -> str:
    """What a node says that is started on a directory, with no port of another, and ends by itself."""
    command = list(nodes[number].command())
    for option, value in (("--data-dir", str(directory)), ("--port", "0"), ("--peer-port", "0")):
        command[command.index(option) + 1] = value
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr[-2000:]
    assert "Traceback" not in ended.stderr
    return ended.stderr


async def test_the_data_of_another_cluster_and_of_another_node(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    async with running(tmp_path / "one") as nodes:
        shutil.copytree(
            nodes[1].data_dir, tmp_path / "of another cluster", ignore=shutil.ignore_patterns("lock", "*.tmp")
        )
    async with running(tmp_path / "other") as nodes:
        await nodes.kill(nodes[1])
        said = await asyncio.to_thread(refused, nodes, tmp_path / "of another cluster", 1)
        assert "cluster" in said
        said = await asyncio.to_thread(refused, nodes, nodes[1].data_dir, 2)
        assert "node" in said
        await nodes.start_node(nodes[1])
        async with asyncio.timeout(60), Admin(nodes.address) as admin:
            await created(admin, 3, {})
        await in_sync(nodes.address)


async def test_an_etcd_that_went_back_in_time(tmp_path: Path, etcd_binary: None) -> None:
    async with running(tmp_path, store="etcd") as nodes:
        members = nodes.metadata.members
        assert members is not None
        (member,) = members.members
        await asyncio.to_thread(member.kill)
        shutil.copytree(member.directory / member.name, tmp_path / "backup")
        await asyncio.to_thread(members.heal)
        async with asyncio.timeout(60), Admin(nodes.address) as admin:
            for number in range(20):  # the nodes that notice last must not have caught up with what is lost
                await created(admin, 1, {}, f"lost-{number}")
        await asyncio.to_thread(member.kill)
        shutil.rmtree(member.directory / member.name)
        (tmp_path / "backup").rename(member.directory / member.name)
        await asyncio.to_thread(members.heal)
        async with asyncio.timeout(30):
            for node in nodes.nodes:
                while not any("older backup" in line for line in node.output):
                    await asyncio.sleep(0.1)
        for node in nodes.nodes:
            node.running = False
            assert await asyncio.to_thread(node.wait) == 1
