"""A pytest plugin, ``-p tests.as_on_macos``: takes away what Linux has and macOS has not, before Cohort is imported.

``os.fdatasync``, ``time.CLOCK_BOOTTIME`` and ``/proc`` as far as the daemon reads it. What macOS has instead and Linux has
not, ``fcntl.F_FULLFSYNC``, is a test of its own.
"""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any

TAKEN = ("fdatasync", "CLOCK_BOOTTIME", "/proc")
"""What is not there, as docs/operate.md names it."""

_read_text = pathlib.Path.read_text


def _read_text_without_proc(path: pathlib.Path, *arguments: Any, **settings: Any) -> str:
    if str(path).startswith("/proc/"):
        raise FileNotFoundError(2, "there is no /proc", str(path))
    return _read_text(path, *arguments, **settings)


for module, name in ((os, "fdatasync"), (time, "CLOCK_BOOTTIME")):
    if hasattr(module, name):
        delattr(module, name)
pathlib.Path.read_text = _read_text_without_proc  # type: ignore[method-assign, assignment]
