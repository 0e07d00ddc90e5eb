"""docs/command-line.md: every command of ours that it shows is one that the parser takes, and its profiles are read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from client.cli.main import build_parser
from client.cli.profiles import Profile, chosen_profile

PAGE = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    {
        command.strip()
        for shown in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL).replace("\\|", "|"))
        for command in re.split(r" \| |[()$\"]", shown)
        if command.strip().startswith("cohort ") and not command.strip().endswith("--help")
    }
)


def test_there_are_commands_on_the_page() -> None:
    assert len(COMMANDS) > 25


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_is_one(command: str) -> None:
    options = build_parser().parse_command(shlex.split(command)[1:])
    assert callable(options.handler)


def test_the_profiles_of_the_page_are_read(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "config.toml"
    file.write_text(shown, encoding="utf-8")
    assert chosen_profile(None, file) == Profile("127.0.0.1:7337")
    assert chosen_profile("prod", file) == Profile("10.0.0.5:7337,10.0.0.6:7337", True)
