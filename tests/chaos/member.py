"""A member process of the chaos run: reads, writes down what it was given, finished and committed, obeys its stdin.

Commands, one a line: ``subscribe TOPIC...``, ``pattern REGEX``, ``block SECONDS``, ``rebalance``, ``die-at-commit``,
``leave``. The end of
stdin means ``leave`` too, so that no member outlives the run. A member that is fenced says so in its ledger and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from random import Random
from typing import Final

from client import CohortError, Consumer, FencedInstanceIdError, RangeAssignor, RoundRobinAssignor
from client.assignors import Assignor, CooperativeStickyAssignor, StickyAssignor
from tests.chaos.ledger import Ledger
from tests.chaos.worker_process import arguments, commands, run
from tests.chaos.working import Handling, HandlingByKey, Polling, Working

ASSIGNORS: Final[dict[str, type[Assignor]]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
WORK: Final[dict[str, type[Working]]] = {"poll": Polling, "process": Handling, "keys": HandlingByKey}
COMMIT_MODES: Final = ("batch", "record", "auto")
SESSION_TIMEOUT_MS: Final = 3_000
STATIC_SESSION_TIMEOUT_MS: Final = 6_000
"""Longer, so that a process can come back within it on a busy machine."""


def compute(seconds: float) -> None:
    """What a handler does that does not let the event loop run."""
    time.sleep(seconds)


class ChaosMember:
    """A consumer and what it works with, from the first start to the end it is asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = Random(options.seed)
        self._ledger = Ledger(options.ledger)
        self._topics: list[str] = options.topics.split(",")
        self._leaving = asyncio.Event()
        self._asking: dict[asyncio.Task[None], None] = {}
        self._consumer = self._new_consumer()
        self._working = self._new_working()

    def _new_working(self) -> Working:
        return WORK[self._options.work](self._consumer, self._ledger, self._random, self._options.commits)

    def _new_consumer(self) -> Consumer:
        options = self._options
        static = options.instance is not None
        return Consumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            client_id=options.name,
            group_instance_id=options.instance,
            assignors=[ASSIGNORS[name] for name in options.assignors.split(",")],
            auto_offset_reset="earliest",
            enable_auto_commit=options.commits == "auto",
            auto_commit_interval_ms=700,
            session_timeout_ms=STATIC_SESSION_TIMEOUT_MS if static else SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=800,
            max_poll_interval_ms=20_000,
            rebalance_timeout_ms=6_000,
            request_timeout_ms=4_000,
            revoke_grace_ms=500,
            random=Random(self._random.getrandbits(64)),
        )

    async def run(self) -> int:
        """Works until it is told to leave, or fenced."""
        options = self._options
        self._ledger.write("started", mode=options.commits, work=options.work, assignors=options.assignors)
        obeying = asyncio.create_task(self._obey())
        try:
            if await self._start():
                await self._work()
        finally:
            for task in (obeying, *self._asking):
                task.cancel()
            await self._consumer.stop(timeout=8)
            await self._working.end()
            self._ledger.write("left")
        return 0

    async def _start(self) -> bool:
        while not self._leaving.is_set():
            self._consumer.subscribe(topics=self._topics, listener=self._working)
            try:
                await self._consumer.start()
            except CohortError as error:
                self._ledger.write("error", what="start", error=type(error).__name__, text=str(error))
                self._consumer = self._new_consumer()
                self._working = self._new_working()
            else:
                return True
        return False

    async def _work(self) -> None:
        while not self._leaving.is_set():
            try:
                await self._working.work(self._leaving)
            except FencedInstanceIdError as error:
                self._ledger.write("fenced", text=str(error))
                return
            except CohortError as error:
                self._ledger.write("error", what=self._options.work, error=type(error).__name__, text=str(error))
                await asyncio.sleep(0.1)

    async def _obey(self) -> None:
        async for line in commands():
            match line.split():
                case ["subscribe", *topics]:
                    self._topics = topics
                    self._consumer.subscribe(topics=topics, listener=self._working)
                case ["block", seconds]:
                    self._ledger.write("blocking", seconds=float(seconds))
                    compute(float(seconds))
                case ["pattern", pattern]:
                    self._consumer.subscribe(pattern=pattern, listener=self._working)
                case ["die-at-commit"]:
                    self._working.dies_at_commit = True
                case ["rebalance"]:
                    self._asking[asyncio.create_task(self._rebalance())] = None
                case _:
                    break
            self._ledger.write("subscription", line=line)
        self._leaving.set()

    async def _rebalance(self) -> None:
        try:
            await self._consumer.enforce_rebalance("a member of the chaos run asked for it")
        except CohortError as error:
            self._ledger.write("error", what="rebalance", error=type(error).__name__, text=str(error))


def main() -> int:
    """Entry point of the process."""
    parser = arguments("tests.chaos.member", __doc__, "group", "topics", "assignors")
    parser.add_argument("--instance")
    parser.add_argument("--work", required=True, choices=sorted(WORK))
    parser.add_argument("--commits", required=True, choices=COMMIT_MODES)
    return run(parser, ChaosMember)


if __name__ == "__main__":
    sys.exit(main())
