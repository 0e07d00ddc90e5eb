"""A minute of chaos on three nodes and etcd with a fixed seed; ``python -m tests.cluster`` runs others, for longer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos.command_line import output_of
from tests.cluster.faults import FAULTS

SEED = 2
HARSH = (
    *("kill-node", "stop-node", "restart-node", "kill-all-nodes", "cut-from-metadata", "cut-from-nodes", "cut-one-way"),
    *("cut-off-node", "kill-member"),
)


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.timeout(420)
def test_a_minute_of_chaos(tmp_path: Path) -> None:
    assert set(HARSH) <= set(FAULTS)
    options = ("--minutes", "1", "--seed", str(SEED), "--kinds", ",".join(HARSH))
    said = output_of("tests.cluster", *options, report=tmp_path, timeout_s=400)
    assert "lost with their leader" in said


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.timeout(420)
def test_half_a_minute_of_chaos_for_kafka_s_clients(tmp_path: Path) -> None:
    options = ("--minutes", "0.5", "--seed", str(SEED), "--kafka", "--kinds", ",".join(HARSH))
    said = output_of("tests.cluster", *options, report=tmp_path, timeout_s=400)
    handled = dict(re.findall(r"(aiokafka|cohort|confluent) (\d+)", said.partition("handled: ")[2]))
    assert all(int(handled[client]) > 100 for client in ("aiokafka", "cohort", "confluent")), handled
