"""The command line itself: help texts, usage errors, what stands before and after a command."""

from __future__ import annotations

import argparse

import pytest

from client.cli.main import build_parser, main


def commands(parser: argparse.ArgumentParser, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and subcommand there is."""
    found = [prefix]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                found += commands(below, (*prefix, name))
    return found


@pytest.mark.parametrize("command", commands(build_parser()), ids=" ".join)
def test_every_command_explains_itself_with_examples(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert "cohort " + " ".join(command) in text
    assert "--json" in text
    assert max(map(len, text.splitlines())) <= 130


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize("command", commands(build_parser()), ids=" ".join)
def test_help_fits_the_terminal_and_breaks_no_word(
    command: tuple[str, ...], columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def explained(width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        explanation, _, _ = capsys.readouterr().out.partition("examples:")  # commands to be copied stay on one line
        return explanation.partition("\n\n")[2]  # the usage is argparse's

    text = explained(columns)
    assert max(map(len, text.splitlines())) <= columns
    assert text.split() == explained(columns - 7).split()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "COMMAND"),
        (["topics"], "COMMAND"),
        (["weather"], "weather"),
        (["topics", "create"], "NAME"),
        (["topics", "create", "t", "--partitions", "0"], "'0' is not a whole number from 1"),
        (["topics", "create", "t", "--config", "retention"], "NAME=VALUE"),
        (["topics", "add-partitions", "t", "many"], "'many' is not a whole number from 1"),
        (["consume"], "TOPIC"),
        (["consume", "t", "--timeout", "-1"], "'-1' is not a number of seconds above 0"),
        (["consume", "t", "--max-messages", "none"], "'none' is not a whole number from 1"),
        (["-b", "nowhere:", "topics", "list"], "'nowhere:' is not of the form HOST:PORT"),
        (["-b", "::1", "topics", "list"], "an IPv6 address stands in brackets: [::1]:7337"),
        (["topics", "desribe", "t"], "'desribe' is no command; did you mean 'describe'? There are create, list, "),
        (["grups", "list"], "'grups' is no command; did you mean 'groups'?"),
        (["topics", "create", "t", "--partition", "3"], "--partition is no option here; did you mean --partitions?"),
        (["topics", "list", "extra"], "extra is one argument too many"),
        (["bench", "weather"], "there is no benchmark 'weather'"),
        (["produce", "t", "--key-separator", ""], "--key-separator"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["-b", "h:1", "--json", "topics", "list"],
        ["topics", "-b", "h:1", "--json", "list"],
        ["topics", "list", "--json", "--bootstrap", "h:1"],
        ["-b", "other:2", "topics", "list", "--json", "-b", "h:1"],
    ],
)
def test_global_options_may_stand_anywhere(arguments: list[str]) -> None:
    options = build_parser().parse_args(arguments)
    assert (options.bootstrap, options.json) == ("h:1", True)
