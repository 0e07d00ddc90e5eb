"""Since when a node has lost nothing, and what becomes of the logs that it finds."""

from __future__ import annotations

import pytest

from coordinator.nodes.cleanliness import THIS_START, Found, NodeRecord, judge, opening

RECORD = NodeRecord(("a", "b"), 17, "boot 1", False)
SAME = Found("b", "boot 1", True, False)


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (RECORD, SAME),
        (RECORD, SAME._replace(registered_start="a")),  # the last start ended before it was registered
        (RECORD, SAME._replace(registered_start="")),
        (RECORD, SAME._replace(boot_id="boot 2")),  # the power was cut, and all that counts is on disk
        (RECORD, SAME._replace(flush_at_acknowledgement=False)),  # the process was killed, the machine went on
        (RECORD._replace(stopped_cleanly=True), SAME._replace(boot_id="boot 2", flush_at_acknowledgement=False)),
    ],
)
def test_a_node_stays_clean(record: NodeRecord, found: Found) -> None:
    assert judge(record, found) == (17, "")


@pytest.mark.parametrize(
    ("record", "found", "why"),
    [
        (None, SAME, "the directory is new"),
        (RECORD, SAME._replace(registered_start="c"), "an old image"),
        (RECORD, SAME._replace(lost=True), "was on disk is gone"),
        (RECORD, SAME._replace(boot_id="boot 2", flush_at_acknowledgement=False), "the machine was started anew"),
        (RECORD._replace(stopped_cleanly=True), SAME._replace(registered_start="c"), "an old image"),
        (RECORD._replace(clean_since=THIS_START), SAME._replace(was_registered=True), "has not been registered since"),
    ],
)
def test_a_node_is_clean_since_this_start_only(record: NodeRecord | None, found: Found, why: str) -> None:
    verdict = judge(record, found)
    assert verdict.clean_since == THIS_START
    assert why in verdict.reason


@pytest.mark.parametrize(
    ("directory_of", "inventory", "expected"),
    [
        ("t", {("t", 0)}, "opened"),
        (None, set(), "made"),
        (None, {("s", 0), ("t", 1)}, "made"),
        (None, {("t", 0)}, "lost"),
        ("s", {("s", 0)}, "set aside"),
        ("s", {("s", 0), ("t", 0)}, "lost"),
    ],
)
def test_a_log_is_opened_made_set_aside_or_lost(
    directory_of: str | None, inventory: set[tuple[str, int]], expected: str
) -> None:
    assert opening(("t", 0), directory_of, inventory) == expected
