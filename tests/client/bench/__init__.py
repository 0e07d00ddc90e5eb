"""Tests of the benchmarks' parts that promise more than to run."""
