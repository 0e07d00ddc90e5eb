"""Tests of what needs pyspark or pyarrow are there when these are: pip install -e '.[test,spark]'."""

from __future__ import annotations

from importlib.util import find_spec

NEED_SPARK = ["test_encoding.py", "test_partitioning.py", "test_pushdown.py"]

collect_ignore = [] if find_spec("pyarrow") and find_spec("pyspark") else NEED_SPARK
