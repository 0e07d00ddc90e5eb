"""One member of the demonstration's group, a process of its own: counts words, writes them down, then commits.

Reads commands from stdin, one a line: ``go BATCH`` (begin, with at most so many records at a time), ``halt N`` (stop dead
once N records are processed, with the last batch not committed; for the member that is going to be killed), ``stop``
(leave the group). The end of stdin means ``stop`` too, so no member outlives the demonstration. Reports events on stdout,
one JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from client.cli.session import configure_logging, run
from client.consumer import Consumer
from client.consumer.rebalance_listener import RebalanceListener
from client.demo.counting import contribution, encode
from client.errors import CommitFailedError
from client.types.records import ConsumerRecord, TopicPartition

SESSION_TIMEOUT_MS: Final = 2000
HEARTBEAT_INTERVAL_MS: Final = 500
_POLL_MS: Final = 100
_STOP_TIMEOUT_S: Final = 10.0


class _Runs(Protocol):
    """A member of a demonstration."""

    async def run(self) -> int:
        """Works until it is told to stop; returns the exit status."""


class CountingMember(RebalanceListener):
    """A consumer that commits what it has counted and written down, never more."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._consumer = Consumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            client_id=options.name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        )
        self._topic: str = options.topic
        self._results: Path = options.results
        self._batch = 0  # 0: wait for the command to go
        self._halt_at: int | None = None
        self._stopping = False
        self._processed = 0
        self._uncommitted: dict[TopicPartition, int] = {}
        self._committing = asyncio.Lock()

    async def run(self) -> int:
        """Works until it is told to stop."""
        commands = asyncio.create_task(self._obey())
        self._consumer.subscribe(topics=[self._topic], listener=self)
        await self._consumer.start()
        try:
            with self._results.open("ab", buffering=0) as results:
                while not self._stopping:
                    batches = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=self._room())
                    if any(batches.values()):
                        self._process(batches, results.fileno())
                        if self._halt_at is not None and self._processed >= self._halt_at:
                            report("halted", processed=self._processed, uncommitted=len_of(batches))
                            await asyncio.Event().wait()  # until it is killed
                        await self._commit()
        finally:
            commands.cancel()
            await self._consumer.stop(timeout=_STOP_TIMEOUT_S)
        return 0

    def _room(self) -> int:
        room = self._batch or 1
        return room if self._halt_at is None else min(room, self._halt_at - self._processed)

    def _process(self, batches: Mapping[TopicPartition, Sequence[ConsumerRecord]], results: int) -> None:
        """Counts a batch and writes the result down.

        A process that is killed loses nothing that it has given to the kernel, so no fsync is needed here.
        """
        filled = {partition: records for partition, records in batches.items() if records}
        content = memoryview(encode(contribution(records) for records in filled.values()))
        while content:
            content = content[os.write(results, content) :]
        for partition, records in filled.items():
            self._uncommitted[partition] = records[-1].offset + 1
        self._processed += len_of(filled)
        report("processed", total=self._processed)

    async def _commit(self) -> None:
        async with self._committing:
            offsets, self._uncommitted = self._uncommitted, {}
            if not offsets:
                return
            try:
                await self._consumer.commit(offsets)
            except CommitFailedError as error:  # the next owner is given these records again
                report("commit-failed", reason=str(error))

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Commits what is done before the next owner goes on from there."""
        await self._commit()

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Reports what this member owns; it waits for the command to go before it reads."""
        if self._batch:
            self._consumer.resume(*tps)
        else:
            self._consumer.pause(*tps)
        report(
            "assigned",
            generation=self._consumer.group_metadata().generation,
            partitions=sorted(partition.partition for partition in tps),
            reason=reason,
        )

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Forgets what can no longer be committed: the next owner is given it again."""
        for partition in sorted(tps):
            self._uncommitted.pop(partition, None)
        report("lost", reason=reason)

    async def _obey(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            match line.decode().split():
                case ["go", batch]:
                    self._batch = int(batch)
                    self._consumer.resume(*self._consumer.paused())
                case ["halt", processed]:
                    self._halt_at = int(processed)
                case _:
                    break
        self._stopping = True


def len_of(batches: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> int:
    """How many records these are."""
    return sum(map(len, batches.values()))


def report(event: str, **details: Any) -> None:
    """Tells the demonstration what happened."""
    print(json.dumps({"event": event, **details}), flush=True)


def main() -> int:
    """Entry point of the process."""
    parser = member_parser("client.demo.member", __doc__)
    parser.add_argument("--results", type=Path, required=True)
    return run_member(CountingMember, parser.parse_args())


def member_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """The options of every member of a demonstration."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    for name in ("bootstrap", "group", "topic", "name"):
        parser.add_argument(f"--{name}", required=True)
    return parser


def run_member(member: Callable[[argparse.Namespace], _Runs], options: argparse.Namespace) -> int:
    """Runs a member, made on the event loop, until it is told to stop; returns the exit status."""
    configure_logging()

    async def work() -> int:
        return await member(options).run()

    return run(work())


if __name__ == "__main__":
    sys.exit(main())
