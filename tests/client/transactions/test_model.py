"""The real client and the daemon's real cores in transactions, through everything that networks, disks and people do.

Whatever happens: what a program is told of a transaction is true, records and offsets of a transaction are readable
together or not at all, no record is stored twice or out of order, nothing hangs, and each future and call ends. Each
safeguard is needed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from client.errors import CohortError, TransactionAbortableError
from client.producer.core import ProducerCore
from client.producer.sender import Sender
from client.producer.sequences import BatchSequence, TransactionalSequences
from client.producer.transactional_records import TransactionalRecords
from client.transactions.ending import Ending, Question
from client.transactions.identity import TransactionalIdentity
from client.transactions.lifecycle import Transactions
from client.transactions.transaction import Transaction
from client.transport.deadline import Deadline
from coordinator.runtime.held_commits import HeldCommit, HeldCommits
from protocol.subscription import TopicPartition
from tests.client.producer.exactly_once_model import Trouble
from tests.client.transactions.model import TransactionWorld

KINDS = {
    "calm": Trouble(),
    "answers are lost": Trouble(answer_lost=0.2),
    "requests come twice and late": Trouble(twice=0.3, late=0.3),
    "requests never come": Trouble(never=0.2),
    "all of it": Trouble(never=0.1, answer_lost=0.1, twice=0.2, late=0.2),
    "records are refused": Trouble(wrong=0.02, answer_lost=0.1),
    "time runs out": Trouble(never=0.3, late=0.3, twice=0.2, delivery_timeout_s=1.5),
    "retries run out": Trouble(never=0.1, answer_lost=0.1, retries=2),
    "batches are too large": Trouble(max_message_bytes=160, answer_lost=0.1, never=0.05),
    "the disk refuses": Trouble(write_fails=0.2, answer_lost=0.1, late=0.1),
    "the coordinator starts again": Trouble(forgets=0.5, answer_lost=0.1, never=0.05),
    "small requests, few at a time": Trouble(never=0.1, late=0.2, max_request_bytes=400, max_in_flight=2),
    "it lingers": Trouble(linger_s=0.02, answer_lost=0.1, late=0.1),
    "everything": Trouble(
        never=0.1,
        answer_lost=0.1,
        twice=0.1,
        late=0.2,
        write_fails=0.1,
        wrong=0.01,
        forgets=0.3,
        delivery_timeout_s=3.0,
    ),
}
SEEDS = 10
HARMLESS = {"calm", "answers are lost", "requests come twice and late", "it lingers"}
"""Trouble that ends in time and refuses nothing: only the transaction timeout aborts what is to be committed."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_program_is_told_is_true_and_transactions_are_whole(kind: str) -> None:
    for seed in range(SEEDS):
        history(seed, kind)


def history(seed: int, kind: str, producers: int = 1) -> None:
    world = TransactionWorld(seed, KINDS[kind], 12, producers=producers)
    world.run()
    if kind in HARMLESS and producers == 1:
        assert all(isinstance(error.__cause__, TransactionAbortableError) for error in world.errors), world.errors


@pytest.mark.parametrize("kind", ["calm", "answers are lost", "all of it", "everything"])
def test_also_when_administrators_abort(kind: str) -> None:
    for seed in range(SEEDS):
        TransactionWorld(seed, KINDS[kind], 12, aborts=0.5).run()


@pytest.mark.parametrize("kind", ["calm", "answers are lost", "all of it", "everything"])
def test_also_when_producers_take_the_id_over_from_one_another(kind: str) -> None:
    for seed in range(SEEDS):
        TransactionWorld(seed, KINDS[kind], 8, producers=3).run()


# --- what fails without each safeguard ----------------------------------------------------------------------------------


def a_failed_record_does_not_matter() -> AbstractContextManager[Any]:
    def failed(core: ProducerCore[Any], batch: Any, error: CohortError) -> None:
        core._outcomes.failed(batch, error)

    return both(
        patch.object(ProducerCore, "_failed", failed), patch.object(Transactions, "failed", lambda *arguments: None)
    )


def the_coordinator_does_not_hear_of_an_abort() -> AbstractContextManager[Any]:
    def _abort(transactions: Transactions, transaction: Transaction, cause: object) -> None:
        transaction.ending = True
        transactions._records.close()
        transactions._records.abandon(transaction.aborted_error)
        transactions._ended(transaction, "aborted")

    return patch.object(Transactions, "_abort", _abort)


def no_answer_counts_as_an_abort() -> AbstractContextManager[Any]:
    carry_out = Transactions._carry_out

    async def carried_out(
        transactions: Transactions, ending: Ending, transaction: Transaction | None, by: Deadline
    ) -> None:
        await carry_out(transactions, ending, transaction, by)
        if not ending.done and transaction is not None and transaction.outcome is None:
            transaction.outcome = ending.outcome = "aborted"
            ending._question = Question.ABORT

    return patch.object(Transactions, "_carry_out", carried_out)


def a_replaced_producer_takes_its_commit_for_refused() -> AbstractContextManager[Any]:
    refused = Ending._refused

    def certain(ending: Ending, error: CohortError) -> None:
        ending._in_doubt = 1
        refused(ending, error)

    return patch.object(Ending, "_refused", certain)


def nothing_counts_as_sent() -> AbstractContextManager[Any]:
    return patch.object(TransactionalRecords, "used", property(lambda records: False))


def a_commit_does_not_wait_for_its_records() -> AbstractContextManager[Any]:
    async def flush(records: TransactionalRecords, timeout_s: float | None = None) -> None:
        """Does not wait."""

    return patch.object(TransactionalRecords, "flush", flush)


def a_held_commit_does_not_look_at_its_writes() -> AbstractContextManager[Any]:
    def hold(
        commits: HeldCommits, transaction: object, writes: object, go_on: Callable[[], None], *_: object
    ) -> HeldCommit:
        held = HeldCommit(commits, (-1, -1), {}, go_on, lambda why: None)
        held.go_on_if_stored()
        return held

    return patch.object(HeldCommits, "hold", hold)


def an_early_commit_does_not_mind_what_waits_to_be_sent_again() -> AbstractContextManager[Any]:
    def unacknowledged(core: ProducerCore[Any]) -> dict[TopicPartition, int]:
        queues = {part.queue.partition: part.queue for request in core._requests for part in request.left}
        return {partition: queues[partition].sequences.last for partition in sorted(queues)}  # type: ignore[union-attr]

    return patch.object(ProducerCore, "unacknowledged", unacknowledged)


def a_commit_that_no_task_asks_for_does_not_count_as_sent() -> AbstractContextManager[Any]:
    ask_at_once = TransactionalIdentity.ask_at_once

    def asked(identity: TransactionalIdentity, ending: Ending, *others: Any) -> Any:
        in_doubt = ending._in_doubt
        exchange = ask_at_once(identity, ending, *others)
        ending._in_doubt = in_doubt
        return exchange

    return patch.object(TransactionalIdentity, "ask_at_once", asked)


def a_record_that_fails_after_an_early_commit_aborts_it_for_certain() -> AbstractContextManager[Any]:
    give_up = Ending.give_up

    def certain(ending: Ending, reason: CohortError) -> None:
        give_up(ending, reason)
        ending.outcome = "aborted"

    return patch.object(Ending, "give_up", certain)


def a_record_that_fails_after_an_early_commit_is_told_so() -> AbstractContextManager[Any]:
    return patch.object(Sender, "withhold_failures", lambda sender: None)


def sequences_go_on_from_one_transaction_to_the_next() -> AbstractContextManager[Any]:
    def upcoming(sequences: TransactionalSequences) -> BatchSequence:
        identity, after = sequences._identity, sequences._next
        assert identity.producer_id is not None
        if after is None or after.producer_id != identity.producer_id:
            return BatchSequence(identity.producer_id, identity.epoch, 0, True)
        return after._replace(epoch=identity.epoch)

    return patch.object(TransactionalSequences, "upcoming", property(upcoming))


@contextmanager
def both(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> Iterator[None]:
    with first, second:
        yield


ABLATIONS: dict[Callable[[], AbstractContextManager[Any]], tuple[str, int]] = {
    a_failed_record_does_not_matter: ("records are refused", 1),
    the_coordinator_does_not_hear_of_an_abort: ("calm", 1),
    no_answer_counts_as_an_abort: ("time runs out", 1),
    a_replaced_producer_takes_its_commit_for_refused: ("all of it", 3),
    nothing_counts_as_sent: ("calm", 1),
    a_commit_does_not_wait_for_its_records: ("records are refused", 1),
    a_held_commit_does_not_look_at_its_writes: ("calm", 1),
    an_early_commit_does_not_mind_what_waits_to_be_sent_again: ("all of it", 1),
    a_commit_that_no_task_asks_for_does_not_count_as_sent: ("the coordinator starts again", 1),
    a_record_that_fails_after_an_early_commit_aborts_it_for_certain: ("time runs out", 1),
    a_record_that_fails_after_an_early_commit_is_told_so: ("time runs out", 1),
    sequences_go_on_from_one_transaction_to_the_next: ("calm", 1),
}


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.__name__)
def test_each_safeguard_is_needed(ablation: Callable[[], AbstractContextManager[Any]]) -> None:
    kind, producers = ABLATIONS[ablation]

    def fails(seed: int) -> bool:
        try:
            history(seed, kind, producers)
        except (AssertionError, CohortError):
            return True
        return False

    with ablation():
        assert any(fails(seed) for seed in range(60))


def test_what_is_done_is_asked_for_no_more() -> None:
    """Records that fail because their transaction has ended are no reason to ask for its end."""
    begin_asking = Transactions._begin_asking
    asked: list[Ending] = []
    needless: list[Ending] = []

    def begins(transactions: Transactions, ending: Ending, *others: Any) -> None:
        asked.append(ending)
        if ending.done and ending.outcome != "committed":
            needless.append(ending)
        begin_asking(transactions, ending, *others)

    with patch.object(Transactions, "_begin_asking", begins):
        for seed in range(SEEDS):
            TransactionWorld(seed, KINDS["requests come twice and late"], 8, producers=3, aborts=0.3).run()
    assert asked
    assert not needless
