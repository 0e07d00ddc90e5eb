"""A member process that handles records by key and is to be killed: some handlers are slow, so that others overtake them.

``--without contiguous-commits`` takes away what makes its commits right: the highest record that is done is committed then,
whatever is not done below it. A test sees to it that this is found.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Final
from unittest.mock import patch

from client import Consumer, ConsumerRecord
from client.consumer.offsets_in_work import OffsetsInWork
from tests.chaos.ledger import Ledger
from tests.chaos.worker_process import arguments, commands, run
from tests.chaos.working import HandlingByKey

SLOW_EVERY: Final = 40
SLOW_S: Final = 0.8


def _highest_done(work: OffsetsInWork, offset: int) -> None:
    while work.first is not None and work.first <= offset:
        work._taken.popleft()


def without_contiguous_commits() -> AbstractContextManager[object]:
    """What is done counts as if all before it were done."""
    return patch.object(OffsetsInWork, "finish", _highest_done)


ABLATIONS: Final = {"nothing": nullcontext, "contiguous-commits": without_contiguous_commits}


class SlowByKey(HandlingByKey):
    """One record of forty is slow."""

    def _seconds(self, record: ConsumerRecord) -> float:
        return SLOW_S if record.offset % SLOW_EVERY == 0 else self.random.uniform(0, 0.004)


class KeyMember:
    """A consumer that commits by the clock, until its stdin ends."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._ledger = Ledger(options.ledger)
        self._leaving = asyncio.Event()

    async def run(self) -> int:
        """Works until it is told to leave."""
        options = self._options
        consumer = Consumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            client_id=options.name,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=20,
            session_timeout_ms=2_000,
            heartbeat_interval_ms=200,
            rebalance_timeout_ms=6_000,
        )
        working = SlowByKey(consumer, self._ledger, Random(options.seed), "auto")
        obeying = asyncio.create_task(self._obey())
        consumer.subscribe(topics=[options.topic], listener=working)
        with ABLATIONS[options.without]():
            async with consumer:
                await working.work(self._leaving)
            await working.end()
        obeying.cancel()
        self._ledger.write("left")
        return 0

    async def _obey(self) -> None:
        async for _ in commands():
            continue
        self._leaving.set()


def main() -> int:
    """Entry point of the process."""
    parser = arguments("tests.chaos.key_member", __doc__, "group", "topic")
    parser.add_argument("--without", choices=sorted(ABLATIONS), default="nothing")
    return run(parser, KeyMember)


if __name__ == "__main__":
    sys.exit(main())
