"""Tests of the partition logs, on real files."""
