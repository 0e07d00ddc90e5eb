"""The documentation site: it builds without a warning, has every public name, and asks no other host for anything."""

from __future__ import annotations

import ast
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

import client
import coordinator
from tests.integration.browsing import browser_at, needs_browser

ROOT = Path(__file__).parent.parent
MISSING = [name for name in ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers") if find_spec(name) is None]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} are not installed: pip install -e '.[docs]'"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as CONTRIBUTING.md says; ``.ci/run`` leaves that to this."""
    folder = tmp_path_factory.mktemp("built") / "site"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"),
            *("-f", "docs/site/mkdocs.yml", "--site-dir", str(folder)),
        ],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


class Loads(HTMLParser):
    """What a browser fetches for a page, and the anchors in it."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes it."""
        found = dict(attrs)
        if found.get("id"):
            self.anchors.add(str(found["id"]))
        named = found.get("href") if tag == "link" else found.get("src")
        if named:
            self.fetched.append(named)


def parsed(path: Path) -> Loads:
    loads = Loads()
    loads.feed(path.read_text(encoding="utf-8"))
    return loads


def test_every_page_is_there(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"index", "changelog", "contributing", "protocol"}
    assert {path.stem for path in site.glob("*.html")} >= pages
    assert "Kafka's consumer groups for Python" in (site / "index.html").read_text(encoding="utf-8").replace(
        "&#39;", "'"
    )


def test_the_reference_has_every_public_name(site: Path) -> None:
    anchors = {anchor for path in (site / "reference").glob("*.html") for anchor in parsed(path).anchors}
    for owner in (client, coordinator):
        missing = [name for name in owner.__all__ if f"{getattr(owner, name).__module__}.{name}" not in anchors]
        assert missing == []
    assert "client.consumer.consumer.Consumer.process" in anchors
    spark = ast.parse((ROOT / "client" / "spark" / "__init__.py").read_text(encoding="utf-8"))
    (listed,) = (ast.literal_eval(node.value) for node in spark.body if isinstance(node, ast.Assign))
    assert [name for name in listed if not any(anchor.endswith(f".{name}") for anchor in anchors)] == []
    assert {"aiocohort.testing.cohort_coordinator", "client.tracing.TracedConsumer"} <= anchors


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert [place for place in parsed(path).fetched if re.match(r"[a-z]+:|//", place)] == []
    for path in site.rglob("*.css"):
        assert re.findall(r"url\(\s*[\"']?(?:[a-z]+:)?//[^)]*\)|@import", path.read_text(encoding="utf-8")) == []


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The site at an address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


@needs_browser
async def test_a_browser_shows_and_searches_it(served: str) -> None:
    async with browser_at(served) as looked:
        await looked.open("reference/consumer.html")
        await looked.page.wait_for_selector("text=max_poll_interval_ms")
        await looked.open("index.html")
        await looked.page.fill("input[name=query]", "rebalance")
        await looked.page.wait_for_selector("a.md-search-result__link")
