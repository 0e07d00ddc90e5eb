"""The frame of a Produce request, in pieces: the long ones, which are the records, are not copied into it.

``encode_request`` would join each batch, pack the message and put the length before it: three copies of every record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from msgpack import Packer

from protocol.framing import UNCOPIED_BYTES
from protocol.long_bytes import BIN32
from protocol.messages.api import ApiKey

_BIN: Final = struct.Struct(">BI")

TopicPieces = tuple[str, Sequence[tuple[int, Sequence[bytes]]]]
"""A topic, and for each of its partitions the index and the pieces of the batches."""


def encode_produce_request(
    correlation_id: int,
    client_id: str,
    acks: int,
    timeout_ms: int,
    topics: Iterable[TopicPieces],
    transactional_id: str | None = None,
) -> list[bytes]:
    """The bytes of a ``ProduceRequest``, length included, in pieces of which none is empty.

    What is shorter than ``UNCOPIED_BYTES`` is joined with what comes before and behind it, as each piece costs to be sent.
    """
    packer = Packer(autoreset=False)
    topics = list(topics)
    pieces: list[bytes] = []
    packer.pack_array_header(5)
    for field in (int(ApiKey.PRODUCE), 0, correlation_id, client_id):
        packer.pack(field)
    packer.pack_array_header(4)
    for value in (transactional_id, acks, timeout_ms):
        packer.pack(value)
    packer.pack_array_header(len(topics))
    for name, partitions in topics:
        packer.pack_array_header(2)
        packer.pack(name)
        packer.pack_array_header(len(partitions))
        for index, records in partitions:
            packer.pack_array_header(2)
            packer.pack(index)
            pieces.append(packer.bytes())
            packer.reset()
            pieces.append(_BIN.pack(BIN32, sum(map(len, records))))
            pieces += records
    pieces.append(packer.bytes())
    length = sum(map(len, pieces))
    return _with_short_ones_joined([length.to_bytes(4, "big"), *pieces])


def _with_short_ones_joined(pieces: list[bytes]) -> list[bytes]:
    joined: list[bytes] = []
    for are_short, run in groupby(pieces, lambda piece: len(piece) < UNCOPIED_BYTES):
        if are_short:
            joined.append(b"".join(run))
        else:
            joined += run
    return [piece for piece in joined if piece]
