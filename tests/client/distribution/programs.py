"""A program of a user, and how tests of installations run it."""

from __future__ import annotations

import subprocess
from pathlib import Path

PROGRAM = """
import asyncio

from aiocohort import Admin, Consumer, Coordinator, Member, Producer
from aiocohort.errors import CohortError


async def main() -> None:
    async with Coordinator() as coordinator:
        async with Admin(bootstrap_servers=coordinator.address) as admin:
            await admin.create_topics({"orders": 1})
        async with Producer(bootstrap_servers=coordinator.address) as producer:
            await producer.send_and_wait("orders", b"tea")
        async with Consumer(
            "orders", bootstrap_servers=coordinator.address, group_id="g", auto_offset_reset="earliest"
        ) as consumer:
            print((await consumer.getone()).value, issubclass(CohortError, Exception), Member.__name__)


asyncio.run(main())
"""
"""A daemon, a topic, a record, a group: prints ``OUTPUT``."""

OUTPUT = "b'tea' True Member\n"


def run(*command: str, cwd: Path, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
    """Runs a command in a directory."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=cwd)
