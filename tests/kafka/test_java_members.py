"""Kafka's consumer in Java and Cohort's in one group, under each assignor that ``docs/kafka-clients.md`` names for both.

The Java member is Kafka's ``kafka-verifiable-consumer``, which tells what it is given. Left out where there is no Java, or
no Kafka and no Maven to get its tools by.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import client
from client import Admin, Consumer
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import until_told
from tests.integration.test_mixed_groups import rows
from tests.kafka.suites import kafka_tools
from tests.kafka.suites.suite import MissingError

pytestmark = [pytest.mark.kafka_suites, pytest.mark.timeout(900)]  # jars are downloaded first, once

PARTITIONS = 4
SECONDS = 90
until = partial(until_told, seconds=SECONDS)


class JavaMember:
    """What a verifiable consumer has said: the partitions that it has, and the lines that are no events."""

    def __init__(self) -> None:
        self.has: set[int] = set()
        self.said: list[str] = []

    async def listens(self, output: asyncio.StreamReader) -> None:
        """Until it ends. A cooperative member is told what comes and goes, an eager one all that it has."""
        async for line in output:
            event: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {"name": ""}
            if event["name"] == "partitions_assigned":
                self.has |= {each["partition"] for each in event["partitions"]}
            elif event["name"] == "partitions_revoked":
                self.has -= {each["partition"] for each in event["partitions"]}
            elif not event["name"]:
                self.said.append(line.decode())


@asynccontextmanager
async def java_member(tools: kafka_tools.Tools, assignor: str) -> AsyncIterator[JavaMember]:
    command = tools.command(
        *("kafka-verifiable-consumer", "--topic", "t", "--group-id", "g"), *("--assignment-strategy", assignor)
    )
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=tools.directory
    )
    assert process.stdout is not None
    member = JavaMember()
    listening = asyncio.create_task(member.listens(process.stdout))
    try:
        yield member
    finally:
        if process.returncode is None:
            process.terminate()  # upon which it leaves its group
        await process.wait()
        await listening


@pytest.fixture
def tools(tmp_path: Path) -> kafka_tools.Tools:
    try:
        return kafka_tools.find().at("", tmp_path)
    except MissingError as error:
        pytest.skip(f"Kafka's tools cannot be run here: {error}")


@pytest.mark.parametrize("name", rows())
async def test_a_java_member_and_ours_share_what_there_is(tools: kafka_tools.Tools, tmp_path: Path, name: str) -> None:
    told = rows()[name]
    with DaemonProcess(tmp_path / "data", "--kafka-port", "-1", "--flush", "os") as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        consumer = Consumer(
            "t", bootstrap_servers=daemon.address, group_id="g", assignors=[getattr(client, told["Cohort"])]
        )

        def has() -> set[int]:
            return {each.partition for each in consumer.assignment()}

        async with java_member(tools.at(daemon.kafka_address, tmp_path), told["Java"]) as java:
            await until(lambda: len(java.has) == PARTITIONS, lambda: (java.has, java.said[-20:]))
            async with consumer:
                polling = asyncio.create_task(consumer.getone())  # nothing comes: the topic is empty
                await until(
                    lambda: len(has()) == len(java.has) == 2 and not has() & java.has,
                    lambda: (has(), java.has, java.said),
                )
                polling.cancel()
            await until(lambda: len(java.has) == PARTITIONS, lambda: (java.has, java.said[-20:]))


async def test_a_java_member_that_shares_no_assignor_is_told_so(tools: kafka_tools.Tools, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data", "--kafka-port", "-1", "--flush", "os") as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        async with Consumer("t", bootstrap_servers=daemon.address, group_id="g") as consumer:
            polling = asyncio.create_task(consumer.getone())
            await until(lambda: len(consumer.assignment()) == PARTITIONS, consumer.assignment)
            there = tools.at(daemon.kafka_address, tmp_path)
            async with java_member(there, rows()["roundrobin"]["Java"]) as java:
                await until(lambda: "InconsistentGroupProtocolException" in "".join(java.said), lambda: java.said)
            assert len(consumer.assignment()) == PARTITIONS
            polling.cancel()
