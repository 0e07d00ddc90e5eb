"""Each safeguard of transactions, switched off from the test side: then a named invariant has to fail, or it guards nothing.

An ablation replaces one attribute for as long as it is on; production code knows nothing of it. To add one: a function that
makes the replacement from the original, and its entry in ``ABLATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from coordinator.log.transactions import OpenTransactions
from coordinator.runtime.admission import Admission
from coordinator.runtime.kept_epochs import KeptEpochs
from coordinator.transactions import carrying, completing, core, ending, identity, loading, members, parking
from coordinator.transactions.orders import TransactionName
from coordinator.transactions.records import NOT_STARTED, Ended, MemberTombstone, Previous
from coordinator.transactions.refusals import Refusal
from coordinator.transactions.transaction import TIMEOUT, Members, TransactionalId
from protocol.errors import ErrorCode
from protocol.messages.producers import InitProducerIdRequest
from protocol.messages.transactions import (
    NO_VERSION,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    JoinTransactionRequest,
    TransactionTopic,
)
from tests.simulation import rings
from tests.simulation.rings import Verdict
from tests.simulation.transactions import workloads
from tests.simulation.transactions.history import run
from tests.simulation.transactions.nodes import Coordinator
from tests.simulation.transactions.plan import KEEPERS, LEAVERS, Plan, draw

MAX_SEEDS: Final = 400
STEPS: Final = 600

Original = Any
Replace = Callable[[Original], Any]


@dataclass(frozen=True, slots=True)
class Ablation(rings.Ablation):
    """A safeguard of transactions."""

    focus: Callable[[Plan], Plan] = lambda plan: plan
    """Makes of a seed's plan one in which what the safeguard is for happens more often."""


def _nothing(original: Original) -> Any:
    return lambda *_, **__: None


def _always(answer: object) -> Replace:
    return lambda original: property(lambda _: answer) if isinstance(original, property) else lambda *_, **__: answer


def _do_not_ask(original: Original) -> Any:
    def ask(self: Any, question: Any, *, verify_only: bool) -> None:
        question.answer = AddPartitionsToTxnResponse(ErrorCode.NONE)
        (self._tell_reason if verify_only else self._admit)(question)

    return ask


def _answers_before_the_disk(original: Original) -> Any:
    def obey(self: Any, effects: Any) -> None:
        given = list(effects.given)
        effects.given.clear()
        for token, about, make in given:
            self.waiting.pop(token)[1](about if make is None else make(about))
        original(self, effects)

    return obey


def _orders_before_the_disk(original: Original) -> Any:
    def obey(self: Any, effects: Any) -> None:
        for order in effects.orders or ():
            self.carry_out(order)
        effects.orders = None
        original(self, effects)

    return obey


def _of_the_current_epoch(original: Original) -> Any:
    """The request is taken as one of the current transaction."""

    def decide(transactions: Any, request: Any, step: Any) -> Any:
        state = transactions.known(request.transactional_id)
        if state is not None and state.open_members and request.producer_id == state.identity.producer_id:
            request = replace(request, producer_epoch=state.identity.epoch)
        return original(transactions, request, step)

    return decide


def _believe_repetitions(original: Original) -> Any:
    def end(transactions: Any, request: Any, step: Any) -> Any:
        outcome = original(transactions, request, step)
        state = transactions.known(request.transactional_id)
        previous = None if state is None else state.identity.previous
        named = (request.producer_id, request.producer_epoch)
        if isinstance(outcome, Refusal) and previous is not None and previous.identity == named:
            return EndTxnResponse(ErrorCode.NONE, *state.identity.identity)
        return outcome

    return end


def _by_id_and_epoch(original: Original) -> Any:
    def marked(transactions: Any, name: TransactionName, *rest: Any) -> Any:
        state = transactions.get(name.transactional_id)
        decided = None if state is None else state.identity.completing
        if decided is not None and decided.epoch == name.producer_epoch:
            name = name._replace(producer_id=decided.producer_id)
        return original(transactions, name, *rest)

    return marked


def _tell_fenced_epochs(original: Original) -> Any:
    def init(transactions: Any, request: Any, step: Any) -> Any:
        state = transactions.known(request.transactional_id)
        if state is not None and state.identity.previous is not None:
            previous: Previous = state.identity.previous
            if previous.how is Ended.FENCED and previous.identity == (request.producer_id, request.producer_epoch):
                return identity._answer(state.identity, 0)
        return original(transactions, request, step)

    return init


def _abort_of_nothing_keeps_the_epoch(original: Original) -> Any:
    def end_current(transactions: Any, state: Any, request: Any, step: Any) -> Any:
        if not state.open_members and not request.committed:
            return ending._answer(state.identity)
        return original(transactions, state, request, step)

    return end_current


def _without_versions(original: Original) -> Any:
    def decide(transactions: Any, request: Any, step: Any) -> Any:
        state = transactions.known(request.transactional_id)
        if state is not None:
            kept = state.identity
            state.identity = kept._replace(committed_version=NO_VERSION)
            try:
                return original(transactions, request, step)
            finally:
                state.identity = kept
        return original(transactions, request, step)

    return decide


def _losers_commit(original: Original) -> Any:
    def decide(transactions: Any, state: Any, how: Any, step: Any, winners: Any = None, **changes: Any) -> Any:
        return original(transactions, state, how, step, None, **changes)

    return decide


def _strangers_win(original: Original) -> Any:
    def commit_fault(state: Any, request: Any) -> Any:
        return original(state, replace(request, members=()))

    return commit_fault


def _forget_metadata(original: Original) -> Any:
    def write_identity(*args: Any, **changes: Any) -> Any:
        return original(*args, **changes | {"committed_metadata": ""})

    return write_identity


def _end_at_once(original: Original) -> Any:
    def end(self: Any, transaction: Any, offset: int) -> None:
        original(self, transaction, offset)
        self.settle(offset + 1)
        self.acknowledge(offset + 1)

    return end


def _forgotten_partitions(original: Original) -> Any:
    """A second Add of a member replaces the first."""

    def union(known: Any, new: Any) -> Any:
        return original((), new)

    return union


def _complete_at_the_decision(original: Original) -> Any:
    """The record of the decision does not say what is completing."""

    def decide(transactions: Any, state: Any, how: Any, step: Any, winners: Any = None, **changes: Any) -> Any:
        record = original(transactions, state, how, step, winners, **changes)
        if record is not None:
            records = step.effects.records
            records[records.index(record)] = record._replace(completing=None)
        return record

    return decide


def _members_erased_first(original: Original) -> Any:
    """Members leave the log with the decision and not with the completion."""

    def decide(transactions: Any, state: Any, how: Any, step: Any, winners: Any = None, **changes: Any) -> Any:
        name, open_members = state.identity.identity, tuple(state.open_members)
        record = original(transactions, state, how, step, winners, **changes)
        if record is not None and record.completing is not None:
            step.effects.records += [MemberTombstone(state.transactional_id, name, one) for one in open_members]
        return record

    return decide


def _carried_in_memory_only(original: Original) -> Any:
    """The member of the next transaction is known to the core and not to its log."""

    def carry(state: Any, following: Any, step: Any) -> None:
        before = len(step.effects.records)
        original(state, following, step)
        for record in step.effects.records[before:]:
            state.transactions[record.transaction] = Members()
            state.transactions[record.transaction].take(record)
        del step.effects.records[before:]

    return carry


def _found_unwritten(original: Original) -> Any:
    """A transaction that is found with carried partitions at a load is taken for one in which nothing is written."""

    def load(transactions: Any, step: Any) -> Any:
        for state in transactions.values():
            found = state.current_members.values()
            state.carried = any(member.started_wall_ms == NOT_STARTED for member in found)
            if state.carried:
                state.deadline_ms = step.effects.timers[TIMEOUT, state.transactional_id] = step.now.ms + 5_000
        yield from original(transactions, step)

    return load


def _still_carried(original: Original) -> Any:
    """The first write does not make the transaction an open one."""

    def begin(state: Any, step: Any) -> None:
        carried = state.carried
        original(state, step)
        state.carried = carried

    return begin


def _unsure_though_touched(original: Original) -> Any:
    """An answer that nothing is open is believed also when a write has been admitted since it was asked for."""

    def is_unsure(state: Any, name: Any) -> bool:
        kept, state.touched = state.touched, set()
        try:
            return bool(original(state, name))
        finally:
            state.touched = kept

    return is_unsure


def _markers_where_it_is_known_to_write(original: Original) -> Any:
    """Markers go where the core has seen an Add since it was loaded, and not wherever the transaction may have written."""

    def decide(transactions: Any, state: Any, how: Any, step: Any, winners: Any = None, **changes: Any) -> Any:
        name, kept = state.identity.identity, state.current_members
        if state.open_version != NO_VERSION:
            return original(transactions, state, how, step, winners, **changes)
        state.transactions[name] = Members()
        for member in kept.values():
            topics = (
                TransactionTopic(
                    topic.name,
                    topic.topic_id,
                    tuple(one for one in topic.partitions if (topic.topic_id, one) in state.touched),
                )
                for topic in member.topics
            )
            state.transactions[name].take(member._replace(topics=tuple(topic for topic in topics if topic.partitions)))
        try:
            return original(transactions, state, how, step, winners, **changes)
        finally:
            state.transactions[name] = kept

    return decide


def _kept_past_a_fence(original: Original) -> Any:
    """What a producer keeps is not ended by those who end its transaction."""

    def succeed(transactions: Any, state: Any, how: Any, step: Any, **changes: Any) -> Any:
        return original(transactions, state, how, step, **{"kept": state.identity.kept, **changes})

    return succeed


def _means_what_it_says(original: Original) -> Any:
    """A kept epoch is taken for that of the transaction, and its coordinator is not asked."""

    def ask(self: Any, question: Any) -> None:
        question.answer = AddPartitionsToTxnResponse(ErrorCode.NONE, "", *question.name[1:])
        self._admit(question)

    return ask


def _keepers_and_rivals(plan: Plan) -> Plan:
    return replace(plan, workloads=(KEEPERS,), behaviours=("late", "rivals", "stalled clients"), event_gap_ms=150)


def _keepers_at_drops(plan: Plan) -> Plan:
    behaviours = ("late", "lost", "administrators", "killed clients", "rivals")
    return replace(plan, workloads=(KEEPERS,), behaviours=behaviours, fault_rate=0.15, event_gap_ms=150)


def _late_answers_and_loads(plan: Plan) -> Plan:
    return replace(
        plan,
        workloads=(LEAVERS,),
        behaviours=("late", "drops", "killed clients"),
        fault_rate=0.15,
        event_gap_ms=150,
    )


_HANGS: Final = ("no_transaction_hangs",)
_TORN: Final = ("transactions_are_whole", "undecided_records_are_never_read", "aborted_records_are_never_read")
_ONCE: Final = ("each_input_is_answered_once", "each_version_is_stored_once")

ABLATIONS: Final = (
    Ablation(
        "leaders ask the coordinator",
        Admission, "_ask", _do_not_ask,
        ("open_in_a_log_is_known_to_its_coordinator",),
    ),
    Ablation(
        "answers wait for the disk",
        Coordinator, "_obey", _answers_before_the_disk,
        ("open_in_a_log_is_known_to_its_coordinator", "outcomes_told_are_true", "replaced_producers_write_nothing"),
    ),
    Ablation(
        "a marker makes an answer void that is on its way",
        Admission, "marker", _nothing,
        ("open_in_a_log_is_known_to_its_coordinator", *_HANGS),
    ),
    Ablation(
        "the coordinator compares epochs at Add",
        core._DECISIONS, AddPartitionsToTxnRequest, _of_the_current_epoch,
        ("open_in_a_log_is_known_to_its_coordinator", *_HANGS, *_TORN),
    ),
    Ablation(
        "an end names the transaction that it ends",
        core._DECISIONS, EndTxnRequest, _of_the_current_epoch,
        ("a_late_end_ends_its_own_transaction", "outcomes_told_are_true", *_TORN),
    ),
    Ablation(
        "a repetition has the same verdict",
        core._DECISIONS, EndTxnRequest, _believe_repetitions,
        ("outcomes_told_are_true", "replaced_producers_write_nothing"),
    ),
    Ablation(
        "markers leave when the decision is on disk",
        Coordinator, "_obey", _orders_before_the_disk,
        ("a_transaction_is_decided_once", *_TORN, *_HANGS),
    ),
    Ablation(
        "decisions are keyed by producer id and epoch",
        completing, "marked", _by_id_and_epoch,
        (*_TORN, *_HANGS, *_ONCE),
    ),
    Ablation(
        "a marker counts for readers when it is on disk",
        OpenTransactions, "end", _end_at_once,
        ("the_stable_end_never_falls", "recovered_logs_know_the_same_transactions"),
    ),
    Ablation("fetched offsets are stable", workloads, "REQUIRE_STABLE", lambda _: False, _ONCE),
    Ablation(
        "a version that is committed is not joined",
        core._DECISIONS, JoinTransactionRequest, _without_versions,
        _ONCE,
    ),
    Ablation("losers are aborted", ending, "decide", _losers_commit, (*_ONCE, *_TORN)),
    Ablation("winners are members", ending, "_commit_fault", _strangers_win, (*_ONCE, *_TORN)),
    Ablation(
        "a version keeps what is stored with it",
        completing, "write_identity", _forget_metadata,
        ("each_version_is_stored_once", "outcomes_told_are_true"),
    ),
    Ablation("transactions time out", ending, "on_timeout", _nothing, _HANGS),
    Ablation("markers leave again after a load", loading, "order_markers", _nothing, (*_HANGS, *_TORN)),
    Ablation("timeouts begin again after a load", loading, "start_timeout", _nothing, _HANGS),
    Ablation(
        "fenced epochs are told to the next producer only",
        core._DECISIONS, InitProducerIdRequest, _tell_fenced_epochs,
        ("replaced_producers_write_nothing",),
    ),
    Ablation(
        "an abort of nothing takes an epoch",
        ending, "_end_current", _abort_of_nothing_keeps_the_epoch,
        ("outcomes_told_are_true", *_ONCE),
    ),
    Ablation(
        "a decision waits for the markers of the one before",
        TransactionalId, "is_decidable", _always(True),
        (*_HANGS, *_TORN, "a_transaction_is_decided_once", "the_core_keeps_its_assertions"),
    ),
    Ablation(
        "partitions of a transaction are kept",
        members, "_union", _forgotten_partitions,
        (*_HANGS, *_TORN, "open_in_a_log_is_known_to_its_coordinator", "the_core_keeps_its_assertions"),
    ),
    Ablation(
        "a decision says what is completing",
        ending, "decide", _complete_at_the_decision,
        (*_HANGS, *_TORN),
    ),
    Ablation(
        "members stay in the log until the markers are written",
        ending, "decide", _members_erased_first,
        (*_HANGS, *_TORN, "open_in_a_log_is_known_to_its_coordinator"),
    ),
    Ablation(
        "what is carried is on disk with the decision",
        carrying, "carry", _carried_in_memory_only,
        ("open_in_a_log_is_known_to_its_coordinator", "replay_equals_live_state"),
    ),
    Ablation(
        "what is found carried at a load may have been written to",
        loading, "load", _found_unwritten,
        (*_HANGS, *_TORN, "outcomes_told_are_true"),
    ),
    Ablation(
        "the first write in a carried partition opens the transaction",
        carrying, "begin", _still_carried,
        (*_HANGS, *_TORN, "outcomes_told_are_true", "open_in_a_log_is_known_to_its_coordinator"),
    ),
    Ablation(
        "a carried partition has its marker whether it was written to or not",
        ending, "decide", _markers_where_it_is_known_to_write,
        (*_HANGS, *_TORN, "open_in_a_log_is_known_to_its_coordinator"),
    ),
    Ablation(
        "the timeout begins with the first write in a carried partition",
        members, "start_timeout", _nothing,
        _HANGS,
    ),
    Ablation(
        "a partition that waits for an answer about a transaction may be open",
        Admission, "awaits", _always(False),
        (*_HANGS, *_TORN, "open_in_a_log_is_known_to_its_coordinator"),
        focus=_late_answers_and_loads,
    ),
    Ablation(
        "what is found does not count when the producer has gone on",
        carrying, "is_unsure", _unsure_though_touched,
        (*_HANGS, *_TORN, "outcomes_told_are_true", "open_in_a_log_is_known_to_its_coordinator"),
        focus=_late_answers_and_loads,
    ),
    Ablation("what is carried and not written to is given up", carrying, "give_up", _nothing, _HANGS),
    Ablation("parked requests have a bound", parking, "on_timer", _nothing, ("no_request_waits_beyond_its_bound",)),
    Ablation(
        "parked requests are asked again",
        parking, "ask_again", lambda _: lambda *_: iter(()),
        ("parked_requests_go_on_with_their_markers",),
    ),
    Ablation("members of no transaction are erased", loading, "_erase_left_over", _nothing, _HANGS),
    Ablation(
        "leaders ask which transaction a kept epoch means",
        KeptEpochs, "_ask", _means_what_it_says,
        ("open_in_a_log_is_known_to_its_coordinator", *_HANGS, *_TORN),
        focus=_keepers_and_rivals,
    ),
    Ablation(
        "an answer about a kept epoch is void once that transaction has its end marker",
        KeptEpochs, "marker", _nothing,
        ("open_in_a_log_is_known_to_its_coordinator", *_HANGS),
        focus=_keepers_at_drops,
    ),
    Ablation(
        "what a producer keeps is over when another has its id",
        ending, "succeed", _kept_past_a_fence,
        ("a_late_end_ends_its_own_transaction", "outcomes_told_are_true", *_TORN, *_ONCE, *_HANGS),
        focus=_keepers_and_rivals,
    ),
    Ablation("completions are written", completing, "write_finished", _nothing, _HANGS),
)  # fmt: skip


def first_failure(ablation: Ablation) -> tuple[int, Verdict[Plan]] | None:
    """How many seeds it takes until an invariant fails, and the verdict; None if none fails."""
    plans = (ablation.focus(draw(seed, STEPS)) for seed in range(MAX_SEEDS))
    return rings.first_failure(ablation, plans, run)
