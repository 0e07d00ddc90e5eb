"""What can go wrong between Spark and Cohort, beyond what any client meets."""

from __future__ import annotations

from collections.abc import Sequence

from client.errors import CohortError


class OptionsError(ValueError):
    """Options of ``format("cohort")`` that make no sense; the text names every one of them."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__('options of format("cohort"): ' + "; ".join(faults))
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[type[OptionsError], tuple[tuple[str, ...]]]:
        return OptionsError, (self.faults,)


class DataLossError(CohortError):
    """Records that a query was to read are gone, and ``failOnDataLoss`` is true."""


class QueryFencedError(CohortError):
    """Another query has taken over the group of this one, which must not go on."""
