"""Messages of transactions: what their coordinator, the leaders of partitions and administrators say to one another.

A transaction is named by a producer id and an epoch, which is used once (KIP-890). Producers ask for their identity with
InitProducerId, in ``protocol.messages.producers``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.codec import Int8, Int16, Int32, Int64
from protocol.messages.api import ApiKey, Request, Response, register, register_peer
from protocol.messages.offsets import CommittedTopic, OffsetCommitTopic

NO_VERSION: Final = -1
"""The version of a transaction that has none, and the committed version of an id of which none is committed."""


@dataclass(frozen=True, slots=True)
class TransactionTopic:
    """Partitions of one topic, or with the internal topic ``__consumer_offsets`` the partitions of groups."""

    name: str
    topic_id: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResponse(Response):
    """Whether the partitions belong to the transaction; ``error_code`` holds for all of them.

    ``producer_id`` and ``producer_epoch`` name the transaction of a producer that keeps its epoch; else they are -1.
    """

    error_code: Int16
    error_message: str = ""
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1


@register
@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest(Request):
    """The leader of partitions, asked to write in a transaction for the first time, makes them part of it.

    With ``verify_only`` nothing is added: the answer says whether they are part of it (KIP-890). Clients of Cohort do not
    send it.

    With ``keeps_epoch`` the producer is one of Kafka's from before KIP-890: it sends the request by itself, and names its
    transactions by the epoch that it keeps. The leader of a partition asks with ``verify_only`` then, and is told which
    transaction that is.
    """

    api_key = ApiKey.ADD_PARTITIONS_TO_TXN
    response = AddPartitionsToTxnResponse

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[TransactionTopic, ...]
    verify_only: bool = False
    keeps_epoch: bool = False


@dataclass(frozen=True, slots=True)
class LastSequence:
    """The last sequence that a producer sent to one partition in its transaction."""

    partition_index: Int32
    sequence: Int32


@dataclass(frozen=True, slots=True)
class UnacknowledgedTopic:
    """What a producer sent to one topic in its transaction and has no answer to yet."""

    name: str
    partitions: tuple[LastSequence, ...]


@dataclass(frozen=True, slots=True)
class EndTxnResponse(Response):
    """The decision is on disk. The next transaction is written under this producer id and epoch."""

    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    error_message: str = ""
    committed_version: Int64 = NO_VERSION
    committed_metadata: str = ""


@register
@dataclass(frozen=True, slots=True)
class EndTxnRequest(Request):
    """Commits or aborts a transaction.

    ``version`` is stored with a commit, and ``metadata`` with the version: what it consists of, in the words of the program.
    A version that is committed already is answered without an error and with its metadata, and nothing is done. ``scope``
    and ``members`` are for transactions that producers joined: the members named commit, all others abort.
    With ``unacknowledged`` a commit is decided once these writes are on disk; when that does not come about, or cannot be
    seen where the coordinator is, it is refused with CONCURRENT_TRANSACTIONS and nothing is decided.
    With ``keeps_epoch`` the producer is one of Kafka's from before KIP-890, which writes its next transaction under the same
    epoch, whatever the answer says.
    """

    api_key = ApiKey.END_TXN
    response = EndTxnResponse

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: bool
    version: Int64 = NO_VERSION
    scope: str = ""
    members: tuple[Int64, ...] = ()
    metadata: str = ""
    unacknowledged: tuple[UnacknowledgedTopic, ...] = ()
    keeps_epoch: bool = False


@dataclass(frozen=True, slots=True)
class MarkerTopic:
    """Partitions of one topic in which transactions end."""

    topic_id: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """How the transaction of one producer id and epoch ended, and where.

    ``coordinator_partition`` is the partition of ``__transaction_state`` whose leader has decided it, in the leader epoch
    ``coordinator_epoch``; -1 when an administrator has.
    """

    producer_id: Int64
    producer_epoch: Int16
    committed: bool
    coordinator_epoch: Int32
    topics: tuple[MarkerTopic, ...]
    coordinator_partition: Int32 = -1


@dataclass(frozen=True, slots=True)
class WrittenMarkerPartition:
    """Whether the end of a transaction is on disk in one partition."""

    partition_index: Int32
    error_code: Int16
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class WrittenMarkerTopic:
    """Results for one topic."""

    topic_id: str
    partitions: tuple[WrittenMarkerPartition, ...]


@dataclass(frozen=True, slots=True)
class WrittenMarker:
    """Results for the transaction of one producer."""

    producer_id: Int64
    topics: tuple[WrittenMarkerTopic, ...]


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersResponse(Response):
    """One entry a marker, in order."""

    markers: tuple[WrittenMarker, ...]


@register
@dataclass(frozen=True, slots=True)
class WriteTxnMarkersRequest(Request):
    """Ends transactions in partitions. Writing a marker again, or where nothing is open, appends nothing and is no error."""

    api_key = ApiKey.WRITE_TXN_MARKERS
    response = WriteTxnMarkersResponse

    markers: tuple[TransactionMarker, ...]


@dataclass(frozen=True, slots=True)
class SoughtTransaction:
    """A transaction, and where it may be open."""

    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[MarkerTopic, ...]


@dataclass(frozen=True, slots=True)
class OpenTransactionsResponse(Response):
    """One entry a transaction, in order: 1 if it is open in one of its partitions, 0 if in none, -1 if that is unknown."""

    states: tuple[Int8, ...]


@register_peer
@dataclass(frozen=True, slots=True)
class OpenTransactionsRequest(Request):
    """A coordinator of transactions that has read its log asks a leader of partitions which transactions are open there."""

    api_key = ApiKey.OPEN_TRANSACTIONS
    response = OpenTransactionsResponse

    transactions: tuple[SoughtTransaction, ...]


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponse(Response):
    """As OffsetCommitResponse. ``error_code`` is what refuses the whole request, which every partition has then, too."""

    topics: tuple[CommittedTopic, ...]
    error_message: str = ""
    error_code: Int16 = 0


@register
@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest(Request):
    """Offsets of a group that take effect when the transaction commits (KIP-98, KIP-447).

    With ``staged`` the ends of what StageOffsets gave are committed, and ``topics`` says which ends are expected, as far as
    that is known: others are refused. With ``keeps_epoch`` the producer is one of Kafka's from before KIP-890.
    """

    api_key = ApiKey.TXN_OFFSET_COMMIT
    response = TxnOffsetCommitResponse

    group_id: str
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    topics: tuple[OffsetCommitTopic, ...]
    staged: bool = False
    keeps_epoch: bool = False


@dataclass(frozen=True, slots=True)
class JoinTransactionResponse(Response):
    """The identity of the member; ``transaction_producer_id`` is that of the transaction, whose epoch is the same.

    With a ``committed_version`` at or above the version asked for there is nothing to join: it is committed, with that
    ``committed_metadata``.
    """

    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    committed_version: Int64 = NO_VERSION
    transaction_producer_id: Int64 = -1
    error_message: str = ""
    committed_metadata: str = ""


@register
@dataclass(frozen=True, slots=True)
class JoinTransactionRequest(Request):
    """A producer joins the transaction of a version of a transactional id, or opens it; repeated, it is a sign of life.

    ``scope`` names whose versions these are, such as a query of Spark; ``member`` names the producer, such as a task
    attempt.
    """

    api_key = ApiKey.JOIN_TRANSACTION
    response = JoinTransactionResponse

    transactional_id: str
    scope: str
    version: Int64
    member: str
    transaction_timeout_ms: Int32 = 600_000


@dataclass(frozen=True, slots=True)
class StagedPartition:
    """A batch reads from ``start_offset`` up to the record before ``end_offset``, which is what is committed then."""

    partition_index: Int32
    start_offset: Int64
    end_offset: Int64
    committed_metadata: str | None = ""


@dataclass(frozen=True, slots=True)
class StagedTopic:
    """What a batch reads of one topic."""

    name: str
    topic_id: str
    partitions: tuple[StagedPartition, ...]


@dataclass(frozen=True, slots=True)
class StageOffsetsResponse(Response):
    """What was staged is on disk."""

    error_code: Int16
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class StageOffsetsRequest(Request):
    """A member of a group says what its next batch reads. It replaces what was staged for the group before."""

    api_key = ApiKey.STAGE_OFFSETS
    response = StageOffsetsResponse

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    topics: tuple[StagedTopic, ...]


@dataclass(frozen=True, slots=True)
class DescribeProducersTopic:
    """Partitions of one topic."""

    name: str
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that a partition remembers. ``current_txn_start_offset`` is -1 when no transaction of it is open there."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32
    last_timestamp_ms: Int64
    coordinator_epoch: Int32 = -1
    current_txn_start_offset: Int64 = -1


@dataclass(frozen=True, slots=True)
class DescribedProducersPartition:
    """The producers of one partition, and what of it readers with read_committed see."""

    partition_index: Int32
    error_code: Int16
    active_producers: tuple[ActiveProducer, ...] = ()
    error_message: str = ""
    last_stable_offset: Int64 = -1
    high_watermark: Int64 = -1


@dataclass(frozen=True, slots=True)
class DescribedProducersTopic:
    """Results for one topic."""

    name: str
    partitions: tuple[DescribedProducersPartition, ...]


@dataclass(frozen=True, slots=True)
class DescribeProducersResponse(Response):
    """One entry a partition, in order."""

    topics: tuple[DescribedProducersTopic, ...]


@register
@dataclass(frozen=True, slots=True)
class DescribeProducersRequest(Request):
    """Asks for the producers of partitions (KIP-664).

    With ``transactions_only`` those are left out that have no transaction open in the partition.
    """

    api_key = ApiKey.DESCRIBE_PRODUCERS
    response = DescribeProducersResponse

    topics: tuple[DescribeProducersTopic, ...]
    transactions_only: bool = False


@dataclass(frozen=True, slots=True)
class TransactionMember:
    """A producer that writes in a transaction, and where."""

    producer_id: Int64
    name: str
    started_ms: Int64
    topics: tuple[TransactionTopic, ...]


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """One transactional id. ``transaction_start_ms`` is -1 when none is open.

    ``previous_outcome`` tells how the transaction before ended: "" when there was none, "committed", "aborted",
    "timed out", "aborted by an administrator", "fenced" or "renewed". ``waits_for`` has a text for each partition whose end
    marker is not written yet, and why; after a hundred
    of them it says how many more there are.
    """

    error_code: Int16
    transactional_id: str
    state: str = ""
    transaction_timeout_ms: Int32 = -1
    transaction_start_ms: Int64 = -1
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    members: tuple[TransactionMember, ...] = ()
    committed_version: Int64 = NO_VERSION
    scope: str = ""
    version: Int64 = NO_VERSION
    previous_outcome: str = ""
    waits_for: tuple[str, ...] = ()
    error_message: str = ""
    coordinator: Int32 = -1


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse(Response):
    """One entry a transactional id, in order."""

    transaction_states: tuple[DescribedTransaction, ...]


@register
@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest(Request):
    """Asks for everything about transactional ids (KIP-664)."""

    api_key = ApiKey.DESCRIBE_TRANSACTIONS
    response = DescribeTransactionsResponse

    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """One transactional id; ``transaction_start_ms`` is -1 when no transaction is open."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    transaction_state: str
    transaction_start_ms: Int64 = -1


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse(Response):
    """The transactional ids of all coordinators of this node, sorted."""

    error_code: Int16
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListedTransaction, ...] = ()
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class ListTransactionsRequest(Request):
    """Asks for transactional ids (KIP-664); empty filters let all pass.

    ``duration_filter_ms`` lets those pass whose transaction has been open for longer, -1 all.
    """

    api_key = ApiKey.LIST_TRANSACTIONS
    response = ListTransactionsResponse

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[Int64, ...] = ()
    duration_filter_ms: Int64 = -1


@dataclass(frozen=True, slots=True)
class AbortTransactionResponse(Response):
    """The decision is on disk. ``aborted`` is false when no transaction was open."""

    error_code: Int16
    error_message: str = ""
    aborted: bool = False


@register
@dataclass(frozen=True, slots=True)
class AbortTransactionRequest(Request):
    """An administrator aborts the open transaction of an id; its producer is told, and goes on with the next.

    With ``fence`` the producer is fenced as if another had taken its id over.
    """

    api_key = ApiKey.ABORT_TRANSACTION
    response = AbortTransactionResponse

    transactional_id: str
    fence: bool = False
