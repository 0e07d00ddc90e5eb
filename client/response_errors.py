"""One error for each code that a daemon answers with; ``client.errors`` is where to import them from."""

from __future__ import annotations

from typing import ClassVar

from client.library_errors import CohortError, TransactionAbortedError
from protocol.errors import RETRIABLE, ErrorCode

_ABORTABLE = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""What a daemon says of a transaction that its producer has to abort. Whether another has taken the id over is told then."""


class ProtocolResponseError(CohortError):
    """A daemon answered with an error code; ``code`` holds it."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init_subclass__(cls) -> None:
        cls.retriable = cls.code in RETRIABLE
        cls.abortable = cls.code in _ABORTABLE
        _BY_CODE[cls.code] = cls

    def __init__(self, message: str = "") -> None:
        super().__init__(message or f"{self.code.name}: {(type(self).__doc__ or '').strip()}")


_BY_CODE: dict[ErrorCode, type[ProtocolResponseError]] = {}


class UnknownServerError(ProtocolResponseError):
    """The daemon failed in a way it did not expect; its log has the cause."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class OffsetOutOfRangeError(ProtocolResponseError):
    """The offset asked for is below the first or above the last one in the log."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessageError(ProtocolResponseError):
    """A record batch does not match its checksum."""

    code = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartitionError(ProtocolResponseError):
    """No such topic or partition, or not yet."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class InvalidFetchSizeError(ProtocolResponseError):
    """A fetch asked for a size that makes no sense."""

    code = ErrorCode.INVALID_FETCH_SIZE


class LeaderNotAvailableError(ProtocolResponseError):
    """The partition has no leader at the moment."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeaderOrFollowerError(ProtocolResponseError):
    """The node asked does not lead the partition (any more)."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class RequestTimedOutError(ProtocolResponseError):
    """No answer within the time allowed. What was asked may have happened or not."""

    code = ErrorCode.REQUEST_TIMED_OUT


class MessageTooLargeError(ProtocolResponseError):
    """A record or batch is above the topic's max.message.bytes."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class RecordTooLargeError(MessageTooLargeError):
    """A record is larger than what the producer, the daemon or the topic takes."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class OffsetMetadataTooLargeError(ProtocolResponseError):
    """The text committed with an offset is above the daemon's limit."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class CoordinatorLoadInProgressError(ProtocolResponseError):
    """The coordinator is still reading its log."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorNotAvailableError(ProtocolResponseError):
    """The group or the transactional id has no coordinator at the moment."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class NotCoordinatorError(ProtocolResponseError):
    """The node asked does not coordinate the group or the transactional id (any more)."""

    code = ErrorCode.NOT_COORDINATOR


class InvalidTopicError(ProtocolResponseError):
    """The topic name is not allowed, or the topic is internal."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class RecordListTooLargeError(ProtocolResponseError):
    """A batch does not fit into a segment."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE


class NotEnoughReplicasError(ProtocolResponseError):
    """Fewer replicas are in sync than min.insync.replicas; nothing was appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(ProtocolResponseError):
    """Appended, but fewer replicas are in sync than min.insync.replicas."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class InvalidRequiredAcksError(ProtocolResponseError):
    """acks is 0, 1 or "all"."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


class IllegalGenerationError(ProtocolResponseError):
    """The group has moved to another generation: join again."""

    code = ErrorCode.ILLEGAL_GENERATION


class InconsistentGroupProtocolError(ProtocolResponseError):
    """The members of the group have no assignor in common with this one."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class InvalidGroupIdError(ProtocolResponseError):
    """The group id is empty or too long."""

    code = ErrorCode.INVALID_GROUP_ID


class UnknownMemberIdError(ProtocolResponseError):
    """The group does not know this member: it left, was removed, or missed its session."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidSessionTimeoutError(ProtocolResponseError):
    """The session timeout is outside what the daemon allows."""

    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgressError(ProtocolResponseError):
    """The group is rebalancing: join again."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class UnsupportedVersionError(ProtocolResponseError):
    """The daemon does not speak this request or this version of it."""

    code = ErrorCode.UNSUPPORTED_VERSION


class TopicAlreadyExistsError(ProtocolResponseError):
    """A topic of that name exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(ProtocolResponseError):
    """The number of partitions is not allowed."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactorError(ProtocolResponseError):
    """There are not as many nodes as replicas asked for."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidConfigError(ProtocolResponseError):
    """A topic setting is unknown or its value is not allowed."""

    code = ErrorCode.INVALID_CONFIG


class NotControllerError(ProtocolResponseError):
    """The node asked cannot change topics (any more)."""

    code = ErrorCode.NOT_CONTROLLER


class InvalidRequestError(ProtocolResponseError):
    """The request makes no sense; the text says why."""

    code = ErrorCode.INVALID_REQUEST


class PolicyViolationError(ProtocolResponseError):
    """The daemon's settings forbid this."""

    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequenceNumberError(ProtocolResponseError):
    """A batch of an idempotent producer is missing before this one."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpochError(ProtocolResponseError):
    """Another producer with the same identity has taken over."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class StorageError(ProtocolResponseError):
    """The daemon could not write or read its disk."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class NonEmptyGroupError(ProtocolResponseError):
    """The group has members."""

    code = ErrorCode.NON_EMPTY_GROUP


class GroupIdNotFoundError(ProtocolResponseError):
    """No such group."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class FencedLeaderEpochError(ProtocolResponseError):
    """The leader epoch given is older than the partition's."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(ProtocolResponseError):
    """The leader epoch given is newer than the partition's."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class UnsupportedCompressionTypeError(ProtocolResponseError):
    """The daemon does not know this compression."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class OffsetNotAvailableError(ProtocolResponseError):
    """The new leader does not know its end yet."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE


class MemberIdRequiredError(ProtocolResponseError):
    """Join again with the member id that came with this error (KIP-394)."""

    code = ErrorCode.MEMBER_ID_REQUIRED


class GroupMaxSizeReachedError(ProtocolResponseError):
    """The group has as many members as the daemon allows."""

    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceIdError(ProtocolResponseError):
    """Another member has taken over this group instance id (KIP-345)."""

    code = ErrorCode.FENCED_INSTANCE_ID


class GroupSubscribedToTopicError(ProtocolResponseError):
    """The group still subscribes to the topic."""

    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


class InvalidRecordError(ProtocolResponseError):
    """A record is not allowed in this topic."""

    code = ErrorCode.INVALID_RECORD


class UnstableOffsetCommitError(ProtocolResponseError):
    """A transaction has not decided about this offset yet."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT


class ProducerFencedError(ProtocolResponseError):
    """Another producer with the same transactional id has taken over."""

    code = ErrorCode.PRODUCER_FENCED


class NetworkExceptionError(ProtocolResponseError):
    """A node lost its connection to another one while it served the request."""

    code = ErrorCode.NETWORK_EXCEPTION


class InvalidCommitOffsetSizeError(ProtocolResponseError):
    """An offset to commit does not fit into the log of the group."""

    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE


class TopicAuthorizationFailedError(ProtocolResponseError):
    """This client may not use the topic."""

    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class GroupAuthorizationFailedError(ProtocolResponseError):
    """This client may not use the group."""

    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class InvalidTimestampError(ProtocolResponseError):
    """The timestamp of a record is outside what the topic allows."""

    code = ErrorCode.INVALID_TIMESTAMP


class UnsupportedForMessageFormatError(ProtocolResponseError):
    """The records are of a message format that is not taken."""

    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class DuplicateSequenceNumberError(ProtocolResponseError):
    """A batch of an idempotent producer is in the log already."""

    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class UnknownProducerIdError(ProtocolResponseError):
    """The partition does not know this producer (any more)."""

    code = ErrorCode.UNKNOWN_PRODUCER_ID


class InvalidTxnStateError(ProtocolResponseError):
    """The transaction is not in a state that allows this, such as a commit where nothing is open."""

    code = ErrorCode.INVALID_TXN_STATE


class InvalidProducerIdMappingError(ProtocolResponseError):
    """The coordinator does not know the transactional id: it was not used for longer than it is kept.

    The producer can do nothing more (KAFKA-18019): others may have had the id meanwhile. A new one takes the id anew.
    """

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeoutError(ProtocolResponseError):
    """The transaction timeout is above what the daemon allows (transaction_max_timeout_ms)."""

    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactionsError(ProtocolResponseError):
    """The transaction before this one is not complete yet."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionCoordinatorFencedError(ProtocolResponseError):
    """Another node coordinates the transaction by now."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class TransactionalIdNotFoundError(ProtocolResponseError):
    """No such transactional id."""

    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class TransactionAbortableError(ProtocolResponseError, TransactionAbortedError):
    """The transaction was aborted by its timeout or an administrator; the producer goes on with the next."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class InvalidReplicaAssignmentError(ProtocolResponseError):
    """Replicas cannot be placed so: a node is named twice, or is not registered, or there are too many."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class PreferredLeaderNotAvailableError(ProtocolResponseError):
    """The preferred leader, which is the first of the replicas, is not in sync or not alive."""

    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class EligibleLeadersNotAvailableError(ProtocolResponseError):
    """No replica can be elected: none is alive."""

    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class ElectionNotNeededError(ProtocolResponseError):
    """The partition has the right leader already."""

    code = ErrorCode.ELECTION_NOT_NEEDED


class NoReassignmentInProgressError(ProtocolResponseError):
    """The partition's replicas do not move."""

    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class BrokerIdNotRegisteredError(ProtocolResponseError):
    """The cluster knows no node of that id."""

    code = ErrorCode.BROKER_ID_NOT_REGISTERED


def error_for(code: int, message: str = "") -> ProtocolResponseError:
    """The exception for an error code; ``message`` replaces the class's own text when it is not empty."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return UnknownServerError(f"error code {code}, which this client does not know: {message}")
    kind = _BY_CODE.get(known, UnknownServerError)
    return kind(f"{known.name}: {message}" if message else "")


def copy_of(error: CohortError) -> CohortError:
    """The same error as an object of its own, as one that is raised twice collects the tracebacks of both."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy
