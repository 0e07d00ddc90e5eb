"""What a micro-batch takes: of Spark alone, of a source and a sink in Python that do nothing, and of Cohort's.

The queries take turns, since machines change from minute to minute.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from statistics import median
from time import perf_counter, sleep
from types import MappingProxyType
from typing import Any, Final

from client.bench.figures import Figure
from client.cli.failure import CommandError
from client.producer.producer import Producer

_PARTITIONS: Final = 2
_WARM: Final = 2
"""Batches of a query that do not count: the first ones start processes."""
_TIMEOUT_S: Final = 600
_LEAST: Final = MappingProxyType({"delivery": "at-least-once"})
_ONCE: Final = MappingProxyType({"delivery": "exactly-once"})


def micro_batches(spark: Any, address: str, wanted: int, rounds: int) -> Iterator[Figure]:
    """Each kind next to the one that does less."""
    own, python, least, once = [], [], [], []
    for number in range(rounds):
        own += _own(spark, wanted)
        python += _python(spark, wanted)
        least += _cohort(spark, address, wanted, _LEAST)
        group = {"group.id": f"steady-{number}"}
        once += _cohort(spark, address, wanted, {**_ONCE, **group}, group)
    for metric, found, beside, name in (
        ("python_micro_batch_p50_ms", python, own, "Spark's own rate-micro-batch to nowhere"),
        ("micro_batch_p50_ms", least, python, "a source and a sink in Python that do nothing"),
        ("exactly_once_micro_batch_p50_ms", once, least, "at least once without a group"),
    ):
        params = {"batches": len(found), "rounds": rounds, "partitions": _PARTITIONS, "master": "local[2]"}
        params |= {"slowest_ms": max(found), "more_ms": round(median(found) - median(beside))}
        yield Figure("spark", metric, median(found), "ms", median(beside), f"{name}, in turns", params)


def _own(spark: Any, wanted: int) -> list[int]:
    """Batches without a Python worker."""
    options = {"rowsPerBatch": str(_PARTITIONS), "numPartitions": str(_PARTITIONS)}
    with tempfile.TemporaryDirectory(prefix="cohort-bench-") as checkpoint:
        rows = spark.readStream.format("rate-micro-batch").options(**options).load()
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        return _batches(query, wanted)


def _python(spark: Any, wanted: int) -> list[int]:
    """Batches of one row a partition, from Python and to Python. The format is registered by the one who calls."""
    options = {"rows": str(_PARTITIONS), "size": "100", "partitions": str(_PARTITIONS)}
    with tempfile.TemporaryDirectory(prefix="cohort-bench-") as checkpoint:
        rows = spark.readStream.format("cohort-floor").options(**options).load().select("key", "value")
        query = rows.writeStream.format("cohort-floor").option("checkpointLocation", checkpoint).start()
        return _batches(query, wanted)


def _batches(query: Any, wanted: int) -> list[int]:
    try:
        began = perf_counter()
        while len(found := _found(query)) < wanted + _WARM:
            _check(query, found, wanted, began)
            sleep(0.1)
        return found[_WARM:]
    finally:
        query.stop()


def _cohort(
    spark: Any, address: str, wanted: int, sink: Mapping[str, str], source: Mapping[str, str] = MappingProxyType({})
) -> list[int]:
    """Records come all the time; a batch begins when the one before is done."""
    common = {"bootstrap.servers": address}
    with tempfile.TemporaryDirectory(prefix="cohort-bench-") as checkpoint:
        query = (
            spark.readStream.format("cohort")
            .options(**common, subscribe="steady", startingOffsets="latest", **source)
            .load()
            .select("key", "value")
            .writeStream.format("cohort")
            .options(**common, topic="out", checkpointLocation=checkpoint, **sink)
            .start()
        )
        try:
            return asyncio.run(_steady(address, query, wanted))
        finally:
            query.stop()


async def _steady(address: str, query: Any, wanted: int) -> list[int]:
    began = perf_counter()
    async with Producer(bootstrap_servers=address) as producer:
        while True:
            for partition in range(_PARTITIONS):
                await producer.send_and_wait("steady", b"x" * 100, partition=partition)
            found = _found(query)
            if len(found) >= wanted + _WARM:
                return found[_WARM:]
            _check(query, found, wanted, began)
            await asyncio.sleep(0.02)


def _found(query: Any) -> list[int]:
    """The milliseconds of each batch with rows."""
    return [int(one["durationMs"]["triggerExecution"]) for one in query.recentProgress if one["numInputRows"]]


def _check(query: Any, found: list[int], wanted: int, began: float) -> None:
    if query.exception() is not None or perf_counter() - began > _TIMEOUT_S:
        raise CommandError(f"spark: {len(found)} of {wanted} micro-batches: {query.exception()}")
