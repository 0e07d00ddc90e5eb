"""The dashboard and the alert rules use labels that exist; tests/integration/test_http.py compares names with a scrape."""

from __future__ import annotations

import json
import re

import pytest

from coordinator.metrics.definitions import METRICS
from tests.coordinator.metrics.monitoring import FOLDER, expressions

FILES = ("grafana-dashboard.json", "alerts.yml")
OF_PROMETHEUS = {"instance", "job", "le"}


def labels_of(name: str) -> set[str]:
    known = METRICS.get(name) or METRICS[re.sub("_(bucket|count|sum)$", "", name)]
    return {*known.labels, *OF_PROMETHEUS}


@pytest.mark.parametrize("file", FILES)
def test_each_selector_and_each_grouping_uses_labels_of_its_metrics(file: str) -> None:
    for expression in expressions(file):
        for name, selector in re.findall(r"(cohort_[a-z_]+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=~?", selector)) <= labels_of(name), expression
        names = re.findall(r"cohort_[a-z_]+", expression)
        grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
        for name in names:
            assert grouped <= labels_of(name), expression


def test_panels_have_ids_of_their_own_and_do_not_lie_upon_each_other() -> None:
    panels = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_each_alert_has_a_name_of_its_own_a_severity_and_a_sentence() -> None:
    text = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
    rules = text.split("      - alert: ")[1:]
    names = [rule.partition("\n")[0] for rule in rules]
    assert len(set(names)) == len(names) == len(expressions("alerts.yml"))
    for rule in rules:
        assert re.search(r"severity: (info|warning|critical)\b", rule), rule
        assert re.search(r'summary: ".+"', rule), rule
