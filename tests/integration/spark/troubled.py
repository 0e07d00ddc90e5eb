"""The format ``cohort-troubled``: source and sink, with points at which tasks and driver are held or fail.

Points are ``written PARTITION`` (a task whose rows are on disk), ``commit``, ``before BATCH`` and ``after BATCH`` (the
commit on the driver), ``plan N`` and ``planned N`` (the source, around the N-th time that it plans); see ``points``. A file
``written PARTITION.zombie`` makes a zombie of a task, see ``_with_a_zombie``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from time import sleep
from typing import Any, Final

from client.spark.options import sink_options, source_options
from client.spark.sink import CohortStreamWriter, Written
from client.spark.source import CohortDataSource
from client.spark.stream import CohortStreamReader
from tests.integration.spark.points import an_attempt, reach, taken, tell

_DAWDLES_S: Final = 1.5


class TroubledWriter(CohortStreamWriter):
    """``directory`` has the files that name points. ``chance`` is the share of tasks that fail, and of those that dawdle.

    ``zombie`` is the file that names this process once it is one.
    """

    directory = Path()
    chance = 0.0
    zombie: Path | None = None

    def write(self, iterator: Iterator[Any]) -> Written:
        """Runs in a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        point = f"written {context.partitionId()}"
        with an_attempt(self.directory, point):
            return self._write(point, iterator)

    def _write(self, point: str, iterator: Iterator[Any]) -> Written:
        try:
            written = super().write(self._with_a_zombie(point, iterator))
        except Exception as error:
            self._tell_of_the_zombie(f"{type(error).__name__}: {error}")
            raise
        self._tell_of_the_zombie("it has written")
        reach(self.directory, point)
        fate = Random(os.urandom(8)).random()
        if fate < self.chance:
            raise RuntimeError("a task fails after it has written")
        if fate > 1 - self.chance:
            sleep(_DAWDLES_S)
        return written

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Runs on the driver."""
        reach(self.directory, "commit")
        reach(self.directory, f"before {batchId}")
        super().commit(messages, batchId)
        reach(self.directory, f"after {batchId}")

    def _with_a_zombie(self, point: str, iterator: Iterator[Any]) -> Iterator[Any]:
        """The rows of a task, which lives on after Spark has given it up if a file says so: it writes them, and once more
        when the file that names it is gone. Written before that is what fills the first batches: the sink gathers 4 MiB.
        """
        batches = list(iterator)
        yield from batches
        file = taken(self.directory, point, "zombie")
        if file is not None:
            _live_on(int(self._options.connection.bootstrap_servers.rpartition(":")[2]))
            self.zombie = file
            while file.exists():
                sleep(0.02)
            yield from batches

    def _tell_of_the_zombie(self, text: str) -> None:
        """What became of it; then it ends."""
        if self.zombie is not None:
            tell(self.zombie.with_suffix(".ended"), text)
            os._exit(0)


def _live_on(daemon_port: int) -> None:
    """The process dies, and a copy of it that Spark knows nothing of goes on, connected with the daemon alone."""
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    os.setsid()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:
            if found.family != socket.AF_INET or found.getpeername()[1] != daemon_port:
                os.close(int(name))


class TroubledReader(CohortStreamReader):
    """``directory`` has the files that name points."""

    directory = Path()
    plans = 0

    def latestOffset(self, start: Mapping[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Spark asks for this when the batch before is complete."""
        self.plans += 1
        reach(self.directory, f"plan {self.plans}")
        latest = super().latestOffset(start, limit)
        reach(self.directory, f"planned {self.plans}")
        return latest


class TroubledDataSource(CohortDataSource):
    """Has the options ``points``, a directory, and ``chance``."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "cohort-troubled"

    def streamReader(self, schema: Any) -> CohortStreamReader:  # noqa: N802
        """Plans a stream."""
        reader = TroubledReader(source_options(self.options, streaming=True), schema)
        reader.directory = Path(self.options["points"])
        return reader

    def streamWriter(self, schema: Any, overwrite: bool) -> CohortStreamWriter:  # noqa: N802
        """Writes a stream."""
        checkpoint = self.options.get("checkpointLocation", self.options.get("checkpointlocation", ""))
        writer = TroubledWriter(sink_options(self.options, streaming=True), schema, checkpoint)
        writer.directory = Path(self.options["points"])
        writer.chance = float(self.options.get("chance", "0"))
        return writer
