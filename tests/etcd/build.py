"""Where the tests find etcd: ``$COHORT_ETCD``, the one in ``PATH``, or one built once from ``go.mod`` beside this file.

``python -m tests.etcd.build`` builds it where neither is there; ``.ci/run`` does so. Without a Go toolchain, without a
network, or when it takes too long, it says so and ends with 1, and the tests that need etcd are left out with that reason.
Leans on the standard library only, so that it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
MODULE: Final = "go.etcd.io/etcd/server/v3"
OLDEST: Final = (3, 5, 18)
BUILD_SECONDS: Final = 420
"""A minute or two of CPU, mostly; beside other work and with an empty cache of modules longer."""


class EtcdMissingError(Exception):
    """There is no etcd here; the text says why and what to do."""


def find() -> Path:
    """The etcd to test with. Raises ``EtcdMissingError``."""
    found = _given()
    if found is None and built().exists():
        found = built()
    if found is None:
        reason = _why().read_text(encoding="utf-8").strip() if _why().exists() else "none was built"
        raise EtcdMissingError(f"{reason}; python -m tests.etcd.build builds one")
    return found


def _given() -> Path | None:
    named = os.environ.get("COHORT_ETCD")
    if named:
        return _checked(Path(named), "$COHORT_ETCD")
    installed = shutil.which("etcd")
    try:
        return None if installed is None else _checked(Path(installed), "the etcd in PATH")
    except EtcdMissingError:  # Debian 12 has 3.4
        return None


def built() -> Path:
    """Where the built one lies, outside of the tree: one for each set of pinned modules."""
    pinned = hashlib.sha256((HERE / "go.mod").read_bytes() + (HERE / "go.sum").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "aiocohort" / f"etcd-{pinned}-{platform.system()}-{platform.machine()}"


def build(seconds: int = BUILD_SECONDS) -> Path:
    """Builds the pinned one, if it was not built before. Raises ``EtcdMissingError``."""
    path = built()
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _build(path, seconds)
    except (EtcdMissingError, OSError) as error:
        _note(str(error))
        raise EtcdMissingError(str(error)) from error
    return path


def _build(path: Path, seconds: int) -> None:
    go = _go()
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    process = subprocess.Popen(
        [go, "build", "-mod=readonly", "-trimpath", "-o", str(unfinished), MODULE],
        cwd=HERE,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise EtcdMissingError(f"{go} did not build it within {seconds} s") from error
    if process.returncode != 0:
        raise EtcdMissingError(f"{go} could not build it: {said.strip()[-600:]}")
    unfinished.replace(path)


def _go() -> str:
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if found is None:
        raise EtcdMissingError("there is no Go toolchain to build it with (go in PATH)")
    return found


def _checked(path: Path, named: str) -> Path:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EtcdMissingError(f"{named} ({path}) does not run: {error}") from error
    version = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    if version is None or tuple(map(int, version.groups())) < OLDEST:
        raise EtcdMissingError(f"{named} ({path}) is not etcd {'.'.join(map(str, OLDEST))} or newer: {said.strip()}")
    return path


def _why() -> Path:
    return built().with_suffix(".why")


def _note(reason: str) -> None:
    """For the tests, which run later and in other processes."""
    try:
        _why().write_text(reason + "\n", encoding="utf-8")
    except OSError as error:
        print(f"the reason could not be noted: {error}", file=sys.stderr)


def main() -> int:
    """Says where it is, or why there is none."""
    try:
        print(_given() or build())
    except EtcdMissingError as error:
        print(f"no etcd: {error}. The tests on etcd are left out.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
