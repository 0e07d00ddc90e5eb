"""What travels between a follower and its leader about one partition (``ReplicaFetch``)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from coordinator.log.leader_epochs import NO_EPOCH
from coordinator.replication.partition import Incarnation


class FetchError(IntEnum):
    """Why a leader gives a follower nothing, with Kafka's numbers and names. Nodes say it to each other only."""

    UNKNOWN_SERVER_ERROR = -1
    """One that this node does not know."""
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    """The leader's log begins later, or is a stranger's: the follower begins anew where it does."""
    UNKNOWN_TOPIC_OR_PARTITION = 3
    """The node has no replica of it."""
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    STALE_BROKER_EPOCH = 77

    @classmethod
    def _missing_(cls, value: object) -> FetchError:
        """A newer node may know more."""
        return cls.UNKNOWN_SERVER_ERROR


class FetchPartition(NamedTuple):
    """A follower asks for what comes at ``fetch_offset``, and acknowledges thereby that it has on disk what is below."""

    follower: Incarnation
    leader_epoch: int
    fetch_offset: int
    last_epoch: int
    """The epoch of the last record below ``fetch_offset``, ``NO_EPOCH`` without one."""
    log_start_offset: int


class FetchAnswer(NamedTuple):
    """What the leader answers; the first four fields are the follower's own, which tell an answer that is stale.

    With ``diverging_end`` the logs differ: the leader's records of epochs up to ``diverging_epoch`` end there.
    """

    leader_epoch: int
    broker_epoch: int
    fetch_offset: int
    last_epoch: int
    error_code: FetchError = FetchError.NONE
    diverging_epoch: int = NO_EPOCH
    diverging_end: int = -1
    high_watermark: int = -1
    """-1 until the leader knows that nothing above it was ever committed."""
    log_start_offset: int = 0
    clean_until: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    """The leader's epochs in the range of ``records``, with where they begin in it."""
    records: Any = ()
    producers: bytes = b""
    """With ``OFFSET_OUT_OF_RANGE``: a snapshot of the producers that wrote below ``log_start_offset``."""
