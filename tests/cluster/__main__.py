"""``python -m tests.cluster --minutes N --seed S [--transactions | --kafka]``: exit 0 when every check holds, else 1."""

from __future__ import annotations

import argparse
import asyncio
import sys
from random import Random

from tests.chaos.command_line import Trial, say, timed
from tests.chaos.exactly_once import checks as exactly_once_checks
from tests.chaos.exactly_once import run as exactly_once
from tests.chaos.kafka import checks as kafka_checks
from tests.chaos.kafka.__main__ import handled
from tests.chaos.reading import read_history
from tests.chaos.run import run
from tests.chaos.schedule import schedule
from tests.chaos.verdict import counts
from tests.cluster.checks import lost_with_the_leader, violations
from tests.cluster.faults import FAULTS
from tests.cluster.world import ClusterKafka, ClusterTransformers, ClusterWorld

_WITHOUT_TRANSACTIONS = frozenset({"scale-up", "scale-down", "kill-producer", "grow-topic", "change-subscription"})
"""Faults that mean nothing where each member has its transactional id."""
_WITHOUT_KAFKA = frozenset({"kill-at-commit", "change-subscription"})
"""Faults that only Cohort's members take part in."""


def _parsed() -> argparse.Namespace:
    parser = timed("tests.cluster", __doc__, FAULTS)
    parser.add_argument("--transactions", action="store_true", help="groups that answer in transactions, exactly once")
    parser.add_argument(
        "--kafka", action="store_true", help="producers and members of Kafka's clients, beside Cohort's"
    )
    return parser.parse_args()


def main() -> int:
    """One run."""
    options = _parsed()
    trial = Trial.begin("tests.cluster", options, "cluster")
    if options.transactions:
        return _transactions(trial, options.kinds)
    return _kafka(trial, options.kinds) if options.kafka else _records(trial, options.kinds)


def _kafka(trial: Trial, kinds: list[str]) -> int:
    world = ClusterKafka(trial.ledgers, Random(f"world {trial.seed}"))
    known = {name: fault for name, fault in FAULTS.items() if name not in _WITHOUT_KAFKA}
    steps = schedule(Random(f"schedule {trial.seed}"), trial.length_s, kinds, known)
    trial.announce(steps)
    say(f"groups: {', '.join(world.groups)}; metadata: {world.nodes.metadata.kind}")
    asyncio.run(run(world, steps, trial.length_s, say, known))
    history = read_history(trial.ledgers)
    lost = f"of acks=1 {len(lost_with_the_leader(history))} lost with their leader"
    told = f"{counts(history)}\n{handled(history)}\n{lost}\nseed {trial.seed}"
    return trial.judge(violations(history, kafka_checks.violations), told, kinds=kinds, kafka=" ")


def _records(trial: Trial, kinds: list[str]) -> int:
    world = ClusterWorld(trial.ledgers, Random(f"world {trial.seed}"), 4, 8)
    steps = schedule(Random(f"schedule {trial.seed}"), trial.length_s, kinds, FAULTS)
    trial.announce(steps)
    say(f"groups: {', '.join(world.groups)}; metadata: {world.nodes.metadata.kind}")
    asyncio.run(run(world, steps, trial.length_s, say, FAULTS))
    history = read_history(trial.ledgers)
    lost = f"of acks=1 {len(lost_with_the_leader(history))} lost with their leader"
    return trial.judge(violations(history), f"{counts(history)}\n{lost}\nseed {trial.seed}", kinds=kinds)


def _transactions(trial: Trial, kinds: list[str]) -> int:
    known = {name: fault for name, fault in FAULTS.items() if name not in _WITHOUT_TRANSACTIONS}
    world = ClusterTransformers(trial.ledgers, Random(f"world {trial.seed}"))
    steps = schedule(Random(f"schedule {trial.seed}"), trial.length_s, kinds or list(known), known)
    trial.announce(steps)
    outcome = asyncio.run(exactly_once.run(world, steps, trial.length_s, say, known))
    found = exactly_once_checks.violations(outcome)
    return trial.judge(found, exactly_once_checks.counts(outcome), kinds=kinds, transactions=" ")


if __name__ == "__main__":
    sys.exit(main())
