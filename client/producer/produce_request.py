"""Produce requests: how they are filled up to their bound in bytes, how one leaves, and what the daemon says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from client.errors import RequestTimedOutError
from client.log import get_logger
from client.producer.partition_queue import Parcel
from client.transport.cluster import Cluster
from client.transport.connection import Connection, Exchange
from client.transport.metadata import Address
from protocol.compression import Compression
from protocol.limits import max_request_elements
from protocol.messages import ApiKey
from protocol.messages.records import PartitionProduceResponse, ProduceResponse
from protocol.produce_frame import encode_produce_request
from protocol.subscription import TopicPartition

log = get_logger()

_MOST_PARTITIONS: Final = max_request_elements(ApiKey.PRODUCE) // 6 - 8
"""Partitions of one request: an array of number and records each, and each with a topic of its own at worst."""

PARTITION_BYTES: Final = 280
"""What a partition takes in a request beside its batches: its topic's name, its number and their lengths; rounded up."""

LeaderT = TypeVar("LeaderT", bound=Hashable)
ItemT = TypeVar("ItemT")


class RequestFilling(Generic[LeaderT, ItemT]):
    """Requests that are being filled, one a leader, each with as many bytes as ``most_bytes`` says of its leader.

    Items are one a partition; no more of them are in a request than a daemon takes.
    """

    def __init__(self, most_bytes: Callable[[LeaderT], int]) -> None:
        self._most_bytes = most_bytes
        self._items: dict[LeaderT, list[ItemT]] = {}
        self._room: dict[LeaderT, int] = {}

    def holds(self, leader: LeaderT) -> bool:
        """Whether the request to a leader has items."""
        return leader in self._items

    def room(self, leader: LeaderT) -> int:
        """How many bytes the request to a leader still takes; what is larger needs another one, see ``take``."""
        if leader not in self._items:
            return max(0, self._most_bytes(leader))
        return max(0, self._room[leader]) if len(self._items[leader]) < _MOST_PARTITIONS else 0

    def add(self, leader: LeaderT, item: ItemT, size: int) -> None:
        """Puts an item of ``size`` bytes into the request to a leader."""
        self._room[leader] = self.room(leader) - size - PARTITION_BYTES
        self._items.setdefault(leader, []).append(item)

    def take(self, leader: LeaderT) -> list[ItemT]:
        """The items of the request to a leader, none if it is empty; the next item begins another request."""
        self._room.pop(leader, None)
        return self._items.pop(leader, [])

    def take_all(self) -> list[tuple[LeaderT, list[ItemT]]]:
        """Every request that has items."""
        items = list(self._items.items())
        self._items.clear()
        self._room.clear()
        return items


class ProduceExchange:
    """Carries ``parcels``, all to one leader; the answer has to be there ``timeout_s`` seconds after it was made.

    ``left`` are those of them that nobody has said anything of yet.
    """

    def __init__(
        self, cluster: Cluster, parcels: list[Parcel], acks: int, compression: Compression | None, timeout_s: float
    ) -> None:
        self.left = list(parcels)
        self._cluster = cluster
        self._acks = acks
        self._compression = compression
        self._timeout_s = timeout_s
        self._begun: tuple[Connection, Exchange[ProduceResponse]] | None = None

    def begin(self, leader: Address) -> None:
        """Sends the request at once where nothing has to be waited for; else ``answers`` does, a turn of the loop later."""
        connection = self._cluster.open_connection(leader)
        if connection is None or self._acks == 0:
            return
        try:
            exchange = connection.begin(self._frame, ProduceResponse)
        except Exception as error:  # ``answers`` meets it again, where there is somebody to tell
            log.debug("a produce request could not leave at once", client_id=self._cluster.client_id, error=repr(error))
        else:
            self._begun = None if exchange is None else (connection, exchange)

    async def answers(self) -> dict[TopicPartition, PartitionProduceResponse]:
        """What became of each partition's batches; without acks, that they were sent.

        Raises the ``CohortError`` that became of the request as a whole.
        """
        if self._begun is None:
            response = await self._send()
        else:
            connection, exchange = self._begun
            response = await connection.finish("Produce", exchange, timeout_s=self._timeout_s)
        if response is None:
            partitions = [parcel.queue.partition for parcel in self.left]
            return {partition: PartitionProduceResponse(partition.partition, 0) for partition in partitions}
        return {
            TopicPartition(topic.name, answer.index): answer
            for topic in response.responses
            for answer in topic.partition_responses
        }

    def abandon(self) -> None:
        """Nobody waits for the answer any more, if it is still to come."""
        if self._begun is not None:
            self._begun[1].answer.cancel()

    async def _send(self) -> ProduceResponse | None:
        """Connects, waits until the connection takes more, and sends; gives the answer, if there is one."""
        until = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with asyncio.timeout_at(until):
                connection = await self._cluster.connection_to_leader(self.left[0].queue.partition)
        except TimeoutError as error:
            raise RequestTimedOutError(f"no connection within {self._timeout_s * 1000:.0f} ms") from error
        self._timeout_s = max(0.001, until - asyncio.get_running_loop().time())
        if self._acks == 0:
            await connection.send_only("Produce", self._frame, timeout_s=self._timeout_s)
            return None
        return await connection.request_frame("Produce", self._frame, ProduceResponse, timeout_s=self._timeout_s)

    def _frame(self, correlation_id: int, client_id: str) -> bytes:
        by_topic: dict[str, list[tuple[int, list[bytes]]]] = {}
        for parcel in self.left:
            topic, index = parcel.queue.partition
            pieces = [piece for batch in parcel.batches for piece in batch.encode(self._compression)]
            for batch in parcel.batches:  # from here on it may get into the log
                batch.unanswered += 1
            by_topic.setdefault(topic, []).append((index, pieces))
        timeout_ms = max(1, int(self._timeout_s * 1000))
        return encode_produce_request(correlation_id, client_id, self._acks, timeout_ms, by_topic.items())
