"""Where queries come to grief: a daemon, a cluster of two workers, a driver and one that can take its place."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from client.types.descriptions import TransactionDescription
from tests.daemon_process import DaemonProcess
from tests.integration.hostile_proxy import HostileProxy, Malice
from tests.integration.spark.calls import administer, numbers, prepare, produce, read, run
from tests.integration.spark.cluster import Driver, two_workers
from tests.integration.spark.obedient import Order
from tests.integration.spark.points import Points
from tests.integration.spark.test_exactly_once import committed, decided, open_transactions

BATCH = 100
"""Records of a batch at most."""


class Ground:
    """What all rows share; a context manager, at whose end every process is gone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.daemon = DaemonProcess(directory / "data")
        self.workers = two_workers(directory / "workers")
        self._drivers: list[Driver] = []
        self._started = 0

    def __enter__(self) -> Self:
        self.workers.__enter__()
        self.stand_by()
        self.daemon.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._drivers:
            each.kill()
        self.workers.__exit__(kind, error, trace)
        self.daemon.kill()

    @property
    def driver(self) -> Driver:
        """The one that runs queries."""
        self._begin(1)
        return self._drivers[0].ready()

    @property
    def other(self) -> Driver:
        """Another one."""
        self._begin(2)
        return self._drivers[1].ready()

    def kill_driver(self, *, orphans: bool = False) -> None:
        """SIGKILL for the driver, with its processes unless they are to be orphans; the other one is the driver now."""
        self._begin(2)
        self._drivers.pop(0).kill(orphans=orphans)

    def run(
        self, row: Row, order: Order, strike: str = "", meanwhile: Callable[[], object] = lambda: None
    ) -> str | None:
        """Runs a query to its end; returns why it failed. With ``strike`` that comes down at its next commit.

        ``meanwhile`` is called again and again.
        """

        def alive() -> None:
            meanwhile()
            self.driver.check()

        if strike:
            row.points.set("commit")
        self.driver.start(order)
        if strike:
            row.points.reached("commit", alive=alive)
            self.strike(order, strike)
            row.points.release("commit")
        return self.driver.ended(order.start, meanwhile)

    def strike(self, order: Order, strike: str) -> None:
        """SIGKILL for the daemon, or for the driver, whose successor goes on with the query."""
        if strike == "daemon killed":
            self.restart_daemon()
        elif strike == "driver killed":
            self.kill_driver()
            self.driver.start(order)

    def stand_by(self) -> None:
        """Begins to start another driver, if there is none."""
        self._begin(2)

    def restart_daemon(self) -> None:
        """SIGKILL for the daemon, and a new one on its files."""
        self.daemon.kill()
        self.daemon.start()

    def row(self, name: str) -> Row:
        """A query of its own."""
        return Row(self.directory / name, self.daemon.address, name)

    def _begin(self, count: int) -> None:
        while len(self._drivers) < count:
            self._started += 1
            self._drivers.append(Driver(self.workers.master, self.directory / f"driver-{self._started}.log"))


class Row:
    """A query that copies a topic of its own to another, exactly once and in batches of ``BATCH``, and where it is hurt."""

    def __init__(self, directory: Path, address: str, name: str) -> None:
        self.name = name
        self.address = address
        self.points = Points(directory / "points")
        self.checkpoint = directory / "checkpoint"
        self.fed = 0
        prepare(address, {f"{name}-in": 2, f"{name}-out": 2})

    def feed(self, count: int) -> None:
        """Writes the next numbers."""
        run(produce(self.address, f"{self.name}-in", range(self.fed, self.fed + count)))
        self.fed += count

    def order(self, most: int = BATCH, **sink: str) -> Order:
        """The query, which ends when everything is read; with options of the sink."""
        servers = {"bootstrap.servers": self.address, "group.id": self.name}
        points = {"points": str(self.points.directory)}
        source = {"subscribe": f"{self.name}-in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(most)}
        given = {"topic": f"{self.name}-out", "delivery": "exactly-once"}
        options = {name.replace("_", "."): value for name, value in sink.items()}
        return Order(self.name, str(self.checkpoint), servers | points | source, servers | points | given | options)

    def stored(self, isolation_level: str = "read_committed") -> list[int]:
        """The values that a reader sees, sorted."""
        decided(self.address)
        return numbers(read(self.address, subscribe=f"{self.name}-out", isolation_level=isolation_level))

    def written(self) -> int:
        """How many records all attempts have written, aborted ones as well."""
        return len(self.stored("read_uncommitted"))

    def committed(self) -> int:
        """How many records the offsets of the group have passed."""
        return committed(self.address, self.name)

    def has_copied(self, count: int) -> None:
        """Readers see so many numbers, each once, the group's offsets are the same, and no transaction is open."""
        assert self.stored() == list(range(count))
        assert self.committed() == count
        assert self.transaction() == []

    def has_copied_one_batch(self) -> None:
        """Readers see the first batch, each number once, and the group's offsets are the same."""
        stored = self.stored()
        assert len(stored) == len(set(stored)) == self.committed()
        assert 0 < len(stored) <= BATCH

    def last_batch(self) -> int:
        """The number of the last batch in the checkpoint."""
        return max(int(file.name) for file in (self.checkpoint / "offsets").iterdir() if file.name.isdigit())

    def transaction(self) -> list[str]:
        """The transactional ids, of those that are open, that are of this query."""
        return [each for each in open_transactions(self.address) if each == self.transactional_id]

    def described(self) -> TransactionDescription:
        """The transaction of the query."""
        name = self.transactional_id
        found = administer(self.address, lambda admin: admin.describe_transactions(name))
        description: TransactionDescription = found[name]
        return description

    @property
    def transactional_id(self) -> str:
        """That of the query, which has the id of its checkpoint."""
        found: str = json.loads((self.checkpoint / "metadata").read_text())["id"]
        return f"spark-{found}"


@contextmanager
def answers_lost(directory: Path, malice: Malice) -> Iterator[tuple[str, HostileProxy, Callable[[], None]]]:
    """A daemon that is reached through a proxy: its address, the proxy, and what ends the malice with all connections."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def there(work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(100)  # type: ignore[arg-type]

    proxy = HostileProxy(malice, Random(1))
    there(proxy.__aenter__())

    async def end() -> None:
        proxy.malice = Malice()
        proxy.hang_up()

    try:
        with DaemonProcess(directory / "data", "--advertised-port", str(proxy.port)) as daemon:
            proxy.upstream_port = daemon.port
            yield f"127.0.0.1:{proxy.port}", proxy, lambda: there(end())
    finally:
        there(proxy.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
