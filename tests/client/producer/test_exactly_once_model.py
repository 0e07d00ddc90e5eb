"""The real sender, queues and numbers of an idempotent producer against a model of a network and of a daemon.

Whatever happens: no record is in the log twice, records are in the order in which they were sent, what was acknowledged is
where the acknowledgement says, what was refused is nowhere, and every future and every ``flush`` ends. Each safeguard is
needed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import pytest

from client.producer.batch import ProducerBatch
from client.producer.partition_queue import PartitionQueue
from client.producer.sequences import BatchSequence
from coordinator.log.errors import (
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    ProducerStateError,
    UnknownProducerIdError,
)
from coordinator.log.producers import Producers, WrittenBatch
from protocol.record_batch import BatchHeader
from tests.client.producer.exactly_once_model import Trouble, World

KINDS = {
    "answers are lost": Trouble(answer_lost=0.2),
    "requests come twice and late": Trouble(twice=0.5, late=0.3),
    "requests never come": Trouble(never=0.2),
    "all of it": Trouble(never=0.1, answer_lost=0.1, twice=0.3, late=0.2),
    "records are refused in the middle": Trouble(wrong=0.04, answer_lost=0.15),
    "records are refused while requests are late": Trouble(wrong=0.04, late=0.3, twice=0.2, never=0.05),
    "time runs out": Trouble(never=0.3, late=0.4, twice=0.3, delivery_timeout_s=1.0),
    "retries run out": Trouble(never=0.2, answer_lost=0.2, late=0.2, retries=2),
    "no retries": Trouble(never=0.1, answer_lost=0.1, late=0.2, retries=0),
    "batches are too large": Trouble(max_message_bytes=160, answer_lost=0.15, never=0.05),
    "batches become too large": Trouble(shrinks=True, answer_lost=0.15, late=0.1, twice=0.1),
    "the disk refuses": Trouble(write_fails=0.3, answer_lost=0.1, late=0.1),
    "the disk is slow": Trouble(write_slow=0.2, fenced=0.05, wrong=0.02, late=0.1),
    "producers are forgotten": Trouble(forgets=0.03, answer_lost=0.2, never=0.1),
    "another writes under the id": Trouble(fenced=0.03, answer_lost=0.1, late=0.1),
    "small requests, few at a time": Trouble(never=0.1, answer_lost=0.1, late=0.2, max_request_bytes=400, max_in_flight=2),
    "leaders move": Trouble(moves=0.1, answer_lost=0.1, never=0.05, late=0.1, request_timeout_s=3.0),
    "it lingers": Trouble(linger_s=0.05, answer_lost=0.2, late=0.2),
    "everything": Trouble(
        never=0.1, answer_lost=0.1, twice=0.2, late=0.2, write_fails=0.1, wrong=0.02, shrinks=True, fenced=0.01,
        delivery_timeout_s=2.0,
    ),
}  # fmt: skip
SEEDS = 25
HARMLESS = {
    "answers are lost", "requests come twice and late", "requests never come", "all of it", "batches are too large",
    "small requests, few at a time", "it lingers", "leaders move",
}  # fmt: skip
"""Trouble that ends in time and refuses nothing: every record has to be stored."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_record_is_stored_twice_or_out_of_order_and_every_future_tells_the_truth(kind: str) -> None:
    for seed in range(SEEDS):
        world = World(seed, KINDS[kind], records=120)
        world.run()
        if kind in HARMLESS:
            assert world.failures() == []


@contextmanager
def find_that(changes: Callable[[WrittenBatch | ProducerStateError], WrittenBatch | None]) -> Iterator[None]:
    """A daemon with another opinion on some of what it finds."""
    find = Producers.find

    def changed(producers: Producers, header: BatchHeader) -> WrittenBatch | None:
        try:
            found = find(producers, header)
        except ProducerStateError as error:
            return changes(error)
        return found and changes(found)

    with patch.object(Producers, "find", changed):
        yield


def refused_unless(
    *kinds: type[ProducerStateError],
) -> Callable[[WrittenBatch | ProducerStateError], WrittenBatch | None]:
    def changes(found: WrittenBatch | ProducerStateError) -> WrittenBatch | None:
        if isinstance(found, ProducerStateError):
            if not isinstance(found, kinds):
                raise found
            return None
        return found

    return changes


def anything_shares(queue: PartitionQueue[ProducerBatch], batch: ProducerBatch, taken: Sequence[ProducerBatch]) -> bool:
    return queue._fits_window(batch, taken)


_resequence_from = PartitionQueue.resequence_from
_GAP = (OutOfOrderSequenceError, UnknownProducerIdError)
WITHOUT: dict[str, tuple[Callable[[], AbstractContextManager[object]], str]] = {
    "repetitions are found": (lambda: find_that(lambda found: None), "answers are lost"),
    "sequences have no gap": (lambda: find_that(refused_unless(*_GAP)), "requests never come"),
    "epochs fence": (
        lambda: find_that(refused_unless(InvalidProducerEpochError)),
        "records are refused while requests are late",
    ),
    "a refused write is taken back": (lambda: patch.object(Producers, "undo", lambda _: None), "the disk refuses"),
    "a window of five": (lambda: patch.object(PartitionQueue, "_fits_window", lambda *_: True), "answers are lost"),
    "no gap in a request": (lambda: patch.object(PartitionQueue, "fits", anything_shares), "answers are lost"),
    "no new number for what may be stored": (
        lambda: patch.object(
            PartitionQueue, "resequence_from", lambda queue, place, sure: _resequence_from(queue, place, True)
        ),
        "producers are forgotten",
    ),
    "what comes before keeps its numbers": (
        lambda: patch.object(
            PartitionQueue, "resequence_from", lambda queue, _, sure: _resequence_from(queue, (0,), sure)
        ),
        "records are refused in the middle",
    ),
    "answers that leave it open": (lambda: patch("client.producer.core.UNCERTAIN", ()), "the disk is slow"),
    "one id and epoch at a time": (
        lambda: patch.object(BatchSequence, "same_epoch", lambda *_: True),
        "another writes under the id",
    ),
}


@pytest.mark.parametrize("safeguard", WITHOUT)
def test_each_safeguard_is_missed_when_it_is_not_there(safeguard: str) -> None:
    without, kind = WITHOUT[safeguard]
    with without():
        for seed in range(60):
            world = World(seed, KINDS[kind], records=120)
            try:
                world.run()
                assert kind not in HARMLESS or world.failures() == []
            except AssertionError:
                return
    pytest.fail(f"nothing goes wrong without it: {safeguard}")
