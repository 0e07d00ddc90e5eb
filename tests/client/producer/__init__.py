"""Tests of the parts of the producer."""
