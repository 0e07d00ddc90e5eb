"""The package that programs import: all of the surface, typed, and an error that names the file that is in its way."""

from __future__ import annotations

import sys
from pathlib import Path

import aiocohort
import aiocohort.errors
import aiocohort.spark
import pytest

import client
import client.errors
import client.spark
import coordinator
from tests.client.distribution.programs import PROGRAM, run


@pytest.mark.parametrize("name", [*client.__all__])
def test_it_hands_on_the_surface_of_the_client(name: str) -> None:
    assert getattr(aiocohort, name) is getattr(client, name)
    assert name in dir(aiocohort)


def test_it_hands_on_the_coordinator_the_errors_and_spark() -> None:
    assert aiocohort.Coordinator is coordinator.Coordinator
    for name in client.errors.__all__:
        assert getattr(aiocohort.errors, name) is getattr(client.errors, name)
    for name in client.spark.__all__:
        assert getattr(aiocohort.spark, name) is getattr(client.spark, name)


def test_every_public_error_is_in_the_list_of_errors() -> None:
    errors = [
        name
        for name, value in vars(client.errors).items()
        if isinstance(value, type) and issubclass(value, client.CohortError)
    ]
    assert sorted(errors) == sorted(client.errors.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'aiocohort' has no attribute 'Prodcer'"):
        aiocohort.Prodcer  # noqa: B018 - the access is what is tested


def test_a_strict_type_check_of_a_program_sees_the_real_types(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "bad.py").write_text(
        "from aiocohort import Coordinator, Producer\n\nproducer: int = Producer()\nCoordinator().address.upper(1)\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    good = run(*command, "good.py", cwd=tmp_path)
    assert good.returncode == 0, good.stdout + good.stderr
    bad = run(*command, "bad.py", cwd=tmp_path).stdout
    assert 'expression has type "Producer[Any, Any]", variable has type "int"' in bad
    assert 'Too many arguments for "upper" of "str"' in bad


@pytest.mark.parametrize("name", ["client", "coordinator", "protocol"])
@pytest.mark.parametrize("package", [False, True], ids=["module", "package"])
def test_a_module_of_the_program_in_its_way_is_named(tmp_path: Path, name: str, package: bool) -> None:
    own = tmp_path / name / "__init__.py" if package else tmp_path / f"{name}.py"
    own.parent.mkdir(exist_ok=True)
    own.write_text("", encoding="utf-8")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = run(sys.executable, "program.py", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"aiocohort.own_packages.ForeignModuleError: aiocohort needs its package '{name}'")
    assert str(own.parent if package else own) in last
    assert "Rename it" in last


def test_pytest_runs_in_a_project_with_a_module_of_such_a_name(tmp_path: Path) -> None:
    (tmp_path / "coordinator.py").write_text("answer = 42\n", encoding="utf-8")
    (tmp_path / "test_own.py").write_text(
        "import coordinator\n\ndef test_it():\n    assert coordinator.answer == 42\n", encoding="utf-8"
    )
    done = run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_demonstration_runs_in_a_directory_with_such_a_module(tmp_path: Path) -> None:
    for name in ("client", "coordinator", "protocol"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')\n", encoding="utf-8")
    (tmp_path / "lines.txt").write_text("one\ntwo\n" * 2000, encoding="utf-8")
    cohort = Path(sys.executable).parent / "cohort"
    done = run(str(cohort), "demo", "lines.txt", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
