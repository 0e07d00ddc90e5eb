"""Each check of list-append finds what it is for, and nothing in a run in which all went well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.chaos.ledger import Entry
from tests.chaos.list_append.checks import CHECKS, counts, violations
from tests.chaos.list_append.history import History, read_worker

A, B = "lists-0", "lists-1"


def at(t: float, event: str, **fields: object) -> Entry:
    """One entry of a ledger."""
    return {"t": t, "e": event, **fields}


def sends(t: float, n: int, **values: tuple[str, int]) -> list[Entry]:
    """Values with their partitions and offsets, acknowledged."""
    entries = []
    for value, (tp, offset) in values.items():
        entries.append(at(t, "send", n=n, tp=tp, value=value))
        entries.append(at(t, "acknowledged", n=n, value=value, offset=offset))
    return entries


def polls(t: float, n: int, reader: str, **reads: list[tuple[int, str]]) -> Entry:
    """One poll; partitions are named ``a`` and ``b``."""
    return at(t, "poll", n=n, reader=reader, reads={{"a": A, "b": B}[tp]: rows for tp, rows in reads.items()})


def ends(t: float, n: int, how: str = "commit", told: str = "committed") -> list[Entry]:
    """Commit or abort, and what came of it."""
    return [at(t, how, n=n), *([at(t + 0.1, "told", n=n, outcome=told)] if told else [])]


def run_of(first: list[Entry], second: list[Entry], log: dict[str, list[tuple[int, str]]]) -> History:
    """Two workers and what the last reader found."""
    history = History(log=log)
    read_worker(history, "w0", first)
    read_worker(history, "w1", second)
    return history


W0_WRITES: Final = [*sends(1, 0, x=(A, 0), y=(B, 0)), *ends(2, 0)]
W0_ABORTS: Final = [*sends(5, 1, z=(A, 2)), *ends(6, 1, "abort", "aborted")]
W1_READS: Final = [polls(3, 0, "w1/0", a=[(0, "x")], b=[(0, "y")]), *sends(3, 0, v=(A, 4)), *ends(4, 0)]
LOG: Final = {A: [(0, "x"), (4, "v")], B: [(0, "y")]}


def test_nothing_is_found_where_all_went_well() -> None:
    history = run_of(W0_WRITES + W0_ABORTS, [*W1_READS, polls(9, 1, "w1/0", a=[(4, "v")]), *ends(9.5, 1)], LOG)
    assert {name: found for name, found in violations(history).items() if found} == {}
    assert counts(history).startswith("transactions: 4: aborted 1, committed 3; producers fenced 0\nrecords: 4 sent, 3")


def test_a_commit_whose_worker_was_killed_may_have_taken_effect_or_not() -> None:
    killed = [*sends(1, 0, x=(A, 0), y=(B, 0)), *ends(2, 0, told="")]
    for log in (LOG | {A: [(0, "x")]}, {}):
        assert not any(violations(run_of(killed, [], log)).values())


BROKEN: Final[dict[str, Callable[[], History]]] = {
    "aborted reads": lambda: run_of(
        [*sends(1, 0, x=(A, 0)), *ends(2, 0, "abort", "aborted")], [polls(3, 0, "w1/0", a=[(0, "x")])], {A: [(0, "x")]}
    ),
    "reads before commit": lambda: run_of(
        [*sends(1, 0, x=(A, 0)), *ends(5, 0)], [polls(3, 0, "w1/0", a=[(0, "x")])], {A: [(0, "x")]}
    ),
    "lost": lambda: run_of(W0_WRITES, [], {A: [(1, "x")], B: [(0, "y")]}),
    "torn": lambda: run_of([*sends(1, 0, x=(A, 0), y=(B, 0)), *ends(2, 0, told="")], [], {A: [(0, "x")]}),
    "doubled": lambda: run_of(W0_WRITES, [], {A: [(0, "x"), (1, "x")], B: [(0, "y")]}),
    "inconsistent offsets": lambda: run_of(W0_WRITES, [polls(3, 0, "w1/0", a=[(0, "other")])], LOG),
    "backward polls": lambda: run_of(
        W0_WRITES, [polls(3, 0, "w1/0", a=[(0, "x")]), polls(4, 0, "w1/0", a=[(0, "x")])], LOG
    ),
    "skipped polls": lambda: run_of(
        [*sends(1, 0, x=(A, 0), y=(A, 1), z=(A, 2)), *ends(2, 0)],
        [polls(3, 0, "w1/0", a=[(0, "x")]), polls(4, 0, "w1/0", a=[(2, "z")])],
        {A: [(0, "x"), (1, "y"), (2, "z")]},
    ),
    "circular reads": lambda: run_of(
        [*sends(1, 0, x=(A, 0)), polls(3, 0, "w0/0", b=[(0, "y")]), *ends(2, 0)],
        [*sends(1, 0, y=(B, 0)), polls(3, 0, "w1/0", a=[(0, "x")]), *ends(2, 0)],
        {A: [(0, "x")], B: [(0, "y")]},
    ),
    "own writes read": lambda: run_of(
        [*sends(1, 0, x=(A, 0)), polls(2, 0, "w0/0", a=[(0, "x")]), *ends(3, 0)], [], {A: [(0, "x")]}
    ),
    "hanging transactions": lambda: History(open_ends=[(A, 3, 5)]),
    "crashed": lambda: History(crashes=["daemon: ended unasked"]),
    "unexpected errors": lambda: History(errors=[("w0", "CorruptMessageError", "batch 3")]),
}


def test_each_check_has_a_broken_run() -> None:
    assert BROKEN.keys() == CHECKS.keys()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_found(name: str) -> None:
    assert CHECKS[name](BROKEN[name]())
