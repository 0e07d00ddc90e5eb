"""The source and the sink, ended with the whole driver at a moment that is asked for, in a batch of one's choice."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client.spark.options import sink_options, source_options
from client.spark.sink import CohortStreamWriter
from client.spark.source import CohortDataSource
from client.spark.stream import CohortStreamReader

MOMENTS = ("rows written", "decided", "batch complete", "offsets committed")
"""Before, in and after the commit of a batch: Spark's own commit is between the second and the third, and after that comes
the group's, if it is not committed with the rows."""
BATCHES = 2
"""How many batches of a run are left alone."""


def end_the_driver() -> None:
    """SIGKILL for Spark's JVM, above this process, and for the program that started it. Does not return."""
    pid = os.getppid()
    while b"org.apache.spark.deploy.SparkSubmit" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = _parent(pid)
    program = _parent(pid)
    os.kill(program, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class ViolentReader(CohortStreamReader):
    """Ends the driver before or after the offsets of a complete batch reach the group."""

    moment = ""
    plans = 0

    def latestOffset(self, start: Mapping[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Spark asks for this when the batch before is complete."""
        self.plans += 1
        due = self.plans > BATCHES
        if due and self.moment == "batch complete":
            end_the_driver()
        latest = super().latestOffset(start, limit)
        if due and self.moment == "offsets committed":
            end_the_driver()
        return latest


class ViolentWriter(CohortStreamWriter):
    """Ends the driver when the rows of a batch are written, or committed, and Spark has not been told."""

    moment = ""

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Spark calls this when all tasks are done."""
        due = batchId >= BATCHES
        if due and self.moment == "rows written":
            end_the_driver()
        super().commit(messages, batchId)
        if due and self.moment == "decided":
            end_the_driver()


class ViolentDataSource(CohortDataSource):
    """The format ``cohort-violent``; its option ``moment`` is one of ``MOMENTS``, or anything else for none."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "cohort-violent"

    def streamReader(self, schema: Any) -> CohortStreamReader:  # noqa: N802
        """Plans a stream."""
        reader = ViolentReader(source_options(self.options, streaming=True), schema)
        reader.moment = self.options["moment"]
        return reader

    def streamWriter(self, schema: Any, overwrite: bool) -> CohortStreamWriter:  # noqa: N802
        """Writes a stream."""
        writer = ViolentWriter(sink_options(self.options, streaming=True), schema)
        writer.moment = self.options["moment"]
        return writer
