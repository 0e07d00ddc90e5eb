"""How many idempotent producers a node remembers, all partitions together.

Producer ids cost nothing to make up, and as in Kafka a partition takes them without asking who gave them out: a producer may
have its id from another data directory. A partition that has too many forgets those that were silent for the longest time
(``coordinator.log.producers``), but a node may have many partitions. Above the limit of the node the partitions that have
the most forget some: a flood of ids into one of them costs the producers of the others nothing.

A producer that is forgotten goes on in a new epoch and loses no record. Only a duplicate that is on its way then is not
recognised: if its sequence is 0 it is stored twice, and any other is refused with UNKNOWN_PRODUCER_ID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from coordinator.log.partition import PartitionLog
from coordinator.log.producers import Producers
from coordinator.log_output import get_logger

log = get_logger()

MAX_PRODUCERS_OF_NODE: Final = 500_000
"""Takes 200 to 500 MB, as a producer takes 0.4 to 1 KB in each partition it writes to."""

_LOOK_EVERY: Final = 10_000
_ROOM: Final = 20
"""One of so many is forgotten beyond what the limit asks for, so that the next look does not come too late."""


class ProducerLimit:
    """Keeps what ``logs`` remember of producers below ``limit``, give or take ``look_every``.

    ``logs`` gives every open log with its topic and partition.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[tuple[str, int, PartitionLog]]],
        limit: int = MAX_PRODUCERS_OF_NODE,
        look_every: int = _LOOK_EVERY,
    ) -> None:
        self._logs = logs
        self._limit = limit
        self._look_every = look_every
        self._begun = 0

    def begun(self, count: int = 1) -> None:
        """So many producers have begun to write to a partition, or are remembered by one that was opened."""
        self._begun += count
        if self._begun >= self._look_every:
            self._begun = 0
            self._look()

    def _look(self) -> None:
        """Forgets producers if there are too many, and says which partitions had to forget any since the last look."""
        named = [(f"{topic}-{index}", opened.producers) for topic, index, opened in self._logs()]
        forget_above(self._limit, [producers for _, producers in named])
        forgotten = {name: count for name, producers in named if (count := producers.take_forgotten())}
        if forgotten:
            most = max(forgotten, key=forgotten.__getitem__)
            log.warning(
                "producers_forgotten",
                producers=sum(forgotten.values()),
                partitions=len(forgotten),
                most=f"{forgotten[most]} of {most}",
                limit=self._limit,
                advice="find the program that sends with ever new producer ids; one Producer can send all it has",
            )


def forget_above(limit: int, partitions: Sequence[Producers]) -> None:
    """Cuts those partitions that remember most to the same number, so that all together are a little below ``limit``.

    Producers with an open transaction stay: the others make room for them.
    """
    total = sum(map(len, partitions))
    if total <= limit:
        return
    by_size = sorted(partitions, key=lambda producers: producers.forgettable)
    kept = total - sum(producers.forgettable for producers in partitions)
    left = max(0, limit - limit // _ROOM - kept)
    level = 0
    for position, producers in enumerate(by_size):
        level = left // (len(by_size) - position)
        if producers.forgettable > level:
            break
        left -= producers.forgettable
    for producers in by_size:
        producers.forget(producers.forgettable - level)
