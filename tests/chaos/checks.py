"""What must hold of every history: one named function each that returns the violations it found.

The terms are those of Jepsen's Kafka workload. At least once is the promise, so these are allowed and nothing beyond:

- A value at two offsets, of a producer without idempotence, when a fault that breaks requests was going on between its send
  and its answer (or shortly after): the producer then sends again what may have been stored.
- A record delivered twice to a group, when the group had not been told that it was committed before the second owner began.
"""

from __future__ import annotations

from typing import Final

from tests.chaos import group_checks, record_checks
from tests.chaos.checking import CHECKS, check
from tests.chaos.history import History

MODULES: Final = (record_checks, group_checks)
"""Where most checks are registered."""
UNEXPECTED: Final = frozenset(
    {"CorruptMessageError", "OffsetOutOfRangeError", "NoOffsetForPartitionError", "UnknownServerError", "HandlerError"}
)


@check
def crashed(history: History) -> list[str]:
    """No process ended by itself or printed a traceback."""
    return list(history.crashes)


@check
def unexpected_errors(history: History) -> list[str]:
    """No program was told of damage, of an offset that is gone, or of a fault of the daemon."""
    return [f"{name}: {error}: {text}" for name, error, text in history.errors if error in UNEXPECTED]


def violations(history: History) -> dict[str, list[str]]:
    """Every check's name with what it found."""
    return {name: function(history) for name, function in CHECKS.items()}
