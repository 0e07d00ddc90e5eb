"""Runs scripts: ``python -m tests.coordinator.transactions.scripts.run [--rewrite] [FILE...]``, as ``tests.scripts.run``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.coordinator.transactions.scripts.world import World
from tests.scripts.script import Happened, Script, ScriptError, compare, parse, rewritten

FOLDER = Path(__file__).parent
SCRIPTS = sorted(FOLDER.glob("*/*.txt"))


def run(script: Script) -> None:
    """Carries out a script. Raises ``ScriptError`` at the first step that does not bring about exactly what it says."""
    world = World(script)
    for step in script.steps:
        compare(script, step, world.run(step))
    world.finish()


def record(script: Script) -> list[list[Happened]]:
    """What each step of a script brings about, whatever it says."""
    world = World(script)
    outcomes = [world.run(step) for step in script.steps]
    world.finish()
    return outcomes


def main(arguments: list[str]) -> int:
    """The command line; 1 when a script failed."""
    failed = 0
    rewrite = "--rewrite" in arguments
    for path in [Path(argument).resolve() for argument in arguments if argument != "--rewrite"] or SCRIPTS:
        script = parse(path)
        try:
            if rewrite:
                path.write_text(rewritten(script, record(script)), encoding="utf-8")
            run(parse(path))
        except ScriptError as error:
            print(f"{script.name}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
