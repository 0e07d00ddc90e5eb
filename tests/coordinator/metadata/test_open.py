"""URLs of metadata, and what is said where the extra of one is missing."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from coordinator.metadata.urls import MetadataUrl, MetadataUrlError, parse


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("etcd://a:1,b:2,c/orders", MetadataUrl("etcd", (("a", 1), ("b", 2), ("c", 2379)), "orders")),
        ("etcds://[::1]:2379,[fe80::1]/o%20r", MetadataUrl("etcds", (("::1", 2379), ("fe80::1", 2379)), "o r")),
        ("cohort://[::1]:9000/orders", MetadataUrl("cohort", (("::1", 9000),), "orders")),
    ],
)
def test_a_url_names_members_and_cluster(url: str, found: MetadataUrl) -> None:
    assert parse(url) == found
    assert parse(url).tls == url.startswith("etcds")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://a:1/x", "does not begin with etcd://"),
        ("etcd:a:1/x", "does not begin with etcd://"),
        ("etcd://a:1", "names no cluster"),
        ("etcd://a:1/", "names no cluster"),
        ("etcd://a:1/x/y", "names no cluster"),
        ("etcd:///x", "'' is not HOST:PORT"),
        ("etcd://a:1,/x", "'' is not HOST:PORT"),
        ("etcd://a:port/x", "'a:port' is not HOST:PORT"),
        ("etcd://a:65536/x", "'a:65536' is not HOST:PORT"),
        ("etcd://::1:2379/x", "'::1:2379' is not HOST:PORT"),
        ("cohort://a/x", "'a' is not HOST:PORT"),
        ("cohort://a:1,b:2/x", "'a:1,b:2' is not HOST:PORT"),
        ("cohort://a:1", "names no cluster"),
        ("etcd://user:word@a:1/x", "do not belong into the URL"),
    ],
)
def test_a_url_that_is_wrong_says_what(url: str, reason: str) -> None:
    with pytest.raises(MetadataUrlError, match=reason):
        parse(url)


_WITHOUT = """
import asyncio, sys
sys.modules["grpc"] = None  # as if it were not installed
from coordinator.metadata.open import ExtraMissingError, open_store
try:
    asyncio.run(open_store("etcd://127.0.0.1:1/x", None, lambda: "id", print))
except ExtraMissingError as error:
    print(error)
"""


async def test_without_the_extra_an_error_names_it() -> None:
    said = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _WITHOUT], capture_output=True, text=True, timeout=100, check=True
    )
    assert "needs grpcio and protobuf" in said.stdout
    assert "pip install 'aiocohort[etcd]'" in said.stdout


async def test_a_daemon_does_not_load_grpc() -> None:
    script = (
        "import coordinator.__main__, sys; print([name for name in sys.modules if name.startswith(('grpc', 'google'))])"
    )
    said = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert said.stdout.strip() == "[]"
