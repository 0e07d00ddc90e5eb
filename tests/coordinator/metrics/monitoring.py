"""The expressions in docs/monitoring: of the dashboard for Grafana, and of the alert rules for Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[3] / "docs" / "monitoring"

_LABEL_VALUES = re.compile(r"label_values\((.+), \w+\)")
"""What a variable of a dashboard is chosen from: Grafana's own, around a selector."""
_GRAFANA = {"$__rate_interval": "5m"}
"""What Grafana puts in before it asks; its variables that stand in strings are as good as any text."""


def expressions(file: str) -> list[str]:
    """What is asked of Prometheus, in order."""
    text = (FOLDER / file).read_text(encoding="utf-8")
    if file.endswith(".json"):
        return list(_expressions(json.loads(text)))
    return [rule["expr"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def as_asked(file: str) -> list[str]:
    """The same as Prometheus gets it."""
    asked = []
    for expression in expressions(file):
        for name, value in _GRAFANA.items():
            expression = expression.replace(name, value)
        of_labels = _LABEL_VALUES.fullmatch(expression)
        asked.append(of_labels[1] if of_labels else expression)
    return asked


def _expressions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if (key == "expr" or (key == "query" and value != "prometheus")) and isinstance(value, str):
                yield value
            else:
                yield from _expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _expressions(value)
