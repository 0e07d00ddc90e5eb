"""Messages about nodes and the cluster: ApiVersions, Metadata, FindCoordinator, DescribeCluster, UnregisterBroker."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.codec import Int8, Int16, Int32, Int64
from protocol.messages.api import ApiKey, Request, Response, register


@dataclass(frozen=True, slots=True)
class ApiVersion:
    """One API key, the versions of it that a node speaks, and what a request of it may hold; 0 says nothing.

    ``max_request_bytes`` bounds the payload of the request's frame. ``max_request_elements`` bounds the msgpack values in
    the frame, arrays counted as well as what is in them.
    """

    api_key: Int16
    min_version: Int16
    max_version: Int16
    max_request_bytes: Int32 = 0
    max_request_elements: Int32 = 0


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse(Response):
    """Answered for any version asked: a client that is too new learns what this node speaks."""

    error_code: Int16
    api_keys: tuple[ApiVersion, ...] = ()
    software_name: str = ""
    software_version: str = ""


@register
@dataclass(frozen=True, slots=True)
class ApiVersionsRequest(Request):
    """Asks what a node speaks."""

    api_key = ApiKey.API_VERSIONS
    response = ApiVersionsResponse

    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """One node that serves. ``rack`` says where it stands (KIP-881), if it knows."""

    node_id: Int32
    host: str
    port: Int32
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The leader of one partition and its leader epoch."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic; ``partitions`` is empty when ``error_code`` is not NONE."""

    error_code: Int16
    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]


@dataclass(frozen=True, slots=True)
class MetadataResponse(Response):
    """The cluster as the node sees it at ``revision``, a number that rises with every change.

    With ``since_revision`` 0 or more, only those of the topics are listed that came, changed or went after that revision;
    what is gone has the error UNKNOWN_TOPIC_OR_PARTITION. With -1 all are listed that were asked for.
    """

    revision: Int64
    cluster_id: str
    controller_id: Int32
    brokers: tuple[BrokerMetadata, ...]
    topics: tuple[TopicMetadata, ...]
    since_revision: Int64 = -1


@register
@dataclass(frozen=True, slots=True)
class MetadataRequest(Request):
    """Asks for topics by name, or for all of them with ``topics=None``.

    With ``max_wait_ms`` the answer waits until one of these topics has changed after ``known_revision`` or the time is over,
    so that a client learns of new topics and partitions when they appear and not at its next poll. With ``accepts_changes``
    the answer may list only what has changed, see ``since_revision`` of the answer; a daemon that does not remember so far
    back lists all.
    """

    api_key = ApiKey.METADATA
    response = MetadataResponse

    topics: tuple[str, ...] | None
    known_revision: Int64 = -1
    max_wait_ms: Int32 = 0
    accepts_changes: bool = False


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse(Response):
    """The node that leads partition ``partition_index`` of ``__consumer_offsets``."""

    error_code: Int16
    error_message: str
    node_id: Int32
    host: str
    port: Int32
    partition_index: Int32 = -1


@register
@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest(Request):
    """Asks for the coordinator of a group (``key_type`` 0)."""

    api_key = ApiKey.FIND_COORDINATOR
    response = FindCoordinatorResponse

    key: str
    key_type: Int8 = 0


@dataclass(frozen=True, slots=True)
class DescribeClusterBroker:
    """One node that was ever registered; ``is_fenced`` when it is not alive, or takes no part at the moment.

    ``is_draining`` says that it hands its leaderships over, as it is about to stop. ``room`` is how many replicas of users'
    topics it may still be given, -1 where that is not known.
    """

    broker_id: Int32
    host: str
    port: Int32
    rack: str | None = None
    is_fenced: bool = False
    broker_epoch: Int64 = -1
    is_draining: bool = False
    room: Int32 = -1


@dataclass(frozen=True, slots=True)
class DescribeClusterResponse(Response):
    """The nodes of a cluster. ``metadata_store`` says where its metadata is kept, for people."""

    error_code: Int16
    cluster_id: str = ""
    controller_id: Int32 = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    error_message: str = ""
    metadata_store: str = ""


@register
@dataclass(frozen=True, slots=True)
class DescribeClusterRequest(Request):
    """Asks for the nodes of the cluster (KIP-700), with ``include_fenced_brokers`` also for those that are not alive."""

    api_key = ApiKey.DESCRIBE_CLUSTER
    response = DescribeClusterResponse

    include_fenced_brokers: bool = False


@dataclass(frozen=True, slots=True)
class UnregisterBrokerResponse(Response):
    """Whether the node is forgotten."""

    error_code: Int16
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class UnregisterBrokerRequest(Request):
    """Forgets a node that is not alive and has no replicas: it will not come back."""

    api_key = ApiKey.UNREGISTER_BROKER
    response = UnregisterBrokerResponse

    broker_id: Int32
