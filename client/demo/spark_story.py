"""The story on Spark: real files into a topic, a query that is stopped in the middle and goes on, and the reckoning."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any, Final

from client.admin import Admin
from client.cli.failure import CommandError
from client.cli.output import Output
from client.cli.processes import daemon
from client.consumer import Consumer
from client.demo.files import Lines, find_files
from client.demo.narrator import Narrator
from client.demo.pipeline import COUNTS, LINES, counts, to_parquet, to_topic
from client.producer import Producer
from client.records import TopicPartition

_PARTITIONS: Final = 4
_FIRST_MS: Final = 1_767_225_600_000
"""The lines are given times from the first minute of 2026 on, so that the same files make the same minutes."""
_LINES_A_SECOND: Final = 1000
_BATCHES: Final = 6
_TIMEOUT_S: Final = 600
_STOP_S: Final = 30
_GROUPS: Final = ("count-to-topic", "count-to-parquet")

Minutes = dict[str, tuple[int, int, int]]
"""Lines, words and errors by minute."""


async def tell_on_spark(paths: Sequence[Path], output: Output) -> int:
    """Runs the demonstration; 0 when what Spark counted is what was produced, else 1."""
    narrator = Narrator(output, asyncio.get_running_loop().time)
    files = find_files(paths)
    with tempfile.TemporaryDirectory(prefix="cohort-demo-", ignore_cleanup_errors=True) as directory:
        async with daemon(Path(directory, "data"), "--log-level", "warning") as server:
            async with Admin(bootstrap_servers=server.address) as admin:
                await admin.create_topics({LINES: _PARTITIONS, COUNTS: 1})
            expected, produced = await _produce(server.address, Lines(files))
            narrator.tell(
                "produced", f"{produced:,} lines of {len(files):,} files, {len(expected)} minutes", records=produced
            )
            began = perf_counter()
            try:
                final = await _in_thread(partial(_run, narrator, server.address, Path(directory), produced))
            except (ImportError, RuntimeError) as error:
                raise CommandError(str(error)) from error
            told = await _told(server.address)
            seconds = perf_counter() - began
            async with Admin(bootstrap_servers=server.address) as admin:
                committed = await admin.list_offsets(_GROUPS[0])
    wrong = sorted(minute for minute in expected if told.get(minute) != expected[minute])
    wrong += sorted(minute for minute, counted in final.items() if expected.get(minute) != counted)
    lag = produced - sum(offset.offset for offset in committed.values())
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


async def _in_thread(run: Callable[[Event], Minutes]) -> Minutes:
    """Whoever interrupts it waits until ``run`` has stopped its queries: they are not to outlive their daemon."""
    interrupted = Event()
    running = asyncio.ensure_future(asyncio.to_thread(run, interrupted))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        interrupted.set()
        await asyncio.wait((running,), timeout=_STOP_S)
        if running.done() and not running.cancelled():
            running.exception()  # it says that it was interrupted
        raise


def _run(narrator: Narrator, address: str, directory: Path, produced: int, interrupted: Event) -> Minutes:
    """The queries; returns what is in Parquet at the end."""
    from client.spark import spark_session

    spark = spark_session("cohort-demo")
    spark.sparkContext.setLogLevel("ERROR")
    narrator.tell("spark", f"Spark {spark.version} runs on local[2]", version=spark.version)
    try:
        limit = {"maxOffsetsPerTrigger": str(max(1, produced // _BATCHES))}
        query = to_topic(counts(spark, address, _GROUPS[0], **limit), address, directory).start()
        if _ends(
            query, interrupted, lambda: sum(each["numInputRows"] for each in query.recentProgress) >= produced // 3
        ):
            raise CommandError("the query ended before it was stopped")
        query.stop()
        done = sum(progress["numInputRows"] for progress in query.recentProgress)
        narrator.tell("stopped", f"the query is stopped after {done:,} lines", lines=done)
        for name, writer in (
            ("topic", to_topic(counts(spark, address, _GROUPS[0], **limit), address, directory)),
            ("parquet", to_parquet(counts(spark, address, _GROUPS[1]), directory)),
        ):
            query = writer.trigger(availableNow=True).start()
            _ends(query, interrupted)
            rows = sum(progress["numInputRows"] for progress in query.recentProgress)
            narrator.tell("went-on", f"the query to {name} read {rows:,} lines and is done", to=name, lines=rows)
        table = spark.read.parquet(str(directory / "parquet")).selectExpr("string(minute)", "lines", "words", "errors")
        return {row[0][:16]: (row[1], row[2], row[3]) for row in table.collect()}
    finally:
        if interrupted.is_set():
            spark.sparkContext.setLogLevel("OFF")  # what is stopped complains, page after page
        for query in spark.streams.active:
            query.stop()
        spark.stop()


def _ends(query: Any, interrupted: Event, until: Callable[[], bool] = lambda: False) -> bool:
    """Waits until the query has ended, or until ``until`` says that it is time; whether it has ended."""
    began = perf_counter()
    while not until():
        if query.awaitTermination(0.05):
            return True
        if interrupted.is_set():
            raise CommandError("interrupted")
        if perf_counter() - began > _TIMEOUT_S:
            raise CommandError(f"the query did not get on within {_TIMEOUT_S} s")
    return False


async def _produce(address: str, lines: Lines) -> tuple[Minutes, int]:
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


async def _told(address: str) -> Minutes:
    """The last word of each minute in the topic of results."""
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
