"""The expressions in docs/monitoring: of the dashboard for Grafana, and of the alert rules for Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "docs" / "monitoring"


def expressions(file: str) -> list[str]:
    """What is asked of Prometheus, in order."""
    text = (FOLDER / file).read_text(encoding="utf-8")
    if file.endswith(".json"):
        return list(_expressions(json.loads(text)))
    return re.findall(r"^ +expr: (.+)$", text, re.MULTILINE)


def _expressions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from _expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _expressions(value)
