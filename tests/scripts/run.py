"""Runs scripts: ``python -m tests.scripts.run [--rewrite] FILE...`` shows the first difference, or writes it down."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.scripts.script import FOLDER, Happened, Script, ScriptError, Step, compare, parse, rewritten
from tests.scripts.world import World


class Runs(Protocol):
    """What carries out the steps of one script."""

    def run(self, step: Step) -> list[Happened]:
        """What the step brings about."""

    def finish(self) -> None:
        """The script is at its end. Raises ``ScriptError`` when something is left over."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs ``scripts``, each in a world of its own."""

    scripts: Sequence[Path]
    new_world: Callable[[Script], Runs]

    def run(self, script: Script) -> None:
        """Carries out a script. Raises ``ScriptError`` at the first step that does not bring about exactly what it says."""
        world = self.new_world(script)
        for step in script.steps:
            compare(script, step, world.run(step))
        world.finish()

    def record(self, script: Script) -> list[list[Happened]]:
        """What each step of a script brings about, whatever it says."""
        world = self.new_world(script)
        outcomes = [world.run(step) for step in script.steps]
        world.finish()
        return outcomes

    def main(self, arguments: list[str]) -> int:
        """The command line; 1 when a script failed."""
        failed = 0
        rewrite = "--rewrite" in arguments
        named = [Path(argument).resolve() for argument in arguments if argument != "--rewrite"]
        for path in named or self.scripts:
            script = parse(path)
            try:
                if rewrite:
                    path.write_text(rewritten(script, self.record(script)), encoding="utf-8")
                self.run(parse(path))
            except ScriptError as error:
                print(f"{script.name}: {error}", file=sys.stderr)
                failed = 1
        return failed


SCRIPTS = sorted(FOLDER.glob("*/*.txt"))
RUNNER = Runner(SCRIPTS, World)
run, record = RUNNER.run, RUNNER.record


if __name__ == "__main__":
    sys.exit(RUNNER.main(sys.argv[1:]))
