"""What every test may rely on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process sets structlog up for the process; the next test must not notice."""
    yield
    structlog.reset_defaults()
