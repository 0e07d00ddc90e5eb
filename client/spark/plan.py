"""What Spark planned for a batch: the file of it in the checkpoint, as far as the driver can read it.

Spark writes ``offsets/N`` before batch N runs, and repeats just that after a crash. So a batch N that is planned otherwise
than the N that is committed has other rows, which must not be taken for written: a checkpoint has lost its last file, or
went on twice from a copy. What is planned is stored with the decision about the batch, and compared.

A batch is told by the offsets of all its sources, whatever they are; the time at which it was planned makes no difference.
The offset of a source of files is a number in its own log, ``sources/0``, so what stands there counts too.

Where the checkpoint cannot be read, each source that owns a group tells the sink of its driver what it has planned, in a
file in the directory that Spark makes for this driver and removes with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from client.spark.errors import CheckpointError
from client.spark.positions import KEY, Positions
from protocol.subscription import TopicPartition

_SHOWN_BYTES: Final = 900
_DIGEST: Final = " #"
_LOCAL_DIRS: Final = "SPARK_LOCAL_DIRS"
"""Spark gives it to every process of Python that it starts on the driver: directories of one ``SparkContext`` alone."""
_OF_ONE_DRIVER: Final = "blockmgr-"


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """``text`` is for people and for comparing, ``ends`` where sources of Cohort end, without what two of them differ in."""

    text: str
    ends: Mapping[TopicPartition, int]

    @property
    def digest(self) -> str:
        """The same for the same offsets."""
        return self.text.rpartition(_DIGEST)[2]

    def is_that_of(self, stored: str) -> bool:
        """Whether ``stored`` is the text of the same plan."""
        return stored.rpartition(_DIGEST)[2] == self.digest


def query_of(checkpoint: str) -> str | None:
    """The query of a checkpoint in a directory of this machine, None if that cannot be told."""
    try:
        found = json.loads(_path(checkpoint, "metadata").read_text())["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def plan_of(checkpoint: str, query_id: str | None, batch_id: int) -> BatchPlan | None:
    """What is planned for a batch; None unless this machine has the checkpoint of the query in files."""
    if query_id is None or query_of(checkpoint) != query_id:
        return None
    try:
        lines = _path(checkpoint, "offsets", str(batch_id)).read_text().splitlines()
    except (OSError, ValueError):
        return None
    if len(lines) < 3 or re.fullmatch(r"v\d+", lines[0]) is None:
        return None
    offsets = lines[2:]  # after the version and what Spark notes about the batch, its time among others
    return _plan(offsets, [_files_of(checkpoint, number, line) for number, line in enumerate(offsets)])


def plan_of_write(topic: str | None) -> BatchPlan:
    """What a write with a version is told by, which has no batch of Spark's: where its rows go."""
    where = "to the topics in column topic" if topic is None else f"to topic {topic!r}"
    return BatchPlan(f"{where}{_DIGEST}{sha256(where.encode()).hexdigest()[:32]}", {})


def shown_plan(stored: str) -> str:
    """The text of a plan for people."""
    return stored.rpartition(_DIGEST)[0]


def tell_plan(group_id: str, end: Positions) -> None:
    """Runs in the source: the next batch reads up to ``end`` as this group. Nothing happens outside of Spark."""
    file = _told(group_id)
    if file is not None:
        fresh = file.with_name(f"{file.name}.{os.getpid()}")
        fresh.write_text(json.dumps(end.to_json()))
        fresh.replace(file)


def plan_told(group_id: str) -> BatchPlan | None:
    """Runs in the sink: what the source of this driver that owns a group has told last, None if it has told nothing."""
    file = _told(group_id)
    try:
        return None if file is None else _plan([file.read_text()], [])
    except FileNotFoundError:
        return None


def sources_tell() -> bool:
    """Whether the sources of this driver tell what they have planned."""
    return _told("") is not None


def _told(group_id: str) -> Path | None:
    directory = Path(os.environ.get(_LOCAL_DIRS, "").split(",")[0])
    if not directory.name.startswith(_OF_ONE_DRIVER):
        return None
    return directory / f"cohort-{sha256(group_id.encode()).hexdigest()[:32]}"


def _plan(offsets: Sequence[str], files: Sequence[bytes]) -> BatchPlan:
    ends: dict[TopicPartition, int | None] = {}
    shown = []
    for line in offsets:
        positions = _positions(line)
        if positions is None:
            shown.append(line)
            continue
        for partition, end in positions.offsets.items():
            ends[partition] = end if ends.get(partition, end) == end else None
        shown.append(json.dumps({key: value for key, value in positions.to_json().items() if key != KEY}))
    text = " ".join(shown).encode()[:_SHOWN_BYTES].decode(errors="ignore")
    digest = sha256("\n".join(offsets).encode())
    for each in filter(None, files):
        digest.update(sha256(each).digest())
    return BatchPlan(
        f"{text}{_DIGEST}{digest.hexdigest()[:32]}",
        {partition: end for partition, end in ends.items() if end is not None},
    )


def _files_of(checkpoint: str, source: int, line: str) -> bytes:
    """Which files the offset of a source means, as its log has them; nothing for other sources."""
    try:
        number = int(json.loads(line)["logOffset"])
    except (ValueError, KeyError, TypeError):
        return b""
    for name in (f"{number}", f"{number}.compact"):
        with contextlib.suppress(OSError):
            return _path(checkpoint, "sources", str(source), name).read_bytes()
    return b""


def _positions(line: str) -> Positions | None:
    try:
        found: Any = json.loads(line)
        return Positions.from_json(found) if isinstance(found, dict) and KEY in found else None
    except (ValueError, CheckpointError):
        return None


def _path(checkpoint: str, *names: str) -> Path:
    if not checkpoint:
        raise FileNotFoundError("the directory of the checkpoint is not known")
    return Path(re.sub(r"^file:(//)?(?=/)", "", checkpoint), *names)
