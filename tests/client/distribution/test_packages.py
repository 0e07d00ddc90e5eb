"""What is published: a wheel and a source distribution, described as the index wants it, for every Python from 3.11 on."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.client.distribution.programs import OUTPUT, PROGRAM, run

ROOT = Path(__file__).parents[3]
PACKAGES = ("aiocohort", "client", "coordinator", "protocol")
QUIET = ("--quiet", "--disable-pip-version-check")
MINORS = range(11, 15)
OTHERS = [f"3.{minor}" for minor in MINORS if minor != sys.version_info.minor]

EXTRAS = {
    "zstd": "from protocol.compression import compressed; assert compressed(b'tea', 'zstd')",
    "isal": "import isal.isal_zlib; from protocol.checksum import crc32; assert crc32 is isal.isal_zlib.crc32",
    "kafka": "import coordinator.kafka.port, cramjam; from protocol.kafka.batch import crc32c; crc32c(b'tea')",
    "etcd": "import coordinator.metadata.etcd.store",
    "cluster": "import coordinator.metadata.etcd.store",
    "web": "import coordinator.web.server",
    "otel": "from aiocohort.tracing import TracedProducer; TracedProducer()",
    "msgspec": "from aiocohort import MsgspecSerde; MsgspecSerde(dict)",
    "completion": "import argcomplete",
    "docs": "import material, mkdocs.config, mkdocstrings",
}
"""What needs an extra, of those whose packages are wheels."""
WITHOUT_WHEELS = {"spark", "spark-java"}
"""pyspark is published as source only, half a gigabyte of it: the whole suite has it, on one Python."""

pytestmark = pytest.mark.timeout(600)  # builds, makes environments and installs


class Built(NamedTuple):
    """The two files of a release."""

    wheel: Path
    source: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT), cwd=folder, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (source,) = folder.glob("aiocohort-*.whl"), folder.glob("aiocohort-*.tar.gz")
    return Built(wheel, source)


def interpreter(version: str) -> str | None:
    """A Python of this version on this machine, by PATH or by pyenv."""
    by_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, by_pyenv)):
        if candidate is None:
            continue
        told = subprocess.run(
            [candidate, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True
        )
        if told.returncode == 0 and told.stdout.strip() == str(tuple(map(int, version.split(".")))):
            return candidate
    return None


def environment_with(package: Path | str, python: str, folder: Path) -> Path:
    """Makes a clean environment with a package, such as the wheel, and what it needs; its folder of programs."""
    made = run(python, "-m", "venv", str(folder), cwd=folder.parent)
    assert made.returncode == 0, made.stderr
    programs = folder / "bin"
    installed = run(*pip_install(programs / "python"), str(package), cwd=folder)
    assert installed.returncode == 0, installed.stderr
    return programs


def pip_install(python: Path) -> tuple[str, ...]:
    """The pip of an environment; what it installs is compiled as far as it is imported.

    Its own: pip 23.0, which comes with Python 3.11, does not run on 3.12.
    """
    return (str(python), "-m", "pip", "install", *QUIET, "--no-compile")


def test_what_is_published_is_described_as_the_index_wants_it(built: Built, tmp_path: Path) -> None:
    """Its checker has an environment of its own: with it comes rich, which structlog loads in every process that has it."""
    python = environment_with("twine>=5.1", sys.executable, tmp_path / "made") / "python"
    checked = run(str(python), "-m", "twine", "check", "--strict", *map(str, built), cwd=built.wheel.parent)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("PASSED") == 2


def test_the_wheel_has_the_types_of_every_package_the_schemas_and_the_page(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    schemas = {f"protocol/kafka/schemas/{path.name}" for path in (ROOT / "protocol/kafka/schemas").iterdir()}
    assert {name for name in names if name.startswith("protocol/kafka/schemas/")} == schemas
    page = {f"coordinator/web/page/{path.name}" for path in (ROOT / "coordinator/web/page").iterdir()}
    assert {name for name in names if name.startswith("coordinator/web/page/")} == page
    assert "coordinator/web/page/index.html" in page


def test_the_wheel_works_in_a_clean_environment_from_another_directory(built: Built, tmp_path: Path) -> None:

    programs = environment_with(built.wheel, sys.executable, tmp_path / "made")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "program.py").write_text(PROGRAM, encoding="utf-8")
    python = str(programs / "python")
    done = run(python, "-W", "error", "program.py", cwd=elsewhere)
    assert (done.returncode, done.stdout) == (0, OUTPUT), done.stderr
    places = run(python, "-c", "import aiocohort, client, pyspark_cohort\nprint(aiocohort.__file__)", cwd=elsewhere)
    assert str(tmp_path / "made") in places.stdout or "pyspark" in places.stderr
    assert run(str(programs / "cohortd"), "--help", cwd=elsewhere).returncode == 0


def test_the_description_names_the_pythons_that_are_tried_and_all_extras_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [word.rpartition(" ")[2] for word in project["classifiers"] if "Python :: 3." in word]
    assert named == [f"3.{minor}" for minor in MINORS]
    assert project["requires-python"] == f">=3.{MINORS[0]}"
    assert {*EXTRAS, *WITHOUT_WHEELS, "test"} == set(project["optional-dependencies"])


def with_extras(wheel: Path, python: Path, extras: Sequence[str]) -> dict[str, str]:
    """Installs extras in an environment; why not, of those whose packages have no wheel for its Python."""
    command = (*pip_install(python), "--only-binary", ":all:", f"{wheel}[{','.join(extras)}]")
    done = run(*command, cwd=wheel.parent, timeout_s=300)
    if done.returncode == 0:
        return {}
    if len(extras) == 1:
        return {extras[0]: done.stderr.strip().splitlines()[-1]}
    return {extra: why for each in extras for extra, why in with_extras(wheel, python, [each]).items()}


@pytest.mark.parametrize("version", OTHERS)
def test_every_package_works_on_the_other_pythons(version: str, built: Built, tmp_path: Path) -> None:
    """The whole suite runs on one; here a daemon, a producer and a group run on the others that this machine has, and what
    needs an extra is imported there."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    programs = environment_with(built.wheel, python, tmp_path / "made")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = run(str(programs / "python"), "-W", "error", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, OUTPUT), done.stderr
    for program in ("cohort", "cohortd"):
        told = run(str(programs / program), "--version", cwd=tmp_path)
        assert (told.returncode, told.stdout.split()[0]) == (0, program), told.stderr
    asked = run(str(programs / "cohort"), "topics", "list", "-b", "127.0.0.1:1", cwd=tmp_path)
    assert (asked.returncode, "Traceback" in asked.stderr) == (1, False)
    lacking = with_extras(built.wheel, programs / "python", list(EXTRAS))
    used = "\n".join(statement for extra, statement in EXTRAS.items() if extra not in lacking)
    done = run(str(programs / "python"), "-c", used, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if lacking:
        reasons = "; ".join(f"{extra}: {why}" for extra, why in lacking.items())
        pytest.skip(f"all but some extras work on Python {version}, which have no wheels for it: {reasons}")
