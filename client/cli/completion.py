"""``cohort completion``: what a shell needs to complete commands, options, topics and groups.

The work is argcomplete's (extra ``completion``): the shell calls ``cohort`` with what was typed so far, and ``complete``
answers from the parser. Names of topics and groups are asked of the daemon, within a bound, and left out if none answers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

from client.admin import Admin
from client.cli.failure import CommandError
from client.cli.options import Subparsers, add_command, fill_in
from client.cli.output import Output
from client.errors import CohortError

SHELLS: Final = ("bash", "zsh", "fish")
_VARIABLE: Final = "_ARGCOMPLETE"
_NAMES_TIMEOUT_S: Final = 1.0
_INSTALL: Final = "completion needs argcomplete: pip install 'aiocohort[completion]'"
_COMPLETED: Final = {"TOPIC": "topics", "GROUP": "groups", "G": "groups"}
"""What the daemon's names complete, by an argument's name in help texts; ``NAME`` is a topic below ``topics``."""

_DESCRIPTION: Final = """\
Prints a script for your shell, which from then on completes commands, options and the names of topics and groups."""
_EXAMPLES: Final = """\
  eval "$(cohort completion bash)"                         # in ~/.bashrc
  eval "$(cohort completion zsh)"                          # in ~/.zshrc
  cohort completion fish > ~/.config/fish/completions/cohort.fish"""


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``completion``."""
    parser = add_command(
        subparsers, "completion", "print a script that completes commands", description=_DESCRIPTION, examples=_EXAMPLES
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")
    parser.set_defaults(handler=completion)


async def completion(options: argparse.Namespace, output: Output) -> int:
    """Prints the script. Raises ``CommandError`` without argcomplete."""
    try:
        import argcomplete
    except ImportError as error:
        raise CommandError(_INSTALL) from error
    script = argcomplete.shellcode(["cohort"], shell=options.shell)
    output.result({"shell": options.shell, "script": script}, script)
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers a shell that asks how to go on, and ends the process then; returns at once in every other run."""
    if _VARIABLE not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:
        return  # the script was printed by an installation that has it; there is nothing to complete with here
    _add_completers(parser, ())
    argcomplete.autocomplete(parser)


def _add_completers(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                _add_completers(below, (*path, name))
            continue
        kind = _COMPLETED.get(str(action.metavar))
        if (
            action.metavar == "NAME"
            and path[:1] == ("topics",)
            and path[1:] != ("create",)
            and not action.option_strings
        ):
            kind = "topics"
        if kind is not None:
            action.completer = _completer(kind)  # type: ignore[attr-defined]  # argcomplete's way of being told


def _completer(kind: str) -> Callable[..., list[str]]:
    def names(parsed_args: argparse.Namespace, **_: object) -> list[str]:
        options = argparse.Namespace(**{name: each for name, each in vars(parsed_args).items() if each is not None})
        try:
            fill_in(options, os.environ)
        except (CommandError, argparse.ArgumentTypeError):
            return []  # a shell that completes has no place for a reason
        return asyncio.run(_names(kind, options.bootstrap))

    return names


async def _names(kind: str, bootstrap: str) -> list[str]:
    """The daemon's topics or groups; none when it does not tell them in time."""

    async def topics(admin: Admin) -> list[str]:
        return await admin.list_topics()

    async def groups(admin: Admin) -> list[str]:
        return [each.group_id for each in await admin.list_groups()]

    ask: Callable[[Admin], Awaitable[list[str]]] = topics if kind == "topics" else groups
    try:
        async with asyncio.timeout(_NAMES_TIMEOUT_S), Admin(bootstrap_servers=bootstrap) as admin:
            return await ask(admin)
    except (CohortError, OSError, TimeoutError, ValueError):
        return []
