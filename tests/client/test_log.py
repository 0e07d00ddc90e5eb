"""A library must not print: where its log lines go."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging, structlog
from client.log import get_logger
log = get_logger()
{setup}
log.debug("a detail", number=1)
log.warning("no answer", peer="10.0.0.1")
"""


def run(setup: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setup=setup)], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout, done.stderr


def test_without_any_configuration_warnings_reach_stderr_and_stdout_stays_clean() -> None:
    assert run("") == ("", "no answer peer='10.0.0.1'\n")


def test_logging_decides_by_the_name_cohort_client() -> None:
    setup = "logging.basicConfig(format='%(name)s %(levelname)s %(message)s'); logging.getLogger('cohort').setLevel('DEBUG')"
    assert run(setup) == (
        "",
        "cohort.client DEBUG a detail number=1\ncohort.client WARNING no answer peer='10.0.0.1'\n",
    )


def test_a_program_that_has_configured_structlog_gets_events() -> None:
    setup = "structlog.configure(processors=[structlog.processors.JSONRenderer()])"
    out, err = run(setup)
    assert out == '{"number": 1, "event": "a detail"}\n{"peer": "10.0.0.1", "event": "no answer"}\n'
    assert err == ""
