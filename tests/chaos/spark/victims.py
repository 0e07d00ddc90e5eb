"""What is killed, by SIGKILL: one function a kind, which returns False when there is nothing to kill at that instant."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from tests.chaos.spark.pipeline import Pipeline
from tests.integration.spark.cluster import descendants, end, executors

Kill = Callable[[Pipeline, Random], bool]


def driver(pipeline: Pipeline, random: Random) -> bool:
    """The driver with all its processes, or without those that its JVM started, which live on for a while."""
    pipeline.ground.kill_driver(orphans=random.random() < 0.5)
    return True


def daemon(pipeline: Pipeline, random: Random) -> bool:
    """The daemon."""
    pipeline.ground.daemon.kill()
    return True


def driver_and_daemon(pipeline: Pipeline, random: Random) -> bool:
    """Both, one after the other."""
    return all(kill(pipeline, random) for kill in random.sample((driver, daemon), 2))


def executor(pipeline: Pipeline, random: Random) -> bool:
    """One executor; its worker starts another."""
    found = executors(pipeline.ground.workers, pipeline.ground.driver.app)
    return bool(found) and end(random.choice(found))


def all_executors(pipeline: Pipeline, random: Random) -> bool:
    """All executors of the driver."""
    killed = [end(each) for each in executors(pipeline.ground.workers, pipeline.ground.driver.app)]
    return any(killed)


def python_of_a_task(pipeline: Pipeline, random: Random) -> bool:
    """A process of Python below an executor: one that runs tasks, or the one that starts these."""
    found = [
        pid for each in executors(pipeline.ground.workers, pipeline.ground.driver.app) for pid in descendants(each)
    ]
    return bool(found) and end(random.choice(found))


def python_of_the_driver(pipeline: Pipeline, random: Random) -> bool:
    """A process of Python below the driver's JVM: the source plans in one, each commit of the sink runs in one."""
    found = descendants(pipeline.ground.driver.jvm)
    return bool(found) and end(random.choice(found))


VICTIMS: Final[dict[str, tuple[Kill, int]]] = {
    "driver": (driver, 3),
    "driver and daemon": (driver_and_daemon, 1),
    "daemon": (daemon, 5),
    "executor": (executor, 4),
    "all executors": (all_executors, 1),
    "python of a task": (python_of_a_task, 4),
    "python of the driver": (python_of_the_driver, 4),
}
"""With how many times each is among as many kills as these sum up to."""
ENDS_THE_DRIVER: Final = frozenset({"driver", "driver and daemon"})


def drawn(random: Random, count: int) -> list[str]:
    """The victims of a run, in turn."""
    deck = [name for name, (_, times) in VICTIMS.items() for _ in range(times)]
    found: list[str] = []
    while len(found) < count:
        found += random.sample(deck, len(deck))
    return found[:count]
