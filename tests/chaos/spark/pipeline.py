"""The query that is hurt: it copies a topic to two others, by the parity of its numbers, and commits the group ``copying``.

Another driver always stands by with its session and executors, so that a driver that was killed has a successor at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from time import sleep
from types import TracebackType
from typing import Final, Self

from client import Consumer, Producer, TopicPartition
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import administer, prepare, run
from tests.integration.spark.cluster import Driver, two_workers
from tests.integration.spark.obedient import Order

GROUP: Final = "copying"
_PARTITIONS: Final = {"in": 3, "even": 2, "odd": 2}
_BATCH: Final = 250
_TROUBLED_TASKS: Final = "0.02"
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Pipeline:
    """Daemon, cluster, drivers and topics; a context manager, at whose end every process is gone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.daemon = DaemonProcess(directory / "data")
        self.workers = two_workers(directory / "workers")
        self.fed = 0
        self.drivers = 0
        self._outputs = Outputs()

    def __enter__(self) -> Self:
        self.daemon.start()
        self.workers.__enter__()
        self.driver, self._next = self._new_driver(), self._new_driver()
        prepare(self.daemon.address, _PARTITIONS)
        self.driver.start(self._order())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self.driver, self._next):
            each.kill()
        self.workers.__exit__(kind, error, trace)
        self.daemon.kill()

    def succeed(self) -> None:
        """The driver that stood by goes on with the checkpoint of the one that was killed; another begins to stand by."""
        self.driver, self._next = self._next.ready(), self._new_driver()
        self.driver.start(self._order())

    def feed(self, count: int, within_s: float) -> threading.Thread:
        """Writes the next ``count`` numbers, in portions spread over a time; the daemon may be killed meanwhile."""
        numbers = range(self.fed, self.fed + count)
        self.fed += count
        thread = threading.Thread(target=run, args=(_feed(self.daemon.address, numbers, within_s),), daemon=True)
        thread.start()
        return thread

    def committed(self) -> int:
        """How many numbers the group's offsets have passed."""
        found = administer(self.daemon.address, lambda admin: admin.list_offsets(GROUP))
        return sum(offset.offset for offset in found.values())

    def decided(self) -> None:
        """Waits until every commit and abort is so in every partition."""
        while administer(self.daemon.address, lambda admin: admin.list_transactions(_OPEN[1:])):
            sleep(0.02)

    def outputs(self) -> Counter[int]:
        """What a reader with read_committed has seen so far, with how many times."""
        run(self._outputs.read_on(self.daemon.address))
        return self._outputs.seen

    def outputs_again(self) -> Counter[int]:
        """The same by a reader that begins anew."""
        self._outputs = Outputs()
        return self.outputs()

    def open_transactions(self) -> list[str]:
        """Those that are not complete."""
        found = administer(self.daemon.address, lambda admin: admin.list_transactions(_OPEN))
        return [each.transactional_id for each in found]

    def _new_driver(self) -> Driver:
        self.drivers += 1
        return Driver(self.workers.master, self.directory / f"driver-{self.drivers}.log")

    def _order(self) -> Order:
        servers = {"bootstrap.servers": self.daemon.address, "group.id": GROUP}
        return Order(
            start=GROUP,
            checkpoint=str(self.directory / "checkpoint"),
            source=servers | {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(_BATCH)},
            sink=servers | {"delivery": "exactly-once", "points": str(self.directory), "chance": _TROUBLED_TASKS},
            columns=["key", "value", "IF(cast(string(value) AS bigint) % 2 = 0, 'even', 'odd') AS topic"],
            once=False,
            tries=50,
        )


class Outputs:
    """A reader that remembers how far it has read."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()
        self._at: dict[TopicPartition, int] = {}

    async def read_on(self, address: str) -> None:
        """Up to the ends as they are now."""
        partitions = [TopicPartition(topic, index) for topic in ("even", "odd") for index in range(_PARTITIONS[topic])]
        async with Consumer(bootstrap_servers=address, isolation_level="read_committed") as consumer:
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, self._at.get(partition, 0))
            ends = await consumer.end_offsets(partitions)
            while any(self._at.get(partition, 0) < end for partition, end in ends.items()):
                found = await consumer.getmany(timeout_ms=500)
                self.seen.update(int(record.value or b"-1") for records in found.values() for record in records)
                self._at = {partition: await consumer.position(partition) for partition in partitions}


async def _feed(address: str, numbers: range, within_s: float, portions: int = 8) -> None:
    async with Producer(address) as producer:
        for portion in range(portions):
            chosen = [b"%d" % number for number in numbers[portion::portions]]
            await producer.send_many("in", chosen, chosen)
            await asyncio.sleep(within_s / portions)
