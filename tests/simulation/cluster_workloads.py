"""What clients of several nodes do: some of what those of one do."""

from __future__ import annotations

from typing import Final

from tests.simulation import group_workloads, log_workloads, record_workloads, transaction_workloads, workloads
from tests.simulation.registry import CLUSTER_WORKLOADS, WORKLOADS

_MODULES: Final = (group_workloads, log_workloads, record_workloads, transaction_workloads, workloads)
"""In the order in which the others are imported: what a seed draws depends on it."""
_SHARED: Final = (
    "producing", "consuming", "coming_and_going", "committing_alone", "growing_topics", "sharing_work",
    "producing_in_bursts", "handling", "transacting", "transforming",
)  # fmt: skip
CLUSTER_WORKLOADS.update({name: WORKLOADS[name] for name in _SHARED})
