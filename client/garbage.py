"""Making many objects at once without the cyclic collector looking at each of them again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_pausing = 0
_was_enabled = False


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pauses the cyclic collector, of the whole process, for as long as it takes to make many tuples; seconds at most.

    It would look at each of them five times over while the list grows, in vain, and that takes up to four times as long as
    making them. Pauses may overlap, in one thread or in several: the collector goes on after the last of them, unless the
    program had switched it off before the first.
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
