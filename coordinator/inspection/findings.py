"""What a check has found, how it is told, and how much was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from coordinator.inspection.output import Output, Progress, counted, size_text

MAX_OF_A_FILE: Final = 20
"""So many places of one file are told one by one."""


class Finding(NamedTuple):
    """Something that is not as it was written (``damage``), or that is only worth knowing.

    ``directory`` is a partition's, "" for the data directory itself. ``advice`` says what to do, "" for nothing.
    """

    damage: bool
    directory: str
    file: str
    why: str
    advice: str = ""
    position: int | None = None
    offset: int | None = None

    def below(self, path: str) -> Finding:
        """The same of a data directory at ``path`` in the one that is looked at; "" for that one itself."""
        if not path:
            return self
        if self.directory:
            return self._replace(directory=f"{path}/{self.directory}")
        return self._replace(file=f"{path}/{self.file}")


@dataclass(slots=True)
class Tally:
    """How much was looked at."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size: int = 0


class Report:
    """Prints findings as they come, and the verdict at the end."""

    def __init__(self, output: Output, progress: Progress) -> None:
        self.tally = Tally()
        self._output = output
        self._progress = progress
        self._damaged: dict[str, int] = {}
        self._notes = 0

    def tell(self, found: Finding) -> None:
        """Prints one finding."""
        self._progress.clear()
        if found.damage:
            self._damaged[found.directory] = self._damaged.get(found.directory, 0) + 1
        else:
            self._notes += 1
        where = "/".join(filter(None, (found.directory, found.file)))
        place = f", position {found.position}" if found.position is not None else ""
        place += f", offset {found.offset}" if found.offset is not None else ""
        text = f"{'damaged: ' if found.damage else 'note: '}{where}{place}: {found.why}"
        if found.advice:
            text += f"\n    what to do: {found.advice}"
        self._output.tell("damage" if found.damage else "note", text, found._asdict())

    def verdict(self, directory: str) -> bool:
        """Prints how much was looked at; returns whether nothing is damaged."""
        self._progress.clear()
        tally, places = self.tally, sum(self._damaged.values())
        outcome = "nothing is damaged"
        if places:
            partitions = len(self._damaged.keys() - {""})
            outcome = f"{counted(places, 'thing is', 'things are')} damaged"
            outcome += f", in {counted(partitions, 'partition')}" if partitions else ""
        notes = f"; {counted(self._notes, 'note')}" if self._notes else ""
        content = f"{counted(tally.records, 'record')} in {counted(tally.batches, 'batch', 'batches')}"
        text = (
            f"{directory}: {counted(tally.partitions, 'partition')}, {counted(tally.segments, 'segment')} of "
            f"{size_text(tally.size)} with {content}: {outcome}{notes}"
        )
        fields = {
            "directory": directory,
            "partitions": tally.partitions,
            "segments": tally.segments,
            "bytes": tally.size,
            "batches": tally.batches,
            "records": tally.records,
            "damaged": places,
            "notes": self._notes,
        }
        self._output.tell("verdict", text, fields)
        return not places
