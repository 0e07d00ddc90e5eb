"""Tests of the source and sink are there when pyspark and pyarrow are: pip install -e '.[test,spark]'."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("pyarrow") and find_spec("pyspark") else ["test_*.py"]
