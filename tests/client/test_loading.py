"""A program loads what it uses: names of ``client`` come when they are asked for, commands wait for their own modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import client

HEAVY = (
    "client.admin",
    "client.assignors",
    "client.bench",
    "client.consumer",
    "client.demo",
    "client.group",
    "client.producer",
)


def loaded_after(statement: str) -> set[str]:
    """Modules of ours that a new process has after it."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return {name for name in done.stdout.split() if name.startswith(("client", "protocol"))}


def imported_for_types() -> dict[str, str]:
    """Module by public name, as type checkers read them."""
    tree = ast.parse(Path(client.__file__).read_text())
    (block,) = (statement for statement in tree.body if isinstance(statement, ast.If))
    imports = [statement for statement in block.body if isinstance(statement, ast.ImportFrom)]
    return {alias.name: str(statement.module) for statement in imports for alias in statement.names}


def test_each_name_comes_from_the_module_that_type_checkers_see() -> None:
    types = imported_for_types()
    assert set(types) == set(client.__all__) - set(client.errors.__all__)
    for name, module in types.items():
        assert getattr(client, name) is getattr(sys.modules[module], name)
        assert name in dir(client)


def test_a_name_that_is_not_there_is_told() -> None:
    with pytest.raises(AttributeError, match="module 'client' has no attribute 'Prodcer'"):
        client.Prodcer  # noqa: B018 - the access is what is tested


def test_the_package_alone_loads_errors_only() -> None:
    assert not [name for name in loaded_after("import client") if name.startswith(HEAVY)]


def test_a_producer_brings_no_consumer() -> None:
    loaded = loaded_after("from client import Producer")
    assert "client.producer.producer" in loaded
    assert not [
        name
        for name in loaded
        if name.startswith(("client.consumer", "client.group", "client.assignors", "client.admin"))
    ]


def test_the_command_line_waits_for_no_consumer_no_producer_and_no_benchmark() -> None:
    loaded = loaded_after("import client.cli.main")
    unwanted = ("client.consumer", "client.group", "client.assignors", "client.producer.producer", "client.demo")
    assert not [name for name in loaded if name.startswith(unwanted)]
    assert not {name for name in loaded if name.startswith("client.bench.")} - {
        "client.bench.figures",
        "client.bench.registry",
    }
