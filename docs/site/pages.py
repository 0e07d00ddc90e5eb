"""What the site has beside the Markdown of docs/: the pages above that directory, and a reference made from the docstrings.

Links are written so that they hold in the repository; here they are made to hold on the site. One that leads nowhere is a
warning, which a strict build does not pass.
"""

from __future__ import annotations

import ast
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
log = logging.getLogger("mkdocs.hooks.pages")

ABOVE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "protocol/README.md": "protocol.md",
}
"""Pages outside of docs/, and what they are called on the site."""

REFERENCE = {
    "consumer": ("Consumer", ("client.consumer.",)),
    "producer": ("Producer", ("client.producer.", "client.transactions.")),
    "admin": ("Admin", ("client.admin.",)),
    "member": ("Member", ("client.group.",)),
    "assignors": ("Assignors", ("client.assignors.", "protocol.subscription")),
    "errors": ("Errors", ("client.errors",)),
    "daemon": ("Daemon in a program", ("coordinator.",)),
    "types": ("Records, serializers, metrics", ("",)),
}
"""The pages of the reference: what is on one is told by the module that has it."""

MODULES = {"daemon": ("aiocohort.testing",), "producer": ("client.tracing",)}
"""Modules that are on a page as a whole."""

NO_BASES = """    options:
      inherited_members: false
"""
"""A hundred errors would each have all that their base has."""

_LINK = re.compile(r"\]\((?![a-z]+:|#|<)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that lie elsewhere, and those of the reference."""
    for source, uri in ABOVE.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text(encoding="utf-8")))
    for name, content in reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Makes the links of a page hold on the site."""
    uri = page.file.src_uri
    source = next((path for path, above in ABOVE.items() if above == uri), f"docs/{uri}")

    def on_site(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if (ROOT / target).is_dir():
            target = f"{target}/README.md"
        found = ABOVE.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(found) is None:
            log.warning("%s: the link %s leads to nothing that is on the site", source, match[1])
        return f"]({posixpath.relpath(found, posixpath.dirname(uri) or '.')}{match[2] or ''})"

    return _LINK.sub(on_site, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Docstrings announce code by two colons, as Python's own do; a reader sees one."""
    return html.replace("::</p>", ":</p>")


def reference() -> dict[str, str]:
    """The Markdown of each page of the reference: every public name is on one of them."""
    import client
    import coordinator

    pages = {
        name: [f"# {title}\n\nAll names are imported from `aiocohort`.\n"] for name, (title, _) in REFERENCE.items()
    }
    for owner in (client, coordinator):
        for name in owner.__all__:
            module = getattr(owner, name).__module__
            page = next(page for page, (_, rooms) in REFERENCE.items() if f"{module}.".startswith(rooms))
            pages[page].append(f"::: {module}.{name}\n{NO_BASES if page == 'errors' else ''}")
    for page, modules in MODULES.items():
        pages[page] += [f"::: {module}\n" for module in modules]
    spark = [
        "# Spark\n\nAll names are imported from `aiocohort.spark`.\n",
        *(f"::: {name}\n" for name in spark_names()),
    ]
    return {name: "\n".join(lines) for name, lines in pages.items()} | {"spark": "\n".join(spark)}


def spark_names() -> list[str]:
    """What ``aiocohort.spark`` has, by the modules that have it; read and not imported, as that would need Spark."""
    tree = ast.parse((ROOT / "client" / "spark" / "__init__.py").read_text(encoding="utf-8"))
    listed = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    )
    modules = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return [f"{modules.get(name, 'client.spark')}.{name}" for name in listed]
