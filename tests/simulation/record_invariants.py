"""What must hold for records in particular: exactly once where producers number them, and what logs keep."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import History, Partition, name_of
from tests.simulation.registry import invariant


@invariant
def numbered_records_are_there_once(history: History) -> Iterator[str]:
    """Whatever was sent again or came twice: no record of an idempotent producer has two offsets (KIP-98)."""
    for partition, log in history.log.items():
        seen: dict[str, int] = {}
        for offset, value in log:
            first = seen.setdefault(value, offset)
            sent = history.sent.get(value)
            if first != offset and sent is not None and sent.producer in history.records.numbered:
                yield f"{value!r} of {sent.producer} is at {first} and at {offset} of {name_of(partition)}"


@invariant
def cancelled_sends_queue_nothing(history: History) -> Iterator[str]:
    """A record whose ``send`` was cancelled is in no log."""
    for partition, log in history.log.items():
        for offset, value in log:
            if value in history.records.never_queued:
                yield f"{value!r} is at {offset} of {name_of(partition)}, although its send was cancelled"


@invariant
def numbered_records_fail_by_time_only(history: History) -> Iterator[str]:
    """None fails before one of its producer and partition is out of time: the daemon knows all that is under way."""
    first_s: dict[tuple[str, Partition], float] = {}
    for failed in history.records.failed:
        if "not acknowledged in" in failed.error:
            first_s.setdefault((failed.producer, failed.partition), failed.at_s)
    for failed in history.records.failed:
        if failed.partition in history.damaged or failed.producer not in history.records.numbered:
            continue
        if failed.producer.startswith("cancelling") or "the producer was stopped" in failed.error:
            continue  # what became of a call that was cancelled is not known here, and a stop is no failure
        if failed.at_s < first_s.get((failed.producer, failed.partition), 1e12):
            yield (
                f"{failed.records} records of {failed.producer} for {name_of(failed.partition)} failed at "
                f"{failed.at_s:.3f} s before any was out of time: {failed.error}"
            )
