"""What assignors make of one recorded history of 200 membership changes: how even, how much moves, how long it takes.

``python -m client.bench.membership_history`` prints the table of the README. The record, ``membership_history.txt``, is data
for any assignor. All figures but the times come out the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import mean, median
from time import perf_counter
from typing import Final

from client.assignors import Assignor, Subscription
from client.bench.assign_cases import ASSIGNORS
from protocol.subscription import TopicPartition

Plan = Mapping[str, list[TopicPartition]]

_MOST_REBALANCES: Final = 3
"""A cooperative assignor needs two where partitions move: they are given up in the first and taken in the second."""


@dataclass(frozen=True, slots=True)
class History:
    """The record: partitions by topic, the members at the beginning, and then who joins (True) or leaves, in order."""

    partitions: dict[str, int]
    members: tuple[str, ...]
    changes: tuple[tuple[str, bool], ...]

    @classmethod
    def recorded(cls) -> History:
        """The one that is kept beside this module."""
        partitions: dict[str, int] = {}
        members: tuple[str, ...] = ()
        changes: list[tuple[str, bool]] = []
        for line in (files(__package__) / "membership_history.txt").read_text(encoding="utf-8").splitlines():
            first, *rest = line.split()
            if first == "topics":
                partitions = {topic: int(count) for topic, count in (entry.split("=") for entry in rest)}
            elif first == "members":
                members = tuple(rest)
            elif first[0] in "+-":
                changes.append((first[1:], first[0] == "+"))
        return cls(partitions, members, tuple(changes))

    def groups(self) -> Iterator[list[str]]:
        """Who is in the group: at the beginning, then after each change."""
        present = list(self.members)
        yield list(present)
        for member_id, joins in self.changes:
            if joins:
                present.append(member_id)
            else:
                present.remove(member_id)
            yield list(present)


@dataclass(slots=True)
class Outcome:
    """What an assignor made of the history; one entry a change, ``took_s`` one a rebalance.

    ``spread``: the most partitions of a member minus the fewest. ``moved``: partitions that have another owner than before.
    ``needed``: how many had to move at least for an even plan. ``rebalances``: how many it took until all had an owner.
    """

    assignor: str
    spread: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    needed: list[int] = field(default_factory=list)
    rebalances: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)


def replay(history: History, assignor: Assignor) -> Outcome:
    """Shares the partitions out again after each change, as often as it takes until all have an owner.

    Raises ``ValueError`` when some have none after three rebalances.
    """
    outcome = Outcome(assignor.name)
    owned: Plan = {}
    generation = 0
    for number, present in enumerate(history.groups()):
        before = owned
        rebalances = 0
        while not rebalances or sum(map(len, owned.values())) < sum(history.partitions.values()):
            if rebalances == _MOST_REBALANCES:
                raise ValueError(f"{assignor.name}: change {number} leaves partitions without owner")
            members = {
                member_id: Subscription(
                    tuple(history.partitions),
                    owned_partitions=tuple(owned.get(member_id, ())),
                    generation=generation if member_id in owned else -1,
                )
                for member_id in present
            }
            began = perf_counter()
            owned = assignor.assign(history.partitions, members)
            outcome.took_s.append(perf_counter() - began)
            generation += 1
            rebalances += 1
        if number:
            _note(outcome, before, owned, rebalances)
    return outcome


def _note(outcome: Outcome, before: Plan, after: Plan, rebalances: int) -> None:
    sizes = [len(share) for share in after.values()]
    kept = sum(len(set(share).intersection(before.get(member_id, ()))) for member_id, share in after.items())
    quota, extra = divmod(sum(sizes), len(sizes))
    could_stay = sorted((len(before.get(member_id, ())) for member_id in after), reverse=True)
    needed = sum(sizes) - sum(min(size, quota + (place < extra)) for place, size in enumerate(could_stay))
    outcome.spread.append(max(sizes) - min(sizes))
    outcome.moved.append(sum(sizes) - kept)
    outcome.needed.append(needed)
    outcome.rebalances.append(rebalances)


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as Markdown."""
    lines = [
        "| assignor | spread, mean | spread, worst | moved | moved a change | needed a change | rebalances a change | ms |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in outcomes:
        figures = (
            f"{mean(each.spread):.2f}",
            f"{max(each.spread)}",
            f"{sum(each.moved):,}",
            f"{mean(each.moved):.1f}",
            f"{mean(each.needed):.1f}",
            f"{mean(each.rebalances):.2f}",
            f"{median(each.took_s) * 1000:.2f}",
        )
        lines.append(f"| `{each.assignor}` | {' | '.join(figures)} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    history = History.recorded()
    print(table([replay(history, assignor) for assignor in ASSIGNORS]))


if __name__ == "__main__":
    main()
