"""One worker of ``cohortd --workers N``: a daemon in a process of its own that ends when its parent does.

Standard input is a pipe from the parent, which writes nothing to it: its end is the parent's end, also when that was
SIGKILL. The worker then stops as upon SIGTERM, so a data directory is never held by what was left behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Final

from coordinator.__main__ import main

_STOPS_WITHIN_S: Final = 15.0
"""How long a worker without a parent may hand over and drain."""


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        continue  # the parent has nothing to say
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_STOPS_WITHIN_S)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    sys.exit(main(as_worker=True))
