"""aiokafka's fixtures for a broker that runs already, in place of the containers that its suite starts.

Runs in the environment of that suite.
Fixtures of a ``conftest.py`` come before those of a plugin, so their set-up is replaced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class RunningServer(NamedTuple):
    """What aiokafka's tests read of its ``KafkaServer``."""

    host: str
    port: int
    ssl_port: int = 0
    sasl_plain_port: int = 0
    sasl_ssl_port: int = 0
    container: Any = None

    @property
    def hosts(self) -> list[str]:
        """As clients are given them."""
        return [f"{self.host}:{self.port}"]


def _values() -> dict[str, object]:
    server = RunningServer(os.environ["COHORT_KAFKA_HOST"], int(os.environ["COHORT_KAFKA_PORT"]))
    values: dict[str, object] = {"kafka_image": "cohort:2.8.1", "ssl_folder": Path(), "kafka_server": server}
    return values | dict.fromkeys(("docker", "acl_manager", "kafka_config", "kerberos_utils"))


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> object:
    """Given to pytest: the value of a fixture that is replaced, else None, which leaves it to the others."""
    values = _values()
    if fixturedef.argname not in values:
        return None
    value = values[fixturedef.argname]
    fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
    return value if value is not None else ()
