"""Runs benchmarks one after the other, each in a directory of its own that is removed afterwards."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.bench.figures import Figure, Kafka, Setting, Skipped
from client.bench.registry import SUMMARIES, benchmark
from client.cli.failure import CommandError
from client.cli.output import Output


async def run_benchmarks(
    names: Sequence[str],
    output: Output,
    *,
    quick: bool,
    full: bool,
    directory: Path | None,
    kafka: Kafka,
) -> int:
    """Runs the benchmarks and prints each figure as soon as it is there, and on stderr why one is skipped.

    Raises ``CommandError`` when ``directory`` is no directory, or something that was to be measured went wrong.
    """
    _require_directory(directory)
    _raise_descriptor_limit()
    for name in names:
        if sys.stderr.isatty():
            output.note(f"{name}: {SUMMARIES[name]} ...")
        with tempfile.TemporaryDirectory(prefix="cohort-bench-", dir=directory, ignore_cleanup_errors=True) as own:
            await _run(name, output, Setting(quick, Path(own), full, kafka))
    return 0


async def _run(name: str, output: Output, setting: Setting) -> None:
    measured = benchmark(name)
    figures = []
    try:
        async for figure in measured.run(setting):
            figures.append(figure)
            if output.as_json:
                output.object(figure.as_object())
            else:
                output.line(as_text(figure))
    except Skipped as reason:
        output.note(f"{name} is skipped: {reason}")
    if measured.table is not None and figures and not output.as_json:
        output.line(measured.table(figures))


def _require_directory(directory: Path | None) -> None:
    if directory is not None and not directory.is_dir():
        raise CommandError(f"{directory} is no directory; --dir names an existing one")


def as_text(figure: Figure) -> str:
    """A figure for people: one line with the value, one with floor and circumstances."""
    first = f"{figure.bench:<10}  {figure.metric:<34}  {_shown(figure.value):>12} {figure.unit}"
    if figure.floor is not None and figure.ratio is not None:
        first += (
            f"\n{'':10}  floor: {_shown(figure.floor)} {figure.unit}, {figure.floor_name}; ratio {figure.ratio:.2g}"
        )
    return first + f"\n{'':10}  {_params(figure.params)}"


def _params(params: Any) -> str:
    return ", ".join(
        f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in params.items()
    )


def _shown(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _raise_descriptor_limit() -> None:
    """A thousand members have a connection or two each, here and in the daemon, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
