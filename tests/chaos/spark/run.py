"""Rounds of feeding, one SIGKILL at a random instant, catching up, and the comparison of inputs, outputs and offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter, sleep
from typing import Final

from tests.chaos.spark.pipeline import Pipeline
from tests.chaos.spark.victims import ENDS_THE_DRIVER, VICTIMS

ROWS: Final = 700
"""Numbers of a round: a few batches."""
_CATCH_UP_S: Final = 600.0
_FOUND_S: Final = 240.0
"""How long is looked for a process to kill."""


class Violated(AssertionError):
    """What was promised does not hold."""


@dataclass(frozen=True)
class Killed:
    """One kill: how long after the beginning of its round, how long until all was caught up, how often the query failed."""

    victim: str
    after_s: float
    caught_up_s: float
    failures: int


def rounds(pipeline: Pipeline, victims: Sequence[str], random: Random, say: Callable[[str], None]) -> list[Killed]:
    """Kills one victim after the other. Raises ``Violated``."""
    took_s = [undisturbed(pipeline) for _ in range(3)][-1]
    say(f"a round of {ROWS} rows takes {took_s:.1f} s when nothing is killed")
    kills: list[Killed] = []
    for index, victim in enumerate(victims):
        if ENDS_THE_DRIVER.intersection(victims[index:]):
            pipeline.ground.stand_by()
        kills.append(_one(pipeline, victim, took_s * random.random(), took_s / 2, random))
        killed = kills[-1]
        say(
            f"{len(kills):4d} {victim:21s} after {killed.after_s:4.1f} s, caught up {killed.caught_up_s:5.1f} s later"
            + (f", the query failed {killed.failures} times" if killed.failures else "")
        )
    check(pipeline, anew=True)
    return kills


def undisturbed(pipeline: Pipeline) -> float:
    """Seconds of a round in which nothing is killed."""
    began = perf_counter()
    pipeline.feed(ROWS, 0.5).result()
    catch_up(pipeline)
    took_s = perf_counter() - began
    check(pipeline)
    return took_s


def _one(pipeline: Pipeline, victim: str, after_s: float, feeding_s: float, random: Random) -> Killed:
    driver, failures = pipeline.ground.driver, len(pipeline.ground.driver.failures)
    began = perf_counter()
    feeding = pipeline.feed(ROWS, feeding_s)
    sleep(after_s)
    kill, _ = VICTIMS[victim]
    while not kill(pipeline, random):
        if perf_counter() - began > _FOUND_S:
            raise Violated(f"there was no {victim} to kill within {_FOUND_S:.0f} s")
        sleep(0.02)
    killed = perf_counter()
    if "daemon" in victim:
        pipeline.ground.daemon.start()
    if victim in ENDS_THE_DRIVER:
        check_at_once(pipeline)
        pipeline.start()
    feeding.result()
    catch_up(pipeline)
    caught_up_s = perf_counter() - killed
    check(pipeline)
    failed = len(pipeline.ground.driver.failures) - (failures if pipeline.ground.driver is driver else 0)
    return Killed(victim, killed - began, caught_up_s, failed)


def catch_up(pipeline: Pipeline) -> None:
    """Waits until the group has passed all that was fed."""
    began = perf_counter()
    while (reached := pipeline.committed()) < pipeline.fed:
        pipeline.ground.driver.check()
        if perf_counter() - began > _CATCH_UP_S:
            raise Violated(
                f"{reached} of {pipeline.fed} committed after {_CATCH_UP_S:.0f} s: {pipeline.ground.driver.failures}"
            )
        sleep(0.03)


def check(pipeline: Pipeline, *, anew: bool = False) -> None:
    """Every number that was fed is there once, the offsets have passed as many, and no transaction is left."""
    pipeline.decided()
    seen = pipeline.outputs_again() if anew else pipeline.outputs()
    committed = pipeline.committed()
    lost = [number for number in range(pipeline.fed) if number not in seen]
    twice = [number for number, count in seen.items() if count > 1]
    strange = [number for number in seen if not 0 <= number < pipeline.fed]
    if lost or twice or strange or committed != pipeline.fed:
        raise Violated(
            f"{pipeline.fed} were fed and {committed} committed; {len(lost)} lost: {lost[:20]}; {len(twice)} more than "
            f"once: {twice[:20]}; {len(strange)} never fed: {strange[:20]}"
        )


def check_at_once(pipeline: Pipeline) -> None:
    """Right after a kill: as many numbers are there as the offsets have passed, none twice.

    What the driver has left behind may still commit: then it is looked at again.
    """
    while True:
        before = pipeline.committed()
        pipeline.decided()
        seen = pipeline.outputs()
        pipeline.decided()
        if pipeline.committed() == before:
            break
    if not len(seen) == sum(seen.values()) == before:
        raise Violated(
            f"offsets have passed {before}, and {sum(seen.values())} outputs of {len(seen)} numbers are there"
        )
