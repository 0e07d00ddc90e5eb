"""Profiles: what a name stands for, and what wins where several places name a daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.cli.failure import CommandError
from client.cli.main import main
from client.cli.profiles import Profile, chosen_profile, profiles_file

TWO = """
profile = "dev"
[profiles.dev]
bootstrap = "127.0.0.1:1001"
[profiles.prod]
bootstrap = "127.0.0.1:1002,127.0.0.1:1003"
json = true
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "cohort" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_name_stands_for_its_settings_and_the_file_may_choose_one(tmp_path: Path) -> None:
    file = written(tmp_path, TWO)
    assert chosen_profile("prod", file) == Profile("127.0.0.1:1002,127.0.0.1:1003", True)
    assert chosen_profile(None, file) == Profile("127.0.0.1:1001")
    assert chosen_profile(None, written(tmp_path, "[profiles.dev]\nbootstrap = 'h'")) == Profile()
    assert chosen_profile(None, tmp_path / "missing.toml") == Profile()


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        (TWO, "prd", "no profile 'prd'; did you mean 'prod'?"),
        (TWO, "weather", "it has dev, prod"),
        ("", "dev", "it has none"),
        ("profile = 3", None, "must be the name of a profile"),
        ("profile = 'gone'", None, "no profile 'gone'"),
        ("profils = 3", None, "'profils' is not known"),
        ("profiles = 3", None, "'profiles' must be tables"),
        ("[profiles]\ndev = 3", None, "must be a table such as [profiles.dev]"),
        ("[profiles.dev]\nbootstrp = 'h'", None, "sets 'bootstrp', but there are bootstrap and json"),
        ("[profiles.dev]\njson = 'yes'", None, "'json' of profile 'dev' must be a bool"),
        ("[profiles.dev]\nbootstrap = 'h:x'", None, "'bootstrap' of profile 'dev'"),
        ("[profiles", None, "cannot read the profiles"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(text: str, name: str | None, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError) as refused:
        chosen_profile(name, written(tmp_path, text))
    assert reason in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_a_profile_that_is_named_without_a_file_says_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"missing.toml does not exist; create it with \[profiles.dev\]"):
        chosen_profile("dev", tmp_path / "missing.toml")


def test_the_file_is_where_the_desktop_standard_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profiles_file({}) == tmp_path / ".config/cohort/config.toml"
    assert profiles_file({"XDG_CONFIG_HOME": "/etc/xdg"}) == Path("/etc/xdg/cohort/config.toml")


@pytest.mark.parametrize(
    ("arguments", "variables", "asked"),
    [
        ((), {}, "1001"),  # the file chooses
        ((), {"COHORT_PROFILE": "prod"}, "1002"),
        ((), {"COHORT_BOOTSTRAP": "127.0.0.1:1009", "COHORT_PROFILE": "prod"}, "1009"),  # nearer than a standing choice
        (("--profile", "prod"), {"COHORT_BOOTSTRAP": "127.0.0.1:1009"}, "1002"),
        (("--profile", "prod", "-b", "127.0.0.1:1008"), {}, "1008"),
    ],
)
def test_what_is_nearest_to_the_call_wins(
    arguments: tuple[str, ...],
    variables: dict[str, str],
    asked: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No daemon listens at any of them, and the failure names the one that was asked."""
    written(tmp_path, TWO)
    for name in ("COHORT_BOOTSTRAP", "COHORT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["topics", "list", *arguments]) == 1
    assert f"no daemon answers at 127.0.0.1:{asked}" in capsys.readouterr().err
