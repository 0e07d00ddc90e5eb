"""From "earliest", a time or JSON to an offset for each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from client.spark.driver import Driver
from client.spark.errors import OptionsError
from client.spark.options import EARLIEST, LATEST, SourceOptions, Start
from protocol.subscription import TopicPartition

Offsets = dict[TopicPartition, int]


def starting_offsets(driver: Driver, options: SourceOptions, partitions: Sequence[TopicPartition]) -> Offsets:
    """Where a query without a checkpoint begins."""
    if options.starting_timestamps is not None:
        name = "startingTimestamp" if isinstance(options.starting_timestamps, int) else "startingOffsetsByTimestamp"
        strategy = options.without_later_records
        return _by_timestamp(driver, options.starting_timestamps, partitions, name, strategy)
    return _resolved(driver, options, options.starting, partitions, "startingOffsets")


def ending_offsets(driver: Driver, options: SourceOptions, partitions: Sequence[TopicPartition]) -> Offsets:
    """Where a batch ends."""
    if options.ending_timestamps is not None:
        return _by_timestamp(driver, options.ending_timestamps, partitions, "endingOffsetsByTimestamp", "latest")
    return _resolved(driver, options, options.ending, partitions, "endingOffsets")


def _resolved(
    driver: Driver, options: SourceOptions, where: Start, partitions: Sequence[TopicPartition], name: str
) -> Offsets:
    if where == "committed":
        assert options.group_id is not None, "options are checked: committed needs a group"
        committed = driver.committed(options.group_id)
        rest = [partition for partition in partitions if partition not in committed]
        known = {partition: committed[partition] for partition in partitions if partition in committed}
        return known | driver.listed(dict.fromkeys(rest, EARLIEST))
    if isinstance(where, str):
        return driver.listed(dict.fromkeys(partitions, EARLIEST if where == "earliest" else LATEST))
    _check_complete(where, partitions, name)
    relative = {partition: offset for partition, offset in where.items() if offset < 0}
    return dict(where) | driver.listed(relative)


def _by_timestamp(
    driver: Driver,
    timestamps_ms: int | Mapping[TopicPartition, int],
    partitions: Sequence[TopicPartition],
    name: str,
    strategy: Literal["error", "latest"],
) -> Offsets:
    if isinstance(timestamps_ms, int):
        timestamps_ms = dict.fromkeys(partitions, timestamps_ms)
    _check_complete(timestamps_ms, partitions, name)
    found = driver.listed(timestamps_ms)
    without = sorted(partition for partition, offset in found.items() if offset < 0)
    if without and strategy == "error":
        raise OptionsError(
            [
                f"{name}: {_names(without)} have no record so late; startingOffsetsByTimestampStrategy=latest begins at "
                "their ends"
            ]
        )
    return found | driver.listed(dict.fromkeys(without, LATEST))


def _check_complete(given: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition], name: str) -> None:
    faults = []
    missing = sorted(set(partitions) - set(given))
    if missing:
        faults.append(f"{name} leaves out {_names(missing)}; name every partition that is read")
    unknown = sorted(set(given) - set(partitions))
    if unknown:
        faults.append(f"{name} names {_names(unknown)}, which are not read or do not exist")
    if faults:
        raise OptionsError(faults)


def _names(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(f"{partition.topic}-{partition.partition}" for partition in partitions[:10])
    return shown + (f" and {len(partitions) - 10} more" if len(partitions) > 10 else "")
