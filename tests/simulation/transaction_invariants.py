"""What must hold of transactions: the checks of list-append, exactly once between topics, offsets that only rise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import replace

from tests.chaos.list_append import checks
from tests.chaos.list_append.history import History as ListHistory
from tests.chaos.list_append.history import Reads, read_worker
from tests.simulation.consumers import TOPIC
from tests.simulation.history import Erased, History, Partition, name_of
from tests.simulation.registry import invariant
from tests.simulation.transaction_facts import LISTS, TRANSACTIONAL


def _lists(history: History) -> ListHistory | None:
    """What the workers of a history did; None when there were none, or a bit of a log of theirs was flipped."""
    facts = history.transactions
    if not facts.ledgers or not history.complete or any(topic == LISTS for topic, _ in history.damaged):
        return None
    lists = ListHistory(
        log={name_of(partition): rows for partition, rows in facts.committed.items() if partition[0] == LISTS},
        open_ends=[(name_of(place), first, end) for place, first, end in facts.undecided if place[0] == LISTS],
    )
    for worker, entries in facts.ledgers.items():
        read_worker(lists, worker, entries)
    return lists


def _certain(history: History) -> ListHistory | None:
    """The same without transactions of which nobody can say which of them a request was meant for.

    Kafka's producers from before KIP-890 have one epoch for all of them: what is late belongs to the one that is open when
    it arrives, as docs/kafka-clients.md says.
    """
    lists, late = _lists(history), {kept.attempt for kept in history.transactions.late}
    if lists is None or not late:
        return lists
    theirs = {value for name in late if name in lists.attempts for value in lists.attempts[name].sent}
    certain = ListHistory(log=_without(lists.log, theirs), open_ends=lists.open_ends)
    for name, attempt in lists.attempts.items():
        if name not in late:
            polls = [replace(poll, reads=_without(poll.reads, theirs)) for poll in attempt.polls]
            certain.attempts[name] = replace(attempt, polls=polls)
    return certain


def _without(reads: Reads, values: Container[str]) -> Reads:
    return {tp: [(offset, value) for offset, value in rows if value not in values] for tp, rows in reads.items()}


def _each(
    history: History,
    *looks: Callable[[ListHistory], list[str]],
    of: Callable[[History], ListHistory | None] = _certain,
) -> Iterator[str]:
    lists = of(history)
    if lists is not None:
        for look in looks:
            yield from look(lists)


@invariant
def transactions_are_whole(history: History) -> Iterator[str]:
    """Everything that a transaction sent is in the logs at the end, once, or nothing of it."""
    yield from _each(history, checks.lost, checks.torn, checks.doubled)


@invariant
def undecided_records_are_never_read(history: History) -> Iterator[str]:
    """No reader is given a record before its transaction was to be committed, its own writer included."""
    yield from _each(history, checks.reads_before_commit, checks.own_writes_read)


@invariant
def aborted_records_are_never_read(history: History) -> Iterator[str]:
    """Neither while the transaction is open nor later, and they are not in the log for readers at the end."""
    yield from _each(history, checks.aborted_reads)


@invariant
def what_was_read_stays(history: History) -> Iterator[str]:
    """A record that was read is in the log at the end, and readers go forward without leaving anything out."""
    yield from _each(history, checks.inconsistent_offsets, checks.backward_polls, checks.skipped_polls, of=_lists)


@invariant
def outcomes_told_are_true(history: History) -> Iterator[str]:
    """Who was told committed finds everything, who was told aborted finds nothing; and no circle of reads."""
    lists = _certain(history)
    if lists is None:
        return
    there = {value for rows in lists.log.values() for _, value in rows}
    for attempt in lists.attempts.values():
        found = there & attempt.sent.keys()
        if attempt.told == "aborted" and found:
            yield f"{attempt.name} was told aborted, and {sorted(found)} are committed"
        if attempt.told == "committed" and len(found) < len(attempt.sent):
            yield f"{attempt.name} was told committed, and {sorted(attempt.sent.keys() - found)} are missing"
    yield from checks.circular_reads(lists)


@invariant
def no_transaction_hangs(history: History) -> Iterator[str]:
    """When every timeout is over, everything is decided."""
    if history.complete and not any(topic in TRANSACTIONAL for topic, _ in history.damaged):
        for partition, first, end in history.transactions.undecided:
            yield f"{name_of(partition)} has an open transaction from {first} on at the end, {end}"


@invariant
def the_stable_end_never_falls(history: History) -> Iterator[str]:
    """The last stable offset of a log only rises, through restarts too, and is never above its high watermark.

    A new leader of several nodes may know less of the high watermark for a while.
    """
    if history.nodes > 1:
        return
    last: dict[Partition, int] = {}
    for _, partition, stable, high_watermark in history.transactions.stable:
        if partition in history.damaged:
            continue
        if stable > high_watermark:
            yield f"{name_of(partition)} was stable up to {stable} with a high watermark of {high_watermark}"
        if stable < last.get(partition, 0):
            yield f"the last stable offset of {name_of(partition)} fell from {last[partition]} to {stable}"
        last[partition] = max(stable, last.get(partition, 0))


def _exactly_once(history: History) -> Iterator[tuple[str, str]]:
    """Groups of which it is promised, with the topics of their copies: no bit of their topics was flipped, the group's
    offsets have not expired while none of its members was there, and no request of a kept epoch came late."""
    for group, copies in history.transactions.transforming.items():
        erased = any(isinstance(event, Erased) and event.group == group for event in history.applied)
        damaged = any(topic in (TOPIC, copies) for topic, _ in history.damaged)
        if history.complete and not damaged and not erased and history.transactions.is_exactly_once(group):
            yield group, copies


@invariant
def each_input_is_answered_once(history: History) -> Iterator[str]:
    """Whatever happened to transformers and daemon: each record of the topic has one copy, and nothing else has one."""
    inputs = Counter(value for place, rows in history.log.items() if place[0] == TOPIC for _, value in rows)
    for group, topic in _exactly_once(history):
        copies = Counter(_committed(history, topic))
        for value, number in inputs.items():
            if copies[value + "'"] != number:
                found = copies[value + "'"]
                yield f"{value!r}, which is in {TOPIC} {number} times, has {found} copies of {group}"
        for value in copies.keys() - {value + "'" for value in inputs}:
            yield f"{value!r} of {group} is a copy of nothing"


def _committed(history: History, topic: str) -> Iterator[str]:
    return (value for place, rows in history.transactions.committed.items() if place[0] == topic for _, value in rows)


@invariant
def open_in_a_log_is_known_to_its_coordinator(history: History) -> Iterator[str]:
    """Whoever looks, and whenever: so no transaction can be left over in a log."""
    yield from history.transactions.unknown


@invariant
def offsets_go_with_their_outputs(history: History) -> Iterator[str]:
    """When everything is decided, the group has committed exactly what has been copied: the copies of each partition are of
    the offsets below its committed one."""
    for group, topic in _exactly_once(history):
        copies = set(_committed(history, topic))
        for partition, rows in history.log.items():
            if partition[0] != TOPIC:
                continue
            committed = history.final_offsets.get((group, partition), 0)
            for offset, value in rows:
                copied = value + "'" in copies
                if copied != (offset < committed):
                    what = "has a copy" if copied else "has no copy"
                    yield f"{value!r} at {offset} of {name_of(partition)} {what}, {group} has committed {committed}"
