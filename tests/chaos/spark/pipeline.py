"""The query that is hurt: it copies a topic to two others, by the parity of its numbers, and commits its group.

Another driver stands by with its session and executors, so that a driver that was killed has a successor at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from time import sleep
from typing import Final

from client import Consumer, Producer, TopicPartition
from tests.integration.spark.calls import administer, prepare, run
from tests.integration.spark.ground import Ground
from tests.integration.spark.obedient import Order

EXACTLY_ONCE: Final = "exactly-once"
_INPUTS: Final = 3
_OUTPUTS: Final = 2
"""Partitions of the topic that is read, and of each that is written."""
_BATCH: Final = 250
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Pipeline:
    """The query on a ground, which has daemon, cluster and drivers.

    ``name`` is its group and begins the names of its topics. ``chance`` is the share of tasks that fail after they have
    written, and of those that dawdle. With ``delivery`` at-least-once the checks have something to find.
    """

    def __init__(
        self, ground: Ground, delivery: str = EXACTLY_ONCE, chance: float = 0.02, name: str = "copying"
    ) -> None:
        self.ground = ground
        self.fed = 0
        self._delivery = delivery
        self._chance = chance
        self._name = name
        self._outputs = Outputs(name)
        prepare(ground.daemon.address, {f"{name}-in": _INPUTS, f"{name}-even": _OUTPUTS, f"{name}-odd": _OUTPUTS})
        self.start()

    def start(self) -> None:
        """The driver begins the query, or goes on with it."""
        self.ground.driver.start(self._order())

    def stop(self) -> None:
        """The query ends."""
        self.ground.driver.stop(self._name)

    def feed(self, count: int, within_s: float) -> Future[None]:
        """Writes the next ``count`` numbers, in portions spread over a time; the daemon may be killed meanwhile.

        The first portion is written when this returns: a producer that has never reached a daemon does not wait for one.
        """
        numbers = range(self.fed, self.fed + count)
        self.fed += count
        begun = threading.Event()
        work = _feed(self.ground.daemon.address, f"{self._name}-in", numbers, within_s, begun)
        thread = ThreadPoolExecutor(1)
        feeding: Future[None] = thread.submit(run, work)
        feeding.add_done_callback(lambda _: begun.set())
        thread.shutdown(wait=False)
        begun.wait()
        return feeding

    def committed(self) -> int:
        """How many numbers the group's offsets have passed."""
        found = administer(self.ground.daemon.address, lambda admin: admin.list_offsets(self._name))
        return sum(offset.offset for offset in found.values())

    def decided(self) -> None:
        """Waits until every commit and abort is so in every partition."""
        while administer(self.ground.daemon.address, lambda admin: admin.list_transactions(_OPEN[1:])):
            sleep(0.02)

    def outputs(self) -> Counter[int]:
        """What a reader with read_committed has seen so far, with how many times."""
        run(self._outputs.read_on(self.ground.daemon.address))
        return self._outputs.seen

    def outputs_again(self) -> Counter[int]:
        """The same by a reader that begins anew."""
        self._outputs = Outputs(self._name)
        return self.outputs()

    def open_transactions(self) -> list[str]:
        """Those that are not complete."""
        found = administer(self.ground.daemon.address, lambda admin: admin.list_transactions(_OPEN))
        return [each.transactional_id for each in found]

    def _order(self) -> Order:
        address, directory = self.ground.daemon.address, self.ground.directory / self._name
        directory.mkdir(exist_ok=True)
        servers = {"bootstrap.servers": address, "points": str(directory)}
        source = {"subscribe": f"{self._name}-in", "startingOffsets": "earliest", "group.id": self._name}
        sink = {"delivery": self._delivery, "chance": str(self._chance)}
        if self._delivery == EXACTLY_ONCE:
            sink["group.id"] = self._name
        topic = f"concat('{self._name}-', IF(cast(string(value) AS bigint) % 2 = 0, 'even', 'odd')) AS topic"
        return Order(
            start=self._name,
            checkpoint=str(directory / "checkpoint"),
            source=servers | source | {"maxOffsetsPerTrigger": str(_BATCH)},
            sink=servers | sink,
            columns=["key", "value", topic],
            once=False,
            tries=50,
        )


class Outputs:
    """A reader that remembers how far it has read."""

    def __init__(self, name: str) -> None:
        self.seen: Counter[int] = Counter()
        topics = (f"{name}-even", f"{name}-odd")
        self._partitions = [TopicPartition(topic, index) for topic in topics for index in range(_OUTPUTS)]
        self._at: dict[TopicPartition, int] = {}

    async def read_on(self, address: str) -> None:
        """Up to the ends as they are now."""
        async with Consumer(bootstrap_servers=address, isolation_level="read_committed") as consumer:
            consumer.assign(self._partitions)
            for partition in self._partitions:
                consumer.seek(partition, self._at.get(partition, 0))
            ends = await consumer.end_offsets(self._partitions)
            while any(self._at.get(partition, 0) < end for partition, end in ends.items()):
                found = await consumer.getmany(timeout_ms=500)
                self.seen.update(int(record.value or b"-1") for records in found.values() for record in records)
                self._at = {partition: await consumer.position(partition) for partition in self._partitions}


async def _feed(
    address: str, topic: str, numbers: range, within_s: float, begun: threading.Event, portions: int = 8
) -> None:
    async with Producer(address) as producer:
        for portion in range(portions):
            chosen = [b"%d" % number for number in numbers[portion::portions]]
            await producer.send_many(topic, chosen, chosen)
            begun.set()
            await asyncio.sleep(within_s / portions)
