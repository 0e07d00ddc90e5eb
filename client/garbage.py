"""Keeps the cyclic collector from looking again and again at objects that it cannot free."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_pausing = 0
_was_enabled = False
_spared_in = -1


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
    """Takes everything that is there, which is modules for the most part, out of the collector's sight; once a process.

    A worker of Spark collects after every task. That takes 30 ms with all the modules that it has loaded, and next to
    nothing without them.
    """
    global _spared_in
    with _lock:
        if _spared_in != os.getpid():
            _spared_in = os.getpid()
            gc.freeze()
