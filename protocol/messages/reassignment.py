"""Messages that move partitions: AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.codec import Int8, Int16, Int32
from protocol.messages.api import ApiKey, Request, Response, register

PREFERRED_ELECTION: Final = 0
"""ElectLeaders: the first of the replicas leads, if it is in sync."""
UNCLEAN_ELECTION: Final = 1
"""ElectLeaders: a live replica leads although none is in sync; what it lacks of acknowledged records is lost."""


@dataclass(frozen=True, slots=True)
class ReassignablePartition:
    """Where the replicas of one partition shall be, the preferred leader first; nil cancels what is under way."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReassignableTopic:
    """Partitions of one topic."""

    name: str
    partitions: tuple[ReassignablePartition, ...]


@dataclass(frozen=True, slots=True)
class ReassignedPartition:
    """Whether the reassignment of one partition began, or was cancelled."""

    partition_index: Int32
    error_code: Int16
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ReassignedTopic:
    """Results for one topic."""

    name: str
    partitions: tuple[ReassignedPartition, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsResponse(Response):
    """One entry a partition asked for, in order; with an error for the request as a whole there are none."""

    error_code: Int16
    responses: tuple[ReassignedTopic, ...] = ()
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest(Request):
    """Begins to move replicas of partitions, or cancels that (KIP-455). Answered when it is noted, long before it is done.

    A partition that moves already gets the new target instead. Without ``allow_replication_factor_change`` a target with
    another number of replicas is refused.
    """

    api_key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    response = AlterPartitionReassignmentsResponse

    topics: tuple[ReassignableTopic, ...]
    timeout_ms: Int32 = 30_000
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True)
class ListReassignmentsTopic:
    """Partitions of one topic."""

    name: str
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class OngoingPartitionReassignment:
    """One partition that moves: its ``replicas`` of the moment, and which of them come and go."""

    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...] = ()
    removing_replicas: tuple[Int32, ...] = ()


@dataclass(frozen=True, slots=True)
class OngoingTopicReassignment:
    """The partitions of one topic that move."""

    name: str
    partitions: tuple[OngoingPartitionReassignment, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsResponse(Response):
    """The partitions that move; those that were asked for and do not are left out."""

    error_code: Int16
    topics: tuple[OngoingTopicReassignment, ...] = ()
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest(Request):
    """Asks which partitions move; ``topics=None`` for all."""

    api_key = ApiKey.LIST_PARTITION_REASSIGNMENTS
    response = ListPartitionReassignmentsResponse

    topics: tuple[ListReassignmentsTopic, ...] | None = None
    timeout_ms: Int32 = 30_000


@dataclass(frozen=True, slots=True)
class ElectTopic:
    """Partitions of one topic."""

    topic: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class ElectedPartition:
    """What became of one election; ELECTION_NOT_NEEDED when the leader is the right one already."""

    partition_id: Int32
    error_code: Int16
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ElectedTopic:
    """Results for one topic."""

    topic: str
    partition_result: tuple[ElectedPartition, ...]


@dataclass(frozen=True, slots=True)
class ElectLeadersResponse(Response):
    """One entry a partition asked for; when all were asked for, one for each whose election was needed."""

    error_code: Int16
    replica_election_results: tuple[ElectedTopic, ...] = ()
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class ElectLeadersRequest(Request):
    """Elects leaders (KIP-460): with ``election_type`` 0 the preferred ones, with 1 one that is not in sync.

    ``topic_partitions=None`` for all. Answered when the leaders are in the metadata.
    """

    api_key = ApiKey.ELECT_LEADERS
    response = ElectLeadersResponse

    topic_partitions: tuple[ElectTopic, ...] | None
    election_type: Int8 = PREFERRED_ELECTION
    timeout_ms: Int32 = 30_000
