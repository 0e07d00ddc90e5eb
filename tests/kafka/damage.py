"""``python -m tests.kafka.damage``: damaged requests of every key and version against a ``cohortd``, over its sockets.

The daemon has to stay up and its memory flat, answers have to be of their kind, and a client beside it that asks sound
things has to get the right answers. Exit 1 with what was violated. A run of the same seed draws the same requests, but what
comes of them depends on how connections take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter, deque
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

from protocol.kafka.batch import read_batch_header
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.kafka.messages.offset_fetch_request import OffsetFetchRequest, OffsetFetchRequestTopic
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.coordinator.kafka.any_request import BATCH
from tests.coordinator.kafka.wire import KafkaWire, connected, request_kind
from tests.daemon_process import DaemonProcess
from tests.kafka.damaged_requests import Asked, Drawn, Served, Violation, sent

OPTIONS: Final = (
    *("--kafka-port", "-1", "--flush", "os"),
    # What a request may leave behind is bounded by these, and reached long before memory is compared.
    *("--max-partitions", "300", "--max-partitions-per-topic", "20", "--max-transactional-ids", "300"),
    *("--max-fetch-wait-ms", "20", "--kafka-heartbeat-hold-ms", "20"),
)
CONNECTIONS: Final = 64
GROWTH_BYTES: Final = 32 * 1024 * 1024
"""How much more the daemon may have in memory at the end than after a third: what requests leave behind beside the above are
offsets of groups with damaged names, some KiB each."""
_TOPIC: Final = "bystander"
_BESIDE_S: Final = 0.1
_TELL_S: Final = 10.0
_LINES_OF_A_FAULT: Final = 60


class Outcome(NamedTuple):
    """What became of the requests, and what the daemon had in memory after a third of them and at the end, in bytes."""

    fates: Counter[str]
    after_a_third: int
    at_the_end: int
    questions_beside: int


class Bystander:
    """A client that asks sound things, over one connection, and knows the answers."""

    def __init__(self, wire: KafkaWire) -> None:
        self.asked = 0
        self._wire = wire

    async def begin(self) -> None:
        """Makes its topic."""
        made = await self._wire.ask(CreateTopicsRequest([CreatableTopic(_TOPIC, 1, -1)]), 5)
        _right(made.topics[0].error_code == 0, made)

    async def ask(self) -> None:
        """Writes a record, reads it, and commits it. Raises ``Violation`` for any answer that is not the right one."""
        offset, ask = self.asked, self._wire.ask
        produced = await ask(
            ProduceRequest(
                None, -1, 10_000, [TopicProduceData(_TOPIC, partition_data=[PartitionProduceData(0, BATCH)])]
            ),
            9,
        )
        (told,) = produced.responses[0].partition_responses
        _right((told.error_code, told.base_offset) == (0, offset), produced)
        wanted = FetchTopic(_TOPIC, partitions=[FetchPartition(0, -1, offset, partition_max_bytes=1 << 20)])
        fetched = await ask(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[wanted]), 11)
        (read,) = fetched.responses[0].partitions
        _right(read.error_code == 0 and read_batch_header(read.records).base_offset == offset, fetched)
        _right(read.records[-9:] == BATCH[-9:], fetched)
        partition = OffsetCommitRequestPartition(0, offset, -1, "why")
        topic = OffsetCommitRequestTopic(_TOPIC, partitions=[partition])
        committed = await ask(OffsetCommitRequest(_TOPIC, topics=[topic]), 7)
        _right(committed.topics[0].partitions[0].error_code == 0, committed)
        known = await ask(OffsetFetchRequest(_TOPIC, [OffsetFetchRequestTopic(_TOPIC, [0])]), 7)
        _right(known.topics[0].partitions[0].committed_offset == offset, known)
        metadata = await ask(MetadataRequest([MetadataRequestTopic(name=_TOPIC)]), 9)
        _right([each.error_code for each in metadata.topics] == [0], metadata)
        self.asked += 1


def _right(is_right: bool, answer: object) -> None:
    if not is_right:
        raise Violation(f"a client beside the damage got a wrong answer: {answer}")


async def served_by(wire: KafkaWire) -> dict[int, Served]:
    """Every key that the daemon serves, with its versions: of Produce it tells more, for the sake of librdkafka."""
    told = await wire.ask(ApiVersionsRequest(), 0)
    return {
        each.api_key: Served(max(each.min_version, request_kind(each.api_key).VERSIONS[0]), each.max_version)
        for each in told.api_keys
    }


async def damage(daemon: DaemonProcess, requests: int, seed: int) -> Outcome:
    """Sends so many. Raises ``Violation``, and ``OSError`` when the daemon is gone."""
    fates: Counter[str] = Counter()
    again: deque[Asked] = deque()
    thirds: list[int] = []
    async with connected(daemon.kafka_address) as wire:
        bystander = Bystander(wire)
        await bystander.begin()
        drawn = Drawn(await served_by(wire), seed)

        async def send() -> None:
            while fates.total() < requests:
                await sent(daemon.kafka_address, again, drawn, fates)
                if not thirds and fates.total() >= requests / 3:
                    thirds.append(daemon.resident_bytes())

        async def stand_by() -> None:
            began = told_at = perf_counter()
            while fates.total() < requests:
                await bystander.ask()
                await asyncio.sleep(_BESIDE_S)
                if perf_counter() - told_at > _TELL_S:
                    told_at = perf_counter()
                    print(
                        f"{told_at - began:.0f} s: {fates.total():,} of {requests:,}, {_megabytes(daemon.resident_bytes())}",
                        flush=True,
                    )

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stand_by())
            for _ in range(CONNECTIONS):
                tasks.create_task(send())
        await bystander.ask()
    at_the_end = daemon.resident_bytes()
    must_be_flat(thirds[0], at_the_end)
    faults = [at for at, line in enumerate(daemon.output) if "request_failed" in line or "Traceback" in line]
    if faults:
        first = "".join(daemon.output[faults[0] : faults[0] + _LINES_OF_A_FAULT])
        raise Violation(f"the daemon's log tells of faults of its own, in {len(faults)} lines:\n{first}")
    return Outcome(fates, thirds[0], at_the_end, bystander.asked)


def must_be_flat(after_a_third: int, at_the_end: int) -> None:
    """Raises ``Violation`` when the daemon has more in memory, in bytes, than what requests may leave behind explains."""
    if at_the_end > after_a_third + GROWTH_BYTES:
        raise Violation(f"memory grew from {_megabytes(after_a_third)} after a third to {_megabytes(at_the_end)}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def main() -> int:
    """Runs the command line; returns the exit status."""
    command = argparse.ArgumentParser(prog="python -m tests.kafka.damage", description=__doc__)
    command.add_argument("--requests", type=int, default=100_000, metavar="N")
    command.add_argument("--seed", type=int, default=0)
    options = command.parse_args()
    began = perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="cohort-damage-") as directory,
        DaemonProcess(Path(directory), *OPTIONS) as daemon,
    ):
        try:
            outcome = asyncio.run(damage(daemon, options.requests, options.seed))
        except (Violation, OSError, ExceptionGroup) as error:
            violated = error.exceptions if isinstance(error, ExceptionGroup) else [error]
            said = f"seed {options.seed}: {type(violated[0]).__name__}: {violated[0]}"
            print(said, *daemon.output[-20:], sep="\n", file=sys.stderr)
            return 1
    print(f"seed {options.seed}: {dict(outcome.fates)} in {perf_counter() - began:.0f} s")
    print(f"memory: {_megabytes(outcome.after_a_third)} after a third, {_megabytes(outcome.at_the_end)} at the end")
    print(f"{outcome.questions_beside} questions beside it were answered right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
