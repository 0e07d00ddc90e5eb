"""The command line of a chaos run: a seed, a directory for its ledgers, and exit 0 when every check holds."""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.processes import ROOT
from tests.chaos.schedule import Step
from tests.chaos.verdict import table


def say(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)


def seeded(module: str, description: str | None) -> argparse.ArgumentParser:
    """What every command takes: the seed, and where it reports."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--seed", type=int, help="decides everything that is drawn (default: a new one)")
    parser.add_argument("--report", type=Path, help="where all that is kept goes (default: a new directory in /tmp)")
    return parser


def timed(module: str, description: str | None, kinds: Collection[str]) -> argparse.ArgumentParser:
    """The same for faults on a schedule."""
    parser = seeded(module, description)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long faults go on (default 2)")
    parser.add_argument("--kinds", **several(kinds, "fault"))
    return parser


def several(known: Collection[str], what: str) -> dict[str, Any]:
    """An option that takes names of ``known``, with commas between them; none when it is not given."""

    def names(text: str) -> list[str]:
        given = text.split(",")
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is no kind of {what}")
        return given

    return {"type": names, "default": [], "metavar": "KIND,...", "help": f"of {', '.join(known)}"}


def chosen(options: argparse.Namespace, name: str) -> tuple[int, Path]:
    """The seed and the directory of the report; both new when they are not given."""
    seed: int = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    report: Path = options.report or Path(tempfile.mkdtemp(prefix=f"cohort-{name}-{seed}-"))
    return seed, report


@dataclass(frozen=True, slots=True)
class Trial:
    """One run with its ledgers."""

    module: str
    minutes: float
    seed: int
    report: Path

    @classmethod
    def begin(cls, module: str, options: argparse.Namespace, name: str) -> Trial:
        """Makes the directory of the ledgers, without what another run has left there."""
        trial = cls(module, options.minutes, *chosen(options, name))
        shutil.rmtree(trial.ledgers, ignore_errors=True)
        trial.ledgers.mkdir(parents=True)
        return trial

    @property
    def ledgers(self) -> Path:
        """Where its processes write."""
        return self.report / f"ledgers-{self.seed}"

    @property
    def length_s(self) -> float:
        """How long faults go on."""
        return self.minutes * 60

    def announce(self, steps: Sequence[Step]) -> None:
        """Says what is going to happen."""
        kinds = sorted({step.kind for step in steps})
        say(
            f"seed {self.seed}, {self.minutes:g} minutes, {len(steps)} faults of {len(kinds)} kinds: {', '.join(kinds)}"
        )

    def judge(self, found: dict[str, list[str]], counts: str, **given: object) -> int:
        """Says what each check has found, and gives the exit status; ledgers stay only where one was violated.

        ``given`` are the options that the same run needs again, lists of names among them; what is empty was not given.
        """
        say(table(found))
        say(counts)
        if not any(found.values()):
            shutil.rmtree(self.ledgers)
            return 0
        say(f"violated; ledgers: {self.ledgers}")
        words = {option: ",".join(value) if isinstance(value, list) else value for option, value in given.items()}
        more = "".join(f" --{option} {value}" for option, value in words.items() if value)
        say(f"again: python -m {self.module} --minutes {self.minutes:g} --seed {self.seed}{more}")
        return 1


def output_of(module: str, *options: str, report: Path, timeout_s: float) -> str:
    """Runs the command and returns what it printed; fails unless every check held."""
    command = (sys.executable, "-m", module, *options, "--report", str(report))
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    assert "VIOLATED" not in ended.stdout
    return ended.stdout
