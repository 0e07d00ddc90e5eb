"""How heartbeats fare beside a load: a process of its own, so that it waits for the daemon and not for the load.

It joins two kinds of groups, ones that live in the shard of the group named and ones that live in other shards, then sends a
heartbeat of one of their members every few milliseconds, whether or not the last was answered. Beside them go a
request that needs no group, which tells how late the daemon's loop is, and an echo of the same bytes by a server that
does nothing else, which tells what the machine makes of it. For each line on stdin it prints what was measured since
the last one, as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Final, cast

from client.bench.closed_loop import percentile
from client.bench.raw_group import RawMember, form_group
from client.cli.failure import CommandError
from client.cli.processes import child_environment
from client.cli.session import run
from client.transport.metadata import parse_bootstrap_servers
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import FrameReader, decode_response, encode_request
from protocol.hashing import partition_for_group
from protocol.messages import Request
from protocol.messages.cluster import ApiVersionsRequest
from protocol.messages.groups import HeartbeatRequest

_TICK_S: Final = 0.004
_HEARTBEATS_PER_TICK: Final = 2
_ANSWER_S: Final = 30.0
_READY_S: Final = 60.0

Measured = dict[str, dict[str, float]]
"""By kind: ``count`` of answers, and ``p50_ms``, ``p99_ms`` and ``max_ms`` of the time they took."""


class Stopwatch(asyncio.Protocol):
    """One connection that sends its requests in turn and times each answer."""

    def __init__(self, requests: Sequence[Request], *, echoes: bool = False) -> None:
        self._requests = itertools.cycle(requests)
        self._echoes = echoes
        self._reader = FrameReader()
        self._sent: dict[int, float] = {}
        self._last = 0
        self._latencies: array[float] = array("d")
        self._transport: asyncio.Transport | None = None
        self.fault = ""

    def send(self) -> None:
        """Sends the next request, whatever is under way."""
        if self._transport is not None:
            request = next(self._requests)
            self._last += 1
            frame = encode_request(request.api_key, 0, self._last, "probe", encode_message(request))
            self._sent[self._last] = perf_counter()
            self._transport.write(frame)

    @property
    def idle(self) -> bool:
        """Whether there was nothing to time since the last ``take``."""
        return not self._latencies and not self._sent

    def take(self) -> dict[str, float]:
        """What was measured since the last call; what is still under way counts with the time that it has taken so far."""
        now = perf_counter()
        values, self._latencies = self._latencies, array("d")
        latencies = sorted([*values, *(now - sent for sent in self._sent.values())])
        return {
            "count": len(latencies),
            "p50_ms": 1000 * percentile(latencies, 50),
            "p99_ms": 1000 * percentile(latencies, 99),
            "max_ms": 1000 * latencies[-1],
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        now = perf_counter()
        for payload in self._reader.feed(data):
            if self._echoes:  # answers come in the order of their requests
                number, code = next(iter(self._sent)), int(ErrorCode.NONE)
            else:
                answer = decode_response(payload)
                number, code = answer.correlation_id, answer.error_code or answer.body[0]
            self._latencies.append(now - self._sent.pop(number))
            if code != ErrorCode.NONE:
                self.fault = f"a heartbeat of a group that nothing disturbed was answered with code {code}"

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None
        self.fault = self.fault or f"a connection of the probe was closed: {exc}"


async def _groups(address: str, beside: str, same: bool, groups: int, size: int) -> list[Request]:
    """Heartbeats of all members of so many groups, in the shard of the group ``beside`` or in others."""
    shard = partition_for_group(beside)
    names = (f"probe-{number}" for number in itertools.count())
    chosen = itertools.islice((name for name in names if (partition_for_group(name) == shard) == same), groups)
    members: list[RawMember] = []
    for name in chosen:
        members += await form_group(address, name, size)
    return [HeartbeatRequest(each.group_id, each.generation, each.member_id, None, 0) for each in members]


async def measure(address: str, echo: str, beside: str, groups: int, size: int) -> int:
    """Runs until stdin ends. Exit status 1 when something went wrong that was to be measured."""
    same = await _groups(address, beside, True, groups, size)
    others = await _groups(address, beside, False, groups, size)
    loop = asyncio.get_running_loop()
    watches: dict[str, Stopwatch] = {}
    for kind, server, requests in (
        ("same_shard", address, same),
        ("other_shards", address, others),
        ("loop", address, [ApiVersionsRequest()]),
        ("echo", echo, same),
    ):
        ((host, port),) = parse_bootstrap_servers(server)
        watch = Stopwatch(requests, echoes=kind == "echo")
        await loop.create_connection(lambda one=watch: one, host, port)  # type: ignore[misc]
        watches[kind] = watch
    sending = asyncio.create_task(_send_for_ever(watches))
    try:
        await asyncio.sleep(10 * _TICK_S)
        while await asyncio.to_thread(sys.stdin.readline):
            await _until_timed(watches)
            fault = next((watch.fault for watch in watches.values() if watch.fault), None)
            answer = {"fault": fault} if fault else {kind: watch.take() for kind, watch in watches.items()}
            print(json.dumps(answer), flush=True)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    return 0


async def _until_timed(watches: dict[str, Stopwatch]) -> None:
    """Returns when each kind has something to tell."""
    for watch in watches.values():
        while watch.idle and not watch.fault:  # noqa: ASYNC110  a tick later there is
            await asyncio.sleep(_TICK_S)


async def _send_for_ever(watches: dict[str, Stopwatch]) -> None:
    while True:
        for kind, watch in watches.items():
            for _ in range(1 if kind == "loop" else _HEARTBEATS_PER_TICK):
                watch.send()
        await asyncio.sleep(_TICK_S)


class Probe:
    """The probe as seen from the benchmark."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def take(self, timeout_s: float = _ANSWER_S) -> Measured:
        """What was measured since the last call. Raises ``CommandError``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise CommandError(f"the probe of heartbeats did not answer within {timeout_s:.0f} s") from None
        answer: dict[str, Any] = json.loads(line) if line else {"fault": "the probe of heartbeats ended"}
        if "fault" in answer:
            raise CommandError(answer["fault"])
        return answer


@asynccontextmanager
async def probe(address: str, echo: str, *, beside: str, groups: int, size: int) -> AsyncIterator[Probe]:
    """A probe that runs: ``groups`` groups of ``size`` members in the shard of the group ``beside``, as many in others."""
    arguments = ("-m", "client.bench.probe", address, echo, beside, str(groups), str(size))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=child_environment(),
        start_new_session=True,
    )
    try:
        running = Probe(process)
        await running.take(_READY_S)
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    _address, _echo, _beside, _groups_, _size = sys.argv[1:]
    sys.exit(run(measure(_address, _echo, _beside, int(_groups_), int(_size))))
