"""What readers of Kafka's protocol fetch: in sessions (KIP-227), and by ids of topics where versions have them (KIP-516)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coordinator.kafka.codes import KafkaCode
from protocol.errors import ErrorCode
from protocol.kafka.batch import HEADER_BYTES, KafkaAttributes, check_crc, read_batch_header
from protocol.kafka.compression import inflated
from protocol.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from protocol.kafka.messages.fetch_response import FetchResponse, PartitionData
from protocol.kafka.records import read_records
from tests.simulation.history import Partition
from tests.simulation.kafka_client import BY_ID_SINCE, FETCH, Address, KafkaClient, Trouble, name_of_code

_WAIT_MS: Final = 300
_BACKOFF_S: Final = 0.1
"""How long a reader waits before it asks again for what it was refused, as ``retry.backoff.ms`` has Kafka's own wait."""
_LARGEST_BYTES: Final = 1024 * 1024
SIZES: Final = (300, 2_000, _LARGEST_BYTES)
"""What readers may ask for of a partition, in bytes: one or two batches, some, all."""
_SESSION_IS_OVER: Final = frozenset(
    {
        KafkaCode.FETCH_SESSION_ID_NOT_FOUND,
        KafkaCode.INVALID_FETCH_SESSION_EPOCH,
        KafkaCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_NOT_SERVED: Final = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.OFFSET_OUT_OF_RANGE})
"""What a partition is answered with that lost a bit; in histories without such nobody is told so, see ``fetch``."""


class Found(NamedTuple):
    """What was read of a partition from ``offset`` on: offsets and values, and where to go on."""

    offset: int
    records: list[tuple[int, str]]
    next_offset: int

    def first(self, most: int) -> Found:
        """As if no more than ``most`` records had been read."""
        if len(self.records) <= most:
            return self
        return self._replace(records=self.records[:most], next_offset=self.records[most - 1][0] + 1)


@dataclass(slots=True)
class Session:
    """What a broker remembers for this reader: the offset that it asked for last and under which leader epoch."""

    number: int = 0
    epoch: int = 0
    asked: dict[tuple[str, bytes, int], tuple[int, int]] = field(default_factory=dict)


class Fetcher:
    """Fetches of one reader, with a session at each broker and one request under way there."""

    def __init__(self, client: KafkaClient, *, committed: bool = False, sizes: Sequence[int] = SIZES) -> None:
        self.refused: dict[Partition, str] = {}
        """Partitions that were answered with damage, or as if they ended earlier."""
        self._client = client
        self._committed = committed
        """Whether it reads what is committed only (read_committed)."""
        self._sessions: dict[Address, Session] = {}
        self._under_way: dict[Address, asyncio.Task[dict[Partition, Found]]] = {}
        self._max_bytes = client.process.random.choice(sizes)

    async def fetch(self, positions: Mapping[Partition, int], *, of_all: bool = False) -> dict[Partition, Found]:
        """What there is from these offsets on, at the leaders that answer first, or ``of_all``; nothing of those that fail.

        A leader without news takes ``_WAIT_MS``. A reader that waited for it each time would read no more from the others
        than ``partition_max_bytes`` in that while. Kafka's own go on with what they have, and so does this one: the other
        answers are for later calls, as far as it is then still where it was when it asked.
        """
        by_leader: dict[Address, dict[Partition, int]] = {address: {} for address in self._sessions}
        try:
            for partition, offset in positions.items():
                by_leader.setdefault((await self._client.leader(partition)).address, {})[partition] = offset
        except Trouble as error:
            self._say(f"cannot fetch: {error}")
            await asyncio.sleep(0.1)
            return {}
        for address, wanted in by_leader.items():
            if address not in self._under_way and (wanted or self._sessions[address].asked):
                self._under_way[address] = asyncio.create_task(self._of_one(address, wanted))
        if not self._under_way:
            await asyncio.sleep(0.1)
            return {}
        until = asyncio.ALL_COMPLETED if of_all else asyncio.FIRST_COMPLETED
        await asyncio.wait(self._under_way.values(), return_when=until)
        found: dict[Partition, Found] = {}
        for address in [address for address, fetching in self._under_way.items() if fetching.done()]:
            for partition, each in self._under_way.pop(address).result().items():
                if positions.get(partition) == each.offset:
                    found[partition] = each
        return found

    def _say(self, what: str) -> None:
        self._client.process.world.history.say(self._client.process.name, what)

    async def _of_one(self, address: Address, wanted: Mapping[Partition, int]) -> dict[Partition, Found]:
        session = self._sessions.setdefault(address, Session())
        client = self._client
        try:
            names = {client.topics[topic].topic_id: topic for topic, _ in wanted}
            asked = {
                (topic, client.topics[topic].topic_id, index): (offset, client.topics[topic].leaders[index].epoch)
                for (topic, index), offset in wanted.items()
            }
            request = self._request(session, asked)
            connection = await client.connection(address)
            told = await client.answered(connection, request, FetchResponse, _WAIT_MS / 1000)
        except (Trouble, KeyError) as error:
            self._sessions.pop(address, None)
            self._say(f"got nothing from {address}: {error!r}")
            await asyncio.sleep(0.1)
            return {}
        if told.error_code:
            assert told.error_code in _SESSION_IS_OVER, name_of_code(told.error_code)
            self._sessions.pop(address, None)
            self._say(f"has no session at {address} any more: {name_of_code(told.error_code)}")
            return {}
        session.number, session.epoch = told.session_id, session.epoch + 1 if told.session_id else 0
        session.asked = asked if told.session_id else {}
        found: dict[Partition, Found] = {}
        for topic in told.responses:
            name = names.get(topic.topic_id, topic.topic)
            for data in topic.partitions:
                partition = (name, data.partition_index)
                if self._is_served(partition, data):
                    found[partition] = read_batches(data.records or b"", wanted[partition])
        if not found and any(data.error_code for topic in told.responses for data in topic.partitions):
            await asyncio.sleep(_BACKOFF_S)
        return found

    def _request(self, session: Session, asked: Mapping[tuple[str, bytes, int], tuple[int, int]]) -> FetchRequest:
        """All that is asked, or, of a session that goes on, what is new, asked from elsewhere or not wanted any more."""
        request = FetchRequest(max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=_LARGEST_BYTES)
        request.isolation_level = int(self._committed)
        request.session_id, request.session_epoch = session.number, session.epoch
        by_id = self._client.versions[FETCH] >= BY_ID_SINCE
        topics: dict[str, FetchTopic] = {}
        for (name, topic_id, index), (offset, epoch) in asked.items():
            if session.asked.get((name, topic_id, index)) == (offset, epoch):
                continue
            if name not in topics:
                topics[name] = FetchTopic("" if by_id else name, topic_id if by_id else bytes(16))
            topics[name].partitions.append(FetchPartition(index, epoch, offset, partition_max_bytes=self._max_bytes))
        request.topics = list(topics.values())
        for name, topic_id, index in session.asked.keys() - asked.keys():
            gone = ForgottenTopic("" if by_id else name, topic_id if by_id else bytes(16), [index])
            request.forgotten_topics_data.append(gone)
        request.forgotten_topics_data.sort(key=lambda gone: (gone.topic, gone.topic_id, gone.partitions))
        return request

    def _is_served(self, partition: Partition, data: PartitionData) -> bool:
        """Whether there is an answer; what passes is asked again, of who leads then."""
        if data.error_code in _NOT_SERVED:
            self.refused[partition] = name_of_code(data.error_code)
            return False
        try:
            self._client.told(data.error_code)
        except Trouble as error:
            self._say(f"asks again for {partition}: {error}")
            return False
        assert data.error_code == ErrorCode.NONE, f"{partition}: {name_of_code(data.error_code)}"
        self.refused.pop(partition, None)
        return True


def read_batches(content: bytes, offset: int) -> Found:
    """The records of whole batches from ``offset`` on, each batch checked as Kafka's clients check it.

    Raises ``KafkaBatchError`` for damage.
    """
    records: list[tuple[int, str]] = []
    at, next_offset = 0, offset
    while at < len(content):
        header = read_batch_header(content, at)
        batch = content[at : at + header.size]
        check_crc(batch, header)
        if not header.attributes & KafkaAttributes.CONTROL:
            records += (each for each in _values(batch, header.base_offset) if each[0] >= offset)
        next_offset = max(offset, header.base_offset + header.last_offset_delta + 1)
        at += header.size
    return Found(offset, records, next_offset)


def _values(batch: bytes, base_offset: int) -> Iterator[tuple[int, str]]:
    header = read_batch_header(batch)
    content = batch[HEADER_BYTES:]
    if header.codec != "none":
        content = inflated(header.codec, content, _LARGEST_BYTES)
    read = read_records(content, header.record_count)
    for delta, value in zip(read.offset_deltas, read.values, strict=True):
        yield base_offset + int(delta), (value or b"").decode("latin-1")
