"""The dashboard and the alert rules are PromQL and use labels that exist; tests/integration/test_http.py compares names."""

from __future__ import annotations

import json
import re

import promql_parser
import pytest

from coordinator.groups.rebalance_counts import REBALANCE_KINDS
from coordinator.groups.state import GroupState
from coordinator.metrics.definitions import METRICS
from coordinator.transactions.describe import STATES
from coordinator.transactions.records import Ended
from protocol.errors import ErrorCode
from protocol.messages import REQUESTS
from tests.coordinator.metrics.monitoring import FOLDER, as_asked, expressions

FILES = ("grafana-dashboard.json", "alerts.yml")
OF_PROMETHEUS = {"instance", "job", "le"}
VALUES = {
    "kind": {*REBALANCE_KINDS},
    "outcome": {ended.name.lower() for ended in Ended},
    "state": {*STATES, *(state.value for state in GroupState)},
    "error": {code.name for code in ErrorCode},
    "api": {kind.__name__.removesuffix("Request") for kind in REQUESTS.values()},
}
"""What a label may be, of those that have a fixed set of values."""


def labels_of(name: str) -> set[str]:
    """A recorded series has the labels of the metric that it stands in for."""
    name = name.replace(":", "_")
    known = METRICS.get(name) or METRICS[re.sub("_(bucket|count|sum)$", "", name)]
    return {*known.labels, *OF_PROMETHEUS}


@pytest.mark.parametrize(("file", "expression"), [(file, asked) for file in FILES for asked in as_asked(file)])
def test_each_expression_is_promql(file: str, expression: str) -> None:
    """Its functions, what they take, and how vectors are matched: what Prometheus would refuse a parser of it does."""
    parsed = promql_parser.parse(expression)
    assert "$" not in re.sub(r'"[^"]*"', "", parsed.prettify()), "Grafana puts nothing in there"


@pytest.mark.parametrize(
    "wrong",
    [
        "rate(cohort_requests_total)",
        "sum by (group (cohort_group_members)",
        "histogram_quantile(cohort_loop_lag_seconds_bucket)",
        "quantile_of(0.9, cohort_connections)",
        "sum(increase(cohort_compactions_total[$__rate_interval]))",
        'cohort_groups{state="Stable"',
    ],
)
def test_what_is_no_promql_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        promql_parser.parse(wrong)


@pytest.mark.parametrize("file", FILES)
def test_each_selector_and_each_grouping_uses_labels_of_its_metrics(file: str) -> None:
    for expression in expressions(file):
        for name, selector in re.findall(r"(cohort_[a-z_]+)\{([^}]*)\}", expression):
            chosen = dict(re.findall(r'(\w+)=~?"([^"]*)"', selector))
            assert set(chosen) <= labels_of(name), expression
            for label in chosen.keys() & VALUES.keys():
                assert set(chosen[label].split("|")) <= VALUES[label], expression
        names = re.findall(r"cohort[_:][a-z_]+", expression)
        grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
        assert grouped <= set[str]().union(*map(labels_of, names)), expression


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
    assert len(set(names)) == len(names) == len(expressions("alerts.yml")) - text.count("- record: ")
    for rule in rules:
        assert re.search(r"severity: (info|warning|critical)\b", rule), rule
        assert re.search(r'summary: ".+"', rule), rule
