"""The verdict of a run as text."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.chaos.history import History

_SHOWN: Final = 5


def table(found: dict[str, list[str]]) -> str:
    """One line a check, and the first violations of each."""
    width = max(map(len, found))
    lines = []
    for name, texts in found.items():
        lines.append(f"  {name:<{width}}  {'holds' if not texts else f'VIOLATED {len(texts)} times'}")
        lines.extend(f"      {text}" for text in texts[:_SHOWN])
    return "\n".join(lines)


def counts(history: History) -> str:
    """What the run consisted of, so that a verdict over nothing is seen as such."""
    acknowledged = sum(send.acknowledged for send in history.sends)
    failed = sum(bool(send.error) for send in history.sends)
    stored = sum(map(len, history.log.values()))
    first: set[tuple[str, str, int]] = set()
    again = 0
    for period in history.periods:
        for _, offset, _ in period.deliveries:
            again += (period.group, period.tp, offset) in first
            first.add((period.group, period.tp, offset))
    generations = Counter(group for group, _ in {(period.group, period.generation) for period in history.periods})
    refused = Counter(commit.error for commit in history.commits if commit.error)
    hits = Counter(hit.kind for hit in history.hits)
    once = [send for send in history.sends if send.producer in history.once]
    lines = [
        f"records: {len(history.sends)} sent, {acknowledged} acknowledged, {failed} failed, {stored} stored; numbered "
        f"{len(once)}",
        f"deliveries: {len(first) + again}, of them {again} again",
        f"members: {len(history.group_of)} processes; generations: {_listed(generations)}",
        f"commits: {len(history.commits)} asked for; refused: {_listed(refused)}",
        f"looks at what is committed: {len(history.observations)}",
        f"fenced: {len(history.fenced)}; offsets changed by an administrator: {len(history.resets)} times",
        f"rolling restarts: {_rolls(history)}",
        f"faults: {_listed(hits)}",
    ]
    return "\n".join(lines)


def _rolls(history: History) -> str:
    """A group whose members took too long for their sessions is told, as nothing was promised to it."""
    told = [f"{each.group} {each.after - each.before} rebalances, {each.longest:.1f} s" for each in history.rolls]
    return ", ".join(told) or "none"


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counter.items())) or "none"
