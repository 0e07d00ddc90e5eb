"""``python -m tests.simulation.log``: histories of one log; ends with 1 when an invariant breaks."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.log.history import STEPS, LogHistory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, help="one history only")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    first, count = (options.start, options.histories) if options.seed is None else (options.seed, 1)
    failed = lives = entries = 0
    for seed in range(first, first + count):
        history = LogHistory(seed, options.steps)
        history.run()
        lives, entries = lives + history.lives, entries + len(history.book.entries)
        if history.broken:
            failed += 1
            for invariant, texts in history.broken.items():
                print(f"seed {seed}: {invariant}: {texts[0]}" + (f" (and {len(texts) - 1} more)" if texts[1:] else ""))
    print(f"{count} histories, {lives} lives, {entries} batches: {failed} broke an invariant")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
