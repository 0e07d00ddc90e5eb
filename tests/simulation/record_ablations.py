"""Safeguards of records in particular: numbers of producers, what logs keep and delete. See ``ablations``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import patch

from client.partition_queue import PartitionQueue
from coordinator.log.producers import Producers, SequenceError
from protocol.errors import ErrorCode
from tests.simulation.safeguards import safeguard

_BURSTS: Final = ("producing_in_bursts",)
_ASTRAY: Final = ("requests_go_astray", "connections_reset")


@safeguard("the daemon looks for repetitions", "numbered_records_are_there_once", workloads=_BURSTS, faults=_ASTRAY)
def dedupe() -> Iterator[None]:
    original = Producers.find

    def forgetful(producers: Producers, header: Any) -> Any:
        original(producers, header)

    with patch.object(Producers, "find", forgetful):
        yield


def _lenient(code: ErrorCode) -> Any:
    """``Producers.find`` without one of its refusals."""
    original = Producers.find

    def find(producers: Producers, header: Any) -> Any:
        try:
            return original(producers, header)
        except SequenceError as error:
            if error.code != code:
                raise
            return None

    return patch.object(Producers, "find", find)


@safeguard(
    "the daemon takes a producer's records in the order of their numbers only",
    "records_keep_their_order",
    "numbered_records_are_there_once",
    workloads=_BURSTS,
    faults=_ASTRAY,
)
def sequence_check() -> Iterator[None]:
    with _lenient(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        yield


@safeguard(
    "records of an epoch that has been replaced are refused",
    "records_keep_their_order",
    "numbered_records_are_there_once",
    workloads=_BURSTS,
    faults=_ASTRAY,
)
def epoch_fence() -> Iterator[None]:
    with _lenient(ErrorCode.INVALID_PRODUCER_EPOCH):
        yield


@safeguard("a producer that is not known begins with 0", "records_keep_their_order", workloads=_BURSTS, faults=_ASTRAY)
def unknown_producers_begin_with_zero() -> Iterator[None]:
    with _lenient(ErrorCode.UNKNOWN_PRODUCER_ID):
        yield


@safeguard(
    "a producer sends no more than the daemon remembers",
    "numbered_records_fail_by_time_only",
    workloads=_BURSTS,
    faults=_ASTRAY,
)
def window_of_numbered_batches() -> Iterator[None]:
    with patch.object(PartitionQueue, "_fits_window", lambda *_: True):
        yield


@safeguard(
    "numbers of a write that failed are forgotten",
    "acknowledged_records_survive",
    workloads=_BURSTS,
    faults=("write_errors", "full_disk"),
)
def undo_of_refused_writes() -> Iterator[None]:
    with patch.object(Producers, "undo", lambda producers: producers._undo.clear()):
        yield
