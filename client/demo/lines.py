"""What the demonstrations of exactly once share: which files they read, their lines in a topic, and what came of each line.

Every line becomes a record of its own, and every output says which line it is of. So it can be told at the end which lines
were answered, and how often.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from client.admin import Admin
from client.consumer import Consumer
from client.demo.counting import Contribution, of_output
from client.demo.files import Lines, SourceFile, find_files
from client.producer.producer import Producer
from client.types.records import IsolationLevel, TopicPartition

TOPIC: Final = "lines"
_PACKAGES: Final = ("asyncio", "concurrent", "email", "http", "json", "logging")
"""Of the standard library, which the demonstration reads unless it is given paths: each line is a record by itself."""
_READ_MS: Final = 1_000

Ends = dict[int, int]
"""By partition of the topic of lines: the offset after the last one that is acknowledged."""


def files_of(paths: Sequence[Path]) -> list[SourceFile]:
    """The files meant by ``paths``. Raises ``CommandError`` as ``find_files`` does."""
    library = Path(sysconfig.get_paths()["stdlib"])
    return find_files(paths or [library / package for package in _PACKAGES])


async def produce_lines(address: str, lines: Lines) -> Ends:
    """Sends every line, keyed by its file; the topic is there."""
    ends: Ends = {}
    async with Producer(address, "demo-producer") as producer:
        for keys, values in lines.batches():
            for metadata in await producer.send_many(TOPIC, values, keys):
                ends[metadata.partition] = max(ends.get(metadata.partition, 0), metadata.offset + 1)
    return ends


async def outputs_of(address: str, topic: str, isolation_level: IsolationLevel) -> list[Contribution]:
    """Everything that a reader sees in a topic of outputs."""
    found: list[Contribution] = []
    async with Admin(bootstrap_servers=address) as admin:
        partitions = range(len((await admin.describe_topics(topic))[topic].partitions))
    consumer = Consumer(bootstrap_servers=address, auto_offset_reset="earliest", isolation_level=isolation_level)
    consumer.assign([TopicPartition(topic, number) for number in partitions])
    async with consumer:
        while any((await consumer.lag()).values()):
            for records in (await consumer.getmany(timeout_ms=_READ_MS)).values():
                found += map(of_output, records)
    return found
