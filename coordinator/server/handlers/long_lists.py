"""Answers that list all of a node, some of them in each step: what each shard lists in order, merged and packed."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from itertools import chain
from typing import Any, Final

from protocol.codec import encode_message, pack

PACKED_PER_STEP: Final = 1_000
"""Entries that are listed or packed in one step: about 2 ms."""

_MERGED_PER_STEP: Final = 20_000
"""Names that are put in order in one step: about 2 ms."""

_ARRAY_32: Final = b"\xdd"


def merged(in_order: list[list[str]]) -> Generator[None, None, list[str]]:
    """One list in order, of many that are: two become one at a time, which takes less of each step than sorting all."""
    done = 0
    while len(in_order) > 1:
        pairs = []
        for number in range(0, len(in_order), 2):
            pair = sorted(chain(*in_order[number : number + 2]))
            pairs.append(pair)
            done += len(pair)
            if done >= _MERGED_PER_STEP:
                done = 0
                yield
        in_order = pairs
    return in_order[0] if in_order else []


def packed(names: list[str], listed: Mapping[str, Any], error: str = "") -> Generator[None, None, bytes]:
    """The array of the entries of these names, and the text of the error that is behind it."""
    pieces = [_ARRAY_32, len(names).to_bytes(4)]
    for start in range(0, len(names), PACKED_PER_STEP):
        some = names[start : start + PACKED_PER_STEP]
        pieces.append(b"".join([pack(encode_message(listed[name])) for name in some]))
        if start + PACKED_PER_STEP < len(names):
            yield
    pieces.append(pack(error))
    return b"".join(pieces)
