"""Produce requests: how they are cut by bytes and partitions, and the frame of one that is in flight. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from client.producer.batch import BatchT
from client.producer.partition_queue import PartitionRequest
from client.transport.metadata import Address
from protocol.limits import max_request_elements
from protocol.messages import ApiKey
from protocol.messages.records import PartitionProduceResponse, ProduceResponse
from protocol.produce_frame import encode_produce_request
from protocol.subscription import TopicPartition

MAX_PARTITIONS: Final = max_request_elements(ApiKey.PRODUCE) // 6 - 8
"""Partitions of one request: an array of number and records each, and each with a topic of its own at worst."""

PARTITION_BYTES: Final = 280
"""What a partition takes in a request beside its batches: its topic's name, its number and their lengths; rounded up."""
_REQUEST_BYTES: Final = 512
"""What a request takes beside the client id and its partitions; rounded up."""

ENOUGH_BYTES: Final = 1024 * 1024
"""A request with so many bytes of batches leaves, if another may follow: its leader is at work while the next is made."""

LeaderT = TypeVar("LeaderT", bound=Hashable)
ItemT = TypeVar("ItemT")


def room_for_batches(max_request_bytes: int, node_takes: int, client_id: str) -> int:
    """Bytes of batches that a request may carry: as many as the program and the node allow.

    ``node_takes`` is the largest payload of a frame that the node said it takes, 0 when it said nothing of it.
    """
    if not node_takes:
        return max_request_bytes
    return min(max_request_bytes, node_takes - _REQUEST_BYTES - len(client_id.encode(errors="replace")))


class RequestFilling(Generic[LeaderT, ItemT]):
    """Requests that are being filled, one a leader, each with as many bytes as ``most_bytes`` says of its leader.

    Items are one a partition; no more of them are in a request than a daemon takes.
    """

    def __init__(self, most_bytes: Callable[[LeaderT], int]) -> None:
        self._most_bytes = most_bytes
        self._items: dict[LeaderT, list[ItemT]] = {}
        self._room: dict[LeaderT, int] = {}
        self._filled: dict[LeaderT, int] = {}

    def holds(self, leader: LeaderT) -> bool:
        """Whether the request to a leader has items."""
        return leader in self._items

    def room(self, leader: LeaderT) -> int:
        """How many bytes the request to a leader still takes; what is larger needs another one, see ``take``."""
        if leader not in self._items:
            return max(0, self._most_bytes(leader))
        return max(0, self._room[leader]) if len(self._items[leader]) < MAX_PARTITIONS else 0

    def add(self, leader: LeaderT, item: ItemT, size: int) -> None:
        """Puts an item of ``size`` bytes into the request to a leader."""
        self._room[leader] = self.room(leader) - size - PARTITION_BYTES
        self._filled[leader] = self._filled.get(leader, 0) + size
        self._items.setdefault(leader, []).append(item)

    def has_enough(self, leader: LeaderT) -> bool:
        """Whether the request to a leader should be sent as it is; see ``ENOUGH_BYTES``."""
        return self._filled.get(leader, 0) >= ENOUGH_BYTES

    def take(self, leader: LeaderT) -> list[ItemT]:
        """The items of the request to a leader, none if it is empty; the next item begins another request."""
        self._room.pop(leader, None)
        self._filled.pop(leader, None)
        return self._items.pop(leader, [])

    def take_all(self) -> list[tuple[LeaderT, list[ItemT]]]:
        """Every request that has items."""
        items = list(self._items.items())
        self._items.clear()
        self._room.clear()
        self._filled.clear()
        return items


def answers_of(response: ProduceResponse) -> dict[TopicPartition, PartitionProduceResponse]:
    """What a leader says of each partition."""
    return {
        TopicPartition(topic.name, answer.index): answer
        for topic in response.responses
        for answer in topic.partition_responses
    }


@dataclass(slots=True, eq=False)
class InFlightRequest(Generic[BatchT]):
    """One Produce request to one leader.

    ``left`` is what it carries of partitions whose outcome is not known. ``timeout_s`` is how long to wait for its answer.
    """

    leader: Address
    left: list[PartitionRequest[BatchT]]
    timeout_s: float

    def encode(
        self, correlation_id: int, client_id: str, acks: int, transactional_id: str | None = None
    ) -> list[bytes]:
        """The bytes of the request, in pieces. To be called when it is sent: now its batches may get into the log."""
        by_topic: dict[str, list[tuple[int, list[bytes]]]] = {}
        for each in self.left:
            topic, index = each.queue.partition
            pieces = [piece for batch in each.batches for piece in batch.encode()]
            for batch in each.batches:
                batch.unanswered += 1
            by_topic.setdefault(topic, []).append((index, pieces))
        timeout_ms = max(1, int(self.timeout_s * 1000))
        return encode_produce_request(correlation_id, client_id, acks, timeout_ms, by_topic.items(), transactional_id)
