"""A program that transforms exactly once, as a process of its own that tests kill: ``ADDRESS TRANSACTIONAL_ID ASSIGNOR``.

It answers every number of the source and works until the end of its stdin. What goes wrong for good ends it with status 1.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Final

from client import ConsumerRecord, CooperativeStickyAssignor, Output, RangeAssignor, run
from tests.integration.transforming import answers, member, producer

ASSIGNORS: Final = {assignor.name: assignor for assignor in (RangeAssignor, CooperativeStickyAssignor)}
TRANSACTION_TIMEOUT_MS: Final = 2_500
_STOP_S: Final = 10.0


class Program:
    """The process, as tests see it."""

    def __init__(self, address: str, transactional_id: str, assignor: str) -> None:
        self.transactional_id = transactional_id
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.transforming_program", address, transactional_id, assignor],
            stdin=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """The exit status once it has ended."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._wait()

    def stop(self) -> int:
        """Has it leave its group; returns the exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._wait()

    def _wait(self) -> int:
        status = self._process.wait(60)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return status


async def handle(record: ConsumerRecord) -> list[Output]:
    """Slow enough to be killed in the middle."""
    await asyncio.sleep(0.002)
    return answers(record)


async def main(address: str, transactional_id: str, assignor: str) -> None:
    """Works until stdin ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    ended = asyncio.create_task(reader.read())
    consumer = member(address, assignors=[ASSIGNORS[assignor]], request_timeout_ms=5_000, revoke_grace_ms=300)
    sending = producer(
        address, transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, request_timeout_ms=5_000
    )
    async with sending, consumer:
        processing = asyncio.create_task(consumer.process(handle, producer=sending, commit_interval_ms=60))
        await asyncio.wait([processing, ended], return_when=asyncio.FIRST_COMPLETED)
        if processing.done():
            await processing
        await consumer.stop(timeout=_STOP_S)
        await processing


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
