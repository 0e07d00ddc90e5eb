"""docs/service.md as it stands: its systemd units, its FastAPI program and its Kubernetes manifest are run."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from client import Admin, Producer
from client.types.descriptions import GroupDescription
from tests.chaos.world import free_port
from tests.daemon_process import DaemonProcess

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
BOUND_S = 60


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


COHORTD_UNIT, KITCHEN_UNIT = blocks("ini")
WORKER, KITCHEN = blocks("python")
SERVICE, STATEFUL_SET, DISRUPTION_BUDGET = yaml.safe_load_all(blocks("yaml")[0])
POD: dict[str, Any] = STATEFUL_SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def exec_start(unit: str, *, worker: Path | None = None) -> tuple[list[str], dict[str, str]]:
    """What a unit runs and with which environment, with the paths of this machine."""
    parsed = configparser.RawConfigParser(strict=False)
    parsed.read_string(unit)
    command = shlex.split(parsed["Service"]["ExecStart"])
    command[0] = str(BIN / Path(command[0]).name)
    if worker is not None:
        command[1] = str(worker)
    lines = re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE)
    return command, {name: value.replace("%m", "0123456789abcdef") for name, value in lines}


@asynccontextmanager
async def running(command: list[str], folder: Path, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command as a process, which is killed if the test has not ended it."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1", **environment},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def says(process: asyncio.subprocess.Process, wanted: str) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(BOUND_S):
        while line := await process.stdout.readline():
            if wanted in line.decode():
                return
    raise AssertionError(f"it ended with {await process.wait()} and did not say {wanted!r}")


async def ended(process: asyncio.subprocess.Process) -> int:
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(BOUND_S):
        await process.communicate()
    assert process.returncode is not None
    return process.returncode


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path / "data") as running_daemon:
        yield running_daemon


async def create_topics(address: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics({"orders": 2, "orders.dlq": 1})


async def send(address: str, *orders: bytes) -> None:
    async with Producer(address) as producer:
        await producer.send_many("orders", orders)


async def kitchen(address: str) -> GroupDescription:
    async with Admin(address) as admin:
        return (await admin.describe_groups("kitchen"))["kitchen"]


async def committed(address: str) -> int:
    async with Admin(address) as admin:
        return sum(stored.offset for stored in (await admin.list_offsets("kitchen")).values())


# --- systemd --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze on this machine")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER, encoding="utf-8")
    for name, unit in (("cohortd", COHORTD_UNIT), ("kitchen", KITCHEN_UNIT)):
        command, _ = exec_start(unit, worker=worker if name == "kitchen" else None)
        with_paths = re.sub(r"^ExecStart=.*$", f"ExecStart={shlex.join(command)}", unit, flags=re.MULTILINE)
        (tmp_path / f"{name}.service").write_text(with_paths, encoding="utf-8")
    units = [str(tmp_path / "cohortd.service"), str(tmp_path / "kitchen.service")]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=BOUND_S
    )
    ours = [line for line in done.stderr.splitlines() if "cohortd.service" in line or "kitchen.service" in line]
    assert ours == []


@pytest.mark.timeout(300)
async def test_what_the_units_start_ends_in_order_and_comes_back_without_a_rebalance(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER, encoding="utf-8")
    port = free_port()
    address = f"127.0.0.1:{port}"
    command, environment = exec_start(COHORTD_UNIT)
    command[command.index("--port") + 1] = str(port)
    command[command.index("--data-dir") + 1] = str(tmp_path / "data")
    async with running(command, tmp_path, **environment) as cohortd:
        await says(cohortd, "listening on")
        await create_topics(address)
        await send(address, b"tea")
        command, environment = exec_start(KITCHEN_UNIT, worker=worker)
        assert environment["COHORT_BOOTSTRAP"] == "127.0.0.1:7337"
        environment["COHORT_BOOTSTRAP"] = address
        async with running(command, tmp_path, **environment) as process:
            await says(process, "served tea")
            assert await ended(process) == 0
        before = await kitchen(address)
        assert [member.group_instance_id for member in before.members] == ["kitchen-0123456789abcdef"]
        assert await committed(address) == 1
        async with running(command, tmp_path, **environment) as process:
            await send(address, b"cake")
            await says(process, "served cake")
            assert (await kitchen(address)).generation == before.generation, "nothing moved"
            assert await ended(process) == 0
        assert await ended(cohortd) == 0


# --- FastAPI and Kubernetes ---------------------------------------------------------------------------------------------


def container_command(port: int) -> list[str]:
    """The container's command, on a port that is free on this machine."""
    declared = CONTAINER["ports"][0]["containerPort"]
    command: list[str] = list(CONTAINER["command"])
    assert command[command.index("--port") + 1] == str(declared)
    command[command.index("--port") + 1] = str(port)
    assert command[0] == "python"
    return [sys.executable, *command[1:]]


def container_environment(address: str, pod_name: str) -> dict[str, str]:
    """The container's variables, the pod's name as Kubernetes gives it."""
    environment: dict[str, str] = {}
    for variable in CONTAINER["env"]:
        if "value" in variable:
            environment[variable["name"]] = address if variable["value"] == "cohortd:7337" else variable["value"]
        else:
            assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
            environment[variable["name"]] = pod_name
    assert set(environment) == {"COHORT_BOOTSTRAP", "POD_NAME"}
    return environment


def status_of(url: str, data: bytes | None = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
    except OSError:
        return 0, b""


async def until_ready(url: str) -> None:
    async with asyncio.timeout(BOUND_S):
        while (await asyncio.to_thread(status_of, url))[0] != 200:
            await asyncio.sleep(0.1)


@pytest.mark.timeout(300)
async def test_the_pod_is_ready_serves_ends_in_order_and_comes_back_as_the_same_member(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    (tmp_path / "kitchen.py").write_text(KITCHEN, encoding="utf-8")
    await create_topics(daemon.address)
    port = free_port()
    ready = f"http://127.0.0.1:{port}{CONTAINER['readinessProbe']['httpGet']['path']}"
    environment = container_environment(daemon.address, "kitchen-0")
    generations = []
    for dish in ("tea", "cake"):
        async with running(container_command(port), tmp_path, **environment) as process:
            await until_ready(ready)
            told = await asyncio.to_thread(status_of, f"http://127.0.0.1:{port}/orders", dish.encode())
            assert (told[0], set(json.loads(told[1]))) == (201, {"partition", "offset"})
            await says(process, f"served {dish}")
            group = await kitchen(daemon.address)
            assert [member.group_instance_id for member in group.members] == ["kitchen-0"]
            generations.append(group.generation)
            assert await asyncio.to_thread(
                subprocess.call, CONTAINER["lifecycle"]["preStop"]["exec"]["command"], timeout=BOUND_S
            ) == 0  # fmt: skip
            assert await ended(process) in (0, -signal.SIGTERM), (
                "Uvicorn ends in order, and then by the signal it was sent"
            )
    assert generations[0] == generations[1], "the pod that came back is the same member"
    assert await committed(daemon.address) == 2


@pytest.mark.timeout(300)
async def test_a_pod_whose_consumer_has_failed_ends(daemon: DaemonProcess, tmp_path: Path) -> None:
    broken = KITCHEN.replace('print("served", record.value, flush=True)', 'raise LookupError("not on the menu")')
    assert broken != KITCHEN
    (tmp_path / "kitchen.py").write_text(broken, encoding="utf-8")
    await create_topics(daemon.address)
    await send(daemon.address, b"a unicorn")
    environment = container_environment(daemon.address, "kitchen-0")
    async with running(container_command(free_port()), tmp_path, **environment) as process:
        await says(process, "the consumer has failed")
        async with asyncio.timeout(BOUND_S):
            assert process.stdout is not None
            await process.stdout.read()
            await process.wait()
    assert await committed(daemon.address) == 0


def test_the_manifest_holds_together() -> None:
    assert (STATEFUL_SET["kind"], STATEFUL_SET["apiVersion"]) == ("StatefulSet", "apps/v1")
    assert (DISRUPTION_BUDGET["kind"], DISRUPTION_BUDGET["apiVersion"]) == ("PodDisruptionBudget", "policy/v1")
    labels = STATEFUL_SET["spec"]["template"]["metadata"]["labels"]
    assert (SERVICE["kind"], SERVICE["apiVersion"], SERVICE["spec"]["clusterIP"]) == ("Service", "v1", "None")
    assert SERVICE["metadata"]["name"] == STATEFUL_SET["spec"]["serviceName"]
    assert SERVICE["spec"]["selector"].items() <= labels.items()
    assert [each["port"] for each in SERVICE["spec"]["ports"]] == [POD["containers"][0]["ports"][0]["containerPort"]]
    assert STATEFUL_SET["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert DISRUPTION_BUDGET["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert DISRUPTION_BUDGET["spec"]["maxUnavailable"] < STATEFUL_SET["spec"]["replicas"]
    assert CONTAINER["readinessProbe"]["httpGet"]["port"] == CONTAINER["ports"][0]["name"]
    pre_stop_s = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] >= pre_stop_s + 10 + 5 + 5 + 30, "handlers, clean-up, commit and stop()"
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", KITCHEN_UNIT, re.MULTILINE)[0]) >= 10 + 5 + 5 + 30
