"""What a follower takes over from its leader: whole batches, which keep their offsets and epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coordinator.log.scan import ends_in
from protocol.control_batch import TransactionEnd
from protocol.record_batch import BatchHeader, check_body, read_header


class ReplicatedBatch(NamedTuple):
    """A batch of the leader's log, checked, with the transactions that it ends."""

    header: BatchHeader
    batch: memoryview
    ends: Sequence[TransactionEnd] = ()


def replicated_batches(records: bytes) -> list[ReplicatedBatch]:
    """The batches in what a leader has sent, which are views of it.

    Raises ``ProtocolError`` unless all are whole, with both checksums right: a follower passes nothing on that it has not
    checked. It reads every byte, so for a large answer a thread is the place.
    """
    view, position, found = memoryview(records), 0, list[ReplicatedBatch]()
    while position < len(view):
        header = read_header(view, position)
        batch = view[position : position + header.length]
        check_body(batch, 0, header)
        found.append(ReplicatedBatch(header, batch, ends_in(batch, header)))
        position += header.length
    return found
