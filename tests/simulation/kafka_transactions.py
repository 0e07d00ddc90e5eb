"""Transactional producers of Kafka's protocol: those that keep one epoch, and those with an epoch for each transaction.

They do what Java's does: partitions and groups become part of a transaction before anything is written there, by requests of
their own (older producers) or by the leaders (KIP-890); a request to the coordinator is sent again until it has an answer,
one at a time; what says that the producer is fenced is its end; and after a batch that failed the transaction is aborted
and the next one has another epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from protocol.errors import ErrorCode
from protocol.kafka.messages import add_partitions_to_txn_request as adding
from protocol.kafka.messages import txn_offset_commit_request as committing
from protocol.kafka.messages.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from protocol.kafka.messages.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from protocol.kafka.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse
from protocol.kafka.messages.end_txn_request import EndTxnRequest
from protocol.kafka.messages.end_txn_response import EndTxnResponse
from protocol.kafka.messages.init_producer_id_request import InitProducerIdRequest
from protocol.kafka.messages.init_producer_id_response import InitProducerIdResponse
from protocol.kafka.messages.txn_offset_commit_response import TxnOffsetCommitResponse
from protocol.kafka.schema import Message
from tests.simulation.history import Partition
from tests.simulation.kafka_client import (
    AGAIN,
    END_TXN,
    INIT_PRODUCER_ID,
    Address,
    Answer,
    KafkaClient,
    Trouble,
    name_of_code,
)
from tests.simulation.kafka_members import Share
from tests.simulation.kafka_producers import IN_FLIGHT, kafka_batch, produced
from tests.simulation.transaction_facts import Kept
from tests.simulation.world import HostProcess

_EPOCH_EACH_SINCE: Final = 5
"""The version of EndTxn whose answer has the epoch of the next transaction."""
_OWN_EPOCH_SINCE: Final = 3
"""The version of InitProducerId by which a producer asks for the next epoch (KIP-360)."""
_TRANSACTIONAL: Final = 0x10
_TRANSACTIONS: Final = "transactions"
"""What the connections to coordinators are for, which are others than those for records."""
_NOBODY: Final = (-1, -1)
_FENCED: Final = frozenset(
    {
        *(ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""What a coordinator says to a producer that has to come to its end."""
_OF_MEMBERS: Final = frozenset(
    {
        *(ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID),
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""What the coordinator of a group says to a member that is none any more."""


class FencedError(Exception):
    """The producer has come to its end; another one may begin under the transactional id."""


class AbortableError(Exception):
    """The transaction has to be aborted."""


def _worst(codes: Iterable[int]) -> int:
    """One error of all: one that passes before those of partitions that were left out on its account."""
    return max(codes, key=lambda code: (code in AGAIN, abs(code)))


class KafkaTransactionalProducer:
    """See the module text. ``timeout_ms`` is the transaction's; ``ask`` and what uses it go on until there is an answer."""

    def __init__(
        self,
        process: HostProcess,
        transactional_id: str,
        topics: tuple[str, ...],
        timeout_ms: int,
        versions: Mapping[int, int],
    ) -> None:
        self.client = KafkaClient(process, topics, process.random.choice((0.8, 3.0)), versions)
        self.keeps_epoch = versions[END_TXN] < _EPOCH_EACH_SINCE
        self._process = process
        self._world = process.world
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._delivery_s = process.random.choice((2.0, 8.0))
        self._identity = _NOBODY
        self._needs_epoch = True
        self._sequences: dict[Partition, int] = {}
        self._added: dict[Partition | str, None] = {}
        """Partitions and groups of the transaction."""
        self._waiting: dict[Partition, list[list[str]]] = {}

    def close(self) -> None:
        """Ends all connections."""
        self.client.close()

    # A transaction

    async def begin(self, number: int) -> None:
        """The transaction of this number, with another epoch if the producer needs one. Raises ``FencedError``."""
        if self._needs_epoch:
            own = self._identity if self.client.versions[INIT_PRODUCER_ID] >= _OWN_EPOCH_SINCE else _NOBODY
            request = InitProducerIdRequest(self._id, self._timeout_ms, *own)
            told = await self._coordinator(request, InitProducerIdResponse, lambda told: told.error_code)
            self._identity = told.producer_id, told.producer_epoch
            self._sequences, self._needs_epoch = {}, False
        if self.keeps_epoch:
            kept = Kept(self._process.name, *self._identity, number)
            self.client.client_id = kept.client_id
            self._world.history.transactions.begins(kept)
        self._added, self._waiting = {}, {}

    def send(self, partition: Partition, values: list[str]) -> None:
        """Queues a batch."""
        self._waiting.setdefault(partition, []).append(values)

    async def flush(self) -> dict[str, int]:
        """Sends what is queued; returns the offset of each value, -1 if nobody knows it any more.

        Raises ``FencedError`` and ``AbortableError``.
        """
        waiting, self._waiting = self._waiting, {}
        await self._add(tuple(waiting))
        outcomes = await asyncio.gather(
            *(self._deliver(partition, batches) for partition, batches in waiting.items()), return_exceptions=True
        )
        offsets: dict[str, int] = {}
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            offsets.update(outcome)
        return offsets

    async def commit_offsets(
        self, group: str, positions: Mapping[Partition, int], share: Share, instance: str | None
    ) -> None:
        """Offsets take effect with the transaction; ``share`` says as which member. Raises as ``flush`` does."""
        if self.keeps_epoch and group not in self._added:
            asked = AddOffsetsToTxnRequest(self._id, *self._identity, group)
            self._added[group] = None
            await self._coordinator(asked, AddOffsetsToTxnResponse, lambda told: told.error_code)
        self._added[group] = None
        topics: dict[str, committing.TxnOffsetCommitRequestTopic] = {}
        for (topic, index), offset in positions.items():
            named = topics.setdefault(topic, committing.TxnOffsetCommitRequestTopic(topic))
            named.partitions.append(committing.TxnOffsetCommitRequestPartition(index, offset))
        request = committing.TxnOffsetCommitRequest(
            *(self._id, group, *self._identity),
            *(share.generation, share.member_id, instance),
            topics=list(topics.values()),
        )

        def worst(told: TxnOffsetCommitResponse) -> int:
            return _worst(each.error_code for topic in told.topics for each in topic.partitions)

        await self.ask(
            lambda: self.client.coordinator(group), request, TxnOffsetCommitResponse, worst, self._delivery_s
        )

    async def end(self, committed: bool) -> None:
        """Ends the transaction, however long it takes to hear of it. Raises ``FencedError`` and ``AbortableError``."""
        self._waiting = {}
        if self._added:
            request = EndTxnRequest(self._id, *self._identity, committed)
            told = await self._coordinator(request, EndTxnResponse, lambda told: told.error_code)
            if not self.keeps_epoch:
                self._identity = told.producer_id, told.producer_epoch
                self._sequences, self._needs_epoch = {}, False
        self._added = {}

    # Requests

    async def _add(self, partitions: Sequence[Partition]) -> None:
        """Makes partitions part of the transaction; leaders do so for a producer with an epoch for each."""
        new = [partition for partition in partitions if partition not in self._added]
        self._added.update(dict.fromkeys(new))
        if not self.keeps_epoch or not new:
            return
        topics: dict[str, adding.AddPartitionsToTxnTopic] = {}
        for topic, index in new:
            topics.setdefault(topic, adding.AddPartitionsToTxnTopic(topic)).partitions.append(index)
        request = adding.AddPartitionsToTxnRequest([], self._id, *self._identity, list(topics.values()))

        def worst(told: AddPartitionsToTxnResponse) -> int:
            added = told.results_by_topic_v3_and_below
            return _worst(each.partition_error_code for topic in added for each in topic.results_by_partition)

        await self._coordinator(request, AddPartitionsToTxnResponse, worst)

    async def _coordinator(self, request: Message, kind: type[Answer], code_of: Callable[[Answer], int]) -> Answer:
        return await self.ask(lambda: self.client.coordinator(self._id, 1), request, kind, code_of)

    async def ask(
        self,
        of_whom: Callable[[], Awaitable[Address]],
        request: Message,
        kind: type[Answer],
        code_of: Callable[[Answer], int],
        patience_s: float = 1e9,
    ) -> Answer:
        """What a coordinator answers in the end. Raises ``FencedError``, and ``AbortableError`` after ``patience_s`` too."""
        random, end_s = self._process.random, self._world.loop.time() + patience_s
        while True:
            try:
                address = await of_whom()
                answer = await self.client.ask(address, request, kind, _TRANSACTIONS)
                code = code_of(answer)
                self.client.told(code)
            except Trouble as error:
                self._say(f"asks {type(request).__name__} again: {error}")
            else:
                if code == ErrorCode.NONE:
                    return answer
                if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                    self._refused(request, code)
            if self._world.finished.is_set():  # a log that is damaged gets no end marker, which this may wait for
                raise FencedError(f"{type(request).__name__} has no answer, and the history is over")
            if self._world.loop.time() >= end_s:
                raise AbortableError(f"{type(request).__name__} has no answer for {patience_s} s")
            await asyncio.sleep(0.02 + 0.1 * random.random())

    def _refused(self, request: Message, code: int) -> None:
        what = f"{type(request).__name__}: {name_of_code(code)}"
        if code in _FENCED:
            raise FencedError(what)
        assert code == ErrorCode.TRANSACTION_ABORTABLE or code in _OF_MEMBERS, what
        raise AbortableError(what)

    def _say(self, what: str) -> None:
        self._world.history.say(self._process.name, what)

    # Records

    async def _deliver(self, partition: Partition, batches: list[list[str]]) -> dict[str, int]:
        """Sends the batches of a partition, a window at a time."""
        offsets: dict[str, int] = {}
        while batches:
            window, batches = batches[:IN_FLIGHT], batches[IN_FLIGHT:]
            encoded = []
            for values in window:
                producer = (*self._identity, self._sequences.get(partition, 0))
                encoded.append(kafka_batch(values, self._world.wall_ms(), producer, bits=_TRANSACTIONAL))
                self._sequences[partition] = producer[2] + len(values)
            try:
                offsets.update(await self._stored(partition, window, encoded))
            except AbortableError:
                self._needs_epoch = True  # what became of it is not known, so the numbers cannot go on
                raise
        return offsets

    async def _stored(self, partition: Partition, window: list[list[str]], encoded: list[bytes]) -> dict[str, int]:
        offsets: dict[str, int] = {}
        end_s, left = self._world.loop.time() + self._delivery_s, list(zip(window, encoded, strict=True))
        while True:
            try:
                answers = await produced(self.client, partition, [content for _, content in left], self._id)
            except Trouble as error:
                self._say(f"sends {partition} again: {error}")
                answers = [None] * len(left)
            again, missing = [], False
            for (values, content), told in zip(left, answers, strict=True):
                code = ErrorCode.REQUEST_TIMED_OUT if told is None else told.error_code
                # Behind one that is not there yet it is out of order until that one is.
                if code in AGAIN or (missing and code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
                    again.append((values, content))
                    missing = True
                elif code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    first = -1 if told is None else told.base_offset
                    offsets |= {value: first + i if first >= 0 else -1 for i, value in enumerate(values)}
                else:
                    raise AbortableError(f"{partition} refuses: {name_of_code(code)}")
            left = again
            if not left:
                return offsets
            if self._world.loop.time() >= end_s:
                raise AbortableError(f"{partition} has not acknowledged within {self._delivery_s} s")
            await asyncio.sleep(0.05 + 0.1 * self._process.random.random())
