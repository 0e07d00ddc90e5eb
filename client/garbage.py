"""Keeps the cyclic collector from looking again and again at objects that it cannot free."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_pausing = 0
_was_enabled = False
_spared = (-1, 0)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pauses the cyclic collector, of the whole process, for as long as it takes to make many tuples; seconds at most.

    It would look at each of them five times over while the list grows and free none, and that takes up to four times as
    long as making them. Pauses may overlap, in one thread or in several: the collector goes on after the last of them,
    unless the program had switched it off before the first.
    """
    global _pausing, _was_enabled
    with _lock:
        if not _pausing:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pausing += 1
    try:
        yield
    finally:
        with _lock:
            _pausing -= 1
            if not _pausing and _was_enabled:
                gc.enable()


def spare_what_is_loaded() -> None:
    """Takes everything that is there, which is modules for the most part, out of the collector's sight.

    A worker of Spark collects after every task, and a process of its planner after every call. That takes 30 ms with all the
    modules that it has loaded, and next to nothing without them. Call it whenever work begins: it acts only if modules were
    loaded since, which the first tasks of a process go on to do.
    """
    global _spared
    with _lock:
        now = os.getpid(), len(sys.modules)
        if _spared != now:
            _spared = now
            gc.freeze()
