"""A group of librdkafka's members, each in a process of its own: how soon all own their share when one joins or leaves."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Final, Self

from client.cli.failure import CommandError
from client.cli.processes import child_environment

PARTITIONS: Final = 12
_NEEDED: Final = {"confluent_kafka": "confluent-kafka", "aiokafka": "aiokafka", "google_crc32c": "'aiocohort[kafka]'"}
_SETTLED_S: Final = 60.0
_STOP_S: Final = 15.0


def missing_packages() -> str:
    """What pip has to install before ``client.bench.kafka_clients`` runs, "" when everything is there."""
    return " ".join(package for module, package in _NEEDED.items() if find_spec(module) is None)


class Program:
    """A process of ``client.bench.kafka_clients``; use as an async context manager. It ends with the block."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "client.bench.kafka_clients", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def line(self) -> dict[str, Any]:
        """The next thing that it says. Raises ``CommandError`` when it ends, or is silent, without one."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_SETTLED_S):
                said = await self._process.stdout.readline()
        except TimeoutError:
            said = b""
        if not said:
            raise CommandError(
                f"a Kafka client says nothing of {' '.join(self._arguments)}; what it wrote stands above"
            )
        told: dict[str, Any] = json.loads(said)
        return told

    def order(self, word: str) -> None:
        """Has a member do something."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())


class _Member:
    """A member and what it has said."""

    def __init__(self, program: Program, changed: asyncio.Event) -> None:
        self.program = program
        self.owns = 0
        self.owns_since = 0.0
        self.began: dict[str, float] = {}
        """When it was about to join, and to leave."""
        self._changed = changed

    async def listen(self) -> None:
        """Keeps what it says, until it leaves."""
        while "leaves_at" not in self.began:
            said = await self.program.line()
            if "owns" in said:
                self.owns, self.owns_since = said["owns"], said["at"]
            else:
                self.began.update(said)
            self._changed.set()


async def join_and_leave_s(servers: str, topic: str, group: str, members: int, calm_s: float) -> tuple[float, float]:
    """Seconds from the call to join of one member more, and from its call to leave, until all own their share.

    Before each the group is at rest for ``calm_s``. Once it has settled librdkafka sends the first heartbeat after 3 s, and
    from then on one every 3 s, each of which the daemon holds for ``kafka_heartbeat_hold_ms``. The topic has ``PARTITIONS``.
    Raises ``CommandError`` when the group does not settle.
    """
    changed = asyncio.Event()
    async with AsyncExitStack() as stack:
        everyone = [
            _Member(await stack.enter_async_context(Program("member", servers, topic, group)), changed)
            for _ in range(members + 1)
        ]
        for each in everyone:
            await each.program.line()
        async with asyncio.TaskGroup() as tasks:
            listening = [tasks.create_task(each.listen()) for each in everyone]
            *others, newest = everyone
            for each in others:
                each.program.order("join")
            await _settled(others, 0.0, changed)
            await asyncio.sleep(calm_s)
            joined = await _after(newest, "join", "joins_at", everyone, changed)
            await asyncio.sleep(calm_s)
            left = await _after(newest, "leave", "leaves_at", others, changed)
            for each in others:
                each.program.order("leave")
            await asyncio.wait(listening, timeout=_STOP_S)
    return joined, left


async def _after(one: _Member, order: str, key: str, members: list[_Member], changed: asyncio.Event) -> float:
    one.program.order(order)
    while key not in one.began:
        changed.clear()
        await changed.wait()
    return await _settled(members, one.began[key], changed) - one.began[key]


async def _settled(members: list[_Member], since: float, changed: asyncio.Event) -> float:
    """When the last of the members was given a share, after ``since``, so that they own everything."""
    try:
        async with asyncio.timeout(_SETTLED_S):
            while True:
                changed.clear()
                owned = sum(each.owns for each in members if each.owns_since > since)
                if owned == PARTITIONS and all(each.owns and each.owns_since > since for each in members):
                    return max(each.owns_since for each in members)
                await changed.wait()
    except TimeoutError:
        raise CommandError(f"{len(members)} members of librdkafka did not settle in {_SETTLED_S:.0f} s") from None
