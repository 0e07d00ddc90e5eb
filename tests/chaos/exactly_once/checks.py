"""What must hold of an exactly-once run: answers against a plain count of the inputs that are stored. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """What a run has left behind.

    ``inputs`` are those stored, as their answers name them. ``answers`` has what a reader of what is committed sees of each
    group's, ``with_transactions`` the groups that promise exactly once, ``lag`` what groups have not committed at the end.
    ``open_ends`` are partitions with a transaction that nobody has ended.
    """

    inputs: Sequence[str] = ()
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    with_transactions: frozenset[str] = frozenset()
    lag: Mapping[str, int] = field(default_factory=dict)
    open_ends: Sequence[str] = ()
    crashes: Sequence[str] = ()
    unexpected: Sequence[str] = ()


def violations(outcome: Outcome) -> dict[str, list[str]]:
    """Every check's name with what it found."""
    known = Counter(outcome.inputs)
    found: dict[str, list[str]] = {
        "unanswered": [],
        "answered twice": [],
        "answered without an input": [],
        "not committed": [f"{group} is {lag} behind" for group, lag in outcome.lag.items() if lag],
        "hanging transactions": list(outcome.open_ends),
        "crashed": list(outcome.crashes),
        "unexpected errors": list(outcome.unexpected),
    }
    for group, answers in outcome.answers.items():
        counted = Counter(answers)
        found["unanswered"] += [f"{name} by {group}" for name in known if name not in counted]
        found["answered without an input"] += [f"{name} by {group}" for name in counted if name not in known]
        if group in outcome.with_transactions:
            found["answered twice"] += [
                f"{name} by {group}: {count} times" for name, count in counted.items() if count > known.get(name, count)
            ]
    return found


def counts(outcome: Outcome) -> str:
    """How much there was to judge."""
    answered = ", ".join(f"{group} {len(answers)}" for group, answers in outcome.answers.items())
    return f"{len(outcome.inputs)} inputs; answers: {answered}"
