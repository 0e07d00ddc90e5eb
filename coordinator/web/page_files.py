"""The files of the page: read once from the package, served from memory."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Final, NamedTuple

_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """One file and its content type."""

    content: bytes
    content_type: str


def page_files() -> dict[str, PageFile]:
    """Every file of the page by its name."""
    found = {}
    for entry in files("coordinator.web").joinpath("page").iterdir():
        content_type = _TYPES.get(entry.name.rpartition(".")[2])
        if content_type is not None:
            found[entry.name] = PageFile(entry.read_bytes(), content_type)
    return found
