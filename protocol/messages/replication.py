"""Messages that nodes of a cluster send one another: how they greet, and how followers fetch from their leader.

They travel on a port of their own, which clients do not use. A connection begins with PeerHandshake and is that node's from
then on, so no other request repeats who asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from protocol.codec import Int16, Int32, Int64
from protocol.messages.api import ApiKey, Request, Response, register_peer


class PeerErrorCode(IntEnum):
    """Why a node does not talk to another, with Kafka's numbers and names. Clients never see them."""

    NONE = 0
    INVALID_FETCH_SESSION_EPOCH = 71
    """A newer session of the follower has begun since."""
    STALE_BROKER_EPOCH = 77
    """The node has registered again since."""
    BROKER_ID_NOT_REGISTERED = 102
    """The node is not registered, as far as the other one knows yet."""
    INCONSISTENT_CLUSTER_ID = 104


@dataclass(frozen=True, slots=True)
class PeerHandshakeResponse(Response):
    """Who answers. With another ``error_code`` than NONE the connection closes after it."""

    error_code: Int16
    node_id: Int32 = -1
    broker_epoch: Int64 = -1
    error_message: str = ""


@register_peer
@dataclass(frozen=True, slots=True)
class PeerHandshakeRequest(Request):
    """The first request of a connection between nodes: who connects, and of which cluster it is."""

    api_key = ApiKey.PEER_HANDSHAKE
    response = PeerHandshakeResponse

    cluster_id: str
    node_id: Int32
    broker_epoch: Int64


@dataclass(frozen=True, slots=True)
class ReplicaFetchPartition:
    """A follower asks for what comes at ``fetch_offset``, and says thereby that it has on disk what is below.

    ``last_fetched_epoch`` is the leader epoch of its last record, -1 without one.
    """

    partition: Int32
    leader_epoch: Int32
    fetch_offset: Int64
    last_fetched_epoch: Int32
    log_start_offset: Int64


@dataclass(frozen=True, slots=True)
class ReplicaFetchTopic:
    """Partitions of one topic that a follower names."""

    topic_id: str
    partitions: tuple[ReplicaFetchPartition, ...]


@dataclass(frozen=True, slots=True)
class ForgottenReplicas:
    """Partitions of one topic that a follower does not follow any more."""

    topic_id: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class ReplicaEpoch:
    """A leader epoch, and where it begins in the range of the records of an answer."""

    leader_epoch: Int32
    start_offset: Int64


@dataclass(frozen=True, slots=True)
class FetchedReplica:
    """What a leader tells of one partition. The fields up to ``last_fetched_epoch`` are those that the follower asked with.

    With a ``diverging_end_offset`` of 0 or more the logs differ: the leader's records of epochs up to ``diverging_epoch``
    end there. ``high_watermark`` is -1 until the leader knows it. Below ``clean_until`` the log is compacted. ``epochs`` are
    those of the leader in the range of ``records``, which are whole batches and begin at ``fetch_offset``. With
    OFFSET_OUT_OF_RANGE come the ``producers`` that wrote below ``log_start_offset``, where the follower is to begin: the
    bytes of a snapshot file.
    """

    partition: Int32
    error_code: Int16
    leader_epoch: Int32
    fetch_offset: Int64
    last_fetched_epoch: Int32
    diverging_epoch: Int32 = -1
    diverging_end_offset: Int64 = -1
    high_watermark: Int64 = -1
    log_start_offset: Int64 = 0
    clean_until: Int64 = 0
    epochs: tuple[ReplicaEpoch, ...] = ()
    records: bytes = b""
    producers: bytes = b""


@dataclass(frozen=True, slots=True)
class FetchedReplicaTopic:
    """Results for one topic."""

    topic_id: str
    partitions: tuple[FetchedReplica, ...]


@dataclass(frozen=True, slots=True)
class ReplicaFetchResponse(Response):
    """One entry a partition with news. A partition of the answer is not served again until the follower names it again."""

    error_code: Int16
    responses: tuple[FetchedReplicaTopic, ...] = ()
    error_message: str = ""


@register_peer
@dataclass(frozen=True, slots=True)
class ReplicaFetchRequest(Request):
    """A long poll of a follower: answered once a partition it has named has news, or ``max_wait_ms`` are over.

    The partitions that it names are added to those of the ``session`` that were not delivered yet. A newer request of the
    session has the older one answered at once. A session ends with its connection, and each new one has a higher number.
    With ``max_bytes`` 0 the answer has no records.
    """

    api_key = ApiKey.REPLICA_FETCH
    response = ReplicaFetchResponse

    session: Int64
    max_wait_ms: Int32
    max_bytes: Int32
    topics: tuple[ReplicaFetchTopic, ...]
    forgotten: tuple[ForgottenReplicas, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaEndResponse(Response):
    """How far the replica is on disk: ``end_offset`` -1 when there is none that can be read, ``last_epoch`` -1 when it is
    empty."""

    last_epoch: Int32 = -1
    end_offset: Int64 = -1


@register_peer
@dataclass(frozen=True, slots=True)
class ReplicaEndRequest(Request):
    """How far a node's replica of a partition is, for an election among replicas that are not in sync."""

    api_key = ApiKey.REPLICA_END
    response = ReplicaEndResponse

    topic_id: str
    partition: Int32
