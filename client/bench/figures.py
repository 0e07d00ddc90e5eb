"""What a benchmark measures: a figure next to its floor, and the conditions of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

LIKELY_KAFKAS: Final = ("127.0.0.1:9092", "127.0.0.1:19092")
"""Where a Kafka is looked for when none is named."""
_SIGNIFICANT_DIGITS: Final = 6


class Skipped(Exception):
    """A benchmark is not run, since something that it compares with is not there; the text says what."""


@dataclass(frozen=True, slots=True)
class Kafka:
    """A Kafka to compare with, and what has Spark load its connector: files or coordinates of Maven. "" is not given.

    ``pid`` is that of its process, 0 when it is not given: ``kafka_memory`` measures that.
    ``source``: the benchmark ``spark`` has it read the daemon's own topics too, through the port for Kafka's clients.
    """

    bootstrap: str = ""
    jars: str = ""
    package: str = ""
    source: bool = False
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions of a run: ``quick`` for a tiny one, ``full`` for whole grids; an empty ``directory`` of its own."""

    quick: bool
    directory: Path
    full: bool = False
    kafka: Kafka = Kafka()


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    ``floor`` is what the machine does at most for such work, measured in the same run in the same unit, and ``floor_name``
    says what that was; both are ``None`` where no floor makes sense. ``params`` are the circumstances.
    """

    bench: str
    metric: str
    value: float
    unit: str
    floor: float | None = None
    floor_name: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """``value`` divided by ``floor``: near 1 is near the floor, whether more or less is better."""
        return self.value / self.floor if self.floor else None

    def as_object(self) -> dict[str, Any]:
        """The figure for JSON; the names are part of the contract in API.md."""
        return {
            "bench": self.bench,
            "metric": self.metric,
            "value": rounded(self.value),
            "unit": self.unit,
            "floor": rounded(self.floor),
            "floor_name": self.floor_name,
            "ratio": rounded(self.ratio),
            "params": dict(self.params),
        }


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: what it measures in a few words, and the function that yields its figures.

    ``table`` puts all of them side by side for people, where that tells more than one after the other.
    """

    summary: str
    run: Callable[[Setting], AsyncIterator[Figure]]
    table: Callable[[Sequence[Figure]], str] | None = None


def rounded(number: float | None) -> float | None:
    """A number with six significant digits: more would only pretend."""
    return None if number is None else float(f"{number:.{_SIGNIFICANT_DIGITS}g}")
