"""The story on Spark: real files into a topic, a query that is stopped in the middle and goes on, and the comparison."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from client.admin import Admin
from client.cli.output import Output
from client.cli.processes import daemon
from client.consumer import Consumer
from client.demo.files import Lines, find_files
from client.demo.narrator import Narrator
from client.demo.pipeline import COUNTS, LINES
from client.demo.spark_process import SparkProcess, check_spark
from client.demo.spark_queries import GROUPS
from client.producer.producer import Producer
from client.types.records import TopicPartition

_PARTITIONS: Final = 4
_FIRST_MS: Final = 1_767_225_600_000
"""The lines are given times from the first minute of 2026 on, so that the same files make the same minutes."""
_LINES_A_SECOND: Final = 1000

Minutes = dict[str, tuple[int, int, int]]
"""Lines, words and errors by minute."""


async def tell_on_spark(paths: Sequence[Path], output: Output) -> int:
    """Runs the demonstration; 0 when what Spark counted is what was produced, else 1.

    Everything it starts is gone when it returns, also after an error or Ctrl-C. Raises ``CommandError`` with one line:
    before anything is started when Spark or Java is missing, later when a query fails, then naming a file with Spark's log.
    """
    check_spark()
    narrator = Narrator(output, asyncio.get_running_loop().time)
    files = find_files(paths)
    with tempfile.TemporaryDirectory(prefix="cohort-demo-", ignore_cleanup_errors=True) as directory:
        async with (
            daemon(Path(directory, "data"), "--log-level", "warning") as server,
            SparkProcess(Path(directory)) as spark,
        ):
            narrator.tell(
                "daemon",
                f"a daemon serves at {server.address}, process {server.pid}; Spark is starting",
                address=server.address,
                pid=server.pid,
            )
            await spark.start(server.address)
            await create_topics(server.address)
            expected, produced = await produce(server.address, Lines(files))
            narrator.tell(
                "produced", f"{produced:,} lines of {len(files):,} files, {len(expected)} minutes", records=produced
            )
            began_s = narrator.seconds()
            spark.go(produced)
            final = await _final(spark, narrator)
            told = await _told(server.address)
            seconds = narrator.seconds() - began_s
            async with Admin(bootstrap_servers=server.address) as admin:
                committed = await admin.list_offsets(GROUPS[0])
    lag = produced - sum(offset.offset for offset in committed.values())
    return _conclude(narrator, expected, told, final, lag, seconds)


async def create_topics(address: str) -> None:
    """The topic of the lines keeps them however old their times are, the topic of the counts has one partition."""
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topics({LINES: _PARTITIONS}, {"retention.ms": -1})
        await admin.create_topics({COUNTS: 1})


async def produce(address: str, lines: Lines) -> tuple[Minutes, int]:
    """Sends every line at its time; returns a plain count by minute, and how many lines there are."""
    minutes: Minutes = {}
    number = 0
    async with Producer(bootstrap_servers=address) as producer:
        for keys, values in lines.batches():
            futures = []
            for key, value in zip(keys, values, strict=True):
                timestamp_ms = _FIRST_MS + number * 1000 // _LINES_A_SECOND
                partition = number % _PARTITIONS  # in turn: time passes in all alike, so that no line is late
                futures.append(await producer.send(LINES, value, key, partition=partition, timestamp_ms=timestamp_ms))
                number += 1
                _count(minutes, timestamp_ms, value)
            await asyncio.gather(*futures)
    return minutes, number


def _count(minutes: Minutes, timestamp_ms: int, value: bytes) -> None:
    minute = f"2026-01-{1 + (timestamp_ms - _FIRST_MS) // 86_400_000:02} "
    of_day = (timestamp_ms - _FIRST_MS) // 60_000 % 1440
    minute += f"{of_day // 60:02}:{of_day % 60:02}"
    lines, words, errors = minutes.get(minute, (0, 0, 0))
    minutes[minute] = (lines + 1, words + len(value.split()), errors + (b"error" in value.lower()))


async def _final(spark: SparkProcess, narrator: Narrator) -> Minutes:
    """Tells what Spark does; returns what is in Parquet at the end."""
    event = await spark.told(narrator)
    return {minute: (lines, words, errors) for minute, (lines, words, errors) in event["minutes"].items()}


async def _told(address: str) -> Minutes:
    """The last count of each minute in the topic of results."""
    told: Minutes = {}
    partition = TopicPartition(COUNTS, 0)
    async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            for record in (await consumer.getmany(timeout_ms=1000)).get(partition, []):
                row = json.loads(record.value or b"{}")
                told[(record.key or b"").decode()] = (row["lines"], row["words"], row["errors"])
    return told


def _conclude(narrator: Narrator, expected: Minutes, told: Minutes, final: Minutes, lag: int, seconds: float) -> int:
    """Compares what Spark counted with the plain count; the exit status."""
    wrong = sorted(minute for minute in expected if told.get(minute) != expected[minute])
    wrong += sorted(minute for minute, counted in final.items() if expected.get(minute) != counted)
    produced = sum(lines for lines, _, _ in expected.values())
    counted = sum(lines for lines, _, _ in told.values())
    result: dict[str, Any] = {
        "produced": produced,
        "delivered": counted,
        "lost": produced - counted,
        "words": sum(words for _, words, _ in told.values()),
        "errors": sum(errors for _, _, errors in told.values()),
        "minutes": len(told),
        "final_minutes": len(final),
        "wrong_minutes": wrong,
        "lag": lag,
        "seconds": round(seconds, 3),
    }
    narrator.tell(
        "result",
        f"Spark counted {counted:,} lines, {result['words']:,} words and {result['errors']:,} errors in "
        f"{len(told)} minutes; {len(final)} are final in Parquet; {len(wrong)} differ from a plain count; lag {lag}",
        **result,
    )
    return 0 if not wrong and lag == 0 else 1
