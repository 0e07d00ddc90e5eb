"""The cluster of ``docker-compose.yml``, run without Docker: its environment and its commands, on addresses of loopback."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from client import Admin, Producer
from tests.cluster.probe import described, in_sync
from tests.daemon_process import DaemonProcess
from tests.etcd.members import Members

ROOT: Final = Path(__file__).parents[2]
COMPOSE: Final = (ROOT / "docker-compose.yml").read_text()
SERVICES: Final[Mapping[str, Any]] = yaml.safe_load(COMPOSE)["services"]
NODES: Final = tuple(name for name in SERVICES if name.startswith("node-"))
COMMANDS: Final = re.findall(
    r"^#   docker compose (exec|kill -s SIGKILL) (node-\d) ?(.*?)(?:  .*)?$", COMPOSE, re.MULTILINE
)
"""What the comment at the top tells to do to nodes: how, to which, and what is run there."""
WAIT_S: Final = 60.0
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        sys.platform != "linux", reason="needs all of 127.0.0.0/8 to stand in for the hosts of containers"
    ),
]


class Container(DaemonProcess):
    """A node as Compose would start it; its volume is a directory, and names of services are addresses."""

    def __init__(self, name: str, volume: Path, names: Mapping[str, str]) -> None:
        super().__init__(volume)
        self.name = name
        self.host = names[name]
        self.environment = dict[str, str]()
        for key, value in SERVICES[name]["environment"].items():
            for service, address in names.items():
                value = value.replace(service, address)
            self.environment[key] = value.replace("/data", str(volume))

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def command(self) -> list[str]:
        program = SERVICES[self.name]["command"]
        assert program == ["cohortd"]
        given = [f"{key}={value}" for key, value in self.environment.items()]
        return ["env", *given, f"COHORT_PORT={self.port}", sys.executable, "-m", "coordinator"]


@pytest.fixture
def cluster(etcd_binary: Path, tmp_path: Path) -> Iterator[dict[str, Container]]:
    with ExitStack() as ending:
        members = Members(tmp_path, 1)
        ending.callback(members.close)
        members.start()
        names = {name: f"127.0.1.{number}" for number, name in enumerate(NODES, 1)}
        host, port = members.addresses[0]
        names["etcd:2379"] = f"{host}:{port}"
        nodes = {}
        for name in NODES:
            (tmp_path / name).mkdir()
            nodes[name] = ending.enter_context(Container(name, tmp_path / name, names))
        yield nodes


async def told(node: Container, arguments: str) -> str:
    """What a command prints that is run beside a node."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "client", "--bootstrap", node.address, *arguments.split()[1:]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert process.returncode == 0, output.decode()
    return output.decode()


async def led_by_others(admin: Admin, node: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while any(each.leader in (-1, node) for each in await described(admin, "orders")):
            await asyncio.sleep(0.1)


async def test_the_cluster_of_the_compose_file_does_what_its_comment_says(cluster: dict[str, Container]) -> None:
    (_, first, create), (kill, victim, nothing), (_, second, describe) = COMMANDS
    assert (kill, nothing) == ("kill -s SIGKILL", "")
    await told(cluster[first], create)
    addresses = ",".join(node.address for node in cluster.values())
    async with Admin(addresses) as admin, Producer(addresses) as producer:
        partitions = await described(admin, "orders")
        assert len(partitions) == 6
        assert all(len(each.replicas) == 3 for each in partitions)
        nodes = {f"{node.host}:{node.port}": node.node_id for node in (await admin.describe_cluster()).nodes}
        assert nodes.keys() == {node.address for node in cluster.values()}
        assert cluster[victim].address in await told(cluster[second], describe)
        cluster[victim].kill()
        await led_by_others(admin, nodes[cluster[victim].address])
        for partition in range(6):
            await (await producer.send("orders", b"after the kill", partition=partition))
        shown = await told(cluster[second], describe)
        assert cluster[victim].address not in shown
        assert re.search(rf"^ +{nodes[cluster[victim].address]} +- +- +absent +0 ", shown, re.MULTILINE)
        assert "partitions under-replicated: " in shown
        cluster[victim].start()
        await in_sync(addresses, "orders")
