"""Histories of one log with transactions: no invariant breaks, and without a safeguard one does."""

from __future__ import annotations

import pytest

from tests.simulation.log.ablations import ABLATIONS, SEEDS, caught
from tests.simulation.log.history import LogHistory

pytestmark = pytest.mark.timeout(600)  # half a minute of one processor, which others have too

HISTORIES = 40
"""A test; ``python -m tests.simulation.log`` runs as many as one likes."""


def lived(seed: int) -> LogHistory:
    history = LogHistory(seed)
    history.run()
    return history


@pytest.mark.parametrize("first", range(0, 5 * HISTORIES, HISTORIES))
def test_whatever_happens_a_log_is_what_follows_from_the_plain_list(first: int) -> None:
    lives = 0
    fates: set[bool] = set()
    for seed in range(first, first + HISTORIES):
        history = lived(seed)
        assert not history.broken, f"seed {seed}: {history.broken}"
        lives += history.lives
        fates |= set(history.book.fates().values())
    assert lives > 5 * HISTORIES
    assert fates == {True, False}


def test_a_seed_replays_its_history() -> None:
    one, again = lived(7), lived(7)
    assert one.trace_hash == again.trace_hash
    assert one.book == again.book


@pytest.mark.parametrize("name", ABLATIONS)
def test_without_a_safeguard_an_invariant_fails(name: str) -> None:
    assert caught(name) is not None, f"{ABLATIONS[name].safeguard}: nothing saw that it is off in {SEEDS} histories"
