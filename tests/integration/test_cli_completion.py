"""Completion in real shells: what Tab offers, also names that only the daemon knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import cohort, environment, output

BASH = """
eval "$(cohort completion bash)"
COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMP_KEY=9
read -ra COMP_WORDS <<< "$1"; [[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_python_argcomplete cohort "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        for name in ("orders", "ordinals", "lines"):
            output("topics", "create", name, address=daemon.address)
        yield daemon.address


def offered(line: str, address: str, *, shell: str = "bash", **more: str) -> list[str]:
    """What the shell offers at the end of ``line``; ``more`` are further variables."""
    command = [shell, "-c", BASH, shell, line]
    if shell == "fish":
        command = ["fish", "-c", 'cohort completion fish | source; complete -C "$argv[1]"', line]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # the shell calls ``cohort``
    variables = environment() | {"COHORT_BOOTSTRAP": address, "PATH": path} | more
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables)
    assert done.returncode == 0, done.stderr
    return [each.split("\t")[0].strip() for each in done.stdout.splitlines() if each.strip()]


def test_bash_completes_commands_options_and_topics(address: str) -> None:
    assert offered("cohort top", address) == ["topics"]
    assert {"create", "describe", "delete"} <= set(offered("cohort topics ", address))
    assert "--from-beginning" in offered("cohort consume --from", address)
    assert sorted(offered("cohort consume ord", address)) == ["orders", "ordinals"]
    assert offered("cohort topics describe li", address) == ["lines"]


def test_names_are_those_of_the_daemon_that_the_profile_names(address: str, tmp_path: Path) -> None:
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort" / "config.toml").write_text(f'[profiles.prod]\nbootstrap = "{address}"\n')
    elsewhere, home = "127.0.0.1:1", str(tmp_path)
    assert offered("cohort consume li", elsewhere, XDG_CONFIG_HOME=home) == []
    assert offered("cohort --profile prod consume li", elsewhere, XDG_CONFIG_HOME=home) == ["lines"]
    assert offered("cohort consume li", "", XDG_CONFIG_HOME=home, COHORT_PROFILE="prod") == ["lines"]
    assert offered("cohort --profile prd consume li", address, XDG_CONFIG_HOME=home) == []


def test_without_a_daemon_the_rest_is_completed_still() -> None:
    assert offered("cohort top", "127.0.0.1:1") == ["topics"]
    assert offered("cohort consume ord", "127.0.0.1:1") == []


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed here")
def test_fish_completes_commands_and_topics(address: str) -> None:
    assert "topics" in offered("cohort top", address, shell="fish")
    assert sorted(offered("cohort consume ord", address, shell="fish")) == ["orders", "ordinals"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed here")
def test_zsh_takes_its_script(tmp_path: Path) -> None:
    script = tmp_path / "script.zsh"
    script.write_text(cohort("completion", "zsh").stdout)
    assert subprocess.run(["zsh", "-n", str(script)], capture_output=True, timeout=60).returncode == 0


def test_versions_are_told() -> None:
    assert cohort("--version").stdout == f"cohort {version('aiocohort')}\n"
