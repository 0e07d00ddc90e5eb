"""``python -m tests.chaos.kafka --minutes N --seed S``: Kafka's clients are hurt, and the daemon and their network.

Groups have confluent-kafka's, aiokafka's and Cohort's members beside each other. Exit 0 when every check holds, else 1 with
ledgers kept.
"""

from __future__ import annotations

import asyncio
import sys
from random import Random

from tests.chaos.command_line import Trial, say, timed
from tests.chaos.history import History
from tests.chaos.kafka.checks import violations
from tests.chaos.kafka.world import KINDS, KafkaWorld
from tests.chaos.reading import read_history
from tests.chaos.run import run
from tests.chaos.schedule import schedule
from tests.chaos.timeline import timeline
from tests.chaos.verdict import counts


def main() -> int:
    """One run."""
    options = timed("tests.chaos.kafka", __doc__, KINDS).parse_args()
    trial = Trial.begin("tests.chaos.kafka", options, "kafka")
    world = KafkaWorld(trial.ledgers, Random(f"world {trial.seed}"))
    steps = schedule(Random(f"schedule {trial.seed}"), trial.length_s, options.kinds or KINDS)
    trial.announce(steps)
    asyncio.run(run(world, steps, trial.length_s, say))
    history = read_history(trial.ledgers)
    picture = trial.report / f"timeline-{trial.seed}.svg"
    picture.write_text(timeline(history, f"seed {trial.seed}"), encoding="utf-8")
    judged = f"{counts(history)}\n{handled(history)}\nseed {trial.seed}; timeline: {picture}"
    return trial.judge(violations(history), judged, kinds=options.kinds)


def handled(history: History) -> str:
    """How many records the members of each client were through with, so that none is seen to have done nothing."""
    by_client: dict[str, int] = {}
    for period in history.periods:
        client = period.member.partition("-")[2]
        by_client[client] = by_client.get(client, 0) + len(period.handled)
    return "handled: " + ", ".join(f"{client} {number}" for client, number in sorted(by_client.items()))


if __name__ == "__main__":
    sys.exit(main())
