"""What every test may rely on, and how the whole suite runs: side by side, as most tests wait for disks and clocks."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

_DRIVERS = tuple(f"tests/integration/spark/test_{name}.py" for name in ("demo", "cluster", "driver_killed"))
"""Those on Spark that start drivers of their own, and nothing in the JVM that the others share."""
_LONG_SCOPES = (
    *("tests/integration/spark/", "tests/cluster/", "tests/kafka/", "tests/etcd/"),
    *("drivers of Spark", "tests/client/distribution/test_packages.py", "tests/test_site.py"),
)
"""What shares a JVM, has a cluster of processes to itself, runs suites of others, shares an etcd, starts one JVM after the
other, or shares a wheel or a site that is built first: each in one process, and begun in this order before all others."""
_ONE_DAEMON = ("cli", "cli_completion", "cli_groups", "cli_inspection", "cli_records", "consumer_fetching")
_TOGETHER = (*_LONG_SCOPES, *(f"tests/integration/test_{name}.py" for name in _ONE_DAEMON))
"""These too, which share a daemon with what was written to it."""

LONG = "COHORT_LONG_TESTS"
"""In the environment it has the tests marked ``long`` run too."""

# Hypothesis fails an example that takes 200 ms of the wall clock, which any example does on a machine that is busy enough.
# What hangs has pytest's timeout.
settings.register_profile("cohort", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cohort")


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process sets structlog up for the process; the next test must not notice."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """For a test of what ``gc.freeze`` does: nothing is kept out of the collector's sight, as in a process of its own."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first; what takes minutes and shows no more than that a benchmark runs is left out, unless it
    is wanted."""
    items.sort(key=lambda item: _place(item.nodeid))
    if LONG not in os.environ:
        for item in items:
            if item.get_closest_marker("long") is not None:
                item.add_marker(pytest.mark.skip(reason=f"it takes minutes: {LONG}=1 runs it"))


def pytest_collection_finish() -> None:
    """What pytest has collected stays to the end: the garbage collector does not walk through it in each test again."""
    gc.collect()
    gc.freeze()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Two processes more than there are cores for the whole suite, as many tests wait; one for what is named."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it itself
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # none on macOS
    return cores + 2


def _scope(nodeid: str) -> str:
    """What a test shares its process with; its own name where that is nothing."""
    if nodeid.startswith(_DRIVERS):
        return "drivers of Spark"
    return next((scope for scope in _TOGETHER if nodeid.startswith(scope)), nodeid)


def _place(nodeid: str) -> int:
    """Where it stands in the order."""
    scope = _scope(nodeid)
    return (
        _LONG_SCOPES.index(scope)
        if scope in _LONG_SCOPES
        else len(_LONG_SCOPES) + (not nodeid.startswith("tests/chaos/"))
    )


class _Together(LoadScopeScheduling):
    """Each test goes to the process that is free next, in the order in which they stand; those of a scope go to one."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Given to xdist, which is not to begin with what holds the most tests."""
    config.option.loadscopereorder = False
    return _Together(config, log)
