"""The modules of Kafka's messages say what Kafka's schemas say."""

from __future__ import annotations

import pytest

from tests.protocol.kafka.message_modules import MESSAGES, SCHEMAS, schema_names, schema_of, sources

REWRITE = "run: python -m tests.protocol.kafka.message_modules"
MODULES = sources()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_what_its_schema_makes_it(name: str) -> None:
    assert (MESSAGES / name).read_text(encoding="utf-8") == MODULES[name], REWRITE


def test_there_are_no_modules_without_a_schema() -> None:
    assert {path.name for path in MESSAGES.glob("*.py")} == set(MODULES), REWRITE


def test_requests_and_responses_come_in_pairs() -> None:
    keys = {
        kind: {schema_of(name).get("apiKey") for name in schema_names() if name.endswith(kind)}
        for kind in ("Request", "Response")
    }
    assert keys["Request"] == keys["Response"]


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_a_schema_keeps_its_licence(path: object) -> None:
    assert "Licensed to the Apache Software Foundation" in (SCHEMAS / str(path)).read_text(encoding="utf-8")


def test_the_schemas_name_their_source() -> None:
    assert "Apache Kafka" in (SCHEMAS / "NOTICE").read_text(encoding="utf-8")
