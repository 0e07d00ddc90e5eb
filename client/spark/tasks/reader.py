"""One range of offsets, read by one task: fetched ahead by one answer, wrapped as Arrow batches, each record once.

Whatever breaks on the way, reading goes on at the next offset that was not handed out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow

from client.errors import (
    CohortError,
    CorruptMessageError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
    error_for,
)
from client.spark.data_loss import report
from client.spark.options import SourceOptions
from client.spark.planning import Range
from client.spark.tasks.arrow import ArrowBatches
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.tasks.blocking_connection import BlockingConnection, Until
from client.types.columns import RecordColumns
from protocol.errors import ErrorCode, ProtocolError
from protocol.messages.cluster import TopicMetadata
from protocol.messages.records import (
    EARLIEST_TIMESTAMP,
    READ_COMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.record_batch import Attributes, BatchHeader, decode_columns, iter_batches, what_to_install
from protocol.subscription import TopicPartition

_WAIT_MS: Final = 500
"""How long a daemon may look for records that must be there."""
_SILENCE_S: Final = 5.0
_CONTROL: Final = int(Attributes.CONTROL)


class _Ahead(NamedTuple):
    """A fetch in flight."""

    connection: BlockingConnection
    correlation_id: int
    offset: int


class RangeReader:
    """Reads one ``Range``; ``batches`` may be called once. ``schema`` is the Arrow schema that Spark expects."""

    def __init__(self, options: SourceOptions, part: Range, schema: Any) -> None:
        self._options = options
        self._range = part
        self._tp = TopicPartition(part.topic, part.partition)
        self._name = f"{part.topic}-{part.partition}"
        self._cluster = BlockingCluster(options.connection)
        self._arrow = ArrowBatches(schema, part.topic, part.partition)
        self._position = part.start
        self._leader_epoch = part.start_epoch  # in which the log went up to the position, as far as it is known
        self._ahead: _Ahead | None = None

    def batches(self) -> Iterator[Any]:
        """Arrow batches of all records in the range, in order.

        Raises ``DataLossError`` when records are gone, ``CorruptMessageError`` when a batch is damaged, and the last
        error of the connection after ``request.timeout.ms`` without an answer.
        """
        try:
            if not self._find():
                return
            self._check_end()
            while self._position < self._range.end:
                answer = self._fetched()
                if answer is None:
                    break
                batch = self._batch(answer)
                del answer  # its memory is used again for the next one
                if batch is not None:
                    yield batch
            self._check_topic()
        finally:
            self._cluster.close()

    def _batch(self, answer: FetchedPartition) -> Any | None:
        """What an answer has of the range, after the next one has been asked for; None when that is nothing."""
        headers = self._headers(answer)
        following = headers[-1][1].next_offset
        self._leader_epoch = headers[-1][1].leader_epoch
        if following < self._range.end:
            self._ask(following, self._until())
        parts = [part for position, header in headers if (part := self._part(answer, position, header))]
        self._position = following
        return self._converted(parts) if parts else None

    def _until(self) -> Until:
        return Until(self._options.connection.request_timeout_ms)

    def _find(self) -> bool:
        """Whether the topic is there, and the one that was planned for."""
        topic = self._look_up().get(self._range.topic)
        if topic is None:
            report([f"{self._name} was deleted"], self._options.fail_on_data_loss)
            return False
        if self._range.topic_id and topic.topic_id != self._range.topic_id:
            report([f"{self._name} was deleted and created again"], self._options.fail_on_data_loss)
            return False
        return True

    def _check_topic(self) -> None:
        """Fetches name a topic without its id: one that was created again in the meantime has answered some of them."""
        topic = self._look_up().get(self._range.topic)
        if topic is not None and self._range.topic_id and topic.topic_id != self._range.topic_id:
            lost = f"{self._name} was deleted and created again while it was read"
            report([lost], self._options.fail_on_data_loss)

    def _look_up(self) -> Mapping[str, TopicMetadata]:
        until = self._until()
        topology = self._cluster.retrying(
            lambda: self._cluster.look_up((self._range.topic,), until), until, f"finding the leader of {self._name}"
        )
        return topology.topics

    def _fetched(self) -> FetchedPartition | None:
        """The answer for the position, asked again until there is one; None when no record is left in the range."""
        until = self._until()
        attempt = 0
        while True:
            try:
                answer = self._answer(until)
                if answer.diverging_end >= 0:
                    self._diverged(answer.diverging_end)
                    continue
                if answer.records:
                    return answer
                if self._readable_end(answer) >= self._range.end:
                    return None  # compaction has removed the rest
                if answer.high_watermark >= self._range.end:
                    stable = f"{self._name} has an open transaction at offset {answer.last_stable_offset}"
                    raise error_for(ErrorCode.OFFSET_NOT_AVAILABLE, f"{stable}, in the range planned for")
                if self._replicated():  # a leader that is new learns what is acknowledged within moments
                    ends = f"{self._name} is acknowledged up to offset {answer.high_watermark}"
                    raise error_for(ErrorCode.OFFSET_NOT_AVAILABLE, f"{ends}, and {self._range.end} is planned for")
                lost = f"{self._name} ends at offset {answer.high_watermark}, before the {self._range.end} planned for"
                report([f"{lost}: its log was cut short"], self._options.fail_on_data_loss)
                return None
            except OffsetOutOfRangeError as error:
                if not self._skip_gone(until, error):
                    return None
            except CohortError as error:
                self._ahead = None
                what = f"reading {self._name} at offset {self._position}"
                if isinstance(error, UnknownTopicOrPartitionError) and not self._find():
                    return None
                self._cluster.pause(error, attempt, until, what)
                attempt += 1
                self._cluster.look_again(until)

    def _replicated(self) -> bool:
        return self._cluster.topology.replicas(self._tp) > 1

    def _diverged(self, offset: int) -> None:
        """The log is another one from ``offset`` on than the one that was read (KIP-320), by a batch before perhaps."""
        self._leader_epoch = -1
        if offset < self._position:
            self._report_cut(f"was read from offset {offset} to {self._position - 1}")

    def _check_end(self) -> None:
        """Whether the log has what was planned: one that was cut may have grown again, with other records (KIP-320)."""
        epoch = self._range.end_epoch
        if epoch < 0 or not self._replicated():
            return
        until = self._until()
        ask = FetchPartition(self._tp.partition, self._range.end, 1, last_fetched_epoch=epoch)
        topic = FetchTopic(self._tp.topic, (ask,), self._range.topic_id)
        request = FetchRequest(0, 0, 1, (topic,), self._options.isolation, kafka_batches=True)

        def once() -> int:
            try:
                connection = self._cluster.connection_to_leader(self._tp, until)
                return self._received(connection, connection.send(request, until), until).diverging_end
            except CohortError:
                self._cluster.look_again(until)
                raise

        try:
            cut = self._cluster.retrying(once, until, f"asking whether {self._name} has what was planned")
        except (OffsetOutOfRangeError, UnknownTopicOrPartitionError):
            return  # what reads finds out what has become of it
        if 0 <= cut < self._range.end:
            self._report_cut(f"was planned up to offset {self._range.end}, is another log from offset {cut} on")

    def _report_cut(self, what: str) -> None:
        lost = f"{self._name} {what}, and a new leader has other records there or none"
        report([lost], self._options.fail_on_data_loss)

    def _readable_end(self, answer: FetchedPartition) -> int:
        committed = self._options.isolation == READ_COMMITTED
        return answer.last_stable_offset if committed else answer.high_watermark

    def _ask(self, offset: int, until: Until) -> None:
        """Sends the fetch for an offset, and leaves it to ``_answer`` to find out if that went wrong."""
        size = self._options.fetch_max_bytes
        epoch = self._leader_epoch if self._replicated() else -1
        ask = FetchPartition(self._tp.partition, offset, size, last_fetched_epoch=epoch)
        topic = FetchTopic(self._tp.topic, (ask,), self._range.topic_id if self._replicated() else "")
        try:
            connection = self._cluster.connection_to_leader(self._tp, until)
            request = FetchRequest(_WAIT_MS, 1, size, (topic,), self._options.isolation, kafka_batches=True)
            self._ahead = _Ahead(connection, connection.send(request, until), offset)
        except CohortError as error:
            if not error.retriable:
                raise
            self._ahead = None

    def _answer(self, until: Until) -> FetchedPartition:
        if self._ahead is None or self._ahead.offset != self._position:
            self._ask(self._position, until)
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            self._cluster.connection_to_leader(self._tp, until)  # says what is wrong
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{self._name} could not be asked for")
        return self._received(ahead.connection, ahead.correlation_id, until)

    def _received(self, connection: BlockingConnection, correlation_id: int, until: Until) -> FetchedPartition:
        response = connection.receive(correlation_id, FetchResponse, until, self._cluster.silence_s(_SILENCE_S))
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code, f"fetching {self._name}")
        if response.node_endpoints:
            self._cluster.learn_leaders(response)
        for topic in response.responses:
            for answer in topic.partitions:
                if answer.error_code != ErrorCode.NONE:
                    said = f"{self._name} at offset {self._position}: {answer.error_message}"
                    error = error_for(answer.error_code, said)
                    error.retriable = error.retriable and answer.error_code != ErrorCode.CORRUPT_MESSAGE
                    raise error
                return answer
        raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{connection.peer} had no answer for {self._name}")

    def _skip_gone(self, until: Until, error: OffsetOutOfRangeError) -> bool:
        """Goes to the first offset that is there, if records may be lost; whether any of the range is left."""
        self._ahead = None
        asked = ListOffsetsTopic(self._tp.topic, (ListOffsetsPartition(self._tp.partition, EARLIEST_TIMESTAMP),))

        def once() -> int:
            connection = self._cluster.connection_to_leader(self._tp, until)
            answer = connection.call(ListOffsetsRequest((asked,)), ListOffsetsResponse, until)
            (listed,) = answer.topics[0].partitions
            if listed.error_code != ErrorCode.NONE:
                failed = error_for(listed.error_code, listed.error_message)
                failed.retriable &= not isinstance(failed, UnknownTopicOrPartitionError)
                raise failed
            return listed.offset

        try:
            first = self._cluster.retrying(once, until, f"finding the start of {self._name}")
        except UnknownTopicOrPartitionError:
            return True  # deleted meanwhile: the fetch that is asked again finds out what has become of it
        lost = f"{self._name} begins at offset {first}, and {self._position} to {self._range.end - 1} were to be read"
        report([f"{lost} ({error})"], self._options.fail_on_data_loss)
        if first <= self._position:
            return False  # it ends before: cut short
        self._position, self._leader_epoch = first, -1
        return first < self._range.end

    def _headers(self, answer: FetchedPartition) -> list[tuple[int, BatchHeader]]:
        try:
            found = [
                (position, header)
                for position, header in iter_batches(answer.records)
                if header.next_offset > self._position
            ]
        except ProtocolError as error:
            raise self._damaged(self._position, error) from error
        if not found:
            raise self._damaged(self._position, ProtocolError("the answer holds no whole batch"))
        return found

    def _part(self, answer: FetchedPartition, position: int, header: BatchHeader) -> RecordColumns | None:
        """What a batch has of the range."""
        if header.attributes & _CONTROL or not header.record_count or header.base_offset >= self._range.end:
            return None
        try:
            columns = RecordColumns(self._tp, header, decode_columns(answer.records, position, header))
        except ProtocolError as error:
            raise self._damaged(header.base_offset, error) from error
        except ModuleNotFoundError as error:
            where = f"the batch at offset {header.base_offset} of {self._name}"
            raise UnsupportedCompressionTypeError(f"{where} cannot be read: {what_to_install(error)}") from error
        if header.base_offset < self._position:
            columns = columns.since(self._position)
        if header.next_offset > self._range.end:
            columns = columns[: bisect_left(columns.offsets, self._range.end)]
        return columns if len(columns) else None

    def _converted(self, parts: list[RecordColumns]) -> Any:
        try:
            return self._arrow.batch(parts)
        except (pyarrow.ArrowInvalid, ProtocolError) as error:
            raise self._damaged(parts[0].offsets[0], error) from error

    def _damaged(self, offset: int, error: Exception) -> CorruptMessageError:
        damaged = CorruptMessageError(f"the batch at offset {offset} of {self._name} is damaged: {error}")
        damaged.retriable = False
        return damaged
